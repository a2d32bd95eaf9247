// Note [Collectives are effects] (runtime/op/op.h), where code runs a second time: backwards with a history, hooks
// inside of a region, checkpoints. Each collective is sent once, forward and backward, and in the order of eager
// execution. So ranks may run a layer compiled here and eagerly there.
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/like_ranks.h"

namespace rondo {
namespace {

using Messages = std::vector<int64_t>;
using CollectivesOnce = test::BlockTest;

using LayerFn = std::function<Tensor(test::LikeRanks&, const Tensor&)>;
using Model = std::function<Tensor(const Tensor&)>;
// What a program makes of a layer, for x (4, 6).
using Program = std::function<test::Tensors(const Model& layer, const Tensor& x)>;

struct Told {
  test::Tensors results;
  Messages messages;
};
// The last of some calls of a program; eagerly where there are no options.
Told tell(const LayerFn& fn, const Program& program, std::optional<compile::CompileOptions> options,
          int64_t* loop_pieces = nullptr) {
  struct Layer : nn::Module<Layer> {
    std::function<Tensor(const Tensor&)> fn;
    Tensor forward(const Tensor& x) { return fn(x); }
  } layer;
  test::LikeRanks ranks(3);
  layer.fn = [&](const Tensor& x) { return fn(ranks, x); };
  std::optional<compile::Regions> regions;
  if (options) regions = compile::compile_module(layer, *options);
  Told told;
  for (int call = 0; call < 3; ++call) {  // recorded, then followed or replayed
    manual_seed(2);
    ranks.messages.clear();
    told.results = program([&](const Tensor& x) { return layer(x); }, Tensor::randn({4, 6}).requires_grad_());
    told.messages = ranks.messages;
  }
  if (regions && options->capture != compile::Capture::kRecord) {
    EXPECT_EQ(regions->report()[0].why_not_replayed, "");
  }
  if (loop_pieces != nullptr && regions) *loop_pieces = regions->report()[0].loop_pieces;
  return told;
}

void expect_the_same(const Told& compiled, const Told& eager, double tolerance = 2e-5) {
  EXPECT_EQ(compiled.messages, eager.messages);
  ASSERT_EQ(compiled.results.size(), eager.results.size());
  for (size_t i = 0; i < eager.results.size(); ++i) {
    EXPECT_TRUE(std::isfinite(ops::sum(eager.results[i]).item())) << "result " << i;
    EXPECT_LE(ops::max(ops::abs(compiled.results[i] - eager.results[i])).item(),
              tolerance * (1 + ops::max(ops::abs(eager.results[i])).item()))
        << "result " << i;
  }
}

Tensor squares(const Tensor& t) { return ops::sum(t * t); }
std::vector<Tensor> gradient(const Tensor& of, const Tensor& to, bool create_graph = true) {
  const Tensor roots[] = {of}, inputs[] = {to};
  return autograd::grad(roots, inputs, {}, true, create_graph);
}

const LayerFn kLayers[] = {
    &test::two_norms,
    // Read by no rule.
    [](test::LikeRanks& r, const Tensor& x) { return x + ops::all_reduce_sum(ops::sum(x, {0}), r); },
    // What is kept may be computed from the sum.
    [](test::LikeRanks& r, const Tensor& x) { return ops::exp(ops::all_reduce_sum(ops::tanh(x), r) * 0.1) * x; },
    [](test::LikeRanks& r, const Tensor& x) {
      const Tensor mean = ops::all_reduce_sum(ops::sum(x, {0}), r) / 12.0;
      const Tensor var = ops::all_reduce_sum(ops::sum(ops::square(x - mean), {0}), r) / 12.0;
      return (x - mean) / ops::sqrt(var + 1e-5);
    },
    // A sum without a gradient, and a view of one.
    [](test::LikeRanks& r, const Tensor& x) {
      const Tensor n = no_grad([&] { return ops::all_reduce_sum(ops::sum(x * x, {1}), r); });
      return ops::tanh(x) * ops::unsqueeze(n, 1) + ops::all_reduce_sum(x, r).view({2, 2, 6})[0].select(0, 1);
    },
    [](test::LikeRanks& r, const Tensor& x) {
      const Tensor s = ops::all_reduce_sum(x, r);
      return ops::softmax(ops::matmul(s, ops::transpose(s, 0, 1)) * 0.1).matmul(ops::all_reduce_sum(s * x, r));
    },
    // The result is what the last op has saved.
    [](test::LikeRanks& r, const Tensor& x) {
      return ops::tanh(ops::all_reduce_sum(ops::sum(x, {0}), r) * 0.1 + ops::all_reduce_sum(x, r) * 0.1);
    },
};

struct NamedProgram {
  const char* name;
  Program run;
};
const NamedProgram kPrograms[] = {
    {"double backward",
     [](const Model& layer, const Tensor& x) {
       const Tensor g = gradient(squares(layer(x)), x)[0];
       squares(g).backward();
       return test::Tensors{g.detach(), x.grad()};
     }},
    {"a hook on the result",
     [](const Model& layer, const Tensor& x) {
       const Tensor y = layer(x);
       Tensor(y).register_hook([](const Tensor& g) { return g * 2.0; });
       const Tensor g = gradient(squares(y), x)[0];
       (squares(g) + ops::sum(y)).backward();
       return test::Tensors{g.detach(), x.grad()};
     }},
    {"a hook and .grad of the result, asked for between the two",
     [](const Model& layer, const Tensor& x) {
       Tensor y = layer(x);
       const int64_t first = y.register_hook([](const Tensor& g) { return g * 2.0; });
       const Tensor g = gradient(squares(y), x)[0];
       y.remove_hook(first);
       y.retain_grad();
       y.register_hook([](const Tensor& g) { return g * 0.5; });
       squares(g).backward();
       return test::Tensors{g.detach(), x.grad(), y.grad()};
     }},
    {"third derivative",
     [](const Model& layer, const Tensor& x) {
       const Tensor g = gradient(squares(layer(x * 0.3)), x)[0];
       const Tensor h = gradient(ops::sum(ops::tanh(g)), x)[0];
       ops::sum(ops::tanh(h)).backward();
       return test::Tensors{g.detach(), h.detach(), x.grad()};
     }},
    {"several backwards",
     [](const Model& layer, const Tensor& x) {
       const Tensor loss = squares(layer(x));
       loss.backward({}, /*retain_graph=*/true);
       loss.backward({}, true);
       const Tensor g = gradient(loss, x)[0];
       loss.backward({}, true);
       squares(g).backward({}, true);
       squares(gradient(loss, x)[0]).backward();
       return test::Tensors{x.grad()};
     }},
    {"backward with a history",
     [](const Model& layer, const Tensor& x) {
       squares(layer(x)).backward({}, true, /*create_graph=*/true);
       const Tensor g = x.grad();
       Tensor(x).set_grad(Tensor());
       squares(g).backward();
       return test::Tensors{x.grad()};
     }},
    {"layers one after the other, and side by side",
     [](const Model& layer, const Tensor& x) {
       const Tensor a = layer(x), b = layer(ops::tanh(x)), c = layer(ops::tanh(a));
       const Tensor g = gradient(squares(a * b + c), x)[0];
       squares(g).backward();
       return test::Tensors{g.detach(), x.grad()};
     }},
    {"gradients of the result and of what is before it",
     [](const Model& layer, const Tensor& x) {
       const Tensor before = ops::tanh(x * 0.3), y = layer(before), z = layer(ops::tanh(y) * 0.3);
       const Tensor roots[] = {squares(z)}, inputs[] = {y, before};
       const std::vector<Tensor> g = autograd::grad(roots, inputs, {}, true, true);
       const Tensor again[] = {squares(g[0]) + squares(g[1])};
       const std::vector<Tensor> h = autograd::grad(again, inputs, {}, true, true, true);
       squares(h[1]).backward();
       return test::Tensors{g[0].detach(), g[1].detach(), h[0].detach(), h[1].detach(), x.grad()};
     }},
    {"a hook that asks for gradients with a history",
     [](const Model& layer, const Tensor& x) {
       const Tensor y = layer(x * 0.3), other = squares(y), z = ops::tanh(y), loss = squares(z);
       Tensor inner;
       Tensor(z).register_hook([&, busy = false](const Tensor& g) mutable {
         if (std::exchange(busy, true)) return Tensor();
         inner = gradient(other, x)[0];
         return g * 2.0;
       });
       loss.backward({}, true);
       squares(inner).backward();
       return test::Tensors{inner.detach(), x.grad()};
     }},
};

// Forward, backward with a history and the backwards of that: as eager execution's, in number and order. Ranks may run
// a layer compiled here and eagerly there.
TEST_F(CollectivesOnce, ADoubleBackwardMakesEagersMessages) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "gradients with a history");
  for (size_t i = 0; i < std::size(kLayers); ++i)
    for (const NamedProgram& program : kPrograms) {
      const Told eager = tell(kLayers[i], program.run, {});
      EXPECT_FALSE(eager.messages.empty());
      for (const compile::Recompute recompute : {compile::Recompute::kAuto, compile::Recompute::kFull})
        for (const compile::Capture capture :
             {compile::Capture::kRecord, compile::Capture::kReplay, compile::Capture::kVerify}) {
          if (recompute == compile::Recompute::kFull && capture != compile::Capture::kRecord) continue;
          SCOPED_TRACE(testing::Message()
                       << "layer " << i << ", " << program.name << ", capture " << static_cast<int>(capture));
          expect_the_same(tell(kLayers[i], program.run,
                               compile::CompileOptions{.exact = true, .capture = capture, .recompute = recompute}),
                          eager);
        }
    }
}

