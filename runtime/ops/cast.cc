// Casts, copies and fills.
#include "rondo/runtime/op/lowering.h"
#include "rondo/runtime/ops/channels_last.h"
#include "rondo/runtime/ops/factory.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/promotion.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

// ints: {dtype}
constexpr OpDef kCast = {
    .name = "cast",
    .kind = OpKind::kElementwise,
    .infer = [](InferContext& c) { c.output(0, static_cast<DType>(c.integer(0)), c.sizes(0)); },
    .host = {&cpu::cast_kernel},
    .grad = [](const GradContext& g) { g.set(0, cast(g.grad_out(), g.input_dtype(0))); },
    .lower = [](LoopBuilder& b) { b.output(0, b.input(0)); },
    .trait = trait::Convert{},
    .epilogue = Epilogue::kWiden,
};

void copy_infer(InferContext& c) {
  Dims sizes;
  if (!broadcast_shapes(c.sizes(0), c.sizes(1), sizes) || !(sizes == c.sizes(0)))
    c.fail("the source does not broadcast to the target");
  c.output(0, c.dtype(0), c.sizes(0));
}
constexpr OpDef kCopy = {
    .name = "copy",
    .kind = OpKind::kOpaque,
    .infer = &copy_infer,
    .host = {&cpu::copy_kernel},
    // Uses the sizes of the target (input 0) but not its values, so a recording that overwrites the target does not
    // read it first.
    .decompose =
        [](std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) {
          out[0] = cast(in[1].sizes() == in[0].sizes() ? in[1] : expand(in[1], in[0].sizes()), in[0].dtype());
        },
    .grad =
        [](const GradContext& g) {
          // The result does not depend on the target's old values. The gradient is zeros and not grad * 0, because
          // infinity * 0 is NaN.
          if (g.needs(0)) g.set(0, Tensor::zeros(g.input_sizes(0), {g.input_dtype(0), g.grad_out().device()}));
          if (g.needs(1)) g.set_reduced(1, g.grad_out());
        },
    .overwrites = 0,
};
// floats: {value}, or ints: {value} for an integer that is not exact as a double.
constexpr OpDef kFill = {
    .name = "fill",
    .kind = OpKind::kOpaque,
    .infer = [](InferContext& c) { c.output(0, c.dtype(0), c.sizes(0)); },
    .host = {&cpu::fill_kernel},
    .grad =
        [](const GradContext& g) {
          g.set(0, Tensor::zeros(g.input_sizes(0), {g.input_dtype(0), g.grad_out().device()}));
        },
    .overwrites = 0,
};

Tensor cast(TensorArg x, DType dtype) { return call(kCast, {x}, {.ints = {static_cast<int64_t>(dtype)}}); }
Tensor converted(TensorArg x, DType dtype) {
  if (!lies_channels_last(x.tensor)) return cast(x, dtype);
  return result_to_front(cast({channels_to_back(x), x.where}, dtype), x.where);
}
void copy_(TensorArg target, TensorArg source) {
  if (target.tensor.defined() && source.tensor.defined() && !(target.tensor.device() == source.tensor.device())) {
    call_in_place(kCopy, {target, {to_device(source, target.tensor.device()), source.where}});
    return;
  }
  call_in_place(kCopy, {target, source});
}
void fill_(TensorArg target, Scalar value) {
  require_defined("fill", target);
  require_in_range("fill", value, target.tensor.dtype(), target.where);
  call_in_place(kFill, {target}, fill_attrs(value));
}

constexpr OpList kCastOps = {&kCast, &kCopy, &kFill};

}  // namespace rondo::ops
