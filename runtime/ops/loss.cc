// Losses.
#include "rondo/runtime/cpu/indexing.h"
#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

namespace {

void decompose_cross_entropy_grad(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  const Tensor &target = in[2], logits = in[1].to(compute_dtype(in[1].dtype())), grad = in[0].to(logits.dtype());
  const int64_t n = logits.sizes()[0], V = logits.sizes()[1];
  const bool mean = attrs.ints[1] == static_cast<int64_t>(Reduction::kMean);
  // Scalars are rounded as the kernel's are.
  const auto rounded = [&](double value) {
    return logits.dtype() == kF64 ? value : static_cast<double>(static_cast<float>(value));
  };
  const double smoothing = rounded(attrs.floats[0]);
  const double share = rounded(smoothing * rounded(1.0 / static_cast<double>(V)));
  const Tensor counts = not_equal(target, Tensor::scalar<int64_t>(attrs.ints[0]));
  Tensor weight = grad;
  if (mean) weight = grad * (1.0 / sum(counts.to(logits.dtype())));
  if (weight.rank() == 1) weight = reshape(weight, {n, 1});
  const Tensor p = exp(logits - reshape(in[3], {n, 1})) + -share;
  const Tensor hit = equal(Tensor::arange(V), reshape(target, {n, 1}));
  const Tensor dx = where(hit, p + -rounded(1.0 - smoothing), p) * weight;
  out[0] = where(reshape(counts, {n, 1}), dx, 0.0).to(in[1].dtype());
}

}  // namespace

// Inputs grad, logits, target, logsumexp; attributes as cross_entropy.
constexpr OpDef kCrossEntropyGrad = {
    .name = "cross_entropy_grad",
    .kind = OpKind::kOpaque,
    .infer = [](InferContext& c) { c.output(0, c.dtype(1), c.sizes(1)); },
    .kernel = {&cpu::cross_entropy_grad_kernel},
    .decompose = &decompose_cross_entropy_grad,
    .reuses = 1,
    .fuse_parts = false,
};

// ints: {ignore_index, reduction}; floats: {label_smoothing}. Outputs the loss, and logsumexp (N).
constexpr OpDef kCrossEntropy = {
    .name = "cross_entropy",
    .kind = OpKind::kOpaque,
    .n_outputs = 2,
    .saved = {.inputs = kFirst | kSecond, .outputs = kSecond},
    .amp = AmpPolicy::kFloat32,
    .infer =
        [](InferContext& c) {
          c.require_floating(0);
          if (c.sizes(0).rank() != 2) c.fail("logits must have shape (N, V)");
          if (c.dtype(1) != kI64 || !(c.sizes(1) == Dims{c.sizes(0)[0]})) c.fail("target must be i64 of shape (N)");
          c.output(0, c.dtype(0), c.integer(1) == static_cast<int>(Reduction::kNone) ? c.sizes(1) : Dims());
          c.output(1, compute_dtype(c.dtype(0)), c.sizes(1));
        },
    .kernel = {&cpu::cross_entropy_kernel},
    .grad =
        [](const GradContext& g) {
          Tensor grad;
          if (g.grad_out(0).defined())
            grad = call(kCrossEntropyGrad, {g.grad_out(0), g.input(0), g.input(1), g.output(1)}, g.attrs());
          if (g.grad_out(1).defined()) {  // of a second derivative: logsumexp's is the softmax
            const Dims column = {g.input_sizes(0)[0], 1};
            const Tensor logits = g.input(0).to(g.output(1).dtype());
            const Tensor more = exp(logits - reshape(g.output(1), column)) * reshape(g.grad_out(1), column);
            grad = grad.defined() ? grad + more.to(grad.dtype()) : more.to(g.input_dtype(0));
          }
          g.set(0, grad);
        },
};

Tensor cross_entropy(TensorArg logits, TensorArg target, CrossEntropyOptions options) {
  if (options.label_smoothing < 0 || options.label_smoothing > 1)
    throw_op_error("cross_entropy", "label_smoothing must lie in [0, 1]", logits.where);
  Tensor outputs[2];
  call(kCrossEntropy, {logits, target},
       {.ints = {options.ignore_index, static_cast<int64_t>(options.reduction)}, .floats = {options.label_smoothing}},
       outputs);
  return outputs[0];
}

}  // namespace rondo::ops
