// Losses of each element, variance, and tests of elements, against values that PyTorch 2.15 gave (in f64).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using ops::Reduction;
using test::error_of;
constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

Tensor input() { return Tensor::from<double>({0.5, -1.25, 3.0, -40.0, 2.0, 0.0}, {2, 3}).requires_grad_(); }
Tensor target() { return Tensor::from<double>({1.0, 0.0, 0.25, 1.0, 0.5, 1.0}, {2, 3}); }

void expect_values(const Tensor& got, const std::vector<double>& expected) {
  const std::vector<double> values = got.to_vector<double>();
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(expected[i])) EXPECT_TRUE(std::isnan(values[i])) << i;
    else if (std::isinf(expected[i])) EXPECT_EQ(values[i], expected[i]) << i;
    else EXPECT_NEAR(values[i], expected[i], 1e-13 * std::max(1.0, std::abs(expected[i]))) << i;
  }
}
// The loss, and the gradient of its sum.
void expect_loss(const std::function<Tensor(const Tensor&)>& loss, const std::vector<double>& value,
                 const std::vector<double>& grad) {
  const Tensor x = input(), y = loss(x);
  expect_values(y, value);
  ops::sum(y).backward();
  expect_values(x.grad(), grad);
}

TEST(PointwiseLoss, MeanSquaredError) {
  expect_loss(
      [](const Tensor& x) { return ops::mse_loss(x, target()); }, {282.2708333333333},
      {-0.16666666666666666, -0.41666666666666663, 0.9166666666666666, -13.666666666666666, 0.5, -0.3333333333333333});
  expect_loss([](const Tensor& x) { return ops::mse_loss(x, target(), Reduction::kSum); }, {1693.625},
              {-1.0, -2.5, 5.5, -82.0, 3.0, -2.0});
  expect_loss([](const Tensor& x) { return ops::mse_loss(x, target(), Reduction::kNone); },
              {0.25, 1.5625, 7.5625, 1681.0, 2.25, 1.0}, {-1.0, -2.5, 5.5, -82.0, 3.0, -2.0});
}

TEST(PointwiseLoss, MeanAbsoluteError) {
  expect_loss([](const Tensor& x) { return ops::l1_loss(x, target(), Reduction::kSum); }, {48.0},
              {-1.0, -1.0, 1.0, -1.0, 1.0, -1.0});
  expect_loss([](const Tensor& x) { return ops::l1_loss(x, target(), Reduction::kNone); },
              {0.5, 1.25, 2.75, 41.0, 1.5, 1.0}, {-1.0, -1.0, 1.0, -1.0, 1.0, -1.0});
  EXPECT_NEAR(ops::l1_loss(input(), target()).item(), 8.0, 1e-14);
}

TEST(PointwiseLoss, Huber) {
  expect_loss([](const Tensor& x) { return ops::huber_loss(x, target(), {.reduction = Reduction::kNone}); },
              {0.125, 0.75, 2.25, 40.5, 1.0, 0.5}, {-0.5, -1.0, 1.0, -1.0, 1.0, -1.0});
  expect_loss(
      [](const Tensor& x) { return ops::huber_loss(x, target(), {.delta = 0.3, .reduction = Reduction::kSum}); },
      {14.13}, {-0.3, -0.3, 0.3, -0.3, 0.3, -0.3});
  EXPECT_NEAR(ops::huber_loss(input(), target(), {.delta = 0.3}).item(), 2.355, 1e-14);
  EXPECT_NE(error_of([] { ops::huber_loss(input(), target(), {.delta = 0}); }).find("delta"), std::string::npos);
}

