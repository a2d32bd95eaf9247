// Note [Views] of autograd.h: views made under no_grad, written and read in every combination. The table is what
// PyTorch 2.15 does, but for a view that is read before any write: it is a constant here, where PyTorch loses its
// gradient.
#include <gtest/gtest.h>

#include <optional>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using V = std::vector<double>;
using test::error_of;

enum class Kind { kSlice, kDetach, kViewOfView, kGradOfNoGrad, kNoGradOfGrad };
enum class Use { kBase, kView };

struct Case {
  Kind kind;
  bool view_grad, leaf, write_grad, operand_requires_grad;
  Use use;
};

struct Outcome {
  std::string error;
  V w, c;  // gradients; empty if there is none
};

// x is w or w * 1; v looks at x[1:3]; v.mul_(c); then the gradient of the sum of squares of x or v.
Outcome run(const Case& k) {
  Tensor w = Tensor::arange(7, {kF64}).slice(0, {1, 7}).clone().requires_grad_();
  Tensor c = Tensor::full({2}, 3.0, {kF64}).requires_grad_(k.operand_requires_grad);
  Outcome outcome;
  outcome.error = error_of([&] {
    Tensor x = k.leaf ? w : w * 1.0, v;
    {
      const GradMode mode(k.view_grad);
      if (k.kind == Kind::kSlice) v = x.slice(0, {1, 3});
      if (k.kind == Kind::kDetach) v = x.detach().slice(0, {1, 3});
      if (k.kind == Kind::kViewOfView) v = x.slice(0, {0, 4}).slice(0, {1, 3});
    }
    if (k.kind == Kind::kGradOfNoGrad) v = no_grad([&] { return x.slice(0, {0, 4}); }).slice(0, {1, 3});
    if (k.kind == Kind::kNoGradOfGrad) {
      const Tensor u = x.slice(0, {0, 4});
      v = no_grad([&] { return u.slice(0, {1, 3}); });
    }
    {
      const GradMode mode(k.write_grad);
      v.mul_(c);
    }
    const Tensor& t = k.use == Use::kBase ? x : v;
    ops::sum(t * t).backward();
  });
  if (w.grad().defined()) outcome.w = w.grad().to_vector<double>();
  if (c.grad().defined()) outcome.c = c.grad().to_vector<double>();
  return outcome;
}

std::string name(const Case& k) {
  static const char* kinds[] = {"slice", "detach", "view of view", "view of a no_grad view", "no_grad view of a view"};
  return std::string(kinds[static_cast<int>(k.kind)]) + (k.view_grad ? ", view with grad" : ", view under no_grad") +
         (k.leaf ? ", leaf" : ", not a leaf") + (k.write_grad ? ", write with grad" : ", write under no_grad") +
         (k.operand_requires_grad ? ", operand requires grad" : "") + (k.use == Use::kBase ? ", base" : ", view");
}

const V kUntracked = {2, 12, 18, 8, 10, 12};  // the write is a constant to the gradient: 2 x after it

// PyTorch 2.15's results.
Outcome expected(const Case& k) {
  const bool under_no_grad = !k.view_grad;
  if (k.kind == Kind::kDetach) {
    if (k.write_grad && k.operand_requires_grad) {
      if (under_no_grad) return {"no_grad", {}, {}};
      return k.use == Use::kBase ? Outcome{"", kUntracked, {}} : Outcome{"", {}, {24, 54}};
    }
    return k.use == Use::kBase ? Outcome{"", kUntracked, {}} : Outcome{"does not require grad", {}, {}};
  }
  if (under_no_grad) {
    if (k.write_grad) return {"no_grad", {}, {}};
    return k.use == Use::kBase ? Outcome{"", kUntracked, {}} : Outcome{"no_grad", {}, {}};
  }
  if (k.write_grad && k.leaf) return {"view of a leaf", {}, {}};
  const V c = k.write_grad && k.operand_requires_grad ? V{24, 54} : V{};
  if (!k.write_grad) return {"", k.use == Use::kBase ? kUntracked : V{0, 12, 18, 0, 0, 0}, c};
  return {"", k.use == Use::kBase ? V{2, 36, 54, 8, 10, 12} : V{0, 36, 54, 0, 0, 0}, c};
}

TEST(NoGradView, AsInPyTorch) {
  for (Kind kind : {Kind::kSlice, Kind::kDetach, Kind::kViewOfView, Kind::kGradOfNoGrad, Kind::kNoGradOfGrad})
    for (bool view_grad : {false, true})
      for (bool leaf : {false, true})
        for (bool write_grad : {false, true})
          for (bool operand : {false, true})
            for (Use use : {Use::kBase, Use::kView}) {
              const bool mixed = kind == Kind::kGradOfNoGrad || kind == Kind::kNoGradOfGrad;
              if (mixed && view_grad) continue;
              const Case k = {kind, view_grad, leaf, write_grad, operand, use};
              const Outcome got = run(k), want = expected(k);
              EXPECT_EQ(got.error.empty(), want.error.empty()) << name(k) << ": " << got.error;
              EXPECT_NE(got.error.find(want.error), std::string::npos) << name(k) << ": " << got.error;
              if (!want.error.empty()) continue;
              EXPECT_EQ(got.w, want.w) << name(k);
              EXPECT_EQ(got.c, want.c) << name(k);
            }
}

