// Normalisation of channels. x is (B, C, ...). batch_norm takes the statistics of each channel over the batch and all
// pixels, group_norm those of each example over a group of channels and all pixels. Both compute in the compute dtype,
// from differences from the mean, so a large mean costs no digits. Weight and bias (C) have x's dtype or its compute
// dtype, because under autocast x is of 16 bits while parameters stay f32.
#include <array>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/ops/channel_norm.h"
#include "rondo/runtime/ops/channels_last.h"
#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/reduction_def.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {
namespace {

Tensor in_compute_dtype(const Tensor& t) { return t.defined() ? t.to(compute_dtype(t.dtype())) : t; }

Dims dims_beside(int channels, int rank) {
  Dims dims;
  for (int d = 0; d < rank; ++d)
    if (d != channels) dims.push_back(d);
  return dims;
}
// Reshapes one number for each channel, (C), so that it broadcasts to x.
Tensor beside(const Tensor& t, int channels, int rank) {
  Dims sizes = Dims::filled(rank, 1);
  sizes[channels] = t.numel();
  return reshape(t, sizes);
}
// For group_norm. Returns all dimensions of (B, C, ...) but the first two.
Dims pixel_dims(int rank) {
  Dims dims;
  for (int d = 2; d < rank; ++d) dims.push_back(d);
  return dims;
}
// Reshapes one number for each channel of each example, (B, C) or (1, C), so that it broadcasts to x (B, C, ...).
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
// Returns the statistics of x in the compute dtype. kVarMean reads x in x's dtype, so no converted copy is made.
VarAndMean wide_statistics(const Tensor& x, const Dims& dims) {
  Attrs attrs = reduction_attrs("var_mean", x, dims, false);
  attrs.ints.push_back(static_cast<int64_t>(compute_dtype(x.dtype())));
  attrs.floats = {0.0};
  Tensor out[2];
  call(kVarMean, {x}, attrs, out);
  return {out[0], out[1]};
}
// Fails unless input `operand`, a weight or bias, is undefined or has one number for each channel, in the dtype of
// input `x` or in its compute dtype.
void require_affine(InferContext& c, int operand, int x, int64_t channels) {
  if (!c.has(operand)) return;
  if (!(c.sizes(operand) == Dims{channels}))
    c.fail(absl::StrCat("weight and bias must have one number for each of ", channels, " channels"));
  if (c.dtype(operand) != c.dtype(x) && c.dtype(operand) != compute_dtype(c.dtype(x)))
    c.fail(absl::StrCat("weight and bias must be ", std::string(name_of(c.dtype(x))), " as x is, or ",
                        std::string(name_of(compute_dtype(c.dtype(x))))));
}
// Infers the outputs y, mean and var of a norm with the inputs x, weight and bias.
void channel_norm_infer(InferContext& c, int64_t channels, const Dims& statistics) {
  require_affine(c, 1, 0, channels);
  require_affine(c, 2, 0, channels);
  c.output(0, c.dtype(0), c.sizes(0));
  c.output(1, compute_dtype(c.dtype(0)), statistics);
  c.output(2, compute_dtype(c.dtype(0)), statistics);
}
// Infers the outputs dx, dweight and dbias for the inputs grad, x, weight, mean and var. dweight and dbias have the
// dtype of the weight; if there is none, the compute dtype of x.
void channel_norm_grad_infer(InferContext& c, int channel_dim) {
  require_channels(c, 1);
  const int64_t channels = c.sizes(1)[channel_dim];
  require_affine(c, 2, 1, channels);
  const DType affine = c.has(2) ? c.dtype(2) : compute_dtype(c.dtype(1));
  c.output(0, c.dtype(1), c.sizes(1));
  c.output(1, affine, {channels});
  c.output(2, affine, {channels});
}
DType affine_dtype(std::span<const Tensor> in) {
  return in[2].defined() ? in[2].dtype() : compute_dtype(in[1].dtype());
}

// If x has no elements, sets the gradients to 0 and returns true. The statistics of such an x are NaN.
bool has_no_values(std::span<const Tensor> in, int channel_dim, std::span<Tensor> out) {
  const Tensor& x = in[1];
  if (x.numel() > 0) return false;
  out[0] = Tensor::zeros(x.sizes(), {x.dtype(), x.device()});
  out[1] = Tensor::zeros({x.size(channel_dim)}, {affine_dtype(in), x.device()});
  out[2] = Tensor::zeros({x.size(channel_dim)}, {affine_dtype(in), x.device()});
  return true;
}

// ---- batch_norm

// Runs batch_norm, or its gradient, on images in the layout channels last. The first kImages inputs are images.
template <int kImages>
void normalise_channels_last(const OpDef& op, std::span<const TensorArg> inputs, const Attrs& attrs,
                             std::span<Tensor> outputs) {
  Tensor images[kImages];  // `operands` refers to these tensors
  std::vector<TensorArg> operands;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorArg& input = inputs[i];
    if (i < kImages) images[i] = channels_to_back(input);
    operands.emplace_back(i < kImages ? images[i] : input.tensor, input.where);
  }
  Attrs moved = attrs;
  moved.ints = {dim_at_back(channel_dim(attrs))};
  call(op, operands, moved, outputs);
  outputs[0] = result_to_front(outputs[0], inputs[0].where);
}

