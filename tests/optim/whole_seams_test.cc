// Seams inside of a region: a model that is compiled as a whole, and updated while its backward runs.
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/fake_device/test_device.h"

namespace rondo::optim {
namespace {

class WholeSeams : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
};

enum class Compiled : uint8_t { kInRegions, kWhole };
enum class Updates : uint8_t { kAtSeams, kAfterBackward };

struct Size {
  nn::GPT2Config model;
  int64_t batch;
};

// The parameters after some steps.
std::vector<Tensor> trained(const compile::CompileOptions& options, Updates when) {
  nn::GPT2 model({.vocab_size = 31, .block_size = 8, .n_layer = 3, .n_head = 2, .n_embd = 16}, 1);
  model.to(default_device());
  compile::compile_module(model, options);
  AdamW optimizer(model.parameters(), {.lr = 1e-2});
  std::optional<UpdateAtSeams> updates;
  if (when == Updates::kAtSeams) updates.emplace(model, optimizer);
  for (int64_t step = 0; step < 5; ++step) {
    const Tensor tokens = Tensor::from(std::vector<int64_t>(16, step), {2, 8}).to(default_device());
    const Tensor logits = model(tokens);
    ops::mean(logits * logits).backward();
    if (updates) EXPECT_EQ(updates->finish().at_end, 0);
    else optimizer.step(), model.zero_grad();
  }
  std::vector<Tensor> parameters;
  for (const Tensor& p : model.parameters()) parameters.push_back(p.detach().to(kCPU));
  return parameters;
}

TEST_F(WholeSeams, ReplayedAndWithWorkingMemoryThatIsKept) {
  for (const compile::CompileOptions& options : {compile::CompileOptions{.mode = compile::Mode::kReduceOverhead},
                                                 compile::CompileOptions{.capture = compile::Capture::kReplay},
                                                 compile::CompileOptions{.capture = compile::Capture::kVerify},
                                                 compile::CompileOptions{.recompute = compile::Recompute::kFull}}) {
    const std::vector<Tensor> after = trained(options, Updates::kAfterBackward),
                              seams = trained(options, Updates::kAtSeams);
    for (size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(test::same_bits(seams[i], after[i])) << i;
  }
}

// Bytes of a step on the device that tests run on.
int64_t peak(const Size& size, Compiled how, Updates when, compile::Mode mode) {
  const Device device = default_device();
  nn::GPT2 model(size.model, 1);
  model.to(device);
  if (how == Compiled::kWhole) compile::compile_module(model, {.mode = mode});
  else compile::compile_regions(model, {.mode = mode});
  AdamW optimizer(model.parameters());
  compile(optimizer);
  std::optional<UpdateAtSeams> updates;
  if (when == Updates::kAtSeams) updates.emplace(model, optimizer);
  const int64_t B = size.batch, T = size.model.block_size;
  const Tensor tokens = Tensor::from(std::vector<int64_t>(static_cast<size_t>(B * T), 1), {B, T}, device);
  const auto step = [&] {
    model.loss(tokens, tokens).backward();
    if (updates) updates->finish();
    else optimizer.step(), model.zero_grad();
    synchronize(device);
  };
  for (int i = 0; i < 3; ++i) step();
  if (has_host_memory(device)) {
    const memory::Recording recording;
    step();
    return recording.report().in_use();
  }
  backend_of(device).reset_peak(device.index);
  step();
  return backend_of(device).stats(device.index).peak_bytes;
}

// Of many activations, and of many parameters, where it is gradients that count.
TEST_F(WholeSeams, TakeTheMemoryOfRegions) {
  const Size sizes[] = {
      {{.vocab_size = 65, .block_size = 64, .n_layer = 6, .n_head = 2, .n_embd = 64}, 2},
      {{.vocab_size = 65, .block_size = 8, .n_layer = 6, .n_head = 2, .n_embd = 128}, 1},
      {{.vocab_size = 2000, .block_size = 8, .n_layer = 4, .n_head = 2, .n_embd = 64}, 1},
  };
  for (const compile::Mode mode : {compile::Mode::kDefault, compile::Mode::kReduceOverhead})
    for (const Size& size : sizes) {
      const auto regions = static_cast<double>(peak(size, Compiled::kInRegions, Updates::kAtSeams, mode)),
                 whole = static_cast<double>(peak(size, Compiled::kWhole, Updates::kAtSeams, mode)),
                 after = static_cast<double>(peak(size, Compiled::kWhole, Updates::kAfterBackward, mode));
      EXPECT_NEAR(whole / regions, 1.0, 0.05) << regions << " " << whole;
      EXPECT_LT(whole, 0.95 * after) << whole << " " << after;
    }
}

}  // namespace
}  // namespace rondo::optim
