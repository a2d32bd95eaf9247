// The tape: lifetimes, in-place writes, hooks, second derivatives, checkpointing, errors. Freed memory is poisoned with
// NaN throughout, so that a use after free is a wrong number.
#include "rondo/runtime/autograd/autograd.h"

#include <gtest/gtest.h>

#include <cmath>

#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using test::same_bits;

class Autograd : public testing::Test {
 protected:
  void SetUp() override {
    allocator::set_poison_on_free(true);
    manual_seed(11);
  }
  void TearDown() override { allocator::set_poison_on_free(false); }
};

Tensor leaf(const Dims& sizes, DType dtype = kF32) { return Tensor::randn(sizes, {dtype}).requires_grad_(); }
std::vector<double> values(const Tensor& t) { return t.defined() ? t.to_vector<double>() : std::vector<double>{NAN}; }
using V = std::vector<double>;

using test::error_of;
#define EXPECT_MENTIONS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << "got: " << (text)

// ---- Lifetimes (the line 8)

struct TinyMlp {
  Tensor w1 = leaf({6, 8}), w2 = leaf({8, 3});
  Tensor loss(const Tensor& x) const { return ops::mean(ops::matmul(ops::gelu(ops::matmul(x, w1)), w2)); }
  std::vector<Tensor> grads() const { return {w1.grad().clone(), w2.grad().clone()}; }
  void zero() {
    w1.zero_grad();
    w2.zero_grad();
  }
};
void expect_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << i;
}

TEST_F(Autograd, TwoForwardsBeforeOneBackward) {
  TinyMlp model;
  const Tensor x = Tensor::randn({4, 6}), y = Tensor::randn({5, 6});
  model.loss(x).backward();
  const auto from_x = model.grads();
  model.zero();
  model.loss(y).backward();
  const auto from_y = model.grads();
  model.zero();
  Tensor first = model.loss(x), second = model.loss(y);
  first.backward();
  expect_equal(model.grads(), from_x);
  model.zero();
  first = Tensor();
  second.backward();
  expect_equal(model.grads(), from_y);
}

TEST_F(Autograd, TwoModelsInterleaved) {
  TinyMlp a, b;
  const Tensor x = Tensor::randn({4, 6});
  a.loss(x).backward();
  b.loss(x).backward();
  const auto grads_a = a.grads(), grads_b = b.grads();
  a.zero();
  b.zero();
  Tensor loss_a = a.loss(x), loss_b = b.loss(x);
  loss_b.backward();
  loss_a.backward();
  expect_equal(a.grads(), grads_a);
  expect_equal(b.grads(), grads_b);
}

TEST_F(Autograd, RetainGraphTwice) {
  TinyMlp model;
  const Tensor x = Tensor::randn({4, 6});
  const Tensor loss = model.loss(x);
  loss.backward({}, /*retain_graph=*/true);
  const auto once = model.grads();
  model.zero();
  loss.backward({}, true);
  expect_equal(model.grads(), once);
  model.zero();
  loss.backward();
  expect_equal(model.grads(), once);
  EXPECT_MENTIONS(error_of([&] { loss.backward(); }), "retain_graph");
}

TEST_F(Autograd, AnIntermediateOutlivesItsGraph) {
  Tensor escaped;
  V expected;
  {
    TinyMlp model;
    const Tensor x = Tensor::randn({4, 6}), hidden = ops::gelu(ops::matmul(x, model.w1));
    expected = values(hidden);
    escaped = hidden;
    ops::mean(ops::matmul(hidden, model.w2)).backward();
  }
  EXPECT_EQ(values(escaped), expected);
  // Its own history is spent, but it can be used on.
  Tensor w = leaf({8, 1});
  ops::sum(ops::matmul(escaped.detach(), w)).backward();
  EXPECT_TRUE(w.grad().defined());
}