double values_per_channel(const Dims& x, int channels) {
  return static_cast<double>(x.numel()) / static_cast<double>(x[channels]);
}

void decompose_batch_norm(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  const Tensor x = in_compute_dtype(in[0]), weight = in_compute_dtype(in[1]), bias = in_compute_dtype(in[2]);
  const int channels = channel_dim(attrs), rank = x.rank();
  const VarAndMean of = channel_statistics(in[0], channels);
  Tensor scale = rsqrt(of.var + attrs.floats[0]);
  if (weight.defined()) scale = scale * weight;
  Tensor y = (x - beside(of.mean, channels, rank)) * beside(scale, channels, rank);
  if (bias.defined()) y = y + beside(bias, channels, rank);
  out[0] = y.to(in[0].dtype());
  out[1] = of.mean;
  out[2] = of.var;
}
void decompose_batch_norm_grad(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  const int channels = channel_dim(attrs);
  if (has_no_values(in, channels, out)) return;
  const Tensor g = in_compute_dtype(in[0]), x = in_compute_dtype(in[1]), weight = in_compute_dtype(in[2]),
               &mean = in[3], &var = in[4];
  const Dims others = dims_beside(channels, x.rank());
  const double inverse = 1.0 / values_per_channel(x.sizes(), channels);
  const auto spread = [&](const Tensor& t) { return beside(t, channels, x.rank()); };
  const Tensor centred = x - spread(mean), rstd = rsqrt(var + attrs.floats[0]);
  const Tensor sum_g = sum(g, others), sum_gx = sum(g * centred, others) * rstd;
  const Tensor level = sum_g * inverse, slope = sum_gx * rstd * inverse;
  const Tensor scale = weight.defined() ? rstd * weight : rstd;
  // dx is not computed from (x - mean) slope, although that is more exact: a compiler would store x - mean between the
  // sums and this expression, instead of reading x again.
  const Tensor offset = level - mean * slope;
  out[0] = ((g - spread(offset) - x * spread(slope)) * spread(scale)).to(in[1].dtype());
  out[1] = sum_gx.to(affine_dtype(in));
  out[2] = sum_g.to(affine_dtype(in));
}

// ---- group_norm: ints {groups}

// Repeats the number of each group for all channels of the group: (B, groups) -> (B, C)
Tensor per_channel(const Tensor& t, int64_t channels) {
  const int64_t batch = t.size(0), groups = t.size(1);
  if (groups == channels) return t;
  return reshape(expand(unsqueeze(t, 2), {batch, groups, channels / groups}), {batch, channels});
}
// Sums the numbers of each group: (B, C) -> (B, groups)
Tensor per_group(const Tensor& t, int64_t groups) {
  return sum(reshape(t, {t.size(0), groups, t.size(1) / groups}), {2});
}

