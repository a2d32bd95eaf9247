// tiled_product() itself, on every processor: also on those whose products are the library's.
#include "rondo/runtime/cpu/tiled_product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"

namespace rondo {
namespace {

class TiledProduct : public testing::Test {
 protected:
  void SetUp() override {
    if (default_device() != kCPU) GTEST_SKIP() << "tests the CPU's kernel";
  }
};

// A matrix (or several) and how it lies: rows, or columns, with a gap behind each.
struct Matrix {
  Tensor memory;
  MatrixStrides strides;
  Tensor numbers;  // (batch, rows, columns), a view
};
Matrix matrix(int64_t batch, int64_t rows, int64_t columns, bool by_rows) {
  const int64_t outer = by_rows ? rows : columns, inner = by_rows ? columns : rows, gap = 3;
  Matrix m{.memory = Tensor::randn({batch, outer, inner + gap}), .strides = {1, 1}, .numbers = {}};
  m.strides = by_rows ? MatrixStrides(inner + gap, 1, outer * (inner + gap))
                      : MatrixStrides(1, inner + gap, outer * (inner + gap));
  const Tensor dense = m.memory.slice(2, {0, inner});
  m.numbers = by_rows ? dense : dense.transpose(1, 2);
  return m;
}

Tensor run(const MatmulCall& call, const Matrix& a, const Matrix& b, const Tensor& bias, const Tensor& added,
           const Tensor& before) {
  Tensor c = before.clone();
  cpu::tiled_product(call, {.a = a.memory.raw_data(),
                            .b = b.memory.raw_data(),
                            .bias = bias.raw_data(),
                            .added = {added.raw_data(), added.raw_data()},
                            .c = c.raw_mutable_data()});
  return c;
}

// Depths around a block's 256, sizes around a tile's 120 and 512 and a strip's 1,200, rows and columns around those of
// a micro-kernel. Where n is a multiple of all vectors' widths, sums are kept in C.
TEST_F(TiledProduct, IsTheSum) {
  for (const auto& [batch, m, n, k] : std::vector<std::array<int64_t, 4>>{{1, 1, 1, 1},
                                                                          {1, 5, 3, 7},
                                                                          {1, 64, 128, 256},
                                                                          {1, 65, 129, 257},
                                                                          {3, 17, 130, 40},
                                                                          {1, 130, 31, 1000},
                                                                          {1, 241, 513, 40},
                                                                          {1, 500, 1030, 30},
                                                                          {1, 500, 270, 2100},
                                                                          {1, 20, 40, 5000},
                                                                          {3, 8, 16, 2},
                                                                          {2, 10, 24, 9},
                                                                          {2, 9, 200, 513},
                                                                          {1, 1300, 30, 300},
                                                                          {1, 1250, 528, 300},
                                                                          {2, 12, 6160, 300}})
    for (const bool a_by_rows : {true, false})
      for (const bool b_by_rows : {true, false}) {
        SCOPED_TRACE(std::to_string(m) + " " + std::to_string(n) + " " + std::to_string(k));
        const Matrix a = matrix(batch, m, k, a_by_rows), b = matrix(batch, k, n, b_by_rows);
        const MatmulCall call(kF32, m, n, k, a.strides, b.strides, {n, 1, m * n}, batch);
        const Tensor none = Tensor::zeros({1}),
                     c = run(call, a, b, none, none,
                             Tensor::full({batch, m, n}, std::numeric_limits<float>::quiet_NaN()));
        const Tensor left = a.numbers.to(kF64), right = b.numbers.to(kF64);
        const Tensor expected = ops::matmul(left, right), size = ops::matmul(ops::abs(left), ops::abs(right));
        // A chain of at most 256, and the sums of blocks: rounding of each, at most.
        const double units = static_cast<double>(std::min<int64_t>(k, 256) + k / 256 + 1);
        EXPECT_LE(ops::max(ops::abs(c.to(kF64) - expected) / size).item(), units * 0x1p-24);
      }
}

// 16-bit numbers are widened where they are packed, and a sum is rounded once, after the epilogues, or not at all.
TEST_F(TiledProduct, OfSixteenBitsIsTheRoundedProductOfTheirValues) {
  const int64_t m = 70, k = 300;
  for (const auto& [dtype, n] : std::vector<std::pair<DType, int64_t>>{{kBF16, 133}, {kF16, 133}, {kBF16, 144}})
    for (const bool a_by_rows : {true, false})
      for (const bool b_by_rows : {true, false}) {
        SCOPED_TRACE(std::string(name_of(dtype)) + (a_by_rows ? " n" : " t") + (b_by_rows ? "n" : "t"));
        const auto narrow = [&](Matrix wide) {
          wide.memory = wide.memory.to(dtype);
          return wide;
        };
        const Matrix a = narrow(matrix(1, m, k, a_by_rows)), b = narrow(matrix(1, k, n, b_by_rows));
        const auto widen = [](Matrix narrow) {
          narrow.memory = narrow.memory.to(kF32);
          return narrow;
        };
        const Tensor bias = Tensor::randn({n}).to(dtype), added = Tensor::randn({m, n}).to(dtype),
                     before = Tensor::randn({m, n}).to(dtype);
        MatmulCall call(dtype, m, n, k, a.strides, b.strides, {n, 1});
        call.bias = true;
        call.epilogues = {Epilogue::kAdd, Epilogue::kAdd};
        call.in_place = {false, true};
        MatmulCall wide = call;
        wide.dtype = kF32;
        const Tensor expected = run(wide, widen(a), widen(b), bias.to(kF32), added.to(kF32), before.to(kF32));
        EXPECT_TRUE(test::same_bits(run(call, a, b, bias, added, before), expected.to(dtype)));
        if (dtype == kF16) continue;
        call.wide = true;
        EXPECT_TRUE(test::same_bits(run(call, a, b, bias, added.to(kF32), before.to(kF32)), expected));
      }
}

// As ops that follow the product, to the bit: exact mode counts on it.
TEST_F(TiledProduct, EpiloguesRoundAsOpsDo) {
  for (const int64_t n : {133, 144}) {
    const int64_t m = 70, k = 300;
    const Matrix a = matrix(1, m, k, true), b = matrix(1, k, n, false);
    const Tensor bias = Tensor::randn({n}), added = Tensor::randn({m, n}), before = Tensor::randn({m, n});
    MatmulCall call(kF32, m, n, k, a.strides, b.strides, {n, 1});
    const Tensor sum = run(call, a, b, bias, added, before);
    call.bias = true;
    EXPECT_TRUE(test::same_bits(run(call, a, b, bias, added, before), sum + bias));
    call.epilogues = {Epilogue::kAdd, Epilogue::kAdd};
    call.in_place = {false, true};
    EXPECT_TRUE(test::same_bits(run(call, a, b, bias, added, before), ((sum + bias) + added) + before));
    call.bias = false;
    call.in_place = {true, false};
    EXPECT_TRUE(test::same_bits(run(call, a, b, bias, added, before), (sum + before) + added));
    for (const auto& [epilogue, kind] : std::vector<std::pair<Epilogue, ops::GeluKind>>{
             {Epilogue::kGelu, ops::GeluKind::kErf}, {Epilogue::kGeluTanh, ops::GeluKind::kTanh}}) {
      call.epilogues = {epilogue};
      call.in_place = {};
      EXPECT_TRUE(test::same_bits(run(call, a, b, bias, added, before), ops::gelu(sum, kind)));
    }
  }
}

TEST_F(TiledProduct, BitsDependOnTheRowAndTheColumnAlone) {
  const int64_t m = 150, n = 300, k = 600;
  const int before = num_threads();
  const Tensor x = Tensor::randn({1, m, k}), w = Tensor::randn({1, k, n}), none = Tensor::zeros({1});
  const Matrix a{x, {k, 1}, x}, b{w, {n, 1}, w};
  const Tensor all = run(MatmulCall(kF32, m, n, k, {k, 1}, {n, 1}, {n, 1}), a, b, none, none, Tensor::zeros({m, n}));
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{1, n}, {7, 131}, {m, 1}}) {
      const MatmulCall call(kF32, rows, columns, k, {k, 1}, {n, 1}, {columns, 1});
      EXPECT_TRUE(test::same_bits(run(call, a, b, none, none, Tensor::zeros({rows, columns})),
                                  all.slice(0, {0, rows}).slice(1, {0, columns}).contiguous()));
    }
    const Matrix transposed{x.transpose(1, 2).contiguous(), {1, m}, x};
    EXPECT_TRUE(test::same_bits(
        run(MatmulCall(kF32, m, n, k, {1, m}, {n, 1}, {n, 1}), transposed, b, none, none, Tensor::zeros({m, n})), all));
  }
  set_num_threads(before);
}

// The last columns of one matrix, fewer than a tile has, and the first ones of the next begin at one address.
TEST_F(TiledProduct, MatricesThatOverlapAreNotTakenForEachOther) {
  const int64_t batch = 3, m = 20, n = 600, k = 70, apart = 304, line = batch * apart + n;
  const int before = num_threads();
  set_num_threads(1);
  const Tensor x = Tensor::randn({batch, m, k}), w = Tensor::randn({k, line}), none = Tensor::zeros({1});
  const Tensor c = run(MatmulCall(kF32, m, n, k, {k, 1, m * k}, {line, 1, apart}, {n, 1, m * n}, batch), {x, {k, 1}, x},
                       {w, {line, 1}, w}, none, none, Tensor::zeros({batch, m, n}));
  for (int64_t i = 0; i < batch; ++i) {
    const Tensor alone = run(MatmulCall(kF32, m, n, k, {k, 1}, {n, 1}, {n, 1}), {x[i], {k, 1}, x},
                             {w.slice(1, {i * apart, i * apart + n}).contiguous(), {n, 1}, w}, none, none,
                             Tensor::zeros({m, n}));
    EXPECT_TRUE(test::same_bits(c[i], alone)) << i;
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace rondo