TEST_F(Autograd, AnIntermediateCarriesItsHistoryOut) {
  Tensor w = leaf({3}), escaped;
  {
    Tensor x = Tensor::from<float>({1, 2, 3}, {3});
    escaped = (x * w) * 2.0;
  }
  ops::sum(escaped * escaped.detach()).backward();
  EXPECT_TRUE(same_bits(w.grad(), escaped.detach() * Tensor::from<float>({2, 4, 6}, {3})));
}

TEST_F(Autograd, AThrowAfterAnInPlaceWriteLeavesTheWrite) {
  Tensor x = Tensor::from<float>({1, 2, 3}, {3}), w = leaf({3});
  Tensor h = x * w;
  try {
    h.add_(1.0);
    ops::matmul(h, w);
    FAIL();
  } catch (const Error&) {
  }
  EXPECT_TRUE(same_bits(h, x * w + 1.0));
  ops::sum(h * h.detach()).backward();
  EXPECT_TRUE(same_bits(w.grad(), x * h.detach()));
  EXPECT_TRUE(grad_enabled());
}

// ---- In place

TEST_F(Autograd, AStaleSavedTensorIsNamed) {
  Tensor w = leaf({3});
  Tensor h = w * 2.0;
  Tensor y = ops::sum(h * h);
  h.add_(1.0);
  const std::string text = error_of<StaleTensorError>([&] { y.backward(); });
  EXPECT_MENTIONS(text, "mul");
  EXPECT_MENTIONS(text, "[3]");
  EXPECT_MENTIONS(text, "autograd_test.cc");
}

TEST_F(Autograd, AStaleOutputIsNamed) {
  Tensor w = leaf({3}), y = ops::exp(w);
  y.mul_(2.0);
  EXPECT_MENTIONS(error_of<StaleTensorError>([&] { ops::sum(y).backward(); }), "exp");
}

TEST_F(Autograd, AWriteThroughAViewMakesItsBaseStale) {
  Tensor w = leaf({4}), h = w * 2.0, y = ops::sum(h * h);
  h.slice(0, {1, 3}).fill_(0);
  EXPECT_MENTIONS(error_of<StaleTensorError>([&] { y.backward(); }), "mul");
}

TEST_F(Autograd, WritesThroughRawPointersAreSeen) {
  Tensor w = leaf({4}), h = w * 2.0, y = ops::sum(h * h);
  h.mutable_data<float>()[0] = 1;
  EXPECT_NE(error_of<StaleTensorError>([&] { y.backward(); }), "");
}

TEST_F(Autograd, AnUpdateUnderNoGradMakesAnOldGraphStale) {
  Tensor w = leaf({3}), y = ops::sum(w * w);
  no_grad([&] { w.sub_(w * 0.1); });
  EXPECT_NE(error_of<StaleTensorError>([&] { y.backward(); }), "");
}

