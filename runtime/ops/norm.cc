// Normalisation over the last dimension, softmax over any dimension. Statistics are kept in the compute dtype (f32 for
// 16-bit inputs).
#include "rondo/runtime/autograd/backward.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/reduction_def.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {
namespace {

Dims row_sizes(const Dims& sizes) {
  Dims rows = sizes;
  rows[rows.rank() - 1] = 1;
  return rows;
}
// Returns all dimensions but the last.
Dims leading_dims(int rank) {
  Dims dims;
  for (int i = 0; i + 1 < rank; ++i) dims.push_back(i);
  return dims;
}
void require_rows(InferContext& c) {
  c.require_floating(0);
  if (c.sizes(0).empty()) c.fail("needs at least one dimension");
}
Tensor widened(const Tensor& t) { return t.to(compute_dtype(t.dtype())); }
Tensor sum_leading(const Tensor& t) {
  return t.rank() > 1 ? sum(t, leading_dims(t.rank())) : sum(unsqueeze(t, 0), {0});
}
// Returns a + b, or b if `a` is undefined. Callers add to dx the part that comes from a gradient of the saved
// statistics, which occurs only in second derivatives.
Tensor plus(const Tensor& a, const Tensor& b) { return a.defined() ? a + b.to(a.dtype()) : b; }

void same_as_input(InferContext& c) {
  require_rows(c);
  c.output(0, c.dtype(0), c.sizes(0));
}

}  // namespace

namespace {

// Computes the gradients of layer_norm (kCentred) and of rms_norm, which has no mean and no bias.
template <bool kCentred> void norm_grad(const GradContext& g) {
  constexpr int kRstd = kCentred ? 2 : 1;
  Tensor grads[3];
  if (g.grad_out(0).defined()) {
    const TensorArg operands[] = {g.grad_out(0), g.input(0), g.input(1), g.output(1), g.output(kRstd)};
    const Tensor homes[] = {Tensor(), autograd::home_of_operand(1), autograd::home_of_operand(2)};
    if (kCentred) call(kLayerNormGrad, operands, {}, grads, homes);
    else call(kRMSNormGrad, std::span(operands).first(4), {}, std::span(grads).first(2), std::span(homes).first(2));
  }
  const double inverse = 1.0 / static_cast<double>(g.input_sizes(0).back());
  if (kCentred && g.grad_out(1).defined() && g.needs(0))
    grads[0] = plus(grads[0], expand(g.grad_out(1) * inverse, g.input_sizes(0)).to(g.input_dtype(0)));
  if (g.grad_out(kRstd).defined() && g.needs(0)) {
    const Tensor& rstd = g.output(kRstd);
    const Tensor slope = g.grad_out(kRstd) * (rstd * rstd * rstd) * -inverse;
    Tensor x = widened(g.input(0));
    if (kCentred) x = x - g.output(1);
    grads[0] = plus(grads[0], (x * slope).to(g.input_dtype(0)));
  }
  for (int i = 0; i < 3; ++i)
    if (g.needs(i) && grads[i].defined()) g.set(i, grads[i]);
}
template <bool kCentred> void norm_grad_infer(InferContext& c) {
  c.require_floating(1);
  c.output(0, c.dtype(1), c.sizes(1));
  c.output(1, c.dtype(2), c.sizes(2));
  if (kCentred) c.output(2, c.dtype(2), c.sizes(2));
}
template <bool kCentred> void decompose_norm_grad(std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) {
  const Tensor g = widened(in[0]), x = widened(in[1]), w = widened(in[2]);
  const Tensor& rstd = in[kCentred ? 4 : 3];
  const double inverse = 1.0 / static_cast<double>(x.sizes().back());
  const Tensor hat = (kCentred ? x - in[3] : x) * rstd, gw = g * w;
  Tensor mean_g;
  if (kCentred) mean_g = sum(gw, {-1}, true) * inverse;
  const Tensor mean_gx = sum(gw * hat, {-1}, true) * inverse;
  const Tensor centred = kCentred ? gw - mean_g - hat * mean_gx : gw - hat * mean_gx;
  out[0] = (centred * rstd).to(in[1].dtype());
  out[1] = sum_leading(g * hat).to(in[2].dtype());
  if (kCentred) out[2] = sum_leading(g).to(in[2].dtype());
}

}  // namespace

