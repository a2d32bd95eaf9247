// Normalisation of channels. x is (B, C, ...). batch_norm takes the statistics of each channel over the batch and all
// pixels, group_norm those of each example over a group of channels and all pixels. Both compute in the compute dtype,
// from differences from the mean, so a large mean costs no digits. Weight and bias (C) have x's dtype or its compute
// dtype, as x is of 16 bits under autocast and parameters stay f32.
#include <optional>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {
namespace {

Tensor widened(const Tensor& t) { return t.defined() ? t.to(compute_dtype(t.dtype())) : t; }

// All dimensions of (B, C, ...) but the channels; for group_norm only the pixels.
Dims dims_beside_channels(int rank) {
  Dims dims = {0};
  for (int d = 2; d < rank; ++d) dims.push_back(d);
  return dims;
}
Dims pixel_dims(int rank) {
  Dims dims;
  for (int d = 2; d < rank; ++d) dims.push_back(d);
  return dims;
}
// One number for each channel, (C), or for each channel of each example, (B, C), as an operand beside x.
Tensor beside(const Tensor& t, int rank) {
  Dims sizes = t.sizes();
  if (sizes.rank() == 1) sizes.insert(0, 1);
  while (sizes.rank() < rank) sizes.push_back(1);
  return reshape(t, sizes);
}

void require_channels(InferContext& c, int x) {
  c.require_floating(x);
  if (c.sizes(x).rank() < 2) c.fail("needs x (B, C, ...)");
}
// Weight and bias.
void require_affine(InferContext& c, int operand, int x) {
  if (!c.has(operand)) return;
  if (!(c.sizes(operand) == Dims{c.sizes(x)[1]}))
    c.fail(absl::StrCat("weight and bias must have one number for each of ", c.sizes(x)[1], " channels"));
  if (c.dtype(operand) != c.dtype(x) && c.dtype(operand) != compute_dtype(c.dtype(x)))
    c.fail(absl::StrCat("weight and bias must be ", std::string(name_of(c.dtype(x))), " as x is, or ",
                        std::string(name_of(compute_dtype(c.dtype(x))))));
}
// x, weight, bias -> y, mean, var
void norm_infer(InferContext& c, const Dims& statistics) {
  require_affine(c, 1, 0);
  require_affine(c, 2, 0);
  c.output(0, c.dtype(0), c.sizes(0));
  c.output(1, compute_dtype(c.dtype(0)), statistics);
  c.output(2, compute_dtype(c.dtype(0)), statistics);
}
// grad, x, weight, mean, var -> dx, dweight, dbias; the last two in the dtype of the weight
void norm_grad_infer(InferContext& c) {
  require_channels(c, 1);
  require_affine(c, 2, 1);
  const DType affine = c.has(2) ? c.dtype(2) : compute_dtype(c.dtype(1));
  c.output(0, c.dtype(1), c.sizes(1));
  c.output(1, affine, {c.sizes(1)[1]});
  c.output(2, affine, {c.sizes(1)[1]});
}
DType affine_dtype(std::span<const Tensor> in) {
  return in[2].defined() ? in[2].dtype() : compute_dtype(in[1].dtype());
}

// Without values the statistics are NaN, and the gradients are 0.
bool has_no_values(std::span<const Tensor> in, std::span<Tensor> out) {
  const Tensor& x = in[1];
  if (x.numel() > 0) return false;
  out[0] = Tensor::zeros(x.sizes(), {x.dtype(), x.device()});
  out[1] = Tensor::zeros({x.size(1)}, {affine_dtype(in), x.device()});
  out[2] = Tensor::zeros({x.size(1)}, {affine_dtype(in), x.device()});
  return true;
}

// ---- batch_norm

double values_per_channel(const Dims& x) { return static_cast<double>(x.numel()) / static_cast<double>(x[1]); }

void decompose_batch_norm(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  const Tensor x = widened(in[0]), weight = widened(in[1]), bias = widened(in[2]);
  const int rank = x.rank();
  const VarAndMean of = var_mean(x, dims_beside_channels(rank), 0.0);
  Tensor scale = rsqrt(of.var + attrs.floats[0]);
  if (weight.defined()) scale = scale * weight;
  Tensor y = (x - beside(of.mean, rank)) * beside(scale, rank);
  if (bias.defined()) y = y + beside(bias, rank);
  out[0] = y.to(in[0].dtype());
  out[1] = of.mean;
  out[2] = of.var;
}
void decompose_batch_norm_grad(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  if (has_no_values(in, out)) return;
  const Tensor g = widened(in[0]), x = widened(in[1]), weight = widened(in[2]), &mean = in[3], &var = in[4];
  const int rank = x.rank();
  const Dims others = dims_beside_channels(rank);
  const double inverse = 1.0 / values_per_channel(x.sizes());
  const Tensor centred = x - beside(mean, rank), rstd = rsqrt(var + attrs.floats[0]);
  const Tensor sum_g = sum(g, others), sum_gx = sum(g * centred, others) * rstd;
  const Tensor level = sum_g * inverse, slope = sum_gx * rstd * inverse;
  const Tensor scale = weight.defined() ? rstd * weight : rstd;
  out[0] = ((g - beside(level, rank) - centred * beside(slope, rank)) * beside(scale, rank)).to(in[1].dtype());
  out[1] = sum_gx.to(affine_dtype(in));
  out[2] = sum_g.to(affine_dtype(in));
}

// ---- group_norm: ints {groups}

// (B, groups) -> (B, C)
Tensor per_channel(const Tensor& t, int64_t channels) {
  const int64_t batch = t.size(0), groups = t.size(1);
  if (groups == channels) return t;
  return reshape(expand(unsqueeze(t, 2), {batch, groups, channels / groups}), {batch, channels});
}
// The sums of the numbers of each group: (B, C) -> (B, groups)
Tensor per_group(const Tensor& t, int64_t groups) {
  return sum(reshape(t, {t.size(0), groups, t.size(1) / groups}), {2});
}

// Example by example, so a batch may be empty.
int64_t pixels(const Dims& x) {
  int64_t n = 1;
  for (int d = 2; d < x.rank(); ++d) n *= x[d];
  return n;
}
double values_per_group(const Dims& x, int64_t groups) { return static_cast<double>(x[1] / groups * pixels(x)); }

void decompose_group_norm(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  const Tensor x = widened(in[0]), weight = widened(in[1]), bias = widened(in[2]);
  const int rank = x.rank();
  const int64_t groups = attrs.ints[0], channels = x.size(1);
  const VarAndMean of = var_mean(reshape(x, {x.size(0), groups, channels / groups, pixels(x.sizes())}), {2, 3}, 0.0);
  Tensor scale = per_channel(rsqrt(of.var + attrs.floats[0]), channels);
  if (weight.defined()) scale = scale * weight;
  Tensor y = (x - beside(per_channel(of.mean, channels), rank)) * beside(scale, rank);
  if (bias.defined()) y = y + beside(bias, rank);
  out[0] = y.to(in[0].dtype());
  out[1] = of.mean;
  out[2] = of.var;
}
void decompose_group_norm_grad(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  if (has_no_values(in, out)) return;
  const Tensor g = widened(in[0]), x = widened(in[1]), weight = widened(in[2]), &mean = in[3], &var = in[4];
  const int rank = x.rank();
  const int64_t groups = attrs.ints[0], channels = x.size(1);
  const double inverse = 1.0 / values_per_group(x.sizes(), groups);
  const Tensor centred = x - beside(per_channel(mean, channels), rank), rstd = rsqrt(var + attrs.floats[0]);
  const Tensor gx = g * centred;
  const Tensor sum_g = rank > 2 ? sum(g, pixel_dims(rank)) : g, sum_gx = rank > 2 ? sum(gx, pixel_dims(rank)) : gx;
  const auto weighted = [&](const Tensor& t) { return per_group(weight.defined() ? t * weight : t, groups); };
  const Tensor level = weighted(sum_g) * rstd * inverse, slope = weighted(sum_gx) * rstd * rstd * rstd * inverse;
  const Tensor scale = per_channel(rstd, channels);
  const Tensor of_each = g * beside(weight.defined() ? scale * weight : scale, rank);
  out[0] = (of_each - beside(per_channel(level, channels), rank) - centred * beside(per_channel(slope, channels), rank))
               .to(in[1].dtype());
  out[1] = sum(sum_gx * scale, {0}).to(affine_dtype(in));
  out[2] = sum(sum_g, {0}).to(affine_dtype(in));
}

// The gradients of both. `spread`: statistics beside x.
template <class Spread> void norm_grad(const GradContext& g, const OpDef& op, double values, Spread spread) {
  Tensor grads[3];
  if (g.grad_out(0).defined())
    call(op, {g.grad_out(0), g.input(0), g.input(1), g.output(1), g.output(2)}, g.attrs(), grads);
  // Gradients of the hidden statistics: only second derivatives bring them.
  const auto add = [&](const Tensor& more) {
    grads[0] = (grads[0].defined() ? widened(grads[0]) + more : more).to(g.input_dtype(0));
  };
  if (g.grad_out(1).defined()) add(expand(spread(g.grad_out(1) * (1.0 / values)), g.input_sizes(0)));
  if (g.grad_out(2).defined())
    add((widened(g.input(0)) - spread(g.output(1))) * spread(g.grad_out(2) * (2.0 / values)));
  for (int i = 0; i < 3; ++i)
    if (g.needs(i) && grads[i].defined()) g.set(i, grads[i].to(g.input_dtype(i)));
}

}  // namespace

