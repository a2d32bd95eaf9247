// Long sums in f32: no more than some thousand numbers are added one after the other (ops/reduction_order.h).
#include <gtest/gtest.h>

#include <cmath>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo {
namespace {

// A constant is the worst case: all roundings go the same way.
constexpr float kValue = 0.1f;
constexpr int64_t kMany = 4'000'000;

double error(const Tensor& mean) { return std::abs(mean.reshape({-1})[0].item() / double{kValue} - 1); }

TEST(LongSums, MeansAreRight) {
  const NoGrad off;
  const Tensor x = Tensor::full({kMany}, kValue);
  EXPECT_LT(error(x.mean()), 2e-5);
  EXPECT_LT(error(ops::mean(x, {}, /*keepdim=*/true)), 2e-5);
  EXPECT_LT(error(ops::mean(x.reshape({2, -1}), 1)), 2e-5);
  EXPECT_LT(error(ops::mean(x.reshape({-1, 1}), 0)), 1e-4) << "chunks of 4096 rows";
  EXPECT_LT(error(ops::mean(x.reshape({-1, 2}), 0)), 1e-4);
  EXPECT_LT(error(ops::mean(x.reshape({-1, 100}), 0)), 1e-4);
}

TEST(LongSums, GradientsOfWhatWasExpandedAreRight) {
  const Tensor x = Tensor::full({kMany / 2, 2}, kValue);
  const Tensor w = Tensor::ones({2}).requires_grad_();
  ops::sum(w.expand({kMany / 2, 2}) * x).backward();
  EXPECT_LT(error(w.grad() / (kMany / 2)), 1e-4);
}

TEST(LongSums, NormalisationsAreRight) {
  const NoGrad off;
  const Tensor x = Tensor::zeros({1, kMany});
  EXPECT_LT(std::abs(ops::softmax(x, 1).reshape({-1})[0].item() * kMany - 1), 2e-5);
}

// Note [Full order]: the rows first, where the last dimension is neither short nor very long.
TEST(LongSums, AFullReductionReducesRowsFirst) {
  const NoGrad off;
  for (const Dims& sizes : {Dims{8, 32}, Dims{3, 5, 33}, Dims{2, 65'536}, Dims{70, 1000}, Dims{5000, 40}}) {
    for (DType type : {kF32, kBF16}) {
      SCOPED_TRACE(to_string(sizes));
      const Tensor x = Tensor::randn(sizes).to(type);
      const Tensor rows = ops::sum(x.to(kF32), -1).reshape({-1});
      EXPECT_EQ(ops::sum(x).item(), ops::sum(rows).to(type).item());
      EXPECT_EQ(ops::max(x).item(), ops::max(ops::max(x, -1)).item());
    }
  }
  // In order, in chunks.
  for (const Dims& sizes : {Dims{300, 31}, Dims{2, 65'537}, Dims{1, 9000}, Dims{9000}}) {
    SCOPED_TRACE(to_string(sizes));
    const Tensor x = Tensor::randn(sizes);
    EXPECT_EQ(ops::sum(x).item(), ops::sum(x.reshape({-1})).item());
  }
}

TEST(LongSums, BlocksHaveTheirEdges) {
  for (int64_t n : {1, 15, 16, 17, 4095, 4096, 4097, 4111, 4112, 8191, 8192, 8193, 12'345}) {
    // Whole numbers: any order is exact, and a number that is left out or added twice shows.
    const Tensor x = Tensor::randint(0, 7, {3, n}, {kI64}).to(kF32);
    EXPECT_EQ(ops::sum(x, 1)[2].item(), ops::sum(x.to(kF64), 1)[2].item()) << n;
    EXPECT_EQ(ops::max(x, 1)[2].item(), ops::max(x.to(kF64), 1)[2].item()) << n;
    EXPECT_EQ(ops::sum(x.t().contiguous(), 0)[2].item(), ops::sum(x.to(kF64), 1)[2].item()) << n;
  }
}

}  // namespace
}  // namespace rondo
