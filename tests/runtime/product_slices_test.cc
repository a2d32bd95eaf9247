// How products of the library are cut, and which are our own (runtime/cpu/product.cc, Note [Whose product]).
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "rondo/runtime/cpu/product.h"
#include "rondo/runtime/onednn/onednn_versions.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"

namespace rondo {
namespace {

using test::same_bits;
namespace dnnl = cpu::dnnl;

std::string library_kernel() {
  const cpu::Desc square({64, 64}, dnnl::memory::data_type::f32, dnnl::memory::dims{64, 1});
  return std::string(cpu::Kernels<dnnl::matmul>(dnnl::primitive_attr(), square, square, cpu::Desc(), square).name());
}

class ProductSlices : public testing::Test {
 protected:
  void SetUp() override {
    if (default_device() != kCPU) GTEST_SKIP() << "tests the CPU's kernel";
  }
};

// Whole numbers so small that every sum is exact in f32, whatever its order.
Tensor whole_numbers(Dims sizes) { return ops::sub(ops::mul(Tensor::rand(sizes), 9).to(kI32), 4).to(kF32); }

// The first `width` of 1024 numbers of each line: lines lie 4 KiB apart.
Tensor lines(int64_t batch, int64_t count, int64_t width) {
  return whole_numbers({batch, count, 1024}).slice(2, {0, width});
}

TEST_F(ProductSlices, LinesThatMeetGiveEverySum) {
  for (const int64_t batch : {1, 3}) {
    for (const int64_t m : {31, 32, 192, 300}) {
      for (const int64_t n : {40, 200}) {
        for (const int64_t k : {1, 17, 300}) {
          const Tensor a = whole_numbers({batch, m, k}), a_lines = lines(batch, k, m).transpose(1, 2),
                       b = lines(batch, k, n), shared = lines(1, k, n)[0], added = whole_numbers({batch, m, n});
          const auto wide = [](const Tensor& x) { return x.to(kF64); };
          for (const Tensor& left : {a, a_lines}) {
            const std::string what = std::to_string(batch) + " of " + std::to_string(m) + " x " + std::to_string(k) +
                                     " x " + std::to_string(n);
            EXPECT_TRUE(same_bits(wide(ops::matmul(left, b)), ops::matmul(wide(left), wide(b)))) << what;
            EXPECT_TRUE(same_bits(wide(ops::matmul(left, shared)), ops::matmul(wide(left), wide(shared)))) << what;
            EXPECT_TRUE(same_bits(wide(ops::add(ops::matmul(left, b), added)),
                                  ops::add(ops::matmul(wide(left), wide(b)), wide(added))))
                << what;
          }
        }
      }
    }
  }
}

// What was chosen by measurement stays: with AVX-512 these slices, and where the library's kernel is its gemm a product
// of our own, but for one row or column.
TEST_F(ProductSlices, AreThoseThatWereMeasured) {
  const std::string kernel = library_kernel();
  struct Row {
    int64_t m, k, n;
    bool transposed;  // A
    size_t with_brgemm;
  };
  const Row rows[] = {{2048, 1024, 2048, false, 16}, {2048, 1024, 2048, true, 16}, {2048, 384, 1536, false, 8},
                      {2048, 384, 384, false, 8},    {384, 2048, 1536, true, 4},   {256, 1024, 2048, false, 4},
                      {32, 256, 1024, false, 2},     {4096, 1024, 4096, true, 64}, {1024, 1024, 1024, false, 4}};
  const bool gemm = kernel.starts_with("gemm:jit"), brgemm = kernel.starts_with("brg:avx512_core");
  if (!gemm && !brgemm) GTEST_SKIP() << "nothing was measured for " << kernel;
  const auto slices = [](int64_t m, int64_t k, int64_t n, bool transposed) {
    return cpu::Product::get(
               MatmulCall(kF32, m, n, k, transposed ? MatrixStrides(1, m) : MatrixStrides(k, 1), {n, 1}, {n, 1}))
        ->slices();
  };
  for (const Row& row : rows)
    EXPECT_EQ(slices(row.m, row.k, row.n, row.transposed), gemm ? 0 : row.with_brgemm)
        << row.m << " x " << row.k << " x " << row.n << " " << kernel;
  EXPECT_GT(slices(2048, 1024, 1, false), 0u);
  EXPECT_GT(slices(1, 1024, 2048, false), 0u);
}

}  // namespace
}  // namespace rondo
