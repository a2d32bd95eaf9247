// How much of the communication a backward hides, by the virtual clock (fake_cuda/timeline.h): two ranks, whose work is
// enqueued on the fakes of CUDA and NCCL at the sizes of a real model, and not run. Predictions, not measurements.
#include <gtest/gtest.h>

#include <barrier>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/fake_cuda/timeline.h"

namespace rondo::dist {
namespace {

using fake_cuda::Makespan;
using fake_cuda::Rates;
using fake_cuda::Timeline;
using test::FakeCuda;

enum class Compiled : uint8_t { kInRegions, kWhole };

compile::Regions compile_model(nn::GPT2& model, Compiled how) {
  return how == Compiled::kWhole ? compile::compile_module(model) : compile::compile_regions(model);
}

// The third step of both ranks, or of one process alone.
Timeline third_step(const nn::GPT2Config& config, Compiled how, int ranks) {
  FakeCuda cuda({.devices = ranks, .bytes = size_t{30} << 30, .executes = false});
  Timeline timeline;
  std::barrier together(ranks);
  const auto errors = test::run_ranks(ranks, [&](const Environment& e) {
    const Device device = cuda.device(e.rank);
    const DeviceScope scope(device);
    nn::GPT2 model(config, 1);
    optim::AdamW optimizer(model.parameters());
    std::optional<DistributedDataParallel> ddp;
    if (ranks > 1) ddp.emplace(model, ProcessGroup::connect(e, {.timeout = test::kPatient, .device = device}));
    const compile::Regions regions = compile_model(model, how);
    optim::compile(optimizer);
    const int64_t T = config.block_size;
    const Tensor tokens = Tensor::from(std::vector<int64_t>(static_cast<size_t>(4 * T), 1), {4, T}, device);
    for (int step = 0; step < 3; ++step) {
      together.arrive_and_wait();
      if (e.rank == 0) cuda->take_timeline();
      together.arrive_and_wait();
      model.loss(tokens, tokens).backward();
      if (ddp) ddp->finish();
      optimizer.step({.max_norm = 1.0});
      optimizer.zero_grad();
    }
    together.arrive_and_wait();
    if (e.rank == 0) timeline = cuda->take_timeline();
    together.arrive_and_wait();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return timeline;
}

// Communication that takes 30% of the time of a step's computation: the step's length, in lengths of the step alone.
double length_of_step(const nn::GPT2Config& config, Compiled how) {
  const Makespan alone = fake_cuda::makespan({third_step(config, Compiled::kInRegions, 1)}, {});
  const Timeline both = third_step(config, how, 2);
  Rates rates;
  Makespan step = fake_cuda::makespan({both}, rates);
  for (int i = 0; i < 20; ++i) {  // the link that makes it 30%
    rates.link *= step.communicating / (0.3 * alone.computing);
    step = fake_cuda::makespan({both}, rates);
  }
  EXPECT_NEAR(step.communicating, 0.3 * alone.computing, 1e-3 * alone.computing);
  EXPECT_GE(alone.seconds, alone.computing);
  EXPECT_LE(step.computing, 1.005 * alone.computing);  // the same work, and the rows of the other rank
  std::printf("predicted: %.2f ms of computation, %.2f ms of communication, a step of %.2f ms (%.3f times)\n",
              1e3 * alone.computing, 1e3 * step.communicating, 1e3 * step.seconds, step.seconds / alone.seconds);
  return step.seconds / alone.seconds;
}

void skip_on_real_cuda() {
  if (test::on_real_cuda()) GTEST_SKIP() << "reads the fake driver's timeline and its memory";
}
class DdpOnCudaOverlap : public testing::TestWithParam<Compiled> {
 protected:
  void SetUp() override { skip_on_real_cuda(); }
};
class UpdatesOnCuda : public testing::Test {
 protected:
  void SetUp() override { skip_on_real_cuda(); }
};

TEST_P(DdpOnCudaOverlap, TheStepIsLittleLongerThanItsComputation) {
  EXPECT_LE(
      length_of_step({.vocab_size = 65, .block_size = 1024, .n_layer = 12, .n_head = 12, .n_embd = 768}, GetParam()),
      1.06);
}

// The gradient of a tied embedding is a third of GPT-2's bytes, and its last contribution is final last: Note [Two
// parts] in row_gather.h.
TEST_P(DdpOnCudaOverlap, ALargeVocabularyIsHiddenToo) {
  EXPECT_LE(
      length_of_step({.vocab_size = 50257, .block_size = 1024, .n_layer = 12, .n_head = 12, .n_embd = 768}, GetParam()),
      1.06);
}

// Bytes of the third step, at the sizes of a real model.
int64_t peak_with_updates_at_seams(Compiled how) {
  FakeCuda cuda({.bytes = size_t{30} << 30, .executes = false});
  const Device device = cuda.device();
  const DeviceScope scope(device);
  nn::GPT2 model({.vocab_size = 50257, .block_size = 256, .n_layer = 12, .n_head = 12, .n_embd = 768}, 1);
  optim::AdamW optimizer(model.parameters());
  const compile::Regions regions = compile_model(model, how);
  optim::compile(optimizer);
  optim::UpdateAtSeams updates(model, optimizer);
  const Tensor tokens = Tensor::from(std::vector<int64_t>(256, 1), {1, 256}, device);
  for (int step = 0; step < 3; ++step) {
    backend_of(device).reset_peak(device.index);
    model.loss(tokens, tokens).backward();
    updates.finish();
  }
  return backend_of(device).stats(device.index).peak_bytes;
}

TEST_F(UpdatesOnCuda, AtSeamsOfAWholeModelTakeTheMemoryOfRegions) {
  const auto regions = static_cast<double>(peak_with_updates_at_seams(Compiled::kInRegions)),
             whole = static_cast<double>(peak_with_updates_at_seams(Compiled::kWhole));
  std::printf("peak: %.1f MB in regions, %.1f MB whole\n", regions / 1e6, whole / 1e6);
  EXPECT_NEAR(whole / regions, 1.0, 0.05);
}

INSTANTIATE_TEST_SUITE_P(, DdpOnCudaOverlap, testing::Values(Compiled::kInRegions, Compiled::kWhole),
                         [](const auto& info) { return info.param == Compiled::kWhole ? "whole" : "regions"; });

}  // namespace
}  // namespace rondo::dist