TEST_F(CollectivesOnce, ADoubleBackwardOfALoopInPiecesMakesEagersMessages) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "gradients with a history");
  const LayerFn loop = [](test::LikeRanks& r, const Tensor& x) {
    const Tensor steps = ops::unsqueeze(x, 1) * Tensor::ones({1, 71, 1}), weight = ops::matmul(x.t(), x) * 0.05;
    Tensor h = x;
    for (int t = 0; t < 71; ++t) {
      const Tensor sum = ops::all_reduce_sum(ops::sum(h * steps.select(1, t), {0}), r);
      h = ops::tanh(ops::matmul(h, weight) + sum * 0.01);
    }
    return h;
  };
  for (const size_t p : {0u, 4u}) {
    SCOPED_TRACE(kPrograms[p].name);
    int64_t pieces = 0;
    const Told eager = tell(loop, kPrograms[p].run, {});
    expect_the_same(tell(loop, kPrograms[p].run, compile::CompileOptions{.exact = true}, &pieces), eager);
    EXPECT_GT(pieces, 0);
  }
}

// Results from which others are computed, one of them a sum over the ranks; a hook on each.
TEST_F(CollectivesOnce, ADoubleBackwardThroughSeveralResultsMakesEagersMessages) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "gradients with a history");
  struct Layer : nn::Module<Layer> {
    test::LikeRanks* ranks = nullptr;
    std::vector<Tensor> forward(const Tensor& x) {
      const Tensor h = ops::exp(ops::all_reduce_sum(ops::tanh(x), *ranks) * 0.1) * x;
      const Tensor s = ops::all_reduce_sum(ops::sum(h * h, {0}), *ranks);
      return {h, s, ops::sqrt(s) * ops::all_reduce_sum(x, *ranks)};
    }
  };
  const auto run = [](bool compiled, bool hooks, std::vector<size_t> used) {
    test::LikeRanks ranks(3);
    Layer layer;
    layer.ranks = &ranks;
    if (compiled) compile::compile_module(layer, {.exact = true});
    Told told;
    for (int call = 0; call < 2; ++call) {
      manual_seed(2);
      ranks.messages.clear();
      const Tensor x = Tensor::randn({4, 6}).requires_grad_();
      std::vector<Tensor> y = layer(x);
      for (size_t i = 0; hooks && i < y.size(); ++i)
        y[i].register_hook([i](const Tensor& g) { return g * (0.5 + static_cast<double>(i)); });
      Tensor loss = Tensor::zeros({});
      for (const size_t i : used) loss = loss + squares(y[i]) * 0.1;
      const Tensor g = gradient(loss, x)[0];
      // Inner results, and others that the first backward did not come through.
      const Tensor inputs[] = {y[0], x}, roots[] = {squares(g) + ops::sum(y[1] * y[2])};
      const std::vector<Tensor> h = autograd::grad(roots, inputs, {}, true, true, true);
      squares(h[1]).backward();
      told.results = {g.detach(), h[0].detach(), h[1].detach(), x.grad()};
      told.messages = ranks.messages;
    }
    return told;
  };
  for (const bool hooks : {false, true})
    for (const std::vector<size_t>& used : {std::vector<size_t>{0}, {1}, {2}, {0, 1}, {0, 1, 2}}) {
      SCOPED_TRACE(testing::Message() << "hooks " << hooks << ", results " << used.size() << " from " << used[0]);
      expect_the_same(run(true, hooks, used), run(false, hooks, used));
    }
}

