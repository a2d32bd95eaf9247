// Programs on which the fuzzer (tests/fuzz/) once saw compiled and eager execution differ.
#include <gtest/gtest.h>

#include <optional>

#include "rondo/runtime/base/parallel.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using namespace test;

class RegionEdges : public BlockTest {};

// A norm over a dimension of size 1 fits into the rows of a wider kernel, but its sums do not.
TEST_F(RegionEdges, ReductionsOverOneColumnBesideWiderOnes) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor column = x.slice(1, {0, 1}), one = b.bias.slice(0, {0, 1});
    const Tensor top = ops::max(x, {-1}, true);
    return Tensors{x * ops::rms_norm(column, one, 0.1), x + ops::log_softmax(column),
                   x * ops::layer_norm(top, one, one) + ops::softmax(top)};
  };
  expect_as_eager(body, one_step);
}

// A hook inside has the recording run again: what no gradient comes from may have been written over since.
TEST_F(RegionEdges, WhatLeadsToNoGradientIsNotComputedAgain) {
  const MeansToRun eagerly(Eagerly::kBackward, "a hook inside the region");
  const auto body = [](Block& b, const Tensor& x) {
    Tensor constant = b.state.kept[0];
    const Tensor h = x * 0.3, turned = h.transpose(0, 1), other = constant * 3.0;
    constant.copy_(other);
    return Tensors{h, turned, other};
  };
  expect_as_eager(body, [](Block& b) {
    b.state.kept = {Tensor::randn({4, 6})};
    const Tensor x = input();
    Tensors results = b(x);
    results[0].register_hook([](const Tensor& grad) { return grad * 0.75; });
    (ops::sum(results[0]) + ops::sum(results[1] * results[1])).backward();
    return Tensors{x.grad(), results[2], b.state.kept[0]};
  });
}

TEST_F(RegionEdges, SoftmaxOfNoElements) {
  const auto body = [](Block& b, const Tensor& x) {
    return Tensors{ops::softmax(x, 0) * b.bias, ops::log_softmax(x), b.norm(x)};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int64_t rows : {0, 3, 0})
      for (Tensor& t : train_step(b, input({rows, 6}))) all.push_back(t);
    return all;
  });
}

// Such a write would not reach the history of the view's base.
TEST_F(RegionEdges, AViewMadeUnderNoGradIsNotWrittenWithGradientsOn) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor h = b.state.kept[0] * 2.0;
    Tensor view = no_grad([&] { return h[1]; });
    EXPECT_THROW(view.copy_(b.bias), Error);
    no_grad([&] { view.copy_(b.bias); });
    Tensor outside = no_grad([&] { return b.state.kept[0].expand({2, 4, 6})[1]; });
    outside.mul_(2.0);
    EXPECT_FALSE(h.requires_grad());
    return Tensors{h + x, view, outside};
  };
  expect_as_eager(body, [](Block& b) {
    b.state.kept = {Tensor::randn({4, 6})};
    Tensors all = one_step(b);
    all.push_back(b.state.kept[0]);
    return all;
  });
}

// Two views of what nobody holds: a write through one is seen in the history of the other.
// To go backward through it would be an error; nothing does.
TEST_F(RegionEdges, AnExpandedViewIsReadWithoutGradientsAfterItsBaseWasWritten) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor scale = no_grad([&] { return ops::mean(b.state.kept[1]); });
    return Tensors{ops::tanh(x * scale)};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor base = b.bias * 2.0;
    b.state.kept = {base, base.expand({4, 6})};
    b.state.kept[0].mul_(0.5);
    Tensors all;
    for (int i = 0; i < 3; ++i)
      for (Tensor& t : one_step(b)) all.push_back(t);
    return all;
  });
  EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
}

TEST_F(RegionEdges, ViewsShareABaseThatIsGone) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = x * b.bias, free = h.detach().view({24});
    return Tensors{h[1], h.slice(0, {0, 3}), h.t(), free.slice(0, {0, 6}), free.slice(0, {3, 9})};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int first : {0, 1, 2, 3}) {
      const Tensor x = input();
      Tensors y = b(x);
      y[static_cast<size_t>(first)].mul_(first == 2 ? b.bias.slice(0, {0, 4}) : b.bias * 2.0);
      Tensor loss = ops::sum(y[0]) * 3.0 + ops::sum(y[1] * y[1]) + ops::sum(y[2]);
      if (first == 3) loss = loss + ops::sum(y[3] * y[3]) + ops::sum(y[4]);
      loss.backward();
      all.insert(all.end(), y.begin(), y.end());
      all.push_back(x.grad());
      all.push_back(b.bias.grad().clone());
    }
    return all;
  });
}

