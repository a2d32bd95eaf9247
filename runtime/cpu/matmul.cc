#include "rondo/runtime/cpu/matmul.h"

// Our own threads are enough: Eigen's would wait for each other by spinning.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <vector>

#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/product.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/parallel.h"

namespace rondo::cpu {

namespace {

using Strided = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
using MatrixF64 = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Pieces of some rows each, which do not depend on the number of threads: the library blocks its sums by the size of a
// product.
void matmul_f64(const MatmulCall& call, const double* a, const double* b, const double* bias, double* c) {
  constexpr int64_t kRows = 64, kFlops = 1 << 17;
  const int64_t pieces = (call.m + kRows - 1) / kRows;
  const int64_t grain = std::max<int64_t>(1, kFlops / (2 * std::min(call.m, kRows) * call.n * call.k));
  parallel_for(call.batch * pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t i = piece / pieces, first = piece % pieces * kRows, rows = std::min(kRows, call.m - first);
      Eigen::Map<const MatrixF64, 0, Strided> left(a + i * call.a.batch + first * call.a.row, rows, call.k,
                                                   Strided(call.a.row, call.a.column));
      Eigen::Map<const MatrixF64, 0, Strided> right(b + i * call.b.batch, call.k, call.n,
                                                    Strided(call.b.row, call.b.column));
      Eigen::Map<MatrixF64, 0, Strided> result(c + i * call.c.batch + first * call.c.row, rows, call.n,
                                               Strided(call.c.row, 1));
      result.noalias() = left * right;
      if (call.bias) result.rowwise() += Eigen::Map<const Eigen::RowVectorXd>(bias, call.n);
    }
  });
}

// Where oneDNN has no product of 16-bit floats: converts, multiplies in f32, applies the epilogues to the sums, and
// rounds once.
template <class T> void matmul_in_f32(const MatmulCall& call, const MatmulOperands& o) {
  // A dense copy in f32.
  const auto widen = [](const auto* data, int64_t batch, int64_t rows, int64_t cols, const MatrixStrides& s) {
    std::vector<float> dense(static_cast<size_t>(batch * rows * cols));
    parallel_for(batch * rows, std::max<int64_t>(1, kElementwiseGrain / cols), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t k = 0; k < cols; ++k)
          dense[static_cast<size_t>(i * cols + k)] = static_cast<float>(
              data[i / rows * s.batch + i % rows * s.row + k * s.column]);
    });
    return dense;
  };
  const auto widen_result = [&](const void* data) {
    return call.wide ? widen(static_cast<const float*>(data), call.batch, call.m, call.n, call.c)
                     : widen(static_cast<const T*>(data), call.batch, call.m, call.n, call.c);
  };
  const int64_t a_batch = call.a.batch == 0 ? 1 : call.batch, b_batch = call.b.batch == 0 ? 1 : call.batch;
  const std::vector<float> left = widen(static_cast<const T*>(o.a), a_batch, call.m, call.k, call.a),
                           right = widen(static_cast<const T*>(o.b), b_batch, call.k, call.n, call.b);
  std::vector<float> row(static_cast<size_t>(call.bias ? call.n : 0));
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(static_cast<const T*>(o.bias)[i]);
  const bool adds_to_c = std::count(call.in_place.begin(), call.in_place.end(), true) > 0;
  std::vector<float> result = adds_to_c ? widen_result(o.c)
                                        : std::vector<float>(static_cast<size_t>(call.batch * call.m * call.n));
  MatmulCall wide = call.with_dense_operands(kF32);
  wide.bias = call.bias;
  wide.epilogues = call.epilogues;
  wide.in_place = call.in_place;
  MatmulOperands operands{.a = left.data(), .b = right.data(), .bias = row.data(), .c = result.data()};
  std::array<std::vector<float>, kMaxEpilogues> added;
  for (size_t i = 0; i < added.size(); ++i) {
    if (call.epilogues[i] != Epilogue::kAdd || call.in_place[i]) continue;
    added[i] = widen_result(o.added[i]);
    operands.added[i] = added[i].data();
  }
  matmul(wide, operands);
  const auto store = [&](auto* c) {
    using C = std::remove_pointer_t<decltype(c)>;
    parallel_for(call.batch * call.m, std::max<int64_t>(1, kElementwiseGrain / call.n),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i)
                     for (int64_t k = 0; k < call.n; ++k)
                       c[i / call.m * call.c.batch + i % call.m * call.c.row + k] = static_cast<C>(
                           result[static_cast<size_t>(i * call.n + k)]);
                 });
  };
  if (call.wide) store(static_cast<float*>(o.c));
  else store(static_cast<T*>(o.c));
}

}  // namespace

void matmul(const MatmulCall& call, const MatmulOperands& o) {
  if (call.m == 0 || call.n == 0 || call.batch == 0) return;
  invariant(call.k > 0, "matmul needs an inner dimension");
  invariant(!call.wide || call.dtype == kBF16, "only bf16 products have f32 results");
  invariant(call.epilogues[0] == Epilogue::kNone || call.dtype == kF32 || call.dtype == kBF16,
            "epilogues are f32 or bf16");
  switch (call.dtype) {
    case kF64:
      return matmul_f64(call, static_cast<const double*>(o.a), static_cast<const double*>(o.b),
                        static_cast<const double*>(o.bias), static_cast<double*>(o.c));
    case kF16: return matmul_in_f32<Float16>(call, o);
    default: return Product::runs(call) ? Product::get(call)->run(o) : matmul_in_f32<BFloat16>(call, o);
  }
}

namespace {

std::unique_ptr<const PreparedKernel> prepare_product(const KernelContext& context, int variant,
                                                      MakeMatmulPlan make_plan) {
  // f64 and f16 do not run in the library.
  if (const DType dtype = context.in(0).dtype(); dtype != kF32 && dtype != kBF16) return nullptr;
  if (!is_preparable(context)) return nullptr;
  MatmulPlan plan = make_plan(context);
  if (!plan.readable() || !Product::runs(*plan.call)) return nullptr;
  std::shared_ptr<const Product> product = Product::get(*plan.call, variant);
  if (product == nullptr) return nullptr;
  return std::make_unique<PreparedProducts<Product>>(std::move(plan), std::move(product), context.inputs.size());
}

}  // namespace

void matmul_kernel(const KernelContext& context) { run_products(context, &plan_matmul, &matmul); }
std::unique_ptr<const PreparedKernel> prepare_matmul(const KernelContext& context, int variant) {
  return prepare_product(context, variant, &plan_matmul);
}

void linear_kernel(const KernelContext& context) { run_products(context, &plan_linear, &matmul); }
std::unique_ptr<const PreparedKernel> prepare_linear(const KernelContext& context, int variant) {
  return prepare_product(context, variant, &plan_linear);
}

bool product_absorbs(std::span<const Epilogue> epilogues, DType dtype, bool exact) {
  if (epilogues.size() > kMaxEpilogues || (dtype != kF32 && dtype != kBF16)) return false;
  // `dtype` is that of the product itself; what is widened is added to as f32 is.
  for (size_t i = 0; i < epilogues.size(); ++i) {
    if (exact && (dtype != kF32 || epilogues[i] != Epilogue::kAdd)) return false;
    if (epilogues[i] == Epilogue::kWiden && (i != 0 || dtype != kBF16)) return false;
  }
  return true;
}

}  // namespace rondo::cpu
