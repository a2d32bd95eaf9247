// Sums of rows by index (runtime/cpu/row_sums.h) against a loop over the indices, in every bit: at the ends of buckets
// and segments, for any number of threads.
#include "rondo/runtime/cpu/row_sums.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

// x[index[i]] += values[i], as a loop; 16-bit sums in f32, rounded once.
template <class T> Tensor expected_sums(const Tensor& values, const std::vector<int64_t>& index, int64_t rows) {
  using C = ComputeType<T>;
  const int64_t cols = values.size(1);
  const auto* from = reinterpret_cast<const T*>(values.impl()->data());
  std::vector<C> totals(static_cast<size_t>(rows * cols), C(0));
  for (size_t i = 0; i < index.size(); ++i)
    for (int64_t c = 0; c < cols; ++c) {
      C& total = totals[static_cast<size_t>(index[i] * cols + c)];
      const C value = static_cast<C>(from[static_cast<int64_t>(i) * cols + c]);
      if constexpr (std::is_integral_v<C>)
        total = static_cast<C>(static_cast<uint64_t>(total) + static_cast<uint64_t>(value));
      else total = total + value;
    }
  Tensor sums = Tensor::empty({rows, cols}, {values.dtype()});
  auto* to = reinterpret_cast<T*>(sums.impl()->data());
  for (size_t i = 0; i < totals.size(); ++i) to[i] = static_cast<T>(totals[i]);
  return sums;
}
Tensor expected(const Tensor& values, const std::vector<int64_t>& index, int64_t rows) {
  Tensor sums;
  visit_dtype(values.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, bool>) sums = expected_sums<T>(values, index, rows);
  });
  return sums;
}

class RowSums : public testing::Test {
 protected:
  void SetUp() override {
    if (default_device() != kCPU) GTEST_SKIP() << "tests the CPU's kernel";
    manual_seed(7);
  }
  void TearDown() override { set_num_threads(threads_); }

  static void check(DType dtype, int64_t rows, int64_t cols, const std::vector<int64_t>& index) {
    SCOPED_TRACE(testing::Message() << name_of(dtype) << ": " << index.size() << " rows of " << cols << " to " << rows);
    const auto n = static_cast<int64_t>(index.size());
    const Tensor values = (Tensor::randn({n, cols}) * (is_floating(dtype) ? 1 : 1e8)).to(dtype);
    const Tensor at = Tensor::from<int64_t>(index, {n}), sums = expected(values, index, rows);
    for (int threads : {1, 2, 3, 8}) {
      set_num_threads(threads);
      const Tensor zeros = Tensor::zeros({rows, cols}, {dtype});
      EXPECT_TRUE(test::same_bits(ops::index_add(zeros, 0, at, values), sums));
      const Tensor x = Tensor::ones({rows, cols}, {dtype});  // no sum of an element is -0
      EXPECT_TRUE(test::same_bits(ops::index_add(x, 0, at, values), x + sums));
      if (cols > 1) {  // as columns, which no row sum serves
        const Tensor t = ops::index_add(zeros.transpose(0, 1), 1, at, values.transpose(0, 1));
        EXPECT_TRUE(test::same_bits(t.transpose(0, 1).contiguous(), sums));
      }
      if (!is_floating(dtype)) continue;
      const Tensor table = Tensor::zeros({rows, cols}, {dtype}).requires_grad_();
      autograd::backward({{ops::embedding(table, at)}}, {{values}}, false, false, std::source_location::current());
      EXPECT_TRUE(test::same_bits(table.grad(), sums));
      // A second time, onto the gradient that is there.
      autograd::backward({{ops::embedding(table, at)}}, {{values}}, false, false, std::source_location::current());
      EXPECT_TRUE(test::same_bits(table.grad(), sums + sums));
    }
  }
  int threads_ = num_threads();
};

