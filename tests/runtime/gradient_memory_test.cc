// Note [Gradients do not alias] of autograd.h: every way in which two gradients could come to share memory. And
// gradients of odd layouts: expanded, transposed, empty.
#include "rondo/runtime/autograd/gradient_memory.h"

#include <gtest/gtest.h>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo {
namespace {

using V = std::vector<double>;

std::vector<Tensor> leaves;  // of the running test

class GradientMemory : public testing::Test {
 protected:
  void SetUp() override { allocator::set_poison_on_free(true); }
  void TearDown() override {
    // With create_graph a leaf owns its .grad, whose tape owns the leaf: dropping .grad ends that.
    for (Tensor& leaf : leaves) leaf.zero_grad();
    leaves.clear();
    allocator::set_poison_on_free(false);
  }
};

Tensor leaf(std::initializer_list<double> values) {
  leaves.push_back(Tensor::from<double>(values, {static_cast<int64_t>(values.size())}).requires_grad_());
  return leaves.back();
}
V values(const Tensor& t) { return t.defined() ? t.to_vector<double>() : V{}; }
bool share(const Tensor& a, const Tensor& b) { return a.storage() == b.storage(); }

// Overwrites a.grad() and expects the others to keep their values.
void expect_private(const Tensor& a, std::initializer_list<Tensor> others) {
  Tensor grad = a.grad();
  ASSERT_TRUE(grad.defined());
  EXPECT_FALSE(autograd::overlaps_itself(grad));
  for (const Tensor& other : others) EXPECT_FALSE(share(grad, other));
  std::vector<V> before;
  for (const Tensor& other : others) before.push_back(values(other));
  no_grad([&] { grad.fill_(-77.0); });
  size_t i = 0;
  for (const Tensor& other : others) EXPECT_EQ(values(other), before[i++]);
}

class AliasModes : public GradientMemory, public testing::WithParamInterface<bool> {};

TEST_P(AliasModes, TwoLeavesAndTheCallersGradient) {
  const bool create_graph = GetParam();
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  const Tensor seed = Tensor::from<double>({5, 6}, {2});
  (a + b).backward(seed, false, create_graph);
  EXPECT_EQ(values(a.grad()), (V{5, 6}));
  EXPECT_EQ(values(b.grad()), (V{5, 6}));
  expect_private(a, {b.grad(), seed});
  expect_private(b, {seed});
}

TEST_P(AliasModes, ALeafItself) {
  Tensor a = leaf({1, 2});
  const Tensor seed = Tensor::from<double>({5, 6}, {2});
  a.backward(seed, false, GetParam());
  expect_private(a, {seed});
}

TEST_P(AliasModes, OneThroughAView) {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  const Tensor seed = Tensor::from<double>({5, 6}, {1, 2});
  (a.view({1, 2}) + b).backward(seed, false, GetParam());
  expect_private(a, {b.grad(), seed});
  expect_private(b, {seed});
}

TEST_P(AliasModes, ExpandedGradientsAreDense) {
  Tensor a = leaf({1, 2, 3}), b = leaf({4, 5, 6});
  ops::sum(a + b).backward({}, false, GetParam());
  EXPECT_TRUE(a.grad().is_contiguous());
  EXPECT_TRUE(b.grad().is_contiguous());
  expect_private(a, {b.grad()});
  EXPECT_EQ(values(b.grad()), (V{1, 1, 1}));
}

TEST_P(AliasModes, TransposedGradientsAreDense) {
  Tensor a = Tensor::arange(6, {kF64}).reshape({2, 3}).clone().requires_grad_();
  const Tensor seed = Tensor::arange(6, {kF64}).reshape({3, 2}).clone();
  a.t().backward(seed, false, GetParam());
  EXPECT_TRUE(a.grad().is_contiguous());
  EXPECT_EQ(values(a.grad()), (V{0, 2, 4, 1, 3, 5}));
  expect_private(a, {seed});
}

TEST_P(AliasModes, PartsOfOneGradient) {
  Tensor a = leaf({1, 2}), b = leaf({3});
  const Tensor seed = Tensor::from<double>({5, 6, 7}, {3});
  const Tensor parts[] = {a, b};
  ops::cat(parts, 0).backward(seed, false, GetParam());
  EXPECT_EQ(values(b.grad()), (V{7}));
  expect_private(a, {b.grad(), seed});
  expect_private(b, {seed});
}

TEST_P(AliasModes, WhatAHookReturns) {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  const Tensor mine = Tensor::from<double>({8, 9}, {2});
  a.register_hook([&](const Tensor&) { return mine; });
  b.register_hook([&](const Tensor&) { return mine; });
  (a * b).backward(Tensor::from<double>({1, 1}, {2}), false, GetParam());
  EXPECT_EQ(values(a.grad()), (V{8, 9}));
  expect_private(a, {b.grad(), mine});
  expect_private(b, {mine});
}

TEST_P(AliasModes, WhatAHookKeeps) {
  Tensor a = leaf({1, 2}), kept;
  a.register_hook([&](const Tensor& grad) { return kept = grad, Tensor(); });
  ops::sum(a * a).backward({}, false, GetParam());
  expect_private(a, {kept});
}

TEST_P(AliasModes, RetainedGradients) {
  Tensor a = leaf({1, 2});
  Tensor y = a + 1.0, z = y + 1.0;
  y.retain_grad();
  z.retain_grad();
  const Tensor seed = Tensor::from<double>({5, 6}, {2});
  z.backward(seed, false, GetParam());
  expect_private(a, {y.grad(), z.grad(), seed});
  expect_private(y, {z.grad(), seed});
  expect_private(z, {seed});
}

TEST_P(AliasModes, ResultsOfGrad) {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  const Tensor y = a + b, seed = Tensor::from<double>({5, 6}, {2});
  const Tensor inputs[] = {a, b, y};
  const std::vector<Tensor> grads = autograd::grad({&y, 1}, inputs, {&seed, 1}, false, GetParam());
  for (size_t i = 0; i < grads.size(); ++i) {
    EXPECT_EQ(values(grads[i]), (V{5, 6}));
    EXPECT_FALSE(share(grads[i], seed)) << i;
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(share(grads[i], grads[j])) << i << j;
  }
}

// The gradient passed in is the leaf's own .grad: it must be added once more, not be taken for what was added in place.
TEST_P(AliasModes, TheLeafsOwnGradAsTheSeed) {
  Tensor a = leaf({1, 2});
  a.set_grad(Tensor::from<double>({5, 6}, {2}));
  a.backward(a.grad(), false, GetParam());
  EXPECT_EQ(values(a.grad()), (V{10, 12}));
  (a + 1.0).backward(a.grad(), false, GetParam());
  EXPECT_EQ(values(a.grad()), (V{20, 24}));
}

TEST_P(AliasModes, AHookThatReturnsTheLeafsGrad) {
  Tensor a = leaf({1, 2});
  a.set_grad(Tensor::from<double>({5, 6}, {2}));
  a.register_hook([&](const Tensor&) { return a.grad(); });
  ops::sum(a).backward({}, false, GetParam());
  EXPECT_EQ(values(a.grad()), (V{10, 12}));
}

// .grad is added to in place while the same tensor flows on to another leaf.
TEST_P(AliasModes, AGradThatFlowsToOtherLeaves) {
  for (const bool by_hook : {false, true}) {
    Tensor a = leaf({1, 2}), b = leaf({3, 4});
    a.set_grad(Tensor::from<double>({5, 6}, {2}));
    Tensor y = a * 2.0 + b;
    const Tensor z = y * 1.0;
    y.register_hook([&](const Tensor&) { return by_hook ? a.grad() : Tensor(); });
    z.backward(a.grad(), false, GetParam());
    EXPECT_EQ(values(a.grad()), (V{15, 18}));
    EXPECT_EQ(values(b.grad()), (V{5, 6}));
  }
}

TEST_P(AliasModes, AnExpandedGradThatTheUserSetIsAddedTo) {
  Tensor a = leaf({1, 2});
  a.set_grad(Tensor::from<double>({5}, {1}).expand({2}));
  ops::sum(a).backward({}, false, GetParam());
  EXPECT_EQ(values(a.grad()), (V{6, 6}));
  expect_private(a, {});
}

INSTANTIATE_TEST_SUITE_P(, AliasModes, testing::Bool(),
                         [](const auto& create_graph) { return create_graph.param ? "CreateGraph" : "Plain"; });

// clip_grad_norm_ and zero_grad write gradients in place; the second leaf must not see it.
TEST_F(GradientMemory, UpdatesAfterCreateGraph) {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  ops::sum(a + b).backward({}, false, true);
  a.zero_grad(false);
  EXPECT_EQ(values(a.grad()), (V{0, 0}));
  EXPECT_EQ(values(b.grad()), (V{1, 1}));
}

TEST_F(GradientMemory, ZeroingAnExpandedGrad) {
  Tensor a = leaf({1, 2});
  const Tensor one = Tensor::from<double>({5}, {1});
  a.set_grad(one.expand({2}));
  a.zero_grad(false);
  EXPECT_EQ(values(a.grad()), (V{0, 0}));
  EXPECT_EQ(values(one), (V{5}));
}

// A gradient that nobody else holds becomes .grad without a copy; what is shared is copied.
TEST_F(GradientMemory, ASoleGradientIsKept) {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  const void* seen = nullptr;
  a.register_hook([&](const Tensor& grad) { return seen = grad.storage().id(), Tensor(); });
  ops::sum(a * b).backward();
  EXPECT_EQ(a.grad().storage().id(), seen);
  const void* again = seen;
  a.zero_grad();
  const Tensor inputs[] = {a};
  ops::sum(a * b * b).backward({}, false, true);
  EXPECT_EQ(a.grad().storage().id(), seen);
  (void)again;
}

TEST_F(GradientMemory, TheGradientOfCreateGraphKeepsItsHistory) {
  Tensor a = leaf({2});
  const Tensor y = ops::sum(a * a * a);
  y.backward({}, false, true);
  EXPECT_EQ(values(a.grad()), (V{12}));
  const Tensor inputs[] = {a};
  const Tensor first = ops::sum(a.grad());
  EXPECT_EQ(values(autograd::grad({&first, 1}, inputs)[0]), (V{12}));
  Tensor b = leaf({2});  // expanded, so copied
  ops::sum(b * b).backward(Tensor::scalar<double>(3), false, true);
  const Tensor inputs_b[] = {b};
  const Tensor second = ops::sum(b.grad() * b.grad());
  EXPECT_EQ(values(autograd::grad({&second, 1}, inputs_b)[0]), (V{144}));
}

// Borrowed host memory is the user's, even if they hold no handle to it.
TEST_F(GradientMemory, BorrowedMemoryIsNotTaken) {
  const DeviceScope scope(kCPU);  // whose memory is borrowed
  double host[] = {5, 6};
  Tensor a = leaf({1, 2});
  a.register_hook([&](const Tensor&) {
    return Tensor::from_storage(Storage::borrow(host, sizeof host, std::make_shared<int>(0)), 0, {2}, {1}, kF64);
  });
  ops::sum(a * a).backward();
  EXPECT_EQ(values(a.grad()), (V{5, 6}));
  a.zero_grad(false);
  EXPECT_EQ(host[0], 5);
}

// ---- Empty tensors

TEST_F(GradientMemory, BackwardOfEmptyTensors) {
  Tensor x = Tensor::zeros({2, 0}, {kF64}).requires_grad_();
  for (int i = 0; i < 3; ++i) ops::sum(x).backward();
  EXPECT_EQ(x.grad().sizes(), (Dims{2, 0}));

  Tensor y = Tensor::zeros({0, 3}, {kF64}).requires_grad_();
  (ops::sum(y * y) + ops::sum(ops::sum(y, {0}) * 2.0)).backward();
  EXPECT_EQ(y.grad().sizes(), (Dims{0, 3}));
  (ops::sum(y, {0}) + ops::sum(y)).backward(Tensor::ones({3}, {kF64}), false, true);
  EXPECT_EQ(y.grad().sizes(), (Dims{0, 3}));
  y.zero_grad(false);

  Tensor weight = leaf({1, 2});
  ops::sum(Tensor::zeros({0, 2}, {kF64}) * weight).backward();
  EXPECT_EQ(values(weight.grad()), (V{0, 0}));

  Tensor w = Tensor::ones({4, 2}, {kF64}).requires_grad_();
  ops::sum(ops::matmul(Tensor::zeros({0, 4}, {kF64}), w)).backward();
  EXPECT_EQ(values(w.grad()), V(8, 0.0));
}

TEST_F(GradientMemory, WritesInPlaceToEmptyTensors) {
  Tensor x = Tensor::zeros({1, 0}).expand({3, 0});
  x.add_(1.0).fill_(2);
  Tensor base = Tensor::zeros({3, 0}, {kF64}).requires_grad_() * 1.0;
  base.slice(0, {0, 2}).mul_(2.0);
  ops::sum(base).backward();
}

}  // namespace
}  // namespace rondo