TEST_F(Autograd, InPlaceChainsDifferentiate) {
  const V x = {0.5, -1.25, 2};
  Tensor w = Tensor::from<double>(x, {3}).requires_grad_();
  Tensor h = w * 1.0;
  h.mul_(3.0);
  h.add_(w);  // 4 w
  h.mul_(w);  // 4 w^2
  h.div_(w + 5.0);
  h.sub_(w);
  ops::sum(h).backward();
  for (size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(values(w.grad())[i], (8 * x[i] * (x[i] + 5) - 4 * x[i] * x[i]) / ((x[i] + 5) * (x[i] + 5)) - 1, 1e-12);
}

TEST_F(Autograd, ATensorTimesItselfInPlace) {
  Tensor w = Tensor::from<double>({3.0, -2.0}, {2}).requires_grad_();
  Tensor h = w * 1.0;
  h.mul_(h);
  EXPECT_EQ(values(h), (V{9, 4}));
  ops::sum(h).backward();
  EXPECT_EQ(values(w.grad()), (V{6, -4}));
  Tensor k = w * 1.0;
  k.div_(k);
  w.zero_grad();
  ops::sum(k).backward();
  EXPECT_EQ(values(w.grad()), (V{0, 0}));
  Tensor a = w * 1.0;
  a.add_(a);
  w.zero_grad();
  ops::sum(a).backward();
  EXPECT_EQ(values(w.grad()), (V{2, 2}));
}

TEST_F(Autograd, OverlappingOperandsReadTheOldValues) {
  Tensor t = Tensor::from<float>({1, 2, 3, 4}, {4});
  t.slice(0, {1, 4}).add_(t.slice(0, {0, 3}));
  EXPECT_EQ(values(t), (V{1, 3, 5, 7}));
  Tensor m = Tensor::from<float>({1, 2, 3, 4}, {2, 2});
  m.add_(m.t());
  EXPECT_EQ(values(m), (V{2, 5, 5, 8}));
  m.copy_(m.t().clone().t());
  m.sub_(m[0]);
  EXPECT_EQ(values(m), (V{0, 0, 3, 3}));
}

TEST_F(Autograd, InPlaceOnAViewReachesTheBase) {
  Tensor s = Tensor::from<float>({2, 5}, {2}).requires_grad_();
  Tensor w = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {3, 2}).requires_grad_();
  Tensor base = w * 10.0;
  base[1].copy_(s * 3.0);
  EXPECT_EQ(values(base), (V{10, 20, 6, 15, 50, 60}));
  ops::sum(base * base.detach()).backward();
  EXPECT_EQ(values(w.grad()), (V{100, 200, 0, 0, 500, 600}));
  EXPECT_EQ(values(s.grad()), (V{18, 45}));
}

TEST_F(Autograd, InPlaceOnAViewOfPlainData) {
  Tensor s = Tensor::from<float>({2, 5}, {2}).requires_grad_();
  Tensor base = Tensor::zeros({3, 2});
  base[1].copy_(s * 3.0);
  EXPECT_TRUE(base.requires_grad());
  ops::sum(base * base.detach()).backward();
  EXPECT_EQ(values(s.grad()), (V{18, 45}));
}

TEST_F(Autograd, InPlaceOnAViewOfAView) {
  Tensor s = Tensor::from<float>({7}, {1}).requires_grad_();
  Tensor w = Tensor::ones({2, 3}).requires_grad_();
  Tensor base = w * 2.0;
  base[1].slice(0, {1, 2}).mul_(s);
  EXPECT_EQ(values(base), (V{2, 2, 2, 2, 14, 2}));
  ops::sum(base).backward();
  EXPECT_EQ(values(w.grad()), (V{2, 2, 2, 2, 14, 2}));
  EXPECT_EQ(values(s.grad()), (V{2}));
}

TEST_F(Autograd, AnOldViewSeesALaterWriteToItsBase) {
  Tensor w = Tensor::from<float>({1, 2, 3}, {3}).requires_grad_();
  Tensor base = w * 2.0;
  const Tensor view = base.slice(0, {1, 3});
  base.mul_(w);  // 2 w^2
  EXPECT_EQ(values(view), (V{8, 18}));
  ops::sum(view).backward();
  EXPECT_EQ(values(w.grad()), (V{0, 8, 12}));
}

TEST_F(Autograd, AViewOfPlainDataSeesALaterDifferentiableWrite) {
  Tensor w = Tensor::from<float>({1, 2, 3}, {3}).requires_grad_();
  Tensor base = Tensor::zeros({3});
  const Tensor view = base.slice(0, {1, 3});
  base.copy_(w * 5.0);
  EXPECT_TRUE(view.requires_grad());
  Tensor factor = Tensor::from<float>({2, 3}, {2}).requires_grad_();
  ops::sum(view * factor).backward();
  EXPECT_EQ(values(w.grad()), (V{0, 10, 15}));
  EXPECT_EQ(values(factor.grad()), (V{10, 15}));
}

TEST_F(Autograd, ASiblingViewSeesALaterDifferentiableWrite) {
  Tensor s = Tensor::from<float>({3}, {1}).requires_grad_();
  Tensor base = Tensor::zeros({4});
  const Tensor all = base.slice(0, {0, 4});
  base.slice(0, {1, 2}).copy_(s);
  ops::sum(all * Tensor::from<float>({1, 2, 3, 4}, {4}).requires_grad_()).backward();
  EXPECT_EQ(values(s.grad()), (V{2}));
}

