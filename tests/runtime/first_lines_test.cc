// The first ten lines that everyone writes: factories, operators, scalars on either side, members; and what must
// not compile because it would not do what it says.
#include <gtest/gtest.h>

#include <concepts>
#include <limits>

#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using test::error_of;
using test::same_bits;

// ---- What cannot mean what it says

template <class T>
concept AssignsToElement = requires(T x, T y) {
  x[0] = y;
};
template <class T>
concept AssignsToCall = requires(T x, T y) {
  (x + y) = y;
};
template <class T>
concept IsCondition = requires(T x) {
  x ? 1 : 0;
};
template <class T>
concept ComparesAsCondition = requires(T x, T y) {
  (x < y) ? 1 : 0;
};
template <class T>
concept OpIsCondition = requires(T x, T y) {
  ops::less(x, y) ? 1 : 0;
};
template <class T>
concept Negates = requires(T x) {
  !x;
};
template <class T>
concept Ands = requires(T x, T y) {
  x&& y;
};
template <class T>
concept KeepdimIsNoDim = requires(T x) {
  ops::sum(x, true);
};
static_assert(!AssignsToElement<Tensor> && !AssignsToCall<Tensor>);
static_assert(!IsCondition<Tensor> && !ComparesAsCondition<Tensor> && !OpIsCondition<Tensor> && !Negates<Tensor> &&
              !Ands<Tensor>);
static_assert(!KeepdimIsNoDim<Tensor>);
static_assert(!std::is_assignable_v<Tensor, Tensor> && !std::is_constructible_v<bool, Tensor>);

// What a program does with handles and views still works.
template <class T>
concept WritesToView = requires(T x, T y) {
  x[0].copy_(y);
  x[0].add_(1);
  x[0] += y;
  x[0] *= 2.0;
};
static_assert(WritesToView<Tensor>);
static_assert(std::is_nothrow_move_assignable_v<Tensor> && std::is_copy_assignable_v<Tensor> &&
              std::is_nothrow_move_constructible_v<Tensor>);

TEST(FirstLines, ViewsAreWrittenInPlace) {
  Tensor x = Tensor::zeros({2, 2});
  x[0].copy_(Tensor::ones({2}));
  x[1] += 3;
  x[1][0] *= 2.0;
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 1, 6, 3}));
}

// ---- Factories

TEST(FirstLines, FactoriesTakeADtype) {
  EXPECT_EQ(Tensor::zeros({2, 3}, kF64).dtype(), kF64);
  EXPECT_EQ(Tensor::ones({2}, kI64).dtype(), kI64);
  EXPECT_EQ(Tensor::ones({2}, {kI32}).dtype(), kI32);
  EXPECT_EQ(Tensor::ones({2}, {}).dtype(), kF32);
  EXPECT_EQ(Tensor::full({1}, int64_t{9007199254740993}, kI64).item<int64_t>(), 9007199254740993);
}