// Returns the number of pixels of one example. It is computed without the batch size, which may be 0.
int64_t pixels(const Dims& x) {
  int64_t n = 1;
  for (int d = 2; d < x.rank(); ++d) n *= x[d];
  return n;
}
double values_per_group(const Dims& x, int64_t groups) { return static_cast<double>(x[1] / groups * pixels(x)); }

void decompose_group_norm(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  const Tensor x = in_compute_dtype(in[0]), weight = in_compute_dtype(in[1]), bias = in_compute_dtype(in[2]);
  const int rank = x.rank();
  const int64_t groups = attrs.ints[0], channels = x.size(1);
  const VarAndMean of = wide_statistics(reshape(in[0], {x.size(0), groups, channels / groups, pixels(x.sizes())}),
                                        {2, 3});
  Tensor scale = per_channel(rsqrt(of.var + attrs.floats[0]), channels);
  if (weight.defined()) scale = scale * weight;
  Tensor y = (x - beside(per_channel(of.mean, channels), rank)) * beside(scale, rank);
  if (bias.defined()) y = y + beside(bias, rank);
  out[0] = y.to(in[0].dtype());
  out[1] = of.mean;
  out[2] = of.var;
}
void decompose_group_norm_grad(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  if (has_no_values(in, 1, out)) return;
  const Tensor g = in_compute_dtype(in[0]), x = in_compute_dtype(in[1]), weight = in_compute_dtype(in[2]),
               &mean = in[3], &var = in[4];
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

// The gradient rule of batch_norm and group_norm. `spread` reshapes statistics so that they broadcast to x.
template <class Spread> void channel_norm_grad(const GradContext& g, const OpDef& op, double values, Spread spread) {
  Tensor grads[3];
  if (g.grad_out(0).defined())
    call(op, {g.grad_out(0), g.input(0), g.input(1), g.output(1), g.output(2)}, g.attrs(), grads);
  // Gradients of the saved statistics occur only in second derivatives.
  const auto add = [&](const Tensor& more) {
    grads[0] = (grads[0].defined() ? in_compute_dtype(grads[0]) + more : more).to(g.input_dtype(0));
  };
  if (g.grad_out(1).defined()) add(expand(spread(g.grad_out(1) * (1.0 / values)), g.input_sizes(0)));
  if (g.grad_out(2).defined())
    add((in_compute_dtype(g.input(0)) - spread(g.output(1))) * spread(g.grad_out(2) * (2.0 / values)));
  for (int i = 0; i < 3; ++i)
    if (g.needs(i) && grads[i].defined()) g.set(i, grads[i].to(g.input_dtype(i)));
}

}  // namespace

// Returns the dimension of the channels. It is the only integer of a batch_norm; without integers it is 1.
int channel_dim(const Attrs& attrs) { return attrs.ints.empty() ? 1 : static_cast<int>(attrs.ints[0]); }
VarAndMean channel_statistics(const Tensor& x, int channels) {
  return wide_statistics(x, dims_beside(channels, x.rank()));
}