// Ioffe and Szegedy, "Batch normalization" (2015). Inputs x, weight, bias (the last two may be undefined); floats:
// {eps}. Outputs y, and mean and variance (C), which divides by the number of values.
constexpr OpDef kBatchNorm = {
    .name = "batch_norm",
    .kind = OpKind::kOpaque,
    .n_outputs = 3,
    .saved = {.inputs = kFirst | kSecond, .outputs = kSecond | kThird},
    .infer =
        [](InferContext& c) {
          require_channels(c, 0);
          norm_infer(c, {c.sizes(0)[1]});
        },
    .decompose = &decompose_batch_norm,
    .grad =
        [](const GradContext& g) {
          const Dims& x = g.input_sizes(0);
          norm_grad(g, kBatchNormGrad, values_per_channel(x), [&](const Tensor& t) { return beside(t, x.rank()); });
        },
};
// Inputs grad, x, weight, mean, var; floats: {eps}; outputs dx, dweight, dbias.
constexpr OpDef kBatchNormGrad = {
    .name = "batch_norm_grad",
    .kind = OpKind::kOpaque,
    .n_outputs = 3,
    .infer = &norm_grad_infer,
    .decompose = &decompose_batch_norm_grad,
};

// Wu and He, "Group normalization" (2018). ints: {groups}; floats: {eps}. Inputs as batch_norm; outputs y, and mean and
// variance (B, groups).
constexpr OpDef kGroupNorm = {
    .name = "group_norm",
    .kind = OpKind::kOpaque,
    .n_outputs = 3,
    .saved = {.inputs = kFirst | kSecond, .outputs = kSecond | kThird},
    .infer =
        [](InferContext& c) {
          require_channels(c, 0);
          const int64_t groups = c.integer(0), channels = c.sizes(0)[1];
          if (groups < 1 || channels % groups != 0)
            c.fail(absl::StrCat("the number of groups must divide the number of channels, got ", groups, " groups of ",
                                channels, " channels"));
          norm_infer(c, {c.sizes(0)[0], groups});
        },
    .decompose = &decompose_group_norm,
    .grad =
        [](const GradContext& g) {
          const Dims& x = g.input_sizes(0);
          norm_grad(g, kGroupNormGrad, values_per_group(x, g.integer(0)),
                    [&](const Tensor& t) { return beside(per_channel(t, x[1]), x.rank()); });
        },
};
constexpr OpDef kGroupNormGrad = {
    .name = "group_norm_grad",
    .kind = OpKind::kOpaque,
    .n_outputs = 3,
    .infer = &norm_grad_infer,
    .decompose = &decompose_group_norm_grad,
};