TEST(FirstLines, ArangeAsInPyTorch) {
  EXPECT_EQ(Tensor::arange(0, 10).to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(Tensor::arange(2, 9, 3).to_vector<int64_t>(), (std::vector<int64_t>{2, 5, 8}));
  EXPECT_EQ(Tensor::arange(5, 0, -2).to_vector<int64_t>(), (std::vector<int64_t>{5, 3, 1}));
  EXPECT_EQ(Tensor::arange(5, 5, -1).numel(), 0);
  EXPECT_EQ(Tensor::arange(0.5, 0.5).numel(), 0);
  // A step of the wrong sign is a mistake, as in PyTorch.
  EXPECT_NE(error_of([] { Tensor::arange(5, 0); }).find("a step of 1 does not lead from 5 to 0"), std::string::npos);
  EXPECT_NE(error_of([] { Tensor::arange(0, 5, -1); }).find("a step of -1 does not lead"), std::string::npos);
  EXPECT_NE(error_of([] { Tensor::arange(-1); }), "");
  EXPECT_NE(error_of([] { Tensor::arange(0.0, -0.25, 0.5); }).find("a step of 0.5"), std::string::npos);
  EXPECT_EQ(Tensor::arange(INT64_MIN, INT64_MAX, INT64_MAX).to_vector<int64_t>(),
            (std::vector<int64_t>{INT64_MIN, -1, INT64_MAX - 1}));
  const Tensor real = Tensor::arange(0, 1, 0.25);
  EXPECT_EQ(real.dtype(), kF32);
  EXPECT_EQ(real.to_vector<float>(), (std::vector<float>{0, 0.25, 0.5, 0.75}));
  EXPECT_EQ(Tensor::arange(3.0).dtype(), kF32);
  EXPECT_EQ(Tensor::arange(3, kF64).dtype(), kF64);
  EXPECT_EQ(Tensor::arange(0, 3, kI32).dtype(), kI32);
  // A device, or no option, leaves the dtype to the numbers.
  EXPECT_EQ(Tensor::arange(12).dtype(), kI64);
  EXPECT_EQ(Tensor::arange(12, {}).dtype(), kI64);
  EXPECT_EQ(Tensor::arange(12, kCPU).dtype(), kI64);
  EXPECT_EQ(Tensor::arange(0, 12, kCPU).dtype(), kI64);
  EXPECT_EQ(Tensor::arange(12, 0, -2, kCPU).dtype(), kI64);
  EXPECT_EQ(Tensor::arange(12, kCPU).device(), kCPU);
  EXPECT_EQ(Tensor::arange(12.0, kCPU).dtype(), kF32);
  EXPECT_EQ(Tensor::arange(0, 1, 0.5, kCPU).dtype(), kF32);
  EXPECT_EQ(Tensor::arange(12, {kF64, kCPU}).dtype(), kF64);
  EXPECT_EQ(Tensor::arange(12, TensorOptions(kI32)).dtype(), kI32);
  EXPECT_NE(error_of([] { Tensor::arange(0, 3, 0); }), "");
  EXPECT_NE(error_of([] { Tensor::arange(0, std::numeric_limits<double>::infinity()); }), "");
  EXPECT_NE(error_of([] { Tensor::arange(0, 1e300); }), "");
}

TEST(FirstLines, CatAndStackTakeLists) {
  const Tensor a = Tensor::arange(2), b = Tensor::arange(2, 4);
  EXPECT_EQ(ops::cat({a, b}, 0).to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(ops::cat({a}).to_vector<int64_t>(), a.to_vector<int64_t>());
  EXPECT_EQ(ops::stack({a, b}).sizes(), (Dims{2, 2}));
  EXPECT_EQ(ops::stack({a, b}, 1).to_vector<int64_t>(), (std::vector<int64_t>{0, 2, 1, 3}));
}

// ---- Scalars keep their kind

TEST(FirstLines, ItemIsExact) {
  const Tensor big = Tensor::scalar<int64_t>(9007199254740993);
  EXPECT_EQ(big.item<int64_t>(), 9007199254740993);
  EXPECT_NE(error_of([&] { static_cast<void>(big.item()); }).find("item<int64_t>"), std::string::npos);
  EXPECT_NE(error_of([&] { static_cast<void>(Tensor::scalar(INT64_MAX).item()); }), "");
  EXPECT_EQ(Tensor::scalar(INT64_MIN).item(), -0x1p63);
  EXPECT_EQ(Tensor::scalar<int64_t>(42).item(), 42.0);
  EXPECT_EQ(Tensor::scalar(1.5f).item<float>(), 1.5f);
  EXPECT_TRUE(Tensor::scalar(true).item<bool>());
}

TEST(FirstLines, ComparisonsTakeScalarsOnBothSides) {
  const Tensor a = Tensor::from<float>({1, 2, 3}, {3}), b = Tensor::from<float>({3, 2, 1}, {3});
  const auto bits = [](const Tensor& t) {
    EXPECT_EQ(t.dtype(), kBool);
    std::string text;
    for (int64_t i = 0; i < t.numel(); ++i) text += t[i].item() != 0 ? '1' : '0';
    return text;
  };
  EXPECT_EQ(bits(a < b) + bits(a <= b) + bits(a > b) + bits(a >= b) + bits(a == b) + bits(a != b),
            "100110001011010101");
  EXPECT_EQ(bits(a < 2) + bits(a <= 2) + bits(a > 2) + bits(a >= 2) + bits(a == 2) + bits(a != 2),
            "100110001011010101");
  EXPECT_EQ(bits(2 > a) + bits(2 >= a) + bits(2 < a) + bits(2 <= a) + bits(2 == a) + bits(2 != a),
            "100110001011010101");
  EXPECT_EQ(bits(ops::less(a, 2.5)), "110");
  // An integer against a fraction compares as floats; beyond 2^53, integers compare exactly.
  const Tensor i = Tensor::from<int64_t>({0, 1, 9007199254740993}, {3});
  EXPECT_EQ(bits(i < 0.5), "100");
  EXPECT_EQ(bits(i == int64_t{9007199254740993}), "001");
  EXPECT_EQ(bits(i == int64_t{9007199254740992}), "000");
  // A number outside the range of the tensor's dtype is not wrapped around.
  const Tensor small = Tensor::from<uint8_t>({0, 44, 255}, {3});
  EXPECT_EQ(bits(small < 300) + bits(small == 300) + bits(small > -1), "111000111");
  EXPECT_EQ(bits(Tensor::from<bool>({true, false, true}, {3}) == true), "101");
  EXPECT_EQ(bits(Tensor::from<bool>({true, false, true}, {3}) == 2), "000");
}

TEST(FirstLines, ScalarsWhereverATensorMayStand) {
  const Tensor a = Tensor::from<float>({-1, 2}, {2}), i = Tensor::arange(2);
  const Tensor mask = a > 0;
  EXPECT_EQ(ops::maximum(a, 0.0).to_vector<float>(), (std::vector<float>{0, 2}));
  EXPECT_EQ(ops::minimum(a, 0).to_vector<float>(), (std::vector<float>{-1, 0}));
  EXPECT_EQ(ops::maximum(i, 1).dtype(), kI64);
  EXPECT_EQ(ops::maximum(i, 0.5).dtype(), kF32);
  EXPECT_EQ(ops::where(mask, 0.0, a).to_vector<float>(), (std::vector<float>{-1, 0}));
  EXPECT_EQ(ops::where(mask, a, 0.0).to_vector<float>(), (std::vector<float>{0, 2}));
  EXPECT_EQ(ops::where(mask, 1.0, 0.0).dtype(), kF32);
  EXPECT_EQ(ops::where(mask, 1, 0).dtype(), kI64);
  EXPECT_EQ(ops::where(mask, 1, 0.5).to_vector<float>(), (std::vector<float>{0.5, 1}));
  EXPECT_EQ(ops::where(mask, true, false).dtype(), kBool);
  EXPECT_EQ(ops::where(mask, i, 0.5).dtype(), kF32);
  EXPECT_EQ(ops::where(mask, i, int64_t{9007199254740993})[0].item<int64_t>(), 9007199254740993);
  EXPECT_NE(error_of([&] { ops::where(mask, Tensor::zeros({2}, kU8), 300); }).find("300"), std::string::npos);
  EXPECT_EQ((a - 1).to_vector<float>(), (std::vector<float>{-2, 1}));
  EXPECT_EQ((1 - a).to_vector<float>(), (std::vector<float>{2, -1}));
  EXPECT_EQ((i + 1).dtype(), kI64);
}

TEST(FirstLines, ScalarsKeepGradients) {
  Tensor a = Tensor::from<double>({-1, 2}, {2});
  a.requires_grad_();
  const Tensor kept = ops::where(a > 0, a, 0.0) + ops::where(a > 0, 0.0, a * 3.0) + ops::maximum(a, 1.0) +
                      ops::minimum(a, -0.5);
  ops::sum(kept).backward();
  EXPECT_EQ(a.grad().to_vector<double>(), (std::vector<double>{4, 2}));
}

TEST(FirstLines, AssigningOperatorsWorkInPlace) {
  Tensor x = Tensor::ones({3});
  const Tensor same = x;
  x += 2;
  x *= Tensor::full({3}, 4.0);
  x -= Tensor::ones({3});
  x /= 2.0;
  x -= 0.5;
  EXPECT_TRUE(x.is_same(same));
  EXPECT_EQ(same.to_vector<float>(), (std::vector<float>{5, 5, 5}));
  x.sub_(1.0).div_(4.0);
  EXPECT_EQ(same[0].item(), 1.0);
  // The caller's line is in the error.
  const Tensor wrong = Tensor::ones({2});
  const int line = __LINE__ + 1;
  const std::string error = error_of([&] { x += wrong; });
  EXPECT_NE(error.find("first_lines_test.cc:" + std::to_string(line)), std::string::npos) << error;
}

// ---- Members are the ops of the same names

TEST(FirstLines, MembersAreOps) {
  const Tensor x = Tensor::from<float>({1, 4, 9, 16}, {2, 2});
  EXPECT_TRUE(same_bits(x.exp(), ops::exp(x)));
  EXPECT_TRUE(same_bits(x.log(), ops::log(x)));
  EXPECT_TRUE(same_bits(x.sqrt(), ops::sqrt(x)));
  EXPECT_TRUE(same_bits((-x).abs(), x));
  EXPECT_TRUE(same_bits(x.matmul(x), ops::matmul(x, x)));
  EXPECT_TRUE(same_bits(x.softmax(0), ops::softmax(x, 0)));
  EXPECT_EQ(x.sum().item(), 30);
  EXPECT_EQ(x.sum(1).to_vector<float>(), (std::vector<float>{5, 25}));
  EXPECT_EQ(x.sum({0, 1}, true).sizes(), (Dims{1, 1}));
  EXPECT_EQ(x.mean(0, true).sizes(), (Dims{1, 2}));
  EXPECT_EQ(x.max(-1).to_vector<float>(), (std::vector<float>{4, 16}));
  EXPECT_EQ(x.min().item(), 1);
  EXPECT_EQ(x.argmax().item<int64_t>(), 3);
  EXPECT_EQ(x.argmax(0).to_vector<int64_t>(), (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(ops::sum(x, {}, true).sizes(), (Dims{1, 1}));  // {} is all dimensions, not dimension 0
  EXPECT_NE(error_of([&] { x.sum(2); }).find("dimension 2"), std::string::npos);
}

// ---- A cast that throws leaves autocast on

TEST(FirstLines, AutocastSurvivesAFailedCast) {
  const amp::Autocast on(kBF16);
  // The copy in bf16 would need 2^51 bytes.
  const Tensor huge = Tensor::ones({1, 1}).expand({int64_t{1} << 25, int64_t{1} << 25});
  EXPECT_ANY_THROW(ops::matmul(huge, huge));
  EXPECT_EQ(amp::autocast_dtype(), kBF16);
}

}  // namespace
}  // namespace rondo
