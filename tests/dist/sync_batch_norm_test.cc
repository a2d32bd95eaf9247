// BatchNorm over the batches of all ranks equals one process with the whole batch, also where batches have different
// sizes or none; and it sends the least that this takes.
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/groups/group_communicator.h"
#include "rondo/modules/layers/channel_norm.h"
#include "rondo/modules/layers/convolution.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/dist/nccl_ranks.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/errors.h"

namespace rondo::dist {
namespace {

// A residual block: two norms that do not read of each other, and one that reads of both. No bias before a norm: its
// gradient would be zero, and what rounding leaves of it noise.
struct Net : nn::Module<Net> {
  nn::Conv2d conv = child("conv", 3, 4, 3, nn::Conv2dOptions{.padding = 1, .bias = false});
  nn::BatchNorm2d norm = child("norm", 4);
  nn::Conv2d shortcut = child("shortcut", 3, 4, 1, nn::Conv2dOptions{.bias = false});
  nn::BatchNorm2d shortcut_norm = child("shortcut_norm", 4, nn::BatchNormOptions{.momentum = std::nullopt});
  nn::Linear head = child("head", 4, 5, nn::LinearOptions{.bias = false});
  nn::BatchNorm1d head_norm = child("head_norm", 5);

  // x: (B, 3, 6, 6) -> (B, 5)
  Tensor forward(const Tensor& x) {
    const Tensor y = ops::relu(norm(conv(x)) + shortcut_norm(shortcut(x)));
    return head_norm(head(ops::mean(y, {2, 3})));
  }
};

constexpr int64_t kRows = 8;

enum class Mode { kEager, kExact, kDefault };
const char* name_of(Mode mode) { return mode == Mode::kEager ? "Eager" : mode == Mode::kExact ? "Exact" : "Default"; }

struct Result {
  std::map<std::string, Tensor> state;  // parameters and statistics
  std::vector<Tensor> gradients;        // of the first step, the sum over the ranks
  int64_t messages = 0, bytes = 0;      // of one step
};

// Rows [begin, end) of a batch of kRows; group null: without others.
Result train(Mode mode, int64_t begin, int64_t end, const std::shared_ptr<ProcessGroup>& group,
             std::optional<Device> device = {}, DType dtype = kF64, int steps = 3) {
  manual_seed(11);  // the same weights and batches on every rank
  Net net;
  net.to(dtype);
  if (device) net.to(*device);
  std::shared_ptr<GroupCommunicator> statistics;
  if (group != nullptr) statistics = convert_sync_batchnorm(net, group);
  std::optional<compile::Regions> regions;
  if (mode != Mode::kEager) regions.emplace(compile::compile_module(net, {.exact = mode == Mode::kExact}));
  optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  Result result;
  for (int step = 0; step < steps; ++step) {
    Tensor x = Tensor::randn({kRows, 3, 6, 6}, {kF64}).to(dtype) * 2.0 + 1.0;
    Tensor target = Tensor::randn({kRows, 5}, {kF64}).to(dtype);
    if (device) x = x.to(*device), target = target.to(*device);
    const int64_t messages = statistics ? statistics->messages() : 0, bytes = statistics ? statistics->bytes() : 0;
    const Tensor y = net(x.slice(0, {begin, end}).clone());
    (ops::sum(ops::square(y - target.slice(0, {begin, end}))) / static_cast<double>(kRows)).backward();
    if (statistics) result.messages = statistics->messages() - messages, result.bytes = statistics->bytes() - bytes;
    for (const Tensor& p : net.parameters()) {
      if (group != nullptr) group->all_reduce(p.grad(), ReduceOp::kSum, "a gradient").wait();
      if (step == 0) result.gradients.push_back(p.grad().to(kCPU).clone());
    }
    sgd.step();
    sgd.zero_grad();
  }
  if (regions) {
    const compile::RegionReport report = regions->report()[0];
    EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
    EXPECT_EQ(report.eager_runs, 0) << report.last_failed_compilation;
    EXPECT_GT(report.kernels, 0);
  }
  for (const auto& [name, tensor] : net.state_dict()) result.state[name] = tensor.to(kCPU).clone();
  return result;
}

void expect_equal(const Result& got, const Result& whole, double tolerance) {
  ASSERT_EQ(got.gradients.size(), whole.gradients.size());
  for (size_t i = 0; i < got.gradients.size(); ++i)
    EXPECT_TRUE(test::is_close(got.gradients[i], whole.gradients[i], test::of_largest_above_1(tolerance)))
        << "gradient " << i;
  for (const auto& [name, value] : whole.state)
    EXPECT_TRUE(test::is_close(got.state.at(name), value, test::of_largest_above_1(tolerance))) << name;
}

class SyncBatchNorm : public testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    if (GetParam() != Mode::kEager && !compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
};

TEST_P(SyncBatchNorm, EqualsOneProcessWithTheWholeBatch) {
  const Result whole = train(GetParam(), 0, kRows, nullptr);
  const std::vector<std::vector<int64_t>> splits = {{4, 4}, {7, 1}, {8, 0}, {3, 3, 2}, {5, 0, 3}, {0, 8, 0}};
  for (const std::vector<int64_t>& sizes : splits) {
    std::vector<Result> results(sizes.size());
    test::with_groups(static_cast<int>(sizes.size()), [&](ProcessGroup& group) {
      const auto rank = static_cast<size_t>(group.rank());
      const int64_t begin = std::accumulate(sizes.begin(), sizes.begin() + group.rank(), int64_t{0});
      results[rank] = train(GetParam(), begin, begin + sizes[rank],
                            std::shared_ptr<ProcessGroup>(std::shared_ptr<void>(), &group));
    });
    for (const Result& result : results) {
      SCOPED_TRACE(absl::StrCat("split ", absl::StrJoin(sizes, " ")));
      expect_equal(result, whole, 1e-12);
      // Forward and backward: 2 C + 1 numbers of each norm. The two norms of the residual block are neighbours.
      EXPECT_EQ(result.messages, GetParam() == Mode::kDefault ? 4 : 6);
      EXPECT_EQ(result.bytes, 2 * (9 + 9 + 11) * 8);
      for (const auto& [name, value] : results[0].state) EXPECT_TRUE(test::same_bits(value, result.state.at(name)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, SyncBatchNorm, testing::Values(Mode::kEager, Mode::kExact, Mode::kDefault),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// On devices, over NCCL: whatever order streams and events allow.
TEST(SyncBatchNormOnCuda, TheSameBitsInEveryLegalOrder) {
  RONDO_SKIP_WITHOUT_NCCL();
  std::map<std::string, Tensor> first;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    test::NcclRanks ranks(2, seed);
    std::vector<Result> results(2);
    ranks.with_groups([&](ProcessGroup& group, Device device) {
      results[static_cast<size_t>(group.rank())] = train(
          seed % 2 == 0 ? Mode::kDefault : Mode::kExact, group.rank() * 5, group.rank() == 0 ? 5 : 8,
          std::shared_ptr<ProcessGroup>(std::shared_ptr<void>(), &group), device, kF32, /*steps=*/1);
    });
    for (const auto& [name, value] : results[0].state) {
      EXPECT_TRUE(test::same_bits(value, results[1].state.at(name))) << name << ", seed " << seed;
      const std::string key = absl::StrCat(seed % 2, name);
      if (seed <= 2) first[key] = value;
      else EXPECT_TRUE(test::same_bits(value, first.at(key))) << name << ", seed " << seed;
    }
  }
}

TEST(SyncBatchNormRules, EvaluationSendsNothing) {
  test::with_groups(2, [](ProcessGroup& group) {
    Net net;
    const auto statistics = convert_sync_batchnorm(net, std::shared_ptr<ProcessGroup>(std::shared_ptr<void>(), &group));
    net.eval();
    const NoGrad off;
    if (group.rank() == 0) net(Tensor::randn({2, 3, 6, 6}));
    EXPECT_EQ(statistics->messages(), 0);
  });
}

TEST(SyncBatchNormRules, AModelWithoutItIsAnError) {
  nn::Linear linear(2, 2);
  const auto group = ProcessGroup::connect(Environment{});
  EXPECT_NE(test::error_of([&] { convert_sync_batchnorm(linear, group); }).find("no BatchNorm"), std::string::npos);
  EXPECT_NE(test::error_of([&] { convert_sync_batchnorm(linear, nullptr); }), "");
}

// A rank whose layer has another number of channels: an error on every rank, not a wrong mean.
TEST(SyncBatchNormRules, RanksThatDifferAreAnError) {
  const std::vector<std::string> errors = test::run_ranks(2, [](const Environment& e) {
    const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
    nn::BatchNorm1d norm(3 + e.rank);
    convert_sync_batchnorm(norm, group);
    norm(Tensor::randn({4, 3 + e.rank}));
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("all_reduce_sum of a layer"), std::string::npos) << error;
}

}  // namespace
}  // namespace rondo::dist