// The base got its history after the view was made.
TEST(NoGradView, OfPlainDataThatIsOverwrittenLater) {
  Tensor w = Tensor::ones({4}).requires_grad_(), base = Tensor::zeros({4});
  Tensor view = no_grad([&] { return base.slice(0, {1, 3}); });
  base.copy_(w);
  EXPECT_NE(error_of([&] { view.mul_(2.0); }), "");
  EXPECT_NE(error_of([&] { view * 2.0; }), "");
  EXPECT_EQ(no_grad([&] { return view * 2.0; }).to_vector<double>(), (V{2, 2}));
  EXPECT_EQ(view.detach().to_vector<double>(), (V{1, 1}));
  EXPECT_EQ(no_grad([&] { return view.mul_(3.0); }).to_vector<double>(), (V{3, 3}));
}

// As in PyTorch, whose views get their new history when they are asked for it.
TEST(Views, AreNoLeavesOnceTheirBaseHasAHistory) {
  const Tensor w = Tensor::ones({2}).requires_grad_();
  Tensor base = Tensor::zeros({4}), written = base.slice(0, {0, 2}), other = base.slice(0, {2, 4});
  EXPECT_TRUE(other.is_leaf());
  written.mul_(w);
  EXPECT_TRUE(other.requires_grad());
  EXPECT_FALSE(other.is_leaf());
  EXPECT_FALSE(base.is_leaf());
  EXPECT_NE(error_of([&] { other.requires_grad_(); }).find("result of an op"), std::string::npos);
  EXPECT_TRUE(other.detach().is_leaf());
  // One that was made under no_grad never gets a history: nothing to keep a gradient for.
  Tensor plain = Tensor::zeros({4}), unseen = no_grad([&] { return plain.slice(0, {2, 4}); });
  plain.slice(0, {0, 2}).mul_(w);
  EXPECT_TRUE(unseen.is_leaf());
  unseen.retain_grad();
}

TEST(NoGradView, ADifferentiableWriteToAViewOfPlainData) {
  Tensor w = Tensor::ones({2}).requires_grad_(), base = Tensor::zeros({4});
  Tensor view = no_grad([&] { return base.slice(0, {1, 3}); });
  EXPECT_NE(error_of([&] { view.copy_(w); }).find("no_grad"), std::string::npos);
  view.fill_(2);  // nothing to differentiate
  EXPECT_EQ(base.to_vector<double>(), (V{0, 2, 2, 0}));
}

// A refused write, and one whose operand is refused, must not happen.
TEST(NoGradView, ARefusedWriteDoesNotHappen) {
  Tensor w = Tensor::ones({4}).requires_grad_(), x = w * 1.0;
  Tensor view = no_grad([&] { return x.slice(0, {0, 2}); });
  EXPECT_THROW(view.mul_(5.0), Error);
  EXPECT_EQ(x.to_vector<double>(), V(4, 1.0));
  no_grad([&] { x.add_(1.0); });
  Tensor other = Tensor::zeros({2});
  EXPECT_THROW(other.add_(view), Error);
  EXPECT_EQ(other.to_vector<double>(), V(2, 0.0));
}

TEST(NoGradView, HooksAndBackwardOnAStaleView) {
  Tensor w = Tensor::ones({4}).requires_grad_(), x = w * 1.0;
  Tensor view = no_grad([&] { return x.slice(0, {0, 1}); });
  no_grad([&] { x.add_(1.0); });
  EXPECT_NE(error_of([&] { view.backward(Tensor::ones({1})); }).find("no_grad"), std::string::npos);
}

// Before any write it is a constant, as no_grad promises.
TEST(NoGradView, IsAConstantBeforeAnyWrite) {
  Tensor w = Tensor::ones({4}).requires_grad_(), x = w * 3.0;
  const Tensor view = no_grad([&] { return x.slice(0, {0, 2}); });
  EXPECT_FALSE(view.requires_grad());
  ops::sum(view * x.slice(0, {2, 4})).backward();
  EXPECT_EQ(w.grad().to_vector<double>(), (V{0, 0, 9, 9}));
}

// Views inside of one call are nobody's: ops without a kernel of their own, gradient rules, checkpoints.
TEST(NoGradView, ResultsOfCompositeCallsAreNoViews) {
  Tensor w = Tensor::ones({2, 3}).requires_grad_();
  const Tensor in[] = {w};
  Tensor y = autograd::checkpoint(
      [](std::span<const Tensor> t) {
        return std::vector<Tensor>{(t[0] * 2.0).view({3, 2})};
      },
      in)[0];
  y.mul_(3.0);
  ops::sum(y * y).backward();
  EXPECT_EQ(w.grad().to_vector<double>(), V(6, 72.0));
  // A view of the input is still one.
  Tensor x = w * 1.0;
  const Tensor through[] = {x};
  Tensor view = autograd::checkpoint(
      [](std::span<const Tensor> t) {
        return std::vector<Tensor>{t[0].view({3, 2})};
      },
      through)[0];
  EXPECT_NE(error_of([&] { view.mul_(3.0); }), "");
  w.zero_grad();
  ops::sum(view).backward();
  EXPECT_EQ(w.grad().to_vector<double>(), V(6, 1.0));
}

// Slices of one flat buffer as parameters, updated under no_grad.
TEST(NoGradView, ParametersMayBeViewsOfAFlatBuffer) {
  Tensor flat = Tensor::ones({4});
  Tensor p = no_grad([&] { return flat.slice(0, {0, 2}); }).requires_grad_();
  for (int i = 0; i < 3; ++i) {
    p.zero_grad();
    ops::sum(p * p).backward();
    no_grad([&] { p.sub_(p.grad() * 0.25); });
  }
  EXPECT_EQ(flat.to_vector<double>(), (V{0.125, 0.125, 1, 1}));
}

}  // namespace
}  // namespace rondo