TEST_F(RegionEdges, AViewOfAViewMadeUnderNoGrad) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor leaf = (x.detach() * 2.0).requires_grad_();
    b.state.kept = {leaf};
    Tensor view = no_grad([&] { return leaf.t(); }), again = view.t();
    EXPECT_THROW(again.add_(again), Error);
    no_grad([&] { again.add_(again); });
    EXPECT_THROW(again * b.bias, Error);
    return Tensors{again.detach() * b.bias, leaf * x};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all = one_step(b);
    all.push_back(b.state.kept[0].grad());
    return all;
  });
}

// Whoever watches a gradient sees all of it, also the part of what has read the tensor before.
TEST_F(RegionEdges, HooksOnWhatHasBeenReadAlready) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor h = x * b.bias, view = h.t(), k = ops::tanh(view), top = ops::sum(h * k.t());
    h.register_hook([&b](const Tensor& g) {
      ++b.state.hook_calls;
      return g * 0.5;
    });
    view.retain_grad();
    b.state.kept = {view};
    return Tensors{k.slice(0, {1, 3}), top, h + top};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 2; ++i) {
      for (Tensor& t : one_step(b)) all.push_back(t);
      all.push_back(b.state.kept[0].grad());
    }
    EXPECT_EQ(b.state.hook_calls, 2);
    return all;
  });
}

// The hook ends a piece between a view and a view of that view. To the next piece the first one is an input.
TEST_F(RegionEdges, AHookBetweenAViewAndAViewOfIt) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor part = ops::exp(x).slice(1, {2, 6});
    Tensor h = ops::tanh(part);
    const Tensor inner = part.slice(1, {1, 3}), y = inner * inner;
    h.register_hook([&b](const Tensor& g) { return ++b.state.hook_calls, g * 0.5; });
    return Tensors{h, y, inner.slice(0, {1, 3}) * 2.0};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all = one_step(b);
    EXPECT_EQ(b.state.hook_calls, 1);
    return all;
  });
}

// What goes into another piece keeps its gradient mode: a detached tensor is no view of its base, whatever is written.
TEST_F(RegionEdges, AHookBehindADetachedTensor) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor h = x * 0.3;
    b.state.kept = {h.detach()};
    const Tensor y = h + 1.0;
    h.register_hook([&b](const Tensor& g) { return ++b.state.hook_calls, g * 0.5; });
    return Tensors{y, h};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor x = input();
    Tensors all = b(x);
    Tensor detached = b.state.kept[0];
    detached.mul_(0.5);
    EXPECT_FALSE(detached.requires_grad());
    ops::sum(all[0] * 2.0).backward();
    all.push_back(x.grad());
    all.push_back(detached);
    return all;
  });
}

TEST_F(RegionEdges, HooksOnOutputsThatOtherOutputsAreMadeOf) {
  const MeansToRun eagerly(Eagerly::kBackward, "a hook inside the region");
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = ops::matmul(x, b.weight), view = h.slice(1, {0, 3});
    return Tensors{h, view, ops::tanh(h + b.bias) * ops::sum(view), b.norm(h)};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor leaf = input(), x = leaf * 1.5;
    Tensors y = b(x);
    y[0].register_hook([](const Tensor& g) { return g * 0.5; });
    y[1].retain_grad();
    (ops::sum(y[2] * y[3]) + ops::sum(x * leaf)).backward();
    return Tensors{y[1].grad(), leaf.grad(), y[2]};
  });
}

// A norm's mean is a result with a history, that of the norm, though no gradient of it reaches an input.
TEST_F(RegionEdges, AWatchedResultThatLeadsToNoInput) {
  const MeansToRun eagerly(Eagerly::kBackward, "a hook inside the region");
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor part = x.slice(1, {0, 3});
    return Tensors{ops::batch_norm(part.detach(), b.bias.slice(0, {0, 3}), Tensor(), 0.1).mean, part};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor x = input();
    Tensors y = b(x);
    for (Tensor& result : y) result.retain_grad();
    int calls = 0;
    y[0].register_hook([&](const Tensor& g) { return ++calls, g * 0.5; });
    (ops::sum(y[0] * 2.0) + ops::sum(y[1])).backward();
    EXPECT_EQ(calls, 1);
    return Tensors{y[0].grad(), y[1].grad(), x.grad()};
  });
}

