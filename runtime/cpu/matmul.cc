#include "rondo/runtime/cpu/matmul.h"

// Only Rondo's pool runs threads: Eigen's threads would spin while they wait for each other.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>
#include <algorithm>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/cpu/product.h"
#include "rondo/runtime/cpu/wrong_kernels.h"
#include "rondo/runtime/ops/kernels.h"

namespace rondo::cpu {

namespace {

using Strided = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
using MatrixF64 = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Eigen's order of sums depends on the size of a product. So the product is cut into pieces of kRows rows, which do not
// depend on the number of threads.
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

}  // namespace

void matmul(const MatmulCall& call, const MatmulOperands& o) {
  if (call.m == 0 || call.n == 0 || call.batch == 0) return;
  invariant(call.k > 0, "matmul needs an inner dimension");
  invariant(!call.wide || call.dtype == kBF16, "only bf16 products have f32 results");
  invariant(call.epilogues[0] == Epilogue::kNone || call.dtype == kF32 || call.dtype == kBF16,
            "epilogues are f32 or bf16");
  if (call.dtype == kF64)
    return matmul_f64(call, static_cast<const double*>(o.a), static_cast<const double*>(o.b),
                      static_cast<const double*>(o.bias), static_cast<double*>(o.c));
  Product::get(call)->run(o);
}

namespace {

std::unique_ptr<const PreparedKernel> prepare_product(const KernelContext& context, int variant,
                                                      MakeMatmulPlan make_plan) {
  if (context.in(0).dtype() == kF64) return nullptr;  // runs in Eigen, not as a Product
  if (!is_preparable(context)) return nullptr;
  MatmulPlan plan = make_plan(context);
  if (!plan.readable()) return nullptr;
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
  // `dtype` is the dtype of the product itself. After kWiden, sums are in f32.
  for (size_t i = 0; i < epilogues.size(); ++i) {
    if (is_wrong(epilogues[i])) return false;
    if (exact && (dtype != kF32 || epilogues[i] != Epilogue::kAdd)) return false;
    if (epilogues[i] == Epilogue::kWiden && (i != 0 || dtype != kBF16)) return false;
  }
  return true;
}

}  // namespace rondo::cpu
