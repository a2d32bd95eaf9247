// A leaf that checkpoints use, several times or beside other uses: whoever waits for its gradient is told once, when
// all of it has arrived.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using test::error_of;
using test::same_bits;
using Tensors = std::vector<Tensor>;
using Wrap = std::function<Tensor(const std::function<Tensor(const Tensor&)>&, const Tensor&)>;

Tensor as_it_is(const std::function<Tensor(const Tensor&)>& fn, const Tensor& x) { return fn(x); }
Tensor checkpointed(const std::function<Tensor(const Tensor&)>& fn, const Tensor& x) {
  const Tensor inputs[] = {x};
  return autograd::checkpoint([fn](std::span<const Tensor> in) { return Tensors{fn(in[0])}; }, inputs)[0];
}

// The gradients with and without checkpoints; with them, each told once per backward, and then complete.
class CheckpointUses : public testing::Test {
 protected:
  Tensor w = Tensor::from<float>({0.5, -1, 2, 0.25, 1, -0.5, 0.125, 3, -2}, {3, 3}).requires_grad_();
  Tensor b = Tensor::from<float>({1, 2, 3}, {3}).requires_grad_();
  Tensor x = Tensor::from<float>({1, 2, -1, 0.5, 3, 1}, {2, 3}).requires_grad_();

  void expect_told_once(const std::function<Tensor(const Wrap&)>& loss) {
    loss(&as_it_is).backward();
    std::vector<Tensor> expected;
    for (Tensor* t : {&w, &b, &x}) {
      expected.push_back(t->grad());
      t->set_grad(Tensor());
    }
    std::vector<Tensor> told;
    std::vector<int64_t> ids;
    for (Tensor* t : {&w, &b, &x})
      ids.push_back(autograd::on_accumulated(*t, [&told, t] { told.push_back(t->grad().clone()); }));
    loss(&checkpointed).backward();
    EXPECT_EQ(told.size(), 3u);
    size_t at = 0;
    for (Tensor* t : {&w, &b, &x}) {
      EXPECT_TRUE(same_bits(t->grad(), expected[at])) << at;
      EXPECT_EQ(std::count_if(told.begin(), told.end(), [&](const Tensor& g) { return same_bits(g, expected[at]); }), 1)
          << at;
      autograd::remove_on_accumulated(*t, ids[at++]);
    }
  }
};

TEST_F(CheckpointUses, OneBlockSeveralTimes) {
  expect_told_once([&](const Wrap& wrap) {
    Tensor y = x;
    for (int i = 0; i < 4; ++i) y = wrap([&](const Tensor& in) { return ops::tanh(ops::matmul(in, w) + b); }, y);
    return ops::sum(y * y);
  });
}

TEST_F(CheckpointUses, UsesOutsideOfIt) {
  expect_told_once([&](const Wrap& wrap) {
    const Tensor y = wrap([&](const Tensor& in) { return ops::tanh(ops::matmul(in, w)); }, x) + b;
    return ops::sum(ops::matmul(y, w) * wrap([&](const Tensor& in) { return in * b; }, y));
  });
}

TEST_F(CheckpointUses, NestedOnes) {
  expect_told_once([&](const Wrap& wrap) {
    const auto inner = [this](const Tensor& in) { return ops::tanh(ops::matmul(in, w) + b); };
    const auto outer = [=, this](const Tensor& in) { return wrap(inner, wrap(inner, in)) * b; };  // runs again
    return ops::sum(wrap(outer, wrap(outer, x)));
  });
}

// A view of the leaf, and the 16-bit copy of it that autocast makes, are uses of the leaf.
TEST_F(CheckpointUses, ByViewsAndLoweredCopies) {
  expect_told_once([&](const Wrap& wrap) {
    const amp::Autocast lower(kBF16);
    Tensor y = x;
    for (int i = 0; i < 2; ++i)
      y = wrap([&](const Tensor& in) { return ops::tanh(ops::matmul(in, w.transpose(0, 1)) + b.view({1, 3})); }, y);
    return ops::sum(y.to(kF32));
  });
}

// It is the input of one checkpoint, and another reads it by itself.
TEST_F(CheckpointUses, AnInputToo) {
  expect_told_once([&](const Wrap& wrap) {
    const Tensor y = wrap([&](const Tensor& in) { return ops::matmul(in, in) + b; }, w);
    return ops::sum(ops::matmul(wrap([&](const Tensor& in) { return ops::matmul(in, w); }, x), y));
  });
}

TEST_F(CheckpointUses, EveryBackwardTellsOnce) {
  int told = 0;
  autograd::on_accumulated(w, [&] { ++told; });
  const auto fn = [&](const Tensor& in) { return ops::tanh(ops::matmul(in, w)); };
  const Tensor loss = ops::sum(checkpointed(fn, checkpointed(fn, x)));
  loss.backward(Tensor(), /*retain_graph=*/true);
  EXPECT_EQ(told, 1);
  const Tensor once = w.grad().clone();
  loss.backward();
  EXPECT_EQ(told, 2);
  EXPECT_TRUE(same_bits(w.grad(), once + once));
}