// ---- x scale + shift. x is the last input, and its dtype names the body: scale and shift have its compute dtype.

namespace {

struct ScaleShift {
  static void infer(InferContext& c) {
    c.require_floating(2);
    Dims sizes = c.sizes(2);
    for (int i : {0, 1}) {
      if (c.dtype(i) != compute_dtype(c.dtype(2))) c.fail("scale and shift must have the compute dtype of x");
      if (!broadcast_shapes(Dims(sizes), c.sizes(i), sizes)) c.fail("shapes do not broadcast");
    }
    c.output(0, c.dtype(2), sizes);
  }
  template <class C> static C of(C scale, C shift, C x) { return x * scale + shift; }
  template <class T> static void run(const ElementwiseRun& rows, const double*) {
    using C = ComputeType<T>;
    elementwise_run<T, C, C, T>(rows, [](C scale, C shift, C x) { return of(scale, shift, x); });
  }
  static constexpr ElementwiseBody kHostBody = elementwise_body<double, float, BFloat16, Float16>(
      3, [](auto tag) { return &run<typename decltype(tag)::type>; });
  static void lower(LoopBuilder& b) { b.output(0, of(b.input(0), b.input(1), b.input(2))); }
};

}  // namespace

constexpr OpDef kScaleShift = {
    .name = "scale_shift",
    .kind = OpKind::kElementwise,
    .saved = {.inputs = kFirst | kThird},
    .infer = &ScaleShift::infer,
    .on = {{&cpu::elementwise_kernel}, {&cuda::elementwise_kernel}},
    .body = &ScaleShift::kHostBody,
    .grad =
        [](const GradContext& g) {
          const Tensor grad = widened(g.grad_out());
          if (g.needs(0)) g.set_reduced(0, grad * widened(g.input(2)));
          if (g.needs(1)) g.set_reduced(1, grad);
          if (g.needs(2)) g.set_reduced(2, grad * g.input(0));
        },
    .lower = &ScaleShift::lower,
};