TEST(PointwiseLoss, BinaryCrossEntropyWithLogits) {
  const Tensor weight = Tensor::from<double>({0.5, 1.0, 2.0}, {1, 3}), pos = Tensor::from<double>({3.0, 1.0, 0.5}, {3});
  const auto none = [&](Tensor w, Tensor p) {
    return [=](const Tensor& x) {
      return ops::bce_with_logits(x, target(), {.weight = w, .pos_weight = p, .reduction = Reduction::kNone});
    };
  };
  expect_loss(
      none({}, {}),
      {0.4740769841801067, 0.25192908134537295, 2.298587351573742, 40.0, 1.1269280110429725, 0.6931471805599453},
      {-0.3775406687981454, 0.22270013882530884, 0.7025741268224334, -1.0, 0.3807970779778823, -0.5});
  expect_loss(none(weight, pos),
              {0.71111547627016, 0.25192908134537295, 4.585027865254049, 60.0, 1.1269280110429725, 0.6931471805599453},
              {-0.566311003197218, 0.22270013882530884, 1.4170047219392583, -1.5, 0.3807970779778823, -0.5});
  expect_loss(
      none({}, pos),
      {1.42223095254032, 0.25192908134537295, 2.2925139326270245, 120.0, 1.1269280110429725, 0.34657359027997264},
      {-1.132622006394436, 0.22270013882530884, 0.7085023609696292, -3.0, 0.3807970779778823, -0.25});
  expect_loss(
      none(weight, {}),
      {0.23703849209005334, 0.25192908134537295, 4.597174703147484, 20.0, 1.1269280110429725, 1.3862943611198906},
      {-0.1887703343990727, 0.22270013882530884, 1.4051482536448667, -0.5, 0.3807970779778823, -1.0});
  EXPECT_NEAR(ops::bce_with_logits(input(), target()).item(), 7.47411143478369, 1e-14);
  EXPECT_NEAR(ops::bce_with_logits(input(), target(), {.weight = weight, .pos_weight = pos}).item(), 11.228024602412084,
              1e-13);
  EXPECT_NE(error_of([&] { ops::bce_with_logits(input(), target(), {.weight = Tensor::ones({4, 2, 3}, kF64)}); }), "");
}

TEST(PointwiseLoss, LargeLogitsDoNotOverflow) {
  const Tensor x = Tensor::from<float>({1e4f, -1e4f, 1e4f, -1e4f}, {4}), y = Tensor::from<float>({1, 0, 0, 1}, {4});
  const std::vector<float> losses = ops::bce_with_logits(x, y, {.reduction = Reduction::kNone}).to_vector<float>();
  EXPECT_EQ(losses, (std::vector<float>{0, 0, 1e4f, 1e4f}));
}

TEST(PointwiseLoss, ShapesMustMatch) {
  const Tensor column = Tensor::ones({4, 1}), row = Tensor::ones({4});
  for (const std::string& error :
       {error_of([&] { ops::mse_loss(column, row); }), error_of([&] { ops::l1_loss(column, row); }),
        error_of([&] { ops::huber_loss(column, row); }), error_of([&] { ops::bce_with_logits(column, row); }),
        error_of([&] { ops::bce_with_logits(column, row, {.pos_weight = row}); })})
    EXPECT_NE(error.find("[4, 1] and [4]"), std::string::npos) << error;
}

TEST(PointwiseLoss, RunsInF32UnderAutocastAndPromotesTargets) {
  EXPECT_EQ(ops::mse_loss(Tensor::ones({2}), Tensor::zeros({2}, kI64)).item(), 1.0);
  EXPECT_EQ(ops::mse_loss(Tensor::ones({2}, kBF16), Tensor::zeros({2})).dtype(), kF32);
  const amp::Autocast on(kBF16);
  EXPECT_EQ(ops::bce_with_logits(Tensor::ones({2}, kBF16), Tensor::ones({2}, kBF16)).dtype(), kF32);
}

