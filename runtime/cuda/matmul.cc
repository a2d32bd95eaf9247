// Matrix products on CUDA: calls of matmul and linear through product.h.
#include <memory>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/product.h"

namespace rondo::cuda {
namespace {

// True if the library cannot add the bias: it needs a bias of the result's dtype (product.h), but the bias of an op has
// the operands' dtype.
bool has_narrow_bias(const KernelContext& context) {
  return context.has(2) && context.in(2).dtype() != context.out().dtype();
}

void run(const KernelContext& context, MakeMatmulPlan make_plan) {
  if (has_narrow_bias(context)) {
    const NoGrad off;
    const Tensor bias = context.in(2).to(context.out().dtype());
    const Tensor* operands[] = {context.inputs[0], context.inputs[1], &bias};
    return run({context.op, operands, context.outputs, context.attrs, context.where, context.epilogues}, make_plan);
  }
  const int device = context.out().device().index;
  run_products(context, make_plan, [&](const MatmulCall& call, const MatmulOperands& operands) {
    Product::get(device, call)->run(operands);
  });
}

std::unique_ptr<const PreparedKernel> prepare(const KernelContext& context, int variant, MakeMatmulPlan make_plan) {
  if (!is_preparable(context) || has_narrow_bias(context)) return nullptr;
  MatmulPlan plan = make_plan(context);
  if (!plan.readable()) return nullptr;
  std::shared_ptr<const Product> product = Product::get(context.out().device().index, *plan.call, variant);
  if (product == nullptr) return nullptr;
  return std::make_unique<PreparedProducts<Product>>(std::move(plan), std::move(product), context.inputs.size());
}

}  // namespace

void matmul_kernel(const KernelContext& context) { run(context, &plan_matmul); }
std::unique_ptr<const PreparedKernel> prepare_matmul(const KernelContext& context, int variant) {
  return prepare(context, variant, &plan_matmul);
}

void linear_kernel(const KernelContext& context) { run(context, &plan_linear); }
std::unique_ptr<const PreparedKernel> prepare_linear(const KernelContext& context, int variant) {
  return prepare(context, variant, &plan_linear);
}

bool product_absorbs(std::span<const Epilogue> epilogues, DType dtype, bool exact) {
  // Exact mode absorbs nothing: a GPU's sums have not been compared with those of the separate ops yet.
  if (exact || epilogues.size() > kMaxEpilogues) return false;
  size_t i = 0;
  const auto next = [&](Epilogue kind) {
    const bool here = i < epilogues.size() && epilogues[i] == kind;
    i += here;
    return here;
  };
  // Accepts epilogues only in cuBLASLt's order: the sums become wide, then C is added once, then the activation is
  // applied.
  if (next(Epilogue::kWiden) && dtype != kBF16) return false;
  next(Epilogue::kAdd);
  if (next(Epilogue::kGeluTanh) && dtype == kF64) return false;
  return i == epilogues.size();
}

}  // namespace rondo::cuda