TEST_F(Autograd, AViewOfPlainDataIsWrittenAfterItsBase) {
  Tensor x = Tensor::from<float>({1, 2, 3, 4}, {2, 2}).requires_grad_(), p = Tensor::ones({2, 2}), row = p[0];
  p.copy_(x);
  row.mul_(5);
  EXPECT_EQ(values(p), (V{5, 10, 3, 4}));
  ops::sum(p).backward();
  EXPECT_EQ(values(x.grad()), (V{5, 5, 1, 1}));
}

TEST_F(Autograd, OverwritingDropsTheOldGradientEvenIfItIsNaN) {
  Tensor w = leaf({2}), h = w * 1.0;
  h.fill_(3);
  Tensor y = ops::sum(h * std::numeric_limits<double>::infinity());
  y.backward();
  EXPECT_EQ(values(w.grad()), (V{0, 0}));
  Tensor k = w * 1.0, source = leaf({2});
  k.copy_(source);
  w.zero_grad();
  ops::sum(k * std::numeric_limits<double>::quiet_NaN()).backward();
  EXPECT_EQ(values(w.grad()), (V{0, 0}));
}

TEST_F(Autograd, InPlaceErrors) {
  Tensor w = leaf({3});
  EXPECT_MENTIONS(error_of([&] { w.add_(1.0); }), "leaf");
  EXPECT_MENTIONS(error_of([&] { w.add_(1.0); }), "autograd_test.cc");
  EXPECT_MENTIONS(error_of([&] { w.slice(0, {0, 1}).add_(1.0); }), "leaf");
  EXPECT_EQ(error_of([&] { no_grad([&] { w.add_(1.0); }); }), "");
  Tensor t = Tensor::zeros({3});
  EXPECT_MENTIONS(error_of([&] { t.add_(Tensor::zeros({2, 3})); }), "[2, 3]");
  EXPECT_MENTIONS(error_of([&] { t.copy_(Tensor::zeros({4})); }), "copy");
  // A fraction does not fit into whole numbers: nothing is dropped in silence.
  Tensor whole = Tensor::arange(3);
  EXPECT_MENTIONS(error_of([&] { whole.add_(0.5); }), "i64");
  EXPECT_MENTIONS(error_of([&] { whole.mul_(Tensor::full({}, 0.5)); }), "i64");
  EXPECT_EQ(values(whole), (V{0, 1, 2}));
}

TEST_F(Autograd, ARefusedWriteDoesNotHappen) {
  Tensor w = leaf({2, 2}), base = (w * 2.0).t();  // not contiguous
  Tensor root = w * 1.0, wide = root.t()[0].expand({3, 2});
  const V before = values(root);
  EXPECT_NE(error_of([&] { wide.mul_(w.detach()[0]); }), "");
  EXPECT_EQ(values(root), before) << "the tensor was written before the error";
}

// ---- Hooks and retained gradients

TEST_F(Autograd, HooksOfLeavesAndOfIntermediates) {
  Tensor w = Tensor::from<float>({1, 2}, {2}).requires_grad_();
  Tensor h = w * 3.0;
  std::vector<V> seen;
  const int64_t id = h.register_hook([&](const Tensor& g) {
    seen.push_back(values(g));
    return Tensor();
  });
  h.register_hook([&](const Tensor& g) { return g * 10.0; });
  w.register_hook([&](const Tensor& g) {
    seen.push_back(values(g));
    return g + 1.0;
  });
  h.retain_grad();
  const Tensor y = ops::sum(h * 2.0);
  y.backward({}, true);
  EXPECT_EQ(seen, (std::vector<V>{{2, 2}, {60, 60}}));
  EXPECT_EQ(values(w.grad()), (V{61, 61}));
  EXPECT_EQ(values(h.grad()), (V{20, 20}));
  h.remove_hook(id);
  seen.clear();
  w.zero_grad();
  y.backward();
  EXPECT_EQ(seen, (std::vector<V>{{60, 60}}));
  EXPECT_EQ(values(w.grad()), (V{61, 61}));
}