// What is read without a gradient is not told of.
TEST_F(CheckpointUses, NobodyIsToldOfNothing) {
  int told = 0;
  autograd::on_accumulated(w, [&] { ++told; });
  const auto fn = [&](const Tensor& in) { return ops::matmul(in, w.detach()) + b; };
  ops::sum(checkpointed(fn, checkpointed(fn, x))).backward();
  EXPECT_EQ(told, 0);
  EXPECT_FALSE(w.grad().defined());
  EXPECT_TRUE(b.grad().defined());
}

// grad() returns what flows along the tape; it would miss what a checkpoint's own backward adds to .grad.
TEST_F(CheckpointUses, GradOfWhatIsInsideIsRefused) {
  const auto fn = [&](const Tensor& in) { return ops::matmul(in, w); };
  const Tensor loss = ops::sum(ops::matmul(checkpointed(fn, x), w));
  const Tensor of_w[] = {w}, of_x[] = {x};
  EXPECT_NE(error_of([&] {
              autograd::grad({&loss, 1}, of_w, {}, /*retain_graph=*/true);
            }).find("pass the leaf to checkpoint() among its inputs"),
            std::string::npos);
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(autograd::grad({&loss, 1}, of_x).size(), 1u);
}

// ... and leaves the .grad of leaves inside alone, and who waits for them.
TEST_F(CheckpointUses, GradAddsNothingToLeavesInside) {
  int told = 0;
  autograd::on_accumulated(w, [&] { ++told; });
  const auto fn = [&](const Tensor& in) { return ops::tanh(ops::matmul(in, w)); };
  const auto gradient = [&](const Wrap& wrap) {
    const Tensor loss = ops::sum(wrap(fn, wrap(fn, x)));
    return autograd::grad({&loss, 1}, {&x, 1})[0];
  };
  EXPECT_TRUE(same_bits(gradient(&checkpointed), gradient(&as_it_is)));
  EXPECT_FALSE(w.grad().defined());
  EXPECT_FALSE(x.grad().defined());
  EXPECT_EQ(told, 0);
}

// Hooks see the whole gradient of a leaf, once, also where a checkpoint in a checkpoint adds to it.
TEST_F(CheckpointUses, HooksSeeWholeGradients) {
  const auto inner = [&](const Tensor& in) { return ops::tanh(ops::matmul(in, w)); };
  const auto loss = [&](const Wrap& wrap) {
    const auto outer = [&](const Tensor& in) { return ops::matmul(wrap(inner, in), w); };
    return ops::sum(ops::matmul(wrap(outer, x), w));
  };
  loss(&as_it_is).backward();
  const Tensor expected = w.grad().clone();
  w.set_grad(Tensor());
  std::vector<Tensor> seen;
  w.register_hook([&](const Tensor& gradient) {
    seen.push_back(gradient.clone());
    return gradient * 2;
  });
  loss(&checkpointed).backward();
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_LT(ops::max(ops::abs(seen[0] - expected)).item(), 1e-5);
  EXPECT_TRUE(same_bits(w.grad(), seen[0] * 2));
}

// The backward of a checkpoint would go on through the graph outside of it, at every use again.
TEST_F(CheckpointUses, WhatIsComputedOutsideIsAnInput) {
  const Tensor outside = w * 2;
  const auto captures = [&](const Tensor& in) { return ops::matmul(in, outside); };
  const std::string error = error_of([&] { checkpointed(captures, x); });
  EXPECT_NE(error.find("a tensor of shape [3, 3] that was computed outside of it and requires grad (by mul"),
            std::string::npos)
      << error;
  const Tensor inputs[] = {x, outside};
  const auto takes = [](std::span<const Tensor> in) { return Tensors{ops::matmul(in[0], in[1])}; };
  const Tensor first = autograd::checkpoint(takes, inputs)[0], second = autograd::checkpoint(takes, inputs)[0];
  ops::sum(first + second).backward();
  const Tensor got = w.grad().clone();
  w.set_grad(Tensor());
  ops::sum(captures(x) + captures(x)).backward();
  EXPECT_TRUE(same_bits(got, w.grad()));
  // What the function itself has computed with gradients on is its own.
  const auto own = [&](const Tensor& in) {
    const GradMode on(true);
    return ops::matmul(in, w * 2);
  };
  EXPECT_EQ(error_of([&] { ops::sum(checkpointed(own, x) * 1).backward(); }), "");
}

TEST_F(CheckpointUses, ALeafInsideThatWasOverwritten) {
  const Tensor loss = ops::sum(checkpointed([&](const Tensor& in) { return ops::matmul(in, w); }, x));
  no_grad([&] { w.mul_(3); });
  EXPECT_NE(error_of<StaleTensorError>([&] { loss.backward(); }).find("was overwritten in place"), std::string::npos);
}

}  // namespace
}  // namespace rondo