TEST_F(RegionEdges, GradientsWithRespectToAnOutput) {
  const MeansToRun eagerly(Eagerly::kBackward, "gradients of outputs inside the region");
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = ops::matmul(x, b.weight);
    return Tensors{h, ops::tanh(h + b.bias), h * 2.0};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor x = input();
    const Tensors y = b(x), z = b(y[1]);
    const Tensor loss = ops::sum(y[1] * y[1]) + ops::sum(z[0] * z[1]);
    const Tensor inputs[] = {y[0], y[2], z[0], b.bias};
    Tensors all = autograd::grad({&loss, 1}, inputs, {}, true, false, true);
    const Tensors only = autograd::grad({&loss, 1}, {&y[0], 1}, {}, true);
    all.insert(all.end(), only.begin(), only.end());
    loss.backward();
    all.push_back(x.grad());
    return all;
  });
}

TEST_F(RegionEdges, AViewOfAnInputThatIsOverwrittenInside) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor view = x.t();
    Tensor same = x;
    same.mul_(b.bias);
    return Tensors{ops::tanh(x) + ops::matmul(view.t(), b.weight), ops::exp(view * x.t())};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor leaf = input();
    Tensors all = train_step(b, leaf * 1.25);
    all.push_back(leaf.grad());
    return all;
  });
}

TEST_F(RegionEdges, DetachIsNoBreak) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = x * b.bias;
    EXPECT_FALSE(h.is_leaf());
    Tensor fixed = h.detach();
    EXPECT_TRUE(fixed.is_leaf());
    return Tensors{h * fixed, fixed, h};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors y = one_step(b);
    EXPECT_TRUE(y[1].storage() == y[2].storage());
    EXPECT_FALSE(y[1].requires_grad());
    return y;
  });
  EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
}

// An index is only looked at when the op runs, which is at the end of the recording.
// Indices that the block computes are checked by a call of their own; the others by the kernel that looks up.
TEST_F(RegionEdges, AnIndexOutOfRangeLeavesWhatCameBeforeIt) {
  for (const bool computed : {true, false}) {
    SCOPED_TRACE(computed ? "computed" : "given");
    std::optional<MeansToRun> eagerly;
    if (computed) eagerly.emplace(Eagerly::kBackward, "backward from what a failed run had computed");
    const Tensor bad = Tensor::from<int64_t>({0, 7}, {2});
    const auto body = [&](Block& b, const Tensor& x) {
      b.state.kept.push_back(ops::tanh(x));
      const Tensor picked = ops::index_select(b.state.kept[0] * 2.0, 0, computed ? bad + 0 : bad);
      b.state.kept.push_back(picked + 1.0);
      return Tensors{picked};
    };
    expect_as_eager(body, [](Block& block) {
      const Tensor x = input();
      const std::string what = test::error_of<Error>([&] { block(x); });
      EXPECT_NE(what.find("is out of range for size 4"), std::string::npos) << what;
      Tensors results{block.state.kept.at(0)};
      ops::sum(results[0]).backward();
      results.push_back(x.grad());
      // Eager execution never got to the second; compiled, it is there, without a value.
      if (block.state.kept.size() > 1) {
        const Tensor& later = block.state.kept[1];
        EXPECT_NE(test::error_of<Error>([&] { later.to_vector<float>(); }).find("no value"), std::string::npos);
        EXPECT_NE(test::error_of<Error>([&] { later + 1.0; }).find("no value"), std::string::npos);
        EXPECT_NE(test::error_of<Error>([&] { later.view({-1}); }).find("no value"), std::string::npos);
      }
      return results;
    });
  }
}