TEST_F(Autograd, AHookMayRemoveItself) {
  Tensor w = leaf({2}), h = w * 1.0;
  int calls = 0;
  int64_t id = -1;
  id = h.register_hook([&](const Tensor&) {
    ++calls;
    h.remove_hook(id);
    return Tensor();
  });
  h.register_hook([&](const Tensor&) {
    ++calls;
    return Tensor();
  });
  const Tensor y = ops::sum(h);
  y.backward({}, true);
  y.backward();
  EXPECT_EQ(calls, 3);
}

TEST_F(Autograd, AHookSeesTheWholeGradientOnce) {
  Tensor w = leaf({2}), h = w * 1.0;
  int calls = 0;
  h.register_hook([&](const Tensor& g) {
    ++calls;
    EXPECT_EQ(values(g), (V{5, 5}));
    return Tensor();
  });
  ops::sum(h * 2.0 + h * 3.0).backward();
  EXPECT_EQ(calls, 1);
}

TEST_F(Autograd, AThrowingHookLeavesTheModeAlone) {
  Tensor w = leaf({2});
  w.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("from the hook"); });
  EXPECT_EQ(error_of<std::runtime_error>([&] { ops::sum(w * 2.0).backward(); }), "from the hook");
  EXPECT_TRUE(grad_enabled());
  EXPECT_NE(error_of([&] { Tensor::zeros({2}).register_hook([](const Tensor&) { return Tensor(); }); }), "");
}

TEST_F(Autograd, AHookMustKeepTheShape) {
  Tensor w = leaf({2}), h = w * 1.0;
  h.register_hook([](const Tensor&) { return Tensor::ones({3}); });
  EXPECT_MENTIONS(error_of([&] { ops::sum(h).backward(); }), "[3]");
}

// ---- Accumulating

TEST_F(Autograd, GradientsAddUpOverBackwards) {
  Tensor w = Tensor::from<float>({1, 2}, {2}).requires_grad_();
  for (int i = 0; i < 3; ++i) ops::sum(w * 2.0).backward();
  EXPECT_EQ(values(w.grad()), (V{6, 6}));
  w.zero_grad(false);
  EXPECT_EQ(values(w.grad()), (V{0, 0}));
  w.zero_grad();
  EXPECT_FALSE(w.grad().defined());
}

TEST_F(Autograd, TwoLeavesDoNotShareOneGradient) {
  Tensor a = leaf({3}), b = leaf({3});
  const Tensor y = a + b;
  Tensor seed = Tensor::ones({3});
  y.backward(seed);
  Tensor grad = a.grad();
  no_grad([&] { grad.mul_(100.0); });
  EXPECT_EQ(values(b.grad()), (V{1, 1, 1}));
  EXPECT_EQ(values(seed), (V{1, 1, 1}));
  ops::sum(a + b).backward();
  EXPECT_EQ(values(b.grad()), (V{2, 2, 2}));
}

TEST_F(Autograd, OneTensorUsedTwice) {
  Tensor w = Tensor::from<double>({3.0, -2.0}, {2}).requires_grad_();
  ops::sum(w * w * w + w).backward();
  EXPECT_EQ(values(w.grad()), (V{28, 13}));
  Tensor m = leaf({3, 3}, kF64);
  ops::sum(ops::matmul(m, m)).backward();
  const Tensor ones = Tensor::ones({3, 3}, {kF64});
  const Tensor expected = ops::matmul(ones, m.detach().t()) + ops::matmul(m.detach().t(), ones);
  for (size_t i = 0; i < 9; ++i) EXPECT_NEAR(values(m.grad())[i], values(expected)[i], 1e-12);
}

