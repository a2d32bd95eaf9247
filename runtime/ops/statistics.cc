// Variance and standard deviation.
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/reduction_def.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {
namespace {

// Both have the sizes of the reduction's result, and the compute dtype.
struct Moments {
  Tensor mean;
  Tensor squares;  // the sum of the squares of all differences from the mean
};

// Note [Moments]. A reduction in two steps (several runs of dimensions, or rows first: reduction_order.h) takes
//   differences from the mean of each group that its first step reduces. If each group has n elements with mean m, and
//   q is the sum of their squared differences from m, then
//     sum (x - mean)^2 = the sum of q + n (m - mean)^2 over all groups.
//   (Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.) So x is
//   read once, a row at a time, for mean and squares: the second pass over a row finds it in a cache.
class TwoSteps {
 public:
  TwoSteps(const Dims& sizes, const Attrs& attrs) : sizes_(sizes), mask_(attrs.ints[0]), keeps_(attrs.ints[1]) {
    const ReducedRun run = last_run(sizes, mask_);
    rows_first_ = reduces_rows_first(sizes, attrs);
    first_ = rows_first_ ? int64_t{1} << (sizes.rank() - 1) : run.is_all ? mask_ : run.mask;
  }
  bool is_one() const { return first_ == mask_; }
  int64_t n() const { return reduced_numel(sizes_, mask_); }
  int64_t n_of_first() const { return reduced_numel(sizes_, first_); }

  // These make the same calls as ops::sum and ops::mean, so that compiled code can share the calls.
  Tensor all(const Tensor& x) const {
    if (!is_one()) return rest(first(x));
    return is_low_precision(x.dtype()) ? step(x, mask_, keeps_) : call(kSum, {x}, {.ints = {mask_, keeps_}});
  }
  Tensor first(const Tensor& x) const { return step(x, first_, rows_first_ ? 0 : 1); }
  Tensor rest(const Tensor& sums) const {
    if (rows_first_) return step(reshape(sums, {sums.numel()}), 1, 0);
    return reshape(step(sums, mask_ & ~first_, 1), reduced_sizes(sizes_, mask_, keeps_ != 0));
  }
  // Reshape results so that they broadcast to the tensors from which they were computed.
  Tensor over_all(const Tensor& result) const { return reshape(result, kept_sizes(sizes_, mask_)); }
  Tensor over_first(const Tensor& result) const { return reshape(result, kept_sizes(sizes_, first_)); }

 private:
  static Tensor step(const Tensor& x, int64_t mask, int64_t keepdim) {
    return call(kSum, {x}, {.ints = {mask, keepdim, static_cast<int64_t>(compute_dtype(x.dtype()))}});
  }
  const Dims sizes_;
  int64_t mask_, keeps_, first_ = 0;
  bool rows_first_ = false;
};

Tensor mean_of(const Tensor& x, const TwoSteps& steps) { return steps.all(x) * (1.0 / static_cast<double>(steps.n())); }

Moments moments(const Tensor& x, const Attrs& attrs) {
  const TwoSteps steps(x.sizes(), attrs);
  const Tensor wide = x.to(compute_dtype(x.dtype()));
  if (steps.is_one()) {
    const Tensor mean = mean_of(x, steps), d = wide - steps.over_all(mean);
    return {mean, steps.all(d * d)};
  }
  const auto n = static_cast<double>(steps.n_of_first());
  const Tensor sums = steps.first(x), means = sums * (1.0 / n), d = wide - steps.over_first(means),
               mean = steps.rest(sums) * (1.0 / static_cast<double>(steps.n())),
               apart = steps.over_first(means) - steps.over_all(mean);
  return {mean, steps.rest(steps.over_first(steps.first(d * d)) + apart * apart * n)};
}
// Returns 1 / (n - correction). As in PyTorch it is infinite if n is not larger than the correction, so the variance of
// one element is NaN.
SymFloat share(const Dims& sizes, const Attrs& attrs) {
  const auto n = static_cast<double>(reduced_numel(sizes, attrs.ints[0]));
  return 1.0 / max(0.0, n - attrs.floats[0]);
}
// Returns the gradient of x, given the gradient `grad` of the variance. `mean`: the mean of x, in the compute dtype.
Tensor variance_grad(const GradContext& g, const Tensor& grad, const Tensor& mean) {
  const Tensor& x = g.input(0);
  const TwoSteps steps(x.sizes(), g.attrs());
  const DType wide = compute_dtype(x.dtype());
  const Tensor centered = x.to(wide) - steps.over_all(mean);
  return (centered * (steps.over_all(grad.to(wide)) * (2.0 * share(x.sizes(), g.attrs())))).to(x.dtype());
}
// Returns the dtype of the results: x's, or the one that the attributes name.
DType statistics_dtype(DType x, const Attrs& attrs) {
  return attrs.ints.size() > 2 ? static_cast<DType>(attrs.ints[2]) : x;
}
void infer_floating(InferContext& c) {
  c.require_floating(0);
  reduction_infer(c);
}

}  // namespace

// Outputs variance and mean. ints: {mask, keepdim} as for every reduction, and perhaps the dtype of the results;
// floats: {correction}
constexpr OpDef kVarMean = {
    .name = "var_mean",
    .kind = OpKind::kOpaque,
    .n_outputs = 2,
    .saved = {.inputs = kFirst, .outputs = kSecond},
    .amp = AmpPolicy::kFloat32,
    .infer =
        [](InferContext& c) {
          infer_floating(c);
          const Dims sizes = c.outputs()[0].sizes;
          for (int i : {0, 1}) c.output(i, statistics_dtype(c.dtype(0), c.attrs()), sizes);
        },
    .host = {&cpu::var_mean_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
          const Moments m = moments(in[0], attrs);
          const DType dtype = statistics_dtype(in[0].dtype(), attrs);
          out[0] = (m.squares * share(in[0].sizes(), attrs)).to(dtype);
          out[1] = m.mean.to(dtype);
        },
    .grad =
        [](const GradContext& g) {
          const Tensor& x = g.input(0);
          const TwoSteps steps(x.sizes(), g.attrs());
          Tensor grad;
          if (g.grad_out(0).defined())
            // A 16-bit mean would not be precise enough.
            grad = variance_grad(g, g.grad_out(0),
                                 is_low_precision(g.output(1).dtype()) ? mean_of(x, steps) : g.output(1));
          if (g.grad_out(1).defined()) {
            const Tensor each = steps.over_all((g.grad_out(1) * (1.0 / static_cast<double>(steps.n()))).to(x.dtype()));
            grad = grad.defined() ? grad + each : expand(each, x.sizes());
          }
          g.set(0, grad);
        },
};
constexpr OpDef kStd = {
    .name = "std",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kFirst, .outputs = kFirst},
    .amp = AmpPolicy::kFloat32,
    .infer = &infer_floating,
    .host = {&cpu::std_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
          out[0] = sqrt(moments(in[0], attrs).squares * share(in[0].sizes(), attrs)).to(in[0].dtype());
        },
    .grad =
        [](const GradContext& g) {
          // If all elements are equal, the slope is infinite; as in PyTorch, the gradient is then 0.
          const DType wide = compute_dtype(g.input_dtype(0));  // the slope leaves the range of f16 early
          const Tensor y = g.output(0).to(wide);
          const Tensor grad = where(equal(y, 0.0), 0.0, g.grad_out().to(wide) / (y * 2.0));
          g.set(0, variance_grad(g, grad, mean_of(g.input(0), TwoSteps(g.input_sizes(0), g.attrs()))));
        },
};

VarAndMean var_mean(TensorArg x, const ReduceDims& dims, double correction, bool keepdim) {
  Attrs attrs = reduction_attrs("var_mean", x, dims, keepdim);
  attrs.floats = {correction};
  Tensor out[2];
  call(kVarMean, {x}, attrs, out);
  return {out[0], out[1]};
}
Tensor var(TensorArg x, const ReduceDims& dims, double correction, bool keepdim) {
  require_defined("var", x);
  return var_mean(x, dims, correction, keepdim).var;
}
Tensor std(TensorArg x, const ReduceDims& dims, double correction, bool keepdim) {
  Attrs attrs = reduction_attrs("std", x, dims, keepdim);
  attrs.floats = {correction};
  return call(kStd, {x}, attrs);
}

constexpr OpList kStatisticsOps = {&kVarMean, &kStd};

}  // namespace rondo::ops