TEST(Statistics, VarianceAndDeviation) {
  expect_loss([](const Tensor& x) { return ops::var(x); }, {280.3604166666666},
              {2.5833333333333335, 1.8833333333333333, 3.583333333333333, -13.616666666666667, 3.1833333333333336,
               2.3833333333333333});
  expect_loss([](const Tensor& x) { return ops::var(x, 0); }, {820.125, 5.28125, 4.5},
              {40.5, -3.25, 3.0, -40.5, 3.25, -3.0});
  expect_loss(
      [](const Tensor& x) { return ops::var(x, 1, 0); }, {3.0416666666666665, 374.22222222222223},
      {-0.16666666666666666, -1.3333333333333333, 1.5, -18.22222222222222, 9.777777777777777, 8.444444444444443});
  expect_loss([](const Tensor& x) { return ops::std(x); }, {16.74396657505821},
              {0.07714221483162369, 0.05623916307079662, 0.10700371734709091, -0.40661412591894547, 0.09505911634090403,
               0.07116991432853025});
  expect_loss(
      [](const Tensor& x) {
        return ops::std(x, {0, 1}, 0);
      },
      {15.285080325453167},
      {0.07042088533198312, 0.05133909704847802, 0.09768058287984756, -0.37118621494342074, 0.0867767038607018,
       0.06496894582241024});
  EXPECT_EQ(ops::var(input(), 1, 1, true).sizes(), (Dims{2, 1}));
}

TEST(Statistics, EqualElementsHaveNoSlope) {
  const Tensor z = Tensor::from<double>({2, 2, 1, 3}, {2, 2}).requires_grad_();
  const Tensor s = ops::std(z, 1);
  expect_values(s, {0, 1.4142135623730951});
  ops::sum(s).backward();
  expect_values(z.grad(), {0, 0, -0.7071067811865475, 0.7071067811865475});
}

TEST(Statistics, TooFewElements) {
  expect_values(ops::var(Tensor::from<double>({1}, {1})), {kNaN});
  expect_values(ops::var(Tensor::zeros({0}, kF64)), {kNaN});
  expect_values(ops::var(Tensor::zeros({3, 0}, kF64), 1), {kNaN, kNaN, kNaN});
  expect_values(ops::var(Tensor::from<double>({1, 2}, {2}), {}, 3), {kInf});
  expect_values(ops::std(Tensor::from<double>({1, 2}, {2}), {}, 2), {kInf});
  EXPECT_NE(error_of([] { ops::var(Tensor::arange(3)); }).find("floating"), std::string::npos);
}

TEST(Predicates, OfElements) {
  const Tensor x = Tensor::from<float>({1, -INFINITY, INFINITY, NAN, 0}, {5});
  EXPECT_EQ(ops::isfinite(x).to_string(), "tensor([ True, False, False, False,  True])");
  EXPECT_EQ(ops::isinf(x).to_string(), "tensor([False,  True,  True, False, False])");
  EXPECT_EQ(ops::isnan(x).to_string(), "tensor([False, False, False,  True, False])");
  EXPECT_EQ(ops::isfinite(Tensor::arange(2)).to_string(), "tensor([True, True])");
}

TEST(Predicates, AnyAndAll) {
  const Tensor x = Tensor::from<float>({0, 0, 1, 2}, {2, 2});
  EXPECT_EQ(ops::any(x, 1).to_string(), "tensor([False,  True])");
  EXPECT_EQ(ops::all(x, 1).to_string(), "tensor([False,  True])");
  EXPECT_EQ(ops::any(x, 0).to_string(), "tensor([True, True])");
  EXPECT_EQ(ops::all(x, 0, true).to_string(), "tensor([[False, False]])");
  EXPECT_TRUE(ops::any(x).item<bool>());
  EXPECT_FALSE(ops::all(x).item<bool>());
  EXPECT_FALSE(ops::any(Tensor::zeros({0})).item<bool>());
  EXPECT_TRUE(ops::all(Tensor::zeros({0})).item<bool>());
  EXPECT_TRUE(ops::any(Tensor::from<float>({NAN}, {1})).item<bool>());
  EXPECT_EQ(ops::all(Tensor::zeros({2, 0}), 1).to_string(), "tensor([True, True])");
  EXPECT_TRUE(ops::any(Tensor::from<double>({0, 1e-300}, {2})).item<bool>());
}

}  // namespace
}  // namespace rondo