TEST_F(Autograd, NoGradAndDetach) {
  Tensor w = leaf({2});
  const Tensor a = no_grad([&] { return w * 2.0; });
  EXPECT_FALSE(a.requires_grad());
  EXPECT_TRUE(a.is_leaf());
  const Tensor b = (w * 2.0).detach() * w;
  ops::sum(b).backward();
  EXPECT_TRUE(same_bits(w.grad(), w.detach() * 2.0));
  EXPECT_EQ(error_of<std::runtime_error>([&] { no_grad([&] { throw std::runtime_error("x"); }); }), "x");
  EXPECT_TRUE(grad_enabled());
}

TEST_F(Autograd, AutogradGradReturnsAndDoesNotAccumulate) {
  Tensor w = Tensor::from<double>({3.0}, {1}).requires_grad_(), v = leaf({1}, kF64);
  Tensor h = w * w, y = ops::sum(h * v);
  int calls = 0;
  w.register_hook([&](const Tensor&) {
    ++calls;
    return Tensor();
  });
  const Tensor roots[] = {y}, inputs[] = {h, v};
  const auto grads = autograd::grad(roots, inputs, {}, true);
  EXPECT_TRUE(same_bits(grads[0], v.detach()));
  EXPECT_EQ(values(grads[1]), (V{9}));
  EXPECT_FALSE(w.grad().defined());
  EXPECT_FALSE(v.grad().defined());
  EXPECT_EQ(calls, 0);
  const Tensor unused[] = {leaf({2})};
  EXPECT_MENTIONS(error_of([&] { autograd::grad(roots, unused, {}, true); }), "not used");
}

// Only what lies between roots and inputs runs.
TEST_F(Autograd, AutogradGradStopsAtItsInputs) {
  Tensor w = leaf({2}), below = w * 2.0, h = below * 3.0;
  int calls = 0;
  below.register_hook([&](const Tensor&) {
    ++calls;
    return Tensor();
  });
  const Tensor roots[] = {ops::sum(h * h)}, inputs[] = {h};
  autograd::grad(roots, inputs);
  EXPECT_EQ(calls, 0) << "the tape below the inputs ran";
  ops::sum(h).backward();  // and was not freed
  EXPECT_EQ(values(w.grad()), (V{6, 6}));
}

// ---- Views

TEST_F(Autograd, GradientsOfViews) {
  Tensor w = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3}).requires_grad_();
  ops::sum(w.t().slice(0, {0, 3, 2}) * Tensor::from<float>({1, 2, 3, 4}, {2, 2})).backward();
  EXPECT_EQ(values(w.grad()), (V{1, 0, 3, 2, 0, 4}));
  w.zero_grad();
  ops::sum(w[1].expand({4, 3})).backward();
  EXPECT_EQ(values(w.grad()), (V{0, 0, 0, 4, 4, 4}));
  w.zero_grad();
  const auto pieces = ops::split(w, 1, 1);
  ops::sum(pieces[2] * 2.0).backward();
  EXPECT_EQ(values(w.grad()), (V{0, 0, 2, 0, 0, 2}));
}

TEST_F(Autograd, TheGradientOfAnExpandedTensorIsDense) {
  Tensor w = leaf({3});
  ops::sum(w).backward();  // the gradient arrives expanded
  Tensor grad = w.grad();
  EXPECT_TRUE(grad.is_contiguous());
  no_grad([&] { grad.slice(0, {0, 1}).mul_(7.0); });
  EXPECT_EQ(values(grad), (V{7, 1, 1}));
}

// ---- Depth

TEST_F(Autograd, ADeepChainIsFreedWithoutRecursion) {
  Tensor w = leaf({1});
  {
    Tensor h = w;
    for (int i = 0; i < 200000; ++i) h = h * 1.0;
  }
  Tensor h = w;
  for (int i = 0; i < 200000; ++i) h = h * h.detach() * 0.0 + w;  // saves tensors, too
  h = Tensor();
  Tensor k = w;
  for (int i = 0; i < 200000; ++i) k = k + 0.0;
  k.backward();
  EXPECT_EQ(values(w.grad()), (V{1}));
}

