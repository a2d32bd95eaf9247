// Products of a few rows against sums in f64, and against themselves.
#include "rondo/runtime/cpu/thin_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <type_traits>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/cpu/product.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo {
namespace {

MatmulCall call_of(int64_t m, int64_t n, int64_t k, DType dtype) { return {dtype, m, n, k, {k, 1}, {1, k}, {n, 1}}; }

TEST(ThinProduct, IsTheSum) {
  for (const DType dtype : {kF32, kBF16})
    for (const int64_t m : {1, 2, 3, 4})
      for (const int64_t n : {1, 3, 4, 5, 130})
        for (const int64_t k : {1, 7, 15, 16, 17, 31, 32, 33, 47, 48, 64, 100, 1000}) {
          const Tensor x = Tensor::randn({m, k}).to(dtype), w = Tensor::randn({n, k}).to(dtype),
                       bias = Tensor::randn({n}).to(dtype);
          const std::vector<double> a = x.to_vector<double>(), b = w.to_vector<double>(),
                                    add = bias.to_vector<double>();
          const std::vector<double> got = ops::linear(x, w, bias).to_vector<double>();
          for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j) {
              double sum = add[j], size = std::abs(add[j]);
              for (int64_t l = 0; l < k; ++l) {
                sum += a[i * k + l] * b[j * k + l];
                size += std::abs(a[i * k + l] * b[j * k + l]);
              }
              // One rounding to bf16 at the end.
              ASSERT_NEAR(got[i * n + j], sum, 1e-6 * size + (dtype == kBF16 ? std::abs(sum) / 256 : 0))
                  << name_of(dtype) << " m " << m << " n " << n << " k " << k;
            }
        }
}

TEST(ThinProduct, BitsDependOnNothingElse) {
  const int before = num_threads();
  for (const DType dtype : {kF32, kBF16}) {
    const int64_t n = 1003, k = 517;
    const Tensor x = Tensor::randn({4, k}).to(dtype), w = Tensor::randn({n, k}).to(dtype);
    set_num_threads(1);
    const std::vector<float> all = ops::linear(x, w, Tensor()).to_vector<float>();
    for (const int threads : {1, 2, 3})
      for (const int64_t m : {1, 2, 3, 4}) {
        set_num_threads(threads);
        const std::vector<float> some = ops::linear(x.slice(0, {0, m}), w, Tensor()).to_vector<float>();
        EXPECT_EQ(some, std::vector<float>(all.begin(), all.begin() + m * n))
            << m << " rows, " << threads << " threads";
        // A left operand with gaps, and one by columns.
        EXPECT_EQ(ops::matmul(x.t().contiguous().t().slice(0, {0, m}), w.t()).to_vector<float>(), some);
      }
  }
  set_num_threads(before);
}

// Addends come after the bias, in place or not; bf16 may stay f32.
TEST(ThinProduct, Epilogues) {
  const int64_t m = 2, n = 37, k = 65;
  for (const DType dtype : {kF32, kBF16})
    for (const bool wide : {false, true}) {
      if (wide && dtype == kF32) continue;
      MatmulCall call = call_of(m, n, k, dtype);
      call.wide = wide;
      call.bias = true;
      call.epilogues = {Epilogue::kAdd, Epilogue::kAdd};
      call.in_place = {false, true};
      ASSERT_TRUE(cpu::is_thin_product(call));
      EXPECT_EQ(cpu::Product::get(call)->slices(), 0u);
      EXPECT_EQ(cpu::Product::get(call, 1), nullptr);
      const Tensor x = Tensor::randn({m, k}).to(dtype), w = Tensor::randn({n, k}).to(dtype),
                   bias = Tensor::randn({n}).to(dtype), added = Tensor::randn({m, n}).to(call.result_dtype());
      Tensor c = Tensor::randn({m, n}).to(call.result_dtype());
      const Tensor expected = ops::matmul(x.to(kF64), w.to(kF64).t()) + bias.to(kF64) + added.to(kF64) + c.to(kF64);
      cpu::Product::get(call)->run({.a = x.raw_data(),
                                    .b = w.raw_data(),
                                    .bias = bias.raw_data(),
                                    .added = {added.raw_data(), nullptr},
                                    .c = c.raw_mutable_data()});
      const double largest = ops::max(ops::abs(c.to(kF64) - expected)).item();
      EXPECT_LT(largest, dtype == kBF16 && !wide ? 0.1 : 1e-4);
    }
}

// A call without a layout cannot be written, nor one whose results overlap.
TEST(MatmulCall, HasAllStrides) {
  static_assert(!std::is_default_constructible_v<MatmulCall> && !std::is_default_constructible_v<MatrixStrides>);
  static_assert(!std::is_constructible_v<MatmulCall, DType, int64_t, int64_t, int64_t>);
  const MatrixStrides dense(10, 1);
  EXPECT_THROW(MatmulCall(kF32, 10, 10, 10, dense, dense, {10, 0}), InternalError);  // all columns in one place
  EXPECT_THROW(MatmulCall(kF32, 10, 10, 10, dense, dense, {0, 1}), InternalError);
  EXPECT_THROW(MatmulCall(kF32, 10, 10, 10, dense, dense, {9, 1}), InternalError);
  EXPECT_THROW(MatmulCall(kF32, 10, 10, 10, dense, dense, {1, 10}), InternalError);
  EXPECT_THROW(MatmulCall(kF32, 10, 10, 10, dense, dense, dense, 2), InternalError);
  EXPECT_THROW(MatmulCall(kF32, 10, 10, 10, {10, 2}, dense, dense), InternalError);
  EXPECT_THROW(MatmulCall(kF32, 10, 10, 10, dense, {0, 0}, dense), InternalError);
  // Strides that no element depends on make no difference.
  EXPECT_EQ(MatmulCall(kF32, 1, 10, 1, {7, 3, 5}, {4, 1, 6}, {12, 1, 8}),
            MatmulCall(kF32, 1, 10, 1, {1, 1}, {10, 1}, dense));
}

TEST(ThinProduct, IsChosenByShape) {
  EXPECT_TRUE(cpu::is_thin_product(call_of(4, 10, 10, kF32)));
  EXPECT_FALSE(cpu::is_thin_product(call_of(5, 10, 10, kF32)));
  EXPECT_FALSE(cpu::is_thin_product(call_of(1, 10, 10, kF64)));
  const MatmulCall by_rows(kF32, 1, 10, 10, {10, 1}, {10, 1}, {10, 1});
  EXPECT_FALSE(cpu::is_thin_product(by_rows));
  MatmulCall gelu = call_of(1, 10, 10, kF32);
  gelu.epilogues[0] = Epilogue::kGelu;
  EXPECT_FALSE(cpu::is_thin_product(gelu));
}

}  // namespace
}  // namespace rondo
