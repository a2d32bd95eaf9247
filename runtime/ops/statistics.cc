// Variance and standard deviation.
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/reduction_def.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {
namespace {

// x minus its mean over the reduced dimensions, in the compute dtype.
Tensor centered(const Tensor& x, int64_t mask) {
  const Tensor wide = x.to(compute_dtype(x.dtype()));
  const double inverse = 1.0 / static_cast<double>(reduced_numel(x.sizes(), mask));
  return wide - call(kSum, {wide}, {.ints = {mask, 1}}) * inverse;
}
// 1 / (n - correction), which is infinite where PyTorch's is: a variance of one element is NaN.
SymFloat share(const Dims& sizes, const Attrs& attrs) {
  const auto n = static_cast<double>(reduced_numel(sizes, attrs.ints[0]));
  return 1.0 / max(0.0, n - attrs.floats[0]);
}
Tensor variance(const Tensor& x, const Attrs& attrs) {
  const Tensor d = centered(x, attrs.ints[0]);
  return call(kSum, {d * d}, {.ints = {attrs.ints[0], attrs.ints[1]}}) * share(x.sizes(), attrs);
}
// The gradient of x for `grad` at the variance.
Tensor variance_grad(const GradContext& g, const Tensor& grad) {
  const Tensor& x = g.input(0);
  const Tensor kept = reshape(grad.to(compute_dtype(x.dtype())), kept_sizes(x.sizes(), g.integer(0)));
  return (centered(x, g.integer(0)) * (kept * (2.0 * share(x.sizes(), g.attrs())))).to(x.dtype());
}
void infer_floating(InferContext& c) {
  c.require_floating(0);
  reduction_infer(c);
}

}  // namespace

// ints: as every reduction's; floats: {correction}
constexpr OpDef kVar = {
    .name = "var",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kFirst},
    .amp = AmpPolicy::kFloat32,
    .infer = &infer_floating,
    .on = {{&cpu::var_kernel}},
    .decompose = [](std::span<const Tensor> in, const Attrs& attrs,
                    std::span<Tensor> out) { out[0] = variance(in[0], attrs).to(in[0].dtype()); },
    .grad = [](const GradContext& g) { g.set(0, variance_grad(g, g.grad_out())); },
};
constexpr OpDef kStd = {
    .name = "std",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kFirst, .outputs = kFirst},
    .amp = AmpPolicy::kFloat32,
    .infer = &infer_floating,
    .on = {{&cpu::std_kernel}},
    .decompose = [](std::span<const Tensor> in, const Attrs& attrs,
                    std::span<Tensor> out) { out[0] = sqrt(variance(in[0], attrs)).to(in[0].dtype()); },
    .grad =
        [](const GradContext& g) {
          // Where all elements are equal the slope is infinite; PyTorch gives 0 there.
          const DType wide = compute_dtype(g.input_dtype(0));  // the slope leaves the range of f16 early
          const Tensor y = g.output(0).to(wide);
          g.set(0, variance_grad(g, where(equal(y, 0.0), 0.0, g.grad_out().to(wide) / (y * 2.0))));
        },
};

Tensor var(TensorArg x, const ReduceDims& dims, double correction, bool keepdim) {
  Attrs attrs = reduction_attrs("var", x, dims, keepdim);
  attrs.floats = {correction};
  return call(kVar, {x}, attrs);
}
Tensor std(TensorArg x, const ReduceDims& dims, double correction, bool keepdim) {
  Attrs attrs = reduction_attrs("std", x, dims, keepdim);
  attrs.floats = {correction};
  return call(kStd, {x}, attrs);
}

constexpr OpList kStatisticsOps = {&kVar, &kStd};

}  // namespace rondo::ops