TEST_F(Autograd, ADeepChainOfViewsAndSquares) {
  Tensor w = Tensor::ones({2, 1}).requires_grad_();
  Tensor h = w;
  for (int i = 0; i < 100000; ++i) h = h.t() * h.t();
  ops::sum(h);
  h = Tensor();
}

// ---- Errors

TEST_F(Autograd, Errors) {
  Tensor w = leaf({3});
  EXPECT_MENTIONS(error_of([&] { (w * 2.0).backward(); }), "[3]");
  EXPECT_MENTIONS(error_of([&] { (w * 2.0).backward(); }), "autograd_test.cc");
  EXPECT_MENTIONS(error_of([&] { Tensor::ones({}).backward(); }), "require grad");
  EXPECT_MENTIONS(error_of([&] { (w * 2.0).backward(Tensor::ones({2})); }), "[2]");
  EXPECT_MENTIONS(error_of([&] { (w * 2.0).backward(Tensor::ones({3}, {kF64})); }), "f64");
  EXPECT_NE(error_of([&] { w.set_grad(Tensor::ones({2})); }), "");
  EXPECT_NE(error_of([&] { Tensor::arange(3).requires_grad_(); }), "");
  EXPECT_NE(error_of([&] { (w * 2.0).requires_grad_(false); }), "");
  EXPECT_MENTIONS(error_of([&] { w.data<double>(); }), "f32");
  EXPECT_MENTIONS(error_of([&] { w.detach().mutable_data<int64_t>(); }), "f32");
  EXPECT_MENTIONS(error_of([&] { w.item(); }), "autograd_test.cc");
  EXPECT_NE(error_of([&] { Tensor().data<float>(); }), "");
  const Tensor y = ops::sum(w * w);
  y.backward();
  EXPECT_MENTIONS(error_of([&] { y.backward(); }), "retain_graph");
  EXPECT_MENTIONS(error_of([&] { y.backward(); }), "autograd_test.cc");
}

// A root from which another root is computed, in either order.
TEST(Grad, OneRootBelowAnother) {
  for (bool first : {true, false}) {
    const Tensor x = Tensor::full({2}, 3).requires_grad_(), h = x * 1.0, m = h * 2.0, e = m * m;
    const Tensor below[] = {m, e}, above[] = {e, m}, seeds[] = {Tensor::ones({2}), Tensor::ones({2})};
    const auto grads = autograd::grad(first ? below : above, {&h, 1}, seeds);
    EXPECT_EQ(grads[0].to_vector<float>(), (std::vector<float>{26, 26}));
  }
}

// A tensor is written in place after it was saved, so its new history leads to the node that saved it. Nobody goes
// backward.
TEST(Grad, GraphsThatNobodyDifferentiatesAreFreed) {
  const int64_t before = allocator::stats().bytes_in_use;
  {
    const Tensor x = Tensor::randn({100, 100}).requires_grad_();
    Tensor y = x * 1.0;
    y.add_(y * y);
    Tensor constant = Tensor::ones({100, 100});
    constant.add_(constant * x);
  }
  EXPECT_EQ(allocator::stats().bytes_in_use, before);
}

TEST_F(Autograd, AViewOfAStridedLeafThatWasOverwritten) {
  // Every second element of its memory: the gradient has no gaps.
  const Tensor memory = Tensor::arange(40, {kF32});
  Tensor leaf = memory.slice(0, {0, 40, 2}).view({5, 4}).detach().requires_grad_();
  ASSERT_FALSE(leaf.is_contiguous());
  Tensor view = leaf.slice(0, {1, 5, 2});
  no_grad([&] { view.mul_(0.5); });
  ops::sum(view * Tensor::arange(8, {kF32}).view({2, 4})).backward();
  EXPECT_EQ(leaf.grad().to_vector<float>(),
            (std::vector<float>{0, 0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0, 4, 5, 6, 7, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace rondo
