// DistributedDataParallel over NCCL, on the fakes of CUDA and NCCL: each rank is a thread with a device of its own.
// Work runs late, in an order that a seed chooses among those that streams and events allow; two accesses that no event
// orders end the process.
#include <gtest/gtest.h>

#include <barrier>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/dist/ddp_cases.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/dist/staged_group.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo::dist {
namespace {

using test::error_of;
using test::FakeCuda;
using test::kDdpConfig;
using test::loss_of;

std::shared_ptr<ProcessGroup> connect(const Environment& e, Device device) {
  return ProcessGroup::connect(e, {.timeout = test::kPatient, .device = device});
}

class DdpOnCuda : public testing::TestWithParam<test::DdpCase> {
 protected:
};

// The same training, whose all-reduces go by the host. The average of two ranks has the same bits in any order, and
// halves are exact.
TEST_P(DdpOnCuda, TheBitsOfAveragesMadeOnTheHost) {
  std::vector<uint64_t> expected(2);
  for (const uint64_t seed : {1, 2}) {
    FakeCuda cuda({.seed = seed, .devices = 2});
    const std::vector<std::string> errors = test::run_ranks(2, [&](const Environment& e) {
      const Device device = cuda.device(e.rank);
      const auto host = ProcessGroup::connect(e, {.timeout = test::kPatient});
      if (seed == 1)
        expected[static_cast<size_t>(e.rank)] = test::train(
            GetParam(), std::make_shared<test::StagedGroup>(host, device), device, test::in_regions);
      const uint64_t now = test::train(GetParam(), connect(e, device), device, test::in_regions);
      EXPECT_EQ(now, expected[static_cast<size_t>(e.rank)]) << "rank " << e.rank << ", seed " << seed;
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "") << "seed " << seed;
  }
  EXPECT_EQ(expected[0], expected[1]);
}

INSTANTIATE_TEST_SUITE_P(, DdpOnCuda, testing::ValuesIn(test::kDdpCases),
                         [](const auto& info) { return std::string(info.param.name); });

// The host of a rank waits for nothing on its device in a step, and issues one all-reduce for each bucket.
TEST(DdpOnCudaRules, AStepEnqueuesAndDoesNotWait) {
  FakeCuda cuda({.seed = 4, .devices = 2});
  std::vector<int64_t> waits(2), collectives(2);
  std::barrier together(2);  // the fake counts for all devices
  const auto errors = test::run_ranks(2, [&](const Environment& e) {
    const Device device = cuda.device(e.rank);
    nn::GPT2 model(kDdpConfig, 1);
    model.to(device);
    DistributedDataParallel ddp(model, connect(e, device), {.min_bytes = 1});
    const auto step = [&](int64_t i) {
      loss_of(model, e.rank, i, device).backward();
      ddp.finish();
      model.zero_grad();
    };
    step(0);
    step(1);
    const Tensor loss = loss_of(model, e.rank, 2, device);
    together.arrive_and_wait();
    const fake_cuda::Counts before = cuda->counts();
    together.arrive_and_wait();
    loss.backward();
    ddp.finish();
    together.arrive_and_wait();
    const fake_cuda::Counts after = cuda->counts();
    together.arrive_and_wait();
    waits[static_cast<size_t>(e.rank)] = after.host_waits - before.host_waits;
    collectives[static_cast<size_t>(e.rank)] = after.collectives - before.collectives;
    EXPECT_EQ(ddp.plan().buckets.size(), 4u);
    EXPECT_NE(ddp.check_parameters(), 0u);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(waits, (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(collectives, (std::vector<int64_t>{8, 8}));
}

// A collective too much on one rank: no average of the step is used, and each rank names the rank and the collective.
TEST(DdpOnCudaRules, ABrokenSequenceIsNamedAndNothingIsUpdated) {
  FakeCuda cuda({.seed = 6, .devices = 2});
  const auto errors = test::run_ranks(2, [&](const Environment& e) {
    const Device device = cuda.device(e.rank);
    nn::GPT2 model(kDdpConfig, 1);
    model.to(device);
    const auto group = connect(e, device);
    DistributedDataParallel ddp(model, group, {.min_bytes = 1});
    optim::AdamW optimizer(model.parameters());
    loss_of(model, e.rank, 1, device).backward();
    ddp.finish();
    optimizer.step();
    optimizer.zero_grad();
    const Tensor stray = Tensor::ones({3}, {kF32, device});
    if (e.rank == 1) group->all_reduce(stray, ReduceOp::kSum, "stray");
    loss_of(model, e.rank, 2, device).backward();
    const std::string error = error_of<MismatchError>([&] { ddp.finish(); });
    for (const Tensor& p : model.parameters()) EXPECT_FALSE(p.grad().defined());
    EXPECT_NE(error_of([&] { optimizer.step(); }).find("has no gradient"), std::string::npos);
    throw Error(error);
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
    EXPECT_NE(error.find("stray"), std::string::npos) << error;
    EXPECT_NE(error.find("bucket 0 of step 2"), std::string::npos) << error;
  }
}

// The average is not finite on any rank: none makes the step, and nothing is read from a device for that.
TEST(DdpOnCudaRules, ANonFiniteGradientOfOneRankSkipsTheStepOnAll) {
  FakeCuda cuda({.seed = 8, .devices = 2});
  const auto errors = test::run_ranks(2, [&](const Environment& e) {
    const Device device = cuda.device(e.rank);
    nn::GPT2 model(kDdpConfig, 1);
    model.to(device);
    DistributedDataParallel ddp(model, connect(e, device), {.min_bytes = 1});
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    optim::compile(optimizer);
    uint64_t before = ddp.check_parameters();
    for (int64_t step = 0; step < 4; ++step) {
      const bool bad = step % 2 == 1;
      const Tensor loss = loss_of(model, e.rank, step, device);
      (bad && e.rank == 1 ? loss * std::numeric_limits<double>::infinity() : loss).backward();
      ddp.finish();
      EXPECT_EQ(optimizer.step({.max_norm = 1, .check_finite = true}).skipped(), bad);
      optimizer.zero_grad();
      const uint64_t now = ddp.check_parameters();
      EXPECT_EQ(now == before, bad) << step;
      before = now;
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace rondo::dist