// Eager execution never gets to the draws behind the op that throws; a recording has made them all by then.
TEST_F(RegionEdges, AnIndexOutOfRangeTakesBackTheDrawsBehindIt) {
  enum Fault { kGather, kAfterAWrite };
  for (const compile::Capture capture : {compile::Capture::kRecord, compile::Capture::kReplay})
    for (const Fault fault : {kGather, kAfterAWrite}) {
      const auto offsets = [&](bool compiled) {
        struct Drawing : nn::Module<Drawing> {
          Tensor& count = buffer("count", Tensor::zeros({4, 6}));
          Generator own{5};
          bool writes = false;
          Tensor forward(const Tensor& x, const Tensor& index) {
            const Tensor h = x + Tensor::rand(x.sizes()) + Tensor::rand(x.sizes(), {}, &own);
            if (writes) count.add_(h.detach());
            const Tensor picked = ops::index_select(h, 0, index);
            return picked + Tensor::rand(picked.sizes()) + Tensor::rand(picked.sizes(), {}, &own) +
                   Tensor::rand(picked.sizes());
          }
        };
        manual_seed(8);
        Drawing model;
        model.writes = fault == kAfterAWrite;
        if (compiled) compile::compile_module(model, {.exact = true, .capture = capture});
        Tensors seen;
        for (const int64_t last : {1, 0, 1, 7, 2, 7, 3}) {
          const Tensor index = Tensor::from<int64_t>({0, last}, {2});
          const std::string what = test::error_of<Error>([&] { seen.push_back(model(Tensor::ones({4, 6}), index)); });
          EXPECT_EQ(what.find("is out of range for size 4") != std::string::npos, last == 7) << what;
          seen.push_back(Tensor::from<int64_t>(
              {static_cast<int64_t>(default_generator().offset()), static_cast<int64_t>(model.own.offset())}, {2}));
          seen.push_back(model.count.clone());
        }
        return seen;
      };
      const Tensors eager = offsets(false), compiled = offsets(true);
      ASSERT_EQ(eager.size(), compiled.size());
      for (size_t i = 0; i < eager.size(); ++i)
        EXPECT_TRUE(same_bits(eager[i], compiled[i])) << "capture " << static_cast<int>(capture) << ", result " << i;
    }
}

// A piece of a loop runs when the next step begins, whose draw has been made by then.
TEST_F(RegionEdges, ABadIndexInAPieceOfALoopTakesBackTheDrawOfTheNextStep) {
  struct Loop : nn::Module<Loop> {
    nn::Linear next = child("next", 4, 4);
    Tensor& table = parameter("table", Tensor::randn({3, 4}));
    Generator own{5};
    bool draws_own = false;
    Tensor forward(const Tensor& x, const Tensor& index) {
      Tensor h = x;
      for (int64_t t = 0; t < index.size(0); ++t) {
        h = ops::dropout(h, 0.3, draws_own ? &own : nullptr);
        h = ops::tanh(next(h)) + ops::index_select(table, 0, index.slice(0, {t, t + 1}));
      }
      return h;
    }
  };
  for (const bool draws_own : {false, true}) {
    int64_t pieces = 0;
    const auto offsets = [&](bool compiled) {
      manual_seed(8);
      Loop loop;
      loop.draws_own = draws_own;
      std::optional<compile::Regions> regions;
      if (compiled) regions = compile::compile_module(loop, {.exact = true});
      Tensors seen;
      for (const int64_t bad : {-1, -1, 3, 15, 16, 17, 31, 32, 40, 69, -1}) {
        Tensor index = Tensor::zeros({70}, {kI64});
        if (bad >= 0) index[bad].fill_(3);
        const std::string what = test::error_of<Error>([&] { seen.push_back(loop(Tensor::ones({2, 4}), index)); });
        EXPECT_EQ(what.find("is out of range for size 3") != std::string::npos, bad >= 0) << what;
        seen.push_back(Tensor::from<int64_t>(
            {static_cast<int64_t>(default_generator().offset()), static_cast<int64_t>(loop.own.offset())}, {2}));
      }
      if (regions) pieces = regions->report()[0].loop_pieces;
      return seen;
    };
    const Tensors eager = offsets(false), compiled = offsets(true);
    ASSERT_EQ(eager.size(), compiled.size());
    for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(same_bits(eager[i], compiled[i])) << "result " << i;
    EXPECT_GT(pieces, 8);
  }
}