// Ioffe and Szegedy, "Batch normalization" (2015). Inputs x, weight, bias (the last two may be undefined). ints:
// {dimension of the channels}, or none for dimension 1; floats: {eps}. Outputs y, mean (C) and variance (C). The
// variance divides by the number of values.
constexpr OpDef kBatchNorm = {
    .name = "batch_norm",
    .kind = OpKind::kOpaque,
    .n_outputs = 3,
    .saved = {.inputs = kFirst | kSecond, .outputs = kSecond | kThird},
    .infer =
        [](InferContext& c) {
          require_channels(c, 0);
          const int64_t dim = channel_dim(c.attrs());
          if (dim < 1 || dim >= c.sizes(0).rank()) c.fail(absl::StrCat("there is no dimension ", dim, " of channels"));
          const int64_t channels = c.sizes(0)[static_cast<int>(dim)];
          channel_norm_infer(c, channels, {channels});
        },
    .host = {&cpu::batch_norm_kernel},
    .decompose = &decompose_batch_norm,
    .grad =
        [](const GradContext& g) {
          const Dims& x = g.input_sizes(0);
          const int channels = channel_dim(g.attrs());
          channel_norm_grad(g, kBatchNormGrad, values_per_channel(x, channels),
                            [&](const Tensor& t) { return beside(t, channels, x.rank()); });
        },
    .channels_last = &normalise_channels_last<1>,
};
// Inputs grad, x, weight, mean, var; floats: {eps}; outputs dx, dweight, dbias.
constexpr OpDef kBatchNormGrad = {
    .name = "batch_norm_grad",
    .kind = OpKind::kOpaque,
    .n_outputs = 3,
    .infer = [](InferContext& c) { channel_norm_grad_infer(c, channel_dim(c.attrs())); },
    .host = {&cpu::batch_norm_grad_kernel},
    .decompose = &decompose_batch_norm_grad,
    .channels_last = &normalise_channels_last<2>,
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
          if (groups < 1 || channels < 1 || channels % groups != 0)
            c.fail(absl::StrCat("the number of groups must divide the number of channels, got ", groups, " groups of ",
                                channels, " channels"));
          channel_norm_infer(c, channels, {c.sizes(0)[0], groups});
        },
    .decompose = &decompose_group_norm,
    .grad =
        [](const GradContext& g) {
          const Dims& x = g.input_sizes(0);
          channel_norm_grad(g, kGroupNormGrad, values_per_group(x, g.integer(0)),
                            [&](const Tensor& t) { return beside(per_channel(t, x[1]), x.rank()); });
        },
};
constexpr OpDef kGroupNormGrad = {
    .name = "group_norm_grad",
    .kind = OpKind::kOpaque,
    .n_outputs = 3,
    .infer = [](InferContext& c) { channel_norm_grad_infer(c, 1); },
    .decompose = &decompose_group_norm_grad,
};

// ---- x scale + shift. Inputs scale, shift, x. x is the last input, because the dtype of the last input selects the
// scalar body. scale and shift have the compute dtype of x.

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
    .host = {&cpu::elementwise_kernel},
    .body = &ScaleShift::kHostBody,
    .grad =
        [](const GradContext& g) {
          const Tensor grad = in_compute_dtype(g.grad_out());
          if (g.needs(0)) g.set_reduced(0, grad * in_compute_dtype(g.input(2)));
          if (g.needs(1)) g.set_reduced(1, grad);
          if (g.needs(2)) g.set_reduced(2, grad * g.input(0));
        },
    .lower = &ScaleShift::lower,
};

BatchNormed batch_norm(TensorArg x, TensorArg weight, TensorArg bias, double eps) {
  require_defined("batch_norm", x);
  Tensor out[3];
  const Attrs attrs{.floats = {eps}};
  if (lies_channels_last(x.tensor))
    kBatchNorm.channels_last(kBatchNorm, std::array{x, weight, bias}, attrs, std::span<Tensor>(out));
  else call(kBatchNorm, {x, weight, bias}, attrs, out);
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
  require_defined("group_norm", x);
  Tensor out[3];
  call(kGroupNorm, {x, weight, bias}, {.ints = {groups}, .floats = {eps}}, out);
  return lies_channels_last(x.tensor) ? with_strides(out[0], channels_last_strides(x.tensor.sizes())) : out[0];
}

constexpr OpList kChannelNormOps = {&kBatchNorm, &kBatchNormGrad, &kGroupNorm, &kGroupNormGrad, &kScaleShift};

}  // namespace rondo::ops
