// Normalisation and softmax over the last dimension. Statistics are kept in the compute dtype (f32 for 16-bit inputs).
#include "rondo/runtime/cpu/norm.h"

#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {
namespace {

Dims row_sizes(const Dims& sizes) {
  Dims rows = sizes;
  rows[rows.rank() - 1] = 1;
  return rows;
}
// All dimensions but the last.
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
Tensor sum_leading(const Tensor& t) { return t.rank() > 1 ? sum(t, leading_dims(t.rank())) : t; }

void same_as_input(InferContext& c) {
  require_rows(c);
  c.output(0, c.dtype(0), c.sizes(0));
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
          if (!(c.sizes(1) == row) || !(c.sizes(2) == row)) c.fail("weight and bias must have the size of the last dimension");
          c.require_same_dtype(0, 1);
          c.require_same_dtype(0, 2);
          c.output(0, c.dtype(0), c.sizes(0));
          c.output(1, compute_dtype(c.dtype(0)), row_sizes(c.sizes(0)));
          c.output(2, compute_dtype(c.dtype(0)), row_sizes(c.sizes(0)));
        },
    .kernel = {&cpu::layer_norm_kernel},
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
    .grad =
        [](const GradContext& g) {
          Tensor grads[3];
          if (g.grad_out(0).defined())
            call(kLayerNormGrad, {g.grad_out(0), g.input(0), g.input(1), g.output(1), g.output(2)}, {}, grads);
          // The statistics are read by the first derivative only: their gradients arrive with the second.
          const double inverse = 1.0 / static_cast<double>(g.input_sizes(0).back());
          const auto add_to_x = [&](const Tensor& part) {
            const Tensor same = part.to(g.input_dtype(0));
            grads[0] = grads[0].defined() ? grads[0] + same : same;
          };
          if (g.grad_out(1).defined()) add_to_x(expand(g.grad_out(1) * inverse, g.input_sizes(0)));
          if (g.grad_out(2).defined()) {
            const Tensor &mean = g.output(1), &rstd = g.output(2);
            add_to_x((widened(g.input(0)) - mean) * (g.grad_out(2) * rstd * rstd * rstd * -inverse));
          }
          for (int i = 0; i < 3; ++i)
            if (g.needs(i) && grads[i].defined()) g.set(i, grads[i]);
        },
};

// Inputs grad, x, weight, mean, rstd; outputs dx, dweight, dbias.
constexpr OpDef kLayerNormGrad = {
    .name = "layer_norm_grad",
    .kind = OpKind::kOpaque,
    .n_outputs = 3,
    .infer =
        [](InferContext& c) {
          c.output(0, c.dtype(1), c.sizes(1));
          c.output(1, c.dtype(2), c.sizes(2));
          c.output(2, c.dtype(2), c.sizes(2));
        },
    .kernel = {&cpu::layer_norm_grad_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) {
          const Tensor g = widened(in[0]), x = widened(in[1]), w = widened(in[2]);
          const Tensor &mean = in[3], &rstd = in[4];
          const double inverse = 1.0 / static_cast<double>(x.sizes().back());
          const Tensor hat = (x - mean) * rstd, gw = g * w;
          const Tensor mean_g = sum(gw, {-1}, true) * inverse, mean_gx = sum(gw * hat, {-1}, true) * inverse;
          out[0] = ((gw - mean_g - hat * mean_gx) * rstd).to(in[1].dtype());
          out[1] = sum_leading(g * hat).to(in[2].dtype());
          out[2] = sum_leading(g).to(in[2].dtype());
        },
};

constexpr OpDef kSoftmaxGrad = {
    .name = "softmax_grad",
    .kind = OpKind::kOpaque,
    .infer = &same_as_input,
    .kernel = {&cpu::softmax_grad_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) {
          const Tensor g = widened(in[0]), y = widened(in[1]);
          out[0] = ((g - sum(g * y, {-1}, true)) * y).to(in[0].dtype());
        },
};
constexpr OpDef kSoftmax = {
    .name = "softmax",
    .kind = OpKind::kOpaque,
    .saved = {.outputs = kFirst},
    .amp = AmpPolicy::kFloat32,
    .infer = &same_as_input,
    .kernel = {&cpu::softmax_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) {
          const Tensor x = widened(in[0]);
          const Tensor e = exp(x - max(x, {-1}, true));
          out[0] = (e * (1.0 / sum(e, {-1}, true))).to(in[0].dtype());
        },
    .grad = [](const GradContext& g) { g.set(0, call(kSoftmaxGrad, {g.grad_out(), g.output(0)})); },
};

constexpr OpDef kLogSoftmaxGrad = {
    .name = "log_softmax_grad",
    .kind = OpKind::kOpaque,
    .infer = &same_as_input,
    .kernel = {&cpu::log_softmax_grad_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) {
          const Tensor g = widened(in[0]), y = widened(in[1]);
          out[0] = (g - exp(y) * sum(g, {-1}, true)).to(in[0].dtype());
        },
};
constexpr OpDef kLogSoftmax = {
    .name = "log_softmax",
    .kind = OpKind::kOpaque,
    .saved = {.outputs = kFirst},
    .amp = AmpPolicy::kFloat32,
    .infer = &same_as_input,
    .kernel = {&cpu::log_softmax_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) {
          const Tensor x = widened(in[0]);
          const Tensor top = max(x, {-1}, true);
          out[0] = (x - top - log(sum(exp(x - top), {-1}, true))).to(in[0].dtype());
        },
    .grad = [](const GradContext& g) { g.set(0, call(kLogSoftmaxGrad, {g.grad_out(), g.output(0)})); },
};

Tensor layer_norm(TensorArg x, TensorArg weight, TensorArg bias, double eps) {
  Tensor outputs[3];
  call(kLayerNorm, {x, weight, bias}, {.floats = {eps}}, outputs);
  return outputs[0];
}
Tensor softmax(TensorArg x) { return call(kSoftmax, {x}); }
Tensor log_softmax(TensorArg x) { return call(kLogSoftmax, {x}); }

}  // namespace rondo::ops