// grad() runs the collectives that its inputs need, and no others.
TEST_F(CollectivesOnce, WhatGradDoesNotAskForIsNotSent) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "a collective that grad() does not ask for");
  struct Layer : nn::Module<Layer> {
    test::LikeRanks* ranks = nullptr;
    Tensor& weight = parameter("weight", Tensor::ones({6}));
    Tensor forward(const Tensor& x) { return ops::tanh(x) * ops::all_reduce_sum(weight * 0.5, *ranks); }
  };
  const auto run = [](bool compiled, bool of_weight) {
    test::LikeRanks ranks(3);
    Layer layer;
    layer.ranks = &ranks;
    if (compiled) compile::compile_module(layer, {.exact = true});
    Told told;
    for (int call = 0; call < 2; ++call) {
      ranks.messages.clear();
      manual_seed(2);
      const Tensor x = Tensor::randn({4, 6}).requires_grad_();
      const Tensor loss = squares(layer(x));
      told.results = {gradient(loss, of_weight ? layer.weight : x, /*create_graph=*/false)[0]};
      told.messages = ranks.messages;
    }
    return told;
  };
  EXPECT_EQ(run(true, false).messages, Messages{6});
  for (const bool of_weight : {false, true}) expect_the_same(run(true, of_weight), run(false, of_weight), 0);
}

