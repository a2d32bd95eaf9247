// Tensors as text, against what PyTorch prints for the same values.
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "rondo/runtime/ops/ops.h"

namespace rondo {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

std::string f32(std::initializer_list<double> values, const Dims& sizes) {
  return Tensor::from<double>(values, sizes).to(kF32).to_string();
}

TEST(Print, FloatsHaveFourDigitsUnlessAllAreWhole) {
  EXPECT_EQ(f32({3.5}, {}), "tensor(3.5000)");
  EXPECT_EQ(f32({1, 2, 3}, {3}), "tensor([1., 2., 3.])");
  EXPECT_EQ(f32({1.5, -2.25, 1000}, {3}), "tensor([   1.5000,   -2.2500, 1000.0000])");
  EXPECT_EQ(f32({1, -2, 3.5, 4}, {2, 2}), "tensor([[ 1.0000, -2.0000],\n        [ 3.5000,  4.0000]])");
  EXPECT_EQ(f32({0, -0.0}, {2}), "tensor([0., -0.])");
}

TEST(Print, WideRangesAreScientific) {
  EXPECT_EQ(f32({1e-5, 1}, {2}), "tensor([1.0000e-05, 1.0000e+00])");
  EXPECT_EQ(f32({1e9, 1}, {2}), "tensor([1.0000e+09, 1.0000e+00])");
  EXPECT_EQ(f32({123456789}, {1}), "tensor([1.2346e+08])");
  EXPECT_EQ(f32({12345.678, 0.5}, {2}), "tensor([1.2346e+04, 5.0000e-01])");
  EXPECT_EQ(f32({1e-38, 0}, {2}), "tensor([1.0000e-38, 0.0000e+00])");
}

TEST(Print, SpecialValuesDoNotChooseTheFormat) {
  EXPECT_EQ(f32({kNaN, 1, kInf, -kInf}, {4}), "tensor([nan, 1., inf, -inf])");
  EXPECT_EQ(f32({kNaN, 1.5, -kInf}, {3}), "tensor([   nan, 1.5000,   -inf])");
}

TEST(Print, IntegersAreExactAndBoolsAreWords) {
  EXPECT_EQ(Tensor::scalar<int64_t>(7).to_string(), "tensor(7)");
  EXPECT_EQ(Tensor::from<int64_t>({1, -20, 300}, {3}).to_string(), "tensor([  1, -20, 300])");
  EXPECT_EQ(Tensor::from<int64_t>({9007199254740993}, {1}).to_string(), "tensor([9007199254740993])");
  EXPECT_EQ(Tensor::from<bool>({true, false, false, true}, {2, 2}).to_string(),
            "tensor([[ True, False],\n        [False,  True]])");
  EXPECT_EQ(Tensor::scalar(true).to_string(), "tensor(True)");
}

TEST(Print, OtherDtypesAreNamed) {
  EXPECT_EQ(Tensor::from<int32_t>({1, 2}, {2}).to_string(), "tensor([1, 2], dtype=i32)");
  EXPECT_EQ(Tensor::from<uint8_t>({1, 2}, {2}).to_string(), "tensor([1, 2], dtype=u8)");
  EXPECT_EQ(Tensor::from<double>({0.1, 0.2}, {2}).to_string(), "tensor([0.1000, 0.2000], dtype=f64)");
  EXPECT_EQ(Tensor::from<double>({0.1, 0.2}, {2}).to(kBF16).to_string(), "tensor([0.1001, 0.2002], dtype=bf16)");
}

TEST(Print, TensorsWithoutElementsSayTheirShape) {
  EXPECT_EQ(Tensor::zeros({0}).to_string(), "tensor([])");
  EXPECT_EQ(Tensor::zeros({0, 3}).to_string(), "tensor([], size=[0, 3])");
  EXPECT_EQ(Tensor::zeros({0}, kI64).to_string(), "tensor([], dtype=i64)");
  EXPECT_EQ(Tensor::zeros({2, 0, 3}, kF64).to_string(), "tensor([], size=[2, 0, 3], dtype=f64)");
  EXPECT_EQ(Tensor().to_string(), "tensor(undefined)");
}

TEST(Print, RowsBlocksAndLongLines) {
  EXPECT_EQ(Tensor::arange(8, kF32).view({2, 2, 2}).to_string(),
            "tensor([[[0., 1.],\n         [2., 3.]],\n\n        [[4., 5.],\n         [6., 7.]]])");
  EXPECT_EQ((Tensor::arange(30, kF32) / 7.0).to_string(),
            "tensor([0.0000, 0.1429, 0.2857, 0.4286, 0.5714, 0.7143, 0.8571, 1.0000, 1.1429,\n"
            "        1.2857, 1.4286, 1.5714, 1.7143, 1.8571, 2.0000, 2.1429, 2.2857, 2.4286,\n"
            "        2.5714, 2.7143, 2.8571, 3.0000, 3.1429, 3.2857, 3.4286, 3.5714, 3.7143,\n"
            "        3.8571, 4.0000, 4.1429])");
}

TEST(Print, ViewsShowTheirOwnElements) {
  EXPECT_EQ(Tensor::arange(6).view({2, 3}).t().to_string(), "tensor([[0, 3],\n        [1, 4],\n        [2, 5]])");
  EXPECT_EQ(Tensor::full({1, 1}, 1.5).expand({2, 3}).to_string(),
            "tensor([[1.5000, 1.5000, 1.5000],\n        [1.5000, 1.5000, 1.5000]])");
  EXPECT_EQ(Tensor::arange(10).slice(0, {1, 8, 3}).to_string(), "tensor([1, 4, 7])");
}

TEST(Print, MoreThanAThousandElementsAreSummarised) {
  EXPECT_EQ(Tensor::arange(1001).to_string(), "tensor([   0,    1,    2,  ...,  998,  999, 1000], size=[1001])");
  EXPECT_EQ(Tensor::arange(1000).to_string().find("..."), std::string::npos);
  EXPECT_EQ(Tensor::arange(2500, kF32).view({50, 50}).to_string(),
            "tensor([[0.0000e+00, 1.0000e+00, 2.0000e+00,  ..., 4.7000e+01, 4.8000e+01,\n"
            "         4.9000e+01],\n"
            "        [5.0000e+01, 5.1000e+01, 5.2000e+01,  ..., 9.7000e+01, 9.8000e+01,\n"
            "         9.9000e+01],\n"
            "        [1.0000e+02, 1.0100e+02, 1.0200e+02,  ..., 1.4700e+02, 1.4800e+02,\n"
            "         1.4900e+02],\n"
            "        ...,\n"
            "        [2.3500e+03, 2.3510e+03, 2.3520e+03,  ..., 2.3970e+03, 2.3980e+03,\n"
            "         2.3990e+03],\n"
            "        [2.4000e+03, 2.4010e+03, 2.4020e+03,  ..., 2.4470e+03, 2.4480e+03,\n"
            "         2.4490e+03],\n"
            "        [2.4500e+03, 2.4510e+03, 2.4520e+03,  ..., 2.4970e+03, 2.4980e+03,\n"
            "         2.4990e+03]], size=[50, 50])");
  EXPECT_EQ(Tensor::arange(4000).view({2, 2, 1000}).to_string(),
            "tensor([[[   0,    1,    2,  ...,  997,  998,  999],\n"
            "         [1000, 1001, 1002,  ..., 1997, 1998, 1999]],\n\n"
            "        [[2000, 2001, 2002,  ..., 2997, 2998, 2999],\n"
            "         [3000, 3001, 3002,  ..., 3997, 3998, 3999]]], size=[2, 2, 1000])");
}

TEST(Print, GradientsAreMentioned) {
  const Tensor x = Tensor::from<float>({1, 2}, {2}).requires_grad_();
  EXPECT_EQ(x.to_string(), "tensor([1., 2.], requires_grad=True)");
  EXPECT_EQ((x * 2.0).to_string(), "tensor([2., 4.], grad_fn=<mul_scalar>)");
  EXPECT_EQ(x.detach().to_string(), "tensor([1., 2.])");
}

TEST(Print, StreamsTakeTensors) {
  std::ostringstream out;
  out << Tensor::arange(3) << " and " << Tensor();
  EXPECT_EQ(out.str(), "tensor([0, 1, 2]) and tensor(undefined)");
}

TEST(Print, SizesAndDTypes) {
  std::ostringstream out;
  out << Tensor::zeros({2, 3}, kBF16).sizes() << " " << kBF16 << " " << Dims{};
  EXPECT_EQ(out.str(), "[2, 3] bf16 []");
}

}  // namespace
}  // namespace rondo
