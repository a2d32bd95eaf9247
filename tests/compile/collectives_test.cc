// Note [Collectives are effects] (runtime/op.h): a compiled program makes every collective that was recorded, once and
// in order, whatever reads its result; in default mode independent neighbours are one message.
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

// ---- A recording that runs again, op by op

// The messages of a forward and of a backward with a history; and the gradient of the sum of squares of the gradient.
struct SecondRun {
  Tensor dx;
  Messages messages;
};
SecondRun second_order(const std::function<Tensor(test::LikeRanks&, const Tensor&)>& fn,
                       std::optional<compile::CompileOptions> options, bool hooks) {
  struct Layer : nn::Module<Layer> {
    std::function<Tensor(const Tensor&)> fn;
    Tensor forward(const Tensor& x) { return fn(x); }
  } layer;
  test::LikeRanks ranks(3);
  layer.fn = [&](const Tensor& x) { return fn(ranks, x); };
  if (options) compile::compile_module(layer, *options);
  manual_seed(2);
  const Tensor x = Tensor::randn({4, 6}).requires_grad_(), inputs[] = {x};
  Tensor y = layer(x);
  if (hooks) y.register_hook([](const Tensor& g) { return g * 2.0; });
  const Tensor roots[] = {ops::sum(y * y)};
  const std::vector<Tensor> g = autograd::grad(roots, inputs, {}, true, true);
  const Messages messages = ranks.messages;
  ops::sum(g[0] * g[0]).backward();
  return {x.grad(), messages};
}

TEST_F(Collectives, ABackwardWithAHistoryRepeatsNone) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "gradients with a history");
  using Ranks = test::LikeRanks;
  const Fn fns[] = {
      &two_norms,
      // Read by no rule.
      [](Ranks& r, const Tensor& x) { return x + ops::all_reduce_sum(ops::sum(x, {0}), r); },
      // What is kept may be computed from the sum.
      [](Ranks& r, const Tensor& x) { return ops::exp(ops::all_reduce_sum(ops::tanh(x), r) * 0.1) * x; },
      [](Ranks& r, const Tensor& x) {
        const Tensor mean = ops::all_reduce_sum(ops::sum(x, {0}), r) / 12.0;
        const Tensor var = ops::all_reduce_sum(ops::sum(ops::square(x - mean), {0}), r) / 12.0;
        return (x - mean) / ops::sqrt(var + 1e-5);
      },
      // A sum without a gradient, and a view of one.
      [](Ranks& r, const Tensor& x) {
        const Tensor n = no_grad([&] { return ops::all_reduce_sum(ops::sum(x * x, {1}), r); });
        return ops::tanh(x) * ops::unsqueeze(n, 1) + ops::all_reduce_sum(x, r).view({2, 2, 6})[0].select(0, 1);
      },
      [](Ranks& r, const Tensor& x) {
        const Tensor s = ops::all_reduce_sum(x, r);
        return ops::softmax(ops::matmul(s, ops::transpose(s, 0, 1)) * 0.1).matmul(ops::all_reduce_sum(s * x, r));
      },
  };
  for (size_t i = 0; i < std::size(fns); ++i)
    for (const bool hooks : {false, true})
      for (const compile::Recompute recompute : {compile::Recompute::kAuto, compile::Recompute::kFull}) {
        SCOPED_TRACE(testing::Message() << "function " << i << (hooks ? ", hooks" : ""));
        const SecondRun eager = second_order(fns[i], {}, hooks);
        const SecondRun compiled = second_order(fns[i], compile::CompileOptions{.exact = true, .recompute = recompute},
                                                hooks);
        EXPECT_EQ(compiled.messages, eager.messages);
        EXPECT_LE(ops::max(ops::abs(compiled.dx - eager.dx)).item(), 2e-5 * (1 + ops::max(ops::abs(eager.dx)).item()));
      }
}

// A hook inside of the region makes it go backward op by op, perhaps on one rank only.
TEST_F(Collectives, AHookInsideMakesEagersMessages) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "a hook inside the region");
  struct Layer : nn::Module<Layer> {
    test::LikeRanks* ranks = nullptr;
    std::vector<Tensor> forward(const Tensor& x) {
      const Tensor h = ops::exp(ops::all_reduce_sum(ops::tanh(x), *ranks) * 0.1) * x;
      return {h, ops::all_reduce_sum(h * h, *ranks) * x};
    }
  };
  const auto run = [](bool compiled) {
    test::LikeRanks ranks(3);
    Layer layer;
    layer.ranks = &ranks;
    if (compiled) compile::compile_module(layer, {.exact = true});
    manual_seed(2);
    const Tensor x = Tensor::randn({4, 6}).requires_grad_();
    std::vector<Tensor> y = layer(x);
    y[0].register_hook([](const Tensor& g) { return g * 2.0; });
    ops::sum(y[1]).backward();
    return SecondRun{x.grad(), ranks.messages};
  };
  const SecondRun eager = run(false), compiled = run(true);
  EXPECT_EQ(compiled.messages, eager.messages);
  EXPECT_LE(ops::max(ops::abs(compiled.dx - eager.dx)).item(), 2e-5 * ops::max(ops::abs(eager.dx)).item());
}

// A bad index behind a collective: nothing is sent a second time, to find the draws behind the error or for the writes.
TEST_F(Collectives, ARunThatFailsRepeatsNone) {
  struct Layer : nn::Module<Layer> {
    Tensor& count = buffer("count", Tensor::zeros({6}));
    test::LikeRanks* ranks = nullptr;
    bool draws = false, writes = false;
    Tensor forward(const Tensor& x, const Tensor& index) {
      Tensor h = ops::all_reduce_sum(ops::sum(x, {0}), *ranks) + x;
      if (writes) no_grad([&] { count.add_(ops::sum(h, {0})); });
      if (draws) h = h + Tensor::rand({4, 6});
      h = ops::index_select(h, 0, index);
      return draws ? h + Tensor::rand({2, 6}) : h;
    }
  };
  for (const compile::Capture capture : {compile::Capture::kRecord, compile::Capture::kReplay})
    for (const bool draws : {false, true})
      for (const bool writes : {false, true}) {
        test::LikeRanks ranks(3);
        Layer layer;
        layer.ranks = &ranks;
        layer.draws = draws;
        layer.writes = writes;
        compile::compile_module(layer, {.exact = true, .capture = capture});
        for (const int64_t last : {1, 7, 2, 7}) {
          ranks.messages.clear();
          const Tensor index = Tensor::from<int64_t>({0, last}, {2});
          const std::string error = test::error_of([&] { layer(Tensor::ones({4, 6}).requires_grad_(), index); });
          EXPECT_EQ(error.find("is out of range") != std::string::npos, last == 7) << error;
          EXPECT_EQ(ranks.messages, Messages{6}) << "draws " << draws << ", writes " << writes;
        }
      }
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
