// Losses.
#include "rondo/runtime/cpu/indexing.h"
#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

// Inputs grad, logits, target, logsumexp; attributes as cross_entropy.
constexpr OpDef kCrossEntropyGrad = {
    .name = "cross_entropy_grad",
    .kind = OpKind::kOpaque,
    .infer = [](InferContext& c) { c.output(0, c.dtype(1), c.sizes(1)); },
    .kernel = {&cpu::cross_entropy_grad_kernel},
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
          if (g.grad_out(0).defined())
            g.set(0, call(kCrossEntropyGrad, {g.grad_out(0), g.input(0), g.input(1), g.output(1)}, g.attrs()));
        },
};

Tensor cross_entropy(TensorArg logits, TensorArg target, CrossEntropyOptions options) {
  if (options.label_smoothing < 0 || options.label_smoothing > 1)
    throw_op_error("cross_entropy", "label_smoothing must lie in [0, 1]", logits.where);
  Tensor outputs[2];
  call(kCrossEntropy, {logits, target},
       {.ints = {options.ignore_index, static_cast<int64_t>(options.reduction)}, .floats = {options.label_smoothing}}, outputs);
  return outputs[0];
}

}  // namespace rondo::ops