BatchNormed batch_norm(TensorArg x, TensorArg weight, TensorArg bias, double eps) {
  Tensor out[3];
  call(kBatchNorm, {x, weight, bias}, {.floats = {eps}}, out);
  return {out[0], out[1], out[2]};
}

Tensor batch_norm_with(const Statistics& of, TensorArg x, TensorArg weight, TensorArg bias, double eps) {
  require_defined("batch_norm_with", x);
  for (const Tensor& t : {of.mean, of.var}) require_defined("batch_norm_with", {t, x.where});
  const int rank = x.tensor.rank();
  const auto fail = [&](const std::string& what) {
    throw_op_error("batch_norm_with",
                   absl::StrCat(what, "; got x ", to_string(x.tensor.sizes()), ", mean ", to_string(of.mean.sizes()),
                                ", var ", to_string(of.var.sizes())),
                   x.where);
  };
  if (rank < 2 || !is_floating(x.tensor.dtype())) fail("needs floats (B, C, ...)");
  const Dims channels = {x.tensor.size(1)};
  const DType wide = compute_dtype(x.tensor.dtype());
  for (const Tensor& t : {of.mean, of.var, weight.tensor, bias.tensor})
    if (t.defined() && !(t.sizes() == channels))
      fail(absl::StrCat("mean, var, weight and bias must have one number for each of ", channels[0], " channels, not ",
                        to_string(t.sizes())));
  Tensor scale = rsqrt(of.var.to(wide) + eps);
  if (weight.tensor.defined()) scale = scale * weight.tensor.to(wide);
  Tensor shift = neg(of.mean.to(wide) * scale);
  if (bias.tensor.defined()) shift = shift + bias.tensor.to(wide);
  return call(kScaleShift, {beside(scale, rank), beside(shift, rank), x});
}

Tensor group_norm(TensorArg x, int64_t groups, TensorArg weight, TensorArg bias, double eps) {
  Tensor out[3];
  call(kGroupNorm, {x, weight, bias}, {.ints = {groups}, .floats = {eps}}, out);
  return out[0];
}

constexpr OpList kChannelNormOps = {&kBatchNorm, &kBatchNormGrad, &kGroupNorm, &kGroupNormGrad, &kScaleShift};

}  // namespace rondo::ops