// Ba et al., "Layer normalization" (2016). floats: {eps}. Outputs y, and mean and rstd (..., 1).
constexpr OpDef kLayerNorm = {
    .name = "layer_norm",
    .kind = OpKind::kOpaque,
    .n_outputs = 3,
    .saved = {.inputs = kFirst | kSecond, .outputs = kSecond | kThird},
    .amp = AmpPolicy::kFloat32,
    .infer =
        [](InferContext& c) {
          require_rows(c);
          const Dims row = {c.sizes(0).back()};
          if (!(c.sizes(1) == row) || !(c.sizes(2) == row))
            c.fail("weight and bias must have the size of the last dimension");
          c.require_same_dtype(0, 1);
          c.require_same_dtype(0, 2);
          c.output(0, c.dtype(0), c.sizes(0));
          c.output(1, compute_dtype(c.dtype(0)), row_sizes(c.sizes(0)));
          c.output(2, compute_dtype(c.dtype(0)), row_sizes(c.sizes(0)));
        },
    .host = {&cpu::layer_norm_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
          const Tensor x = widened(in[0]);
          const double inverse = 1.0 / static_cast<double>(x.sizes().back());
          const Tensor mean = sum(x, {-1}, true) * inverse;
          const Tensor centered = x - mean;
          const Tensor variance = sum(centered * centered, {-1}, true) * inverse;
          const Tensor rstd = rsqrt(variance + attrs.floats[0]);
          out[0] = (centered * rstd * widened(in[1]) + widened(in[2])).to(in[0].dtype());
          out[1] = mean;
          out[2] = rstd;
        },
    .grad = &norm_grad<true>,
};

// Inputs grad, x, weight, mean, rstd; outputs dx, dweight, dbias.
constexpr OpDef kLayerNormGrad = {
    .name = "layer_norm_grad",
    .kind = OpKind::kOpaque,
    .n_outputs = 3,
    .infer = &norm_grad_infer<true>,
    .host = {&cpu::layer_norm_grad_kernel},
    .decompose = &decompose_norm_grad<true>,
};

// floats: {eps}. Outputs y, and rstd (..., 1).
constexpr OpDef kRMSNorm = {
    .name = "rms_norm",
    .kind = OpKind::kOpaque,
    .n_outputs = 2,
    .saved = {.inputs = kFirst | kSecond, .outputs = kSecond},
    .amp = AmpPolicy::kFloat32,
    .infer =
        [](InferContext& c) {
          require_rows(c);
          if (!(c.sizes(1) == Dims{c.sizes(0).back()})) c.fail("weight must have the size of the last dimension");
          c.require_same_dtype(0, 1);
          c.output(0, c.dtype(0), c.sizes(0));
          c.output(1, compute_dtype(c.dtype(0)), row_sizes(c.sizes(0)));
        },
    .host = {&cpu::rms_norm_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
          const Tensor x = widened(in[0]);
          const Tensor mean_square = sum(x * x, {-1}, true) * (1.0 / static_cast<double>(x.sizes().back()));
          const Tensor rstd = rsqrt(mean_square + attrs.floats[0]);
          out[0] = (x * rstd * widened(in[1])).to(in[0].dtype());
          out[1] = rstd;
        },
    .grad = &norm_grad<false>,
};

// Inputs grad, x, weight, rstd; outputs dx, dweight.
constexpr OpDef kRMSNormGrad = {
    .name = "rms_norm_grad",
    .kind = OpKind::kOpaque,
    .n_outputs = 2,
    .infer = &norm_grad_infer<false>,
    .host = {&cpu::rms_norm_grad_kernel},
    .decompose = &decompose_norm_grad<false>,
};

// ---- Softmax: ints {dim}, or none for the last dimension