// Buckets hold a power of two of rows: 2^16 bytes of sums, or more where there would be too many buckets. Rows of 16 to
// 256 columns may be whole lines.
TEST_F(RowSums, AtTheEndsOfBuckets) {
  for (DType dtype : {kF32, kBF16, kF64, kI64, kI32, kU8}) {
    for (int64_t cols : {1, 16, 17, 32, 64, 128, 256, 300}) {
      if (!is_floating(dtype) && cols > 17) continue;
      const int64_t bucket = std::bit_floor(static_cast<uint64_t>((1 << 16) / (cols * size_of(compute_dtype(dtype)))));
      for (int64_t rows : {bucket - 1, bucket, bucket + 1, 2 * bucket + 1}) {
        std::vector<int64_t> index = {0, rows - 1, 0, rows - 1, rows / 2};
        for (int64_t edge : {bucket - 1, bucket, 2 * bucket - 1, 2 * bucket})
          for (int repeat = 0; repeat < 3; ++repeat)
            if (edge < rows) index.push_back(edge);
        check(dtype, rows, cols, index);
      }
    }
  }
}

// Many indices, so that several threads distribute them, in long and short segments; more rows than indices and fewer.
TEST_F(RowSums, LongAndShortSegments) {
  for (DType dtype : {kF32, kBF16, kI32})
    for (int64_t rows : {int64_t{1}, int64_t{3}, int64_t{5'000}, int64_t{70'001}}) {
      std::vector<int64_t> index;
      for (uint64_t i = 0; i < 40'000; ++i)
        index.push_back(i % 7 == 0 ? rows - 1
                                   : static_cast<int64_t>((i * 2654435761u >> 3) % static_cast<uint64_t>(rows)));
      check(dtype, rows, 5, index);
    }
}

// Results larger than the caches, which are written past them: every row named, few of them named, rows that are not
// whole lines, and onto the tensor's own memory.
TEST_F(RowSums, LargeResults) {
  const auto check_large = [](DType dtype, int64_t rows, int64_t cols, int64_t n) {
    SCOPED_TRACE(testing::Message() << name_of(dtype) << ": " << n << " rows of " << cols << " to " << rows);
    ASSERT_GT(rows * cols * static_cast<int64_t>(size_of(dtype)), 32 << 20);
    std::vector<int64_t> index;
    for (int64_t i = 0; i < n; ++i) index.push_back(n > rows && i < rows ? i : (i * 7919 + 3) % rows);
    const Tensor values = Tensor::randn({n, cols}).to(dtype), at = Tensor::from<int64_t>(index, {n}),
                 sums = expected(values, index, rows), x = Tensor::ones({rows, cols}, {dtype});
    EXPECT_TRUE(test::same_bits(ops::index_add(Tensor::zeros({rows, cols}, {dtype}), 0, at, values), sums));
    EXPECT_TRUE(test::same_bits(ops::index_add(x, 0, at, values), x + sums));
  };
  check_large(kF32, 270'001, 32, 300'000);
  check_large(kF32, 270'001, 32, 1'000);
  check_large(kF32, 290'000, 31, 5'000);
  check_large(kBF16, 540'001, 32, 20'000);
}

TEST_F(RowSums, NoRowsAndBadArguments) {
  const Tensor x = Tensor::ones({4, 3}), none = Tensor::zeros({0}, kI64);
  EXPECT_TRUE(test::same_bits(ops::index_add(x, 0, none, Tensor::zeros({0, 3})), x));
  const Tensor two = Tensor::from<int64_t>({1, 4}, {2});
  EXPECT_NE(test::error_of([&] {
              ops::index_add(x, 0, two, Tensor::ones({2, 3}));
            }).find("index 4 is out of range for size 4"),
            std::string::npos);
  EXPECT_NE(test::error_of([&] {
              ops::index_add(x, 0, two, Tensor::ones({3, 3}));
            }).find("source must have sizes [2, 3]"),
            std::string::npos);
  EXPECT_NE(test::error_of([&] {
              ops::index_add(x, 0, Tensor::ones({2, 1}).to(kI64), x);
            }).find("index must have shape (N)"),
            std::string::npos);
}

}  // namespace
}  // namespace rondo