// A hook may send something itself. What is behind its result in the forward goes backward before it.
TEST_F(CollectivesOnce, AHookRunsInItsPlaceAmongTheMessages) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "a hook inside the region");
  struct Layer : nn::Module<Layer> {
    test::LikeRanks* ranks = nullptr;
    std::vector<Tensor> forward(const Tensor& x) {
      const Tensor y = ops::tanh(x) * 2.0;
      return {y, ops::all_reduce_sum(ops::sum(x, {0}), *ranks)};
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
    y[0].register_hook([&](const Tensor& g) { return ops::all_reduce_sum(g, ranks); });
    (squares(y[0]) + squares(y[1])).backward();
    return Told{{x.grad()}, ranks.messages};
  };
  EXPECT_EQ(run(false).messages, (Messages{6, 6, 24}));
  expect_the_same(run(true), run(false));
}

// A checkpoint runs its function twice, and sends once. A region has no second run.
TEST_F(CollectivesOnce, ACheckpointRepeatsNone) {
  const auto part = [](test::LikeRanks& r) {
    return [&r](std::span<const Tensor> in) { return test::Tensors{test::two_norms(r, in[0])}; };
  };
  const LayerFn fn = [&](test::LikeRanks& r, const Tensor& x) {
    const Tensor inputs[] = {ops::tanh(x)};
    return autograd::checkpoint(part(r), inputs)[0] * 0.5;
  };
  // The inner checkpoint runs three times.
  const LayerFn nested = [&](test::LikeRanks& r, const Tensor& x) {
    const Tensor inputs[] = {x};
    return autograd::checkpoint(
        [&](std::span<const Tensor> in) {
          const Tensor inner[] = {ops::all_reduce_sum(in[0], r) * 0.1};
          return test::Tensors{autograd::checkpoint(part(r), inner)[0] + 1.0};
        },
        inputs)[0];
  };
  const Program train = [](const Model& layer, const Tensor& x) {
    squares(layer(x)).backward();
    return test::Tensors{x.grad()};
  };
  // A compiled layer in a checkpoint of the caller's.
  const Program around = [](const Model& layer, const Tensor& x) {
    const Tensor inputs[] = {ops::tanh(x)};
    const auto half = [&](std::span<const Tensor> in) { return test::Tensors{layer(in[0]) * 0.5}; };
    squares(autograd::checkpoint(half, inputs)[0]).backward();
    return test::Tensors{x.grad()};
  };
  const Told eager = tell(fn, train, {});
  EXPECT_EQ(eager.messages, (Messages{6, 4, 4, 6}));
  expect_the_same(
      eager,
      tell([](test::LikeRanks& r, const Tensor& x) { return test::two_norms(r, ops::tanh(x)) * 0.5; }, train, {}));
  EXPECT_EQ(tell(nested, train, {}).messages, (Messages{24, 6, 4, 4, 6, 24}));
  for (const compile::Capture capture : {compile::Capture::kRecord, compile::Capture::kReplay}) {
    const compile::CompileOptions options{.exact = true, .capture = capture};
    expect_the_same(tell(fn, train, options), eager);
    expect_the_same(tell(nested, train, options), tell(nested, train, {}));
    expect_the_same(tell(&test::two_norms, around, options), eager);
  }
  // Neighbours travel together in both runs.
  expect_the_same(tell(&test::two_norms, around, compile::CompileOptions{}), {eager.results, {10, 10}}, 1e-4);
}

// A hook inside of the region makes it go backward op by op, perhaps on one rank only.
TEST_F(CollectivesOnce, AHookInsideMakesEagersMessages) {
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
    return Told{{x.grad()}, ranks.messages};
  };
  expect_the_same(run(true), run(false));
}

}  // namespace
}  // namespace rondo
