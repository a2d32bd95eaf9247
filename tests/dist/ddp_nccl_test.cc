// DistributedDataParallel over NCCL, on the fakes of CUDA and NCCL: each rank is a thread with a device of its own. Work
// runs late, in an order that a seed chooses among those that streams and events allow; two accesses that no event orders
// end the process.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/dist/ddp.h"
#include "rondo/modules/gpt2.h"
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

std::shared_ptr<ProcessGroup> connect(const Environment& e, Device device, bool compare_each = false) {
  return ProcessGroup::connect(e, {.timeout = test::kPatient, .device = device, .compare_each = compare_each});
}

class DdpOnCuda : public testing::TestWithParam<test::DdpCase> {
 protected:
  void SetUp() override { RONDO_SKIP_WITHOUT_GLOO(); }
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
        expected[static_cast<size_t>(e.rank)] =
            test::train(GetParam(), std::make_shared<test::StagedGroup>(host, device), device, /*compiled=*/true);
      const uint64_t now = test::train(GetParam(), connect(e, device), device, /*compiled=*/true);
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
  RONDO_SKIP_WITHOUT_GLOO();
  FakeCuda cuda({.seed = 4, .devices = 2});
  std::vector<int64_t> waits(2), collectives(2);
  test::ThreadBarrier together(2);  // the fake counts for all devices
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
    together.arrive();
    const fake_cuda::Counts before = cuda->counts();
    together.arrive();
    loss.backward();
    ddp.finish();
    together.arrive();
    const fake_cuda::Counts after = cuda->counts();
    together.arrive();
    waits[static_cast<size_t>(e.rank)] = after.host_waits - before.host_waits;
    collectives[static_cast<size_t>(e.rank)] = after.collectives - before.collectives;
    EXPECT_EQ(ddp.plan().buckets.size(), 4u);
    EXPECT_NE(ddp.check_parameters(), 0u);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(waits, (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(collectives, (std::vector<int64_t>{8, 8}));
}

// A rank that skips one all-reduce: no average of the step is used, and each rank names the rank and the collective.
class Forgetful final : public ProcessGroup {
 public:
  Forgetful(std::shared_ptr<ProcessGroup> real, std::string forgets) : real_(std::move(real)), forgets_(std::move(forgets)) {}
  int rank() const override { return real_->rank(); }
  int world_size() const override { return real_->world_size(); }
  std::optional<Device> device() const override { return real_->device(); }
  Work all_reduce(const Tensor& tensor, ReduceOp op, std::string_view name) override {
    return name == forgets_ ? Work() : real_->all_reduce(tensor, op, name);
  }
  Work broadcast(const Tensor& tensor, int root, std::string_view name) override {
    return real_->broadcast(tensor, root, name);
  }
  Work all_gather(const Tensor& out, const Tensor& in, std::string_view name) override {
    return real_->all_gather(out, in, name);
  }
  Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, std::string_view name) override {
    return real_->reduce_scatter(out, in, op, name);
  }
  Work barrier(std::string_view name) override { return real_->barrier(name); }

 private:
  const std::shared_ptr<ProcessGroup> real_;
  const std::string forgets_;
};

TEST(DdpOnCudaRules, ABrokenSequenceIsNamedAndNothingIsUpdated) {
  RONDO_SKIP_WITHOUT_GLOO();
  FakeCuda cuda({.seed = 6, .devices = 2});
  cuda.expect_lost();
  const auto errors = test::run_ranks(2, [&](const Environment& e) {
    const Device device = cuda.device(e.rank);
    nn::GPT2 model(kDdpConfig, 1);
    model.to(device);
    DistributedDataParallel ddp(
        model, std::make_shared<Forgetful>(connect(e, device), e.rank == 1 ? "bucket 1 of step 2" : ""),
        {.min_bytes = 1});
    optim::AdamW optimizer(model.parameters());
    for (int64_t step = 1; step <= 2; ++step) {
      loss_of(model, e.rank, step, device).backward();
      if (step == 1) {
        ddp.finish();
        optimizer.step();
        optimizer.zero_grad();
        continue;
      }
      const std::string error = error_of<MismatchError>([&] { ddp.finish(); });
      for (const Tensor& p : model.parameters()) EXPECT_FALSE(p.grad().defined());
      EXPECT_NE(error_of([&] { optimizer.step(); }).find("has no gradient"), std::string::npos);
      throw Error(error);
    }
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
    EXPECT_NE(error.find("bucket 1 of step 2"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace rondo::dist
