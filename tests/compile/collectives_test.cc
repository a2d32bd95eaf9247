// Note [Collectives are effects] (runtime/op.h): a compiled program makes every collective that was recorded, once and in
// order, whatever reads its result; in default mode independent neighbours are one message.
#include <functional>

#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/like_ranks.h"

namespace rondo {
namespace {

using Messages = std::vector<int64_t>;

class Collectives : public test::BlockTest {
 protected:
  using Fn = std::function<Tensor(test::LikeRanks&, const Tensor&)>;
  struct Run {
    Tensor y, dx;
    Messages messages;
  };
  struct Layer : nn::Module<Layer> {
    std::function<Tensor(const Tensor&)> fn;
    Tensor forward(const Tensor& x) { return fn(x); }
  };

  // Forward and backward of x (4, 6), eagerly where there are no options.
  static Run run(const Fn& fn, std::optional<compile::CompileOptions> options) {
    test::LikeRanks ranks(3);
    Layer layer;
    layer.fn = [&](const Tensor& x) { return fn(ranks, x); };
    std::optional<compile::Regions> regions;
    if (options) regions.emplace(compile::compile_module(layer, *options));
    manual_seed(2);
    Tensor x = Tensor::randn({4, 6});
    x.requires_grad_();
    Run result;
    for (int call = 0; call < 2; ++call) {  // recorded, then followed
      x.set_grad(Tensor());
      ranks.messages.clear();
      const Tensor y = layer(x);
      ops::sum(y * y).backward();
      result = {y.detach(), x.grad(), ranks.messages};
    }
    if (regions) {
      const compile::RegionReport report = regions->report()[0];
      EXPECT_EQ(report.eager_runs, 0);
      EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
      EXPECT_GT(report.library_calls, 0);
    }
    return result;
  }
  static void expect_eagers_messages(const Fn& fn, const Messages& expected, compile::CompileOptions options = {}) {
    options.exact = true;
    const Run eager = run(fn, {}), compiled = run(fn, options);
    EXPECT_EQ(eager.messages, expected);
    EXPECT_EQ(compiled.messages, expected);
    EXPECT_TRUE(test::same_bits(compiled.y, eager.y));
    EXPECT_TRUE(test::same_bits(compiled.dx, eager.dx));
  }
};

Tensor two_norms(test::LikeRanks& ranks, const Tensor& x) {
  const Tensor a = ops::all_reduce_sum(ops::sum(x, {0}), ranks);
  const Tensor b = ops::all_reduce_sum(ops::sum(x * x, {1}), ranks);
  return x * a + ops::sqrt(ops::unsqueeze(b, 1)) + ops::exp(a);
}

TEST_F(Collectives, RunInOrderForwardAndBackward) {
  // Sizes that tell them apart: a (6), b (4); backward begins with the later one.
  expect_eagers_messages(&two_norms, {6, 4, 4, 6});
}

TEST_F(Collectives, InDefaultModeNeighboursAreOneMessage) {
  const Run eager = run(&two_norms, {}), compiled = run(&two_norms, compile::CompileOptions{});
  EXPECT_EQ(compiled.messages, (Messages{10, 10}));
  for (const auto& [a, b] : {std::pair(eager.y, compiled.y), std::pair(eager.dx, compiled.dx)})
    EXPECT_LT(ops::max(ops::abs(a - b)).item(), 1e-4 * ops::max(ops::abs(a)).item());
}

TEST_F(Collectives, OneThatReadsOfAnotherIsAMessageOfItsOwn) {
  const Fn fn = [](test::LikeRanks& ranks, const Tensor& x) {
    const Tensor mean = ops::all_reduce_sum(ops::sum(x, {0}), ranks) / 12.0;
    const Tensor var = ops::all_reduce_sum(ops::sum(ops::square(x - mean), {0}), ranks) / 12.0;
    return (x - mean) / ops::sqrt(var + 1e-5);
  };
  expect_eagers_messages(fn, {6, 6, 6, 6});
  EXPECT_EQ(run(fn, compile::CompileOptions{}).messages, (Messages{6, 6, 6, 6}));
}

// Equal calls with equal operands are two messages, of which the other ranks know.
TEST_F(Collectives, EqualOnesAndUnusedOnesRun) {
  const Fn fn = [](test::LikeRanks& ranks, const Tensor& x) {
    const Tensor sum = ops::sum(x, {0});
    const Tensor a = ops::all_reduce_sum(sum, ranks), b = ops::all_reduce_sum(sum, ranks);
    ops::all_reduce_sum(ops::sum(x, {1}), ranks);
    return x * a * b;
  };
  expect_eagers_messages(fn, {6, 6, 4, 6, 6});
  EXPECT_EQ(run(fn, compile::CompileOptions{}).messages, (Messages{16, 12}));
}

TEST_F(Collectives, BackwardDoesNotRepeatThem) {
  const Fn fn = [](test::LikeRanks& ranks, const Tensor& x) {
    return ops::exp(ops::all_reduce_sum(ops::tanh(x), ranks)) * x;
  };
  using enum compile::Recompute;
  for (const compile::Recompute recompute : {kNone, kAuto, kFull, kBudget})
    expect_eagers_messages(fn, {24, 24}, {.recompute = recompute});
}

// What becomes one message is two results, each in memory of its own.
TEST_F(Collectives, ResultsThatTheCallerGetsDoNotShareMemory) {
  test::LikeRanks ranks;
  struct Pair : nn::Module<Pair> {
    test::LikeRanks* ranks = nullptr;
    std::vector<Tensor> forward(const Tensor& x) {
      return {ops::all_reduce_sum(ops::sum(x, {0}), *ranks), ops::all_reduce_sum(ops::sum(x, {1}), *ranks)};
    }
  } pair;
  pair.ranks = &ranks;
  const compile::Regions regions = compile::compile_module(pair);
  const NoGrad off;
  const Tensor x = Tensor::randn({4, 6});
  std::vector<Tensor> sums = pair(x);
  EXPECT_EQ(ranks.messages, Messages{10});
  EXPECT_FALSE(sums[0].storage() == sums[1].storage());
  const Tensor before = sums[1].clone();
  sums[0].zero_();
  EXPECT_TRUE(test::same_bits(sums[1], before));
  EXPECT_EQ(sums[1].version(), 0);
}

TEST_F(Collectives, LargeOnesAreNotPutTogether) {
  const Fn fn = [](test::LikeRanks& ranks, const Tensor& x) {
    const Tensor wide = ops::reshape(x, {24, 1}) * Tensor::ones({1, 5000});
    const Tensor large = ops::all_reduce_sum(wide, ranks), small = ops::all_reduce_sum(ops::sum(x, {1}), ranks);
    return x + ops::sum(large) + ops::sum(small);
  };
  EXPECT_EQ(run(fn, compile::CompileOptions{}).messages, (Messages{120000, 4, 4, 120000}));
}

TEST_F(Collectives, ADestroyedCommunicatorIsAnError) {
  auto ranks = std::make_unique<test::LikeRanks>();
  const Tensor x = Tensor::ones({3}).requires_grad_();
  const Tensor y = ops::all_reduce_sum(x, *ranks);
  ranks = nullptr;
  EXPECT_NE(test::error_of([&] { ops::sum(y).backward(); }).find("has been destroyed"), std::string::npos);
}

TEST_F(Collectives, IntegersAreAnError) {
  test::LikeRanks ranks;
  EXPECT_NE(test::error_of([&] { ops::all_reduce_sum(Tensor::ones({3}, kI64), ranks); }), "");
  EXPECT_TRUE(ranks.messages.empty());
}

}  // namespace
}  // namespace rondo