namespace {

// Returns the largest element of each line along `dim`. If a line has no elements, returns 0, which nothing reads.
Tensor top_of_lines(const Tensor& x, int64_t dim) {
  return x.size(dim) == 0 ? sum(x, {dim}, true) : max(x, {dim}, true);
}

}  // namespace

constexpr OpDef kSoftmaxGrad = {
    .name = "softmax_grad",
    .kind = OpKind::kOpaque,
    .infer = &same_as_input,
    .host = {&cpu::softmax_grad_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
          const Tensor g = widened(in[0]), y = widened(in[1]);
          out[0] = ((g - sum(g * y, {softmax_dim(y.sizes(), attrs)}, true)) * y).to(in[0].dtype());
        },
};
constexpr OpDef kSoftmax = {
    .name = "softmax",
    .kind = OpKind::kOpaque,
    .saved = {.outputs = kFirst},
    .amp = AmpPolicy::kFloat32,
    .infer = &same_as_input,
    .host = {&cpu::softmax_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
          const Tensor x = widened(in[0]);
          const int64_t dim = softmax_dim(x.sizes(), attrs);
          const Tensor e = exp(x - top_of_lines(x, dim));
          out[0] = (e * (1.0 / sum(e, {dim}, true))).to(in[0].dtype());
        },
    .grad =
        [](const GradContext& g) {
          g.set(0, call(kSoftmaxGrad, {g.grad_out(), g.output(0)}, g.attrs()));
        },
};

constexpr OpDef kLogSoftmaxGrad = {
    .name = "log_softmax_grad",
    .kind = OpKind::kOpaque,
    .infer = &same_as_input,
    .host = {&cpu::log_softmax_grad_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
          const Tensor g = widened(in[0]), y = widened(in[1]);
          out[0] = (g - exp(y) * sum(g, {softmax_dim(y.sizes(), attrs)}, true)).to(in[0].dtype());
        },
};
constexpr OpDef kLogSoftmax = {
    .name = "log_softmax",
    .kind = OpKind::kOpaque,
    .saved = {.outputs = kFirst},
    .amp = AmpPolicy::kFloat32,
    .infer = &same_as_input,
    .host = {&cpu::log_softmax_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
          const Tensor x = widened(in[0]);
          const int64_t dim = softmax_dim(x.sizes(), attrs);
          const Tensor top = top_of_lines(x, dim);
          out[0] = (x - top - log(sum(exp(x - top), {dim}, true))).to(in[0].dtype());
        },
    .grad =
        [](const GradContext& g) {
          g.set(0, call(kLogSoftmaxGrad, {g.grad_out(), g.output(0)}, g.attrs()));
        },
};

Tensor layer_norm(TensorArg x, TensorArg weight, TensorArg bias, double eps) {
  Tensor outputs[3];
  call(kLayerNorm, {x, weight, bias}, {.floats = {eps}}, outputs);
  return outputs[0];
}
Tensor rms_norm(TensorArg x, TensorArg weight, double eps) {
  Tensor outputs[2];
  call(kRMSNorm, {x, weight}, {.floats = {eps}}, outputs);
  return outputs[0];
}

namespace {

// Calls `op`, a kind of softmax, along `dim`.
Tensor along(const OpDef& op, TensorArg x, int64_t dim) {
  require_defined(op.name, x);
  const int rank = x.tensor.rank(), d = normalize_dim(op.name, dim, x.tensor.sizes(), x.where);
  if (rank == 0) return reshape(call(op, {{reshape(x, {1}), x.where}}), {});  // a scalar is a line of one element
  if (d + 1 == rank) return call(op, {x});
  return call(op, {x}, {.ints = {d}});
}

}  // namespace

Tensor softmax(TensorArg x, int64_t dim) { return along(kSoftmax, x, dim); }
Tensor log_softmax(TensorArg x, int64_t dim) { return along(kLogSoftmax, x, dim); }

constexpr OpList kNormOps = {&kLayerNorm, &kLayerNormGrad, &kRMSNorm,    &kRMSNormGrad,
                             &kSoftmax,   &kSoftmaxGrad,   &kLogSoftmax, &kLogSoftmaxGrad};

}  // namespace rondo::ops