// The same at a graph break: what is recorded runs before the op whose operands broke it, which has drawn already.
TEST_F(RegionEdges, ABadIndexTakesBackTheDrawOfTheOpThatBreaksTheGraph) {
  const auto offsets = [&](bool compiled) {
    struct Drawing : nn::Module<Drawing> {
      Tensor& counts = buffer("counts", Tensor::zeros({2, 4}));
      Tensor forward(const Tensor& x, const Tensor& index) {
        const Tensor picked = ops::index_select(x, 0, index) + Tensor::rand({2, 4});
        no_grad([&] { counts.add_(picked); });
        return ops::dropout(twin, 0.5);  // a leaf in the memory that was written
      }
      Tensor twin = counts.detach().requires_grad_();
    };
    manual_seed(8);
    Drawing model;
    std::optional<compile::Regions> regions;
    if (compiled) regions = compile::compile_module(model, {.exact = true});
    Tensors seen;
    for (const int64_t last : {1, 7, 2, 7}) {
      const Tensor index = Tensor::from<int64_t>({0, last}, {2});
      const std::string what = test::error_of<Error>([&] { seen.push_back(model(Tensor::ones({4, 4}), index)); });
      EXPECT_EQ(what.find("is out of range for size 4") != std::string::npos, last == 7) << what;
      seen.push_back(Tensor::from<int64_t>({static_cast<int64_t>(default_generator().offset())}, {1}));
      seen.push_back(model.counts.clone());
    }
    if (regions) {
      EXPECT_EQ(regions->report()[0].graph_breaks, 4) << regions->report()[0].last_break;
    }
    return seen;
  };
  const Tensors eager = offsets(false), compiled = offsets(true);
  ASSERT_EQ(eager.size(), compiled.size());
  for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(same_bits(eager[i], compiled[i])) << "result " << i;
}

// Threads share the one row, and its deviation is computed by each: not in the memory that the others read it from.
// One value that is read with other repetitions in one kernel.
TEST_F(RegionEdges, AnOperandThatRepeatsInTwoWays) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor y = x.view({2, 6, 2}) + b.bias.view({6, 1});
    return Tensors{ops::tanh(y.view({6, 2, 2})) * b.bias.view({6, 1, 1})};
  };
  expect_as_eager(body, one_step);
}

// What stays in a kernel is rounded as if it were stored, and the truth of a number is not its sign.
TEST_F(RegionEdges, WhatIsNotStoredIsRounded) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = x.to(kBF16), scaled = (h * 1.7 + h) * 0.3;
    return Tensors{ops::exp(scaled).to(kF32) * b.bias, ops::where(x.to(kBool), x, 1.0),
                   ops::where((x * 0.0).to(kBool), x, 1.0)};
  };
  expect_as_eager(body, one_step);
}

// Inputs that begin inside of their memory, in library calls and kernels.
// As many rows as columns: the sums of the rows are read by column.
TEST_F(RegionEdges, SumsOfRowsThatAreReadByColumn) {
  NoGrad off;
  const auto function = [](const Tensor& x) { return ops::exp(x) * ops::sum(x, {1}); };
  auto compiled = compile::compile(function, {.exact = true});
  for (int64_t n : {5, 24}) {
    const Tensor x = Tensor::randn({n, n});
    EXPECT_TRUE(same_bits(compiled(x), function(x))) << n;
  }
}

TEST_F(RegionEdges, InputsWithAnOffset) {
  const auto body = [](Block& b, const Tensor& x) {
    return Tensors{ops::embedding(b.weight, b.state.kept[0]) + x, ops::matmul(b.state.kept[1], x.to(kF64))};
  };
  expect_as_eager(body, [](Block& b) {
    b.state.kept = {Tensor::from<int64_t>({9, 9, 9, 5, 0, 3, 2}, {7}).slice(0, {3, 7}),
                    Tensor::randn({5, 4}).to(kF64).slice(0, {2, 5})};
    return one_step(b);
  });
}

TEST_F(RegionEdges, NormsOfOneLongRow) {
  set_num_threads(2);
  for (int64_t n : {1 << 15, 33344, 100000}) {
    const Tensor x = Tensor::randn({n}).requires_grad_(), w = Tensor::randn({n});
    const auto function = [&](const Tensor& x) { return ops::layer_norm(x, w, w, 0.1); };
    auto compiled = compile::compile(function, {.exact = true});
    for (int i = 0; i < 10; ++i) {
      const Tensor expected = function(x), y = compiled(x);
      ASSERT_TRUE(same_bits(y, expected)) << n;
      const Tensor leaves[] = {x}, roots[] = {ops::sum(expected * w)}, compiled_roots[] = {ops::sum(y * w)};
      ASSERT_TRUE(same_bits(autograd::grad(compiled_roots, leaves, {}, false, false, false)[0],
                            autograd::grad(roots, leaves, {}, false, false, false)[0]))
          << n;
    }
  }
}

}  // namespace
}  // namespace rondo
