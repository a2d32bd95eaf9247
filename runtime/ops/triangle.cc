// Triangles of matrices.
#include "rondo/runtime/ops/triangle.h"

#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {
namespace {

void triangle_infer(InferContext& c) {
  if (c.sizes(0).rank() < 2) c.fail("needs a matrix");
  c.output(0, c.dtype(0), c.sizes(0));
}

// Computes the triangle by a mask. The mask costs a tensor, so a compiler runs the kernels instead.
Tensor in_parts(const Tensor& x, int64_t diagonal, bool lower) {
  const Triangle triangle = triangle_of(x.sizes(), diagonal, lower);
  const TensorOptions numbers{kI64, x.device()};
  const Tensor rows = unsqueeze(Tensor::arange(triangle.rows, numbers), 1) + triangle.diagonal;
  const Tensor cols = unsqueeze(Tensor::arange(triangle.cols, numbers), 0);
  return where(lower ? less_equal(cols, rows) : less_equal(rows, cols), x, false);  // `false` does not widen x's dtype
}

}  // namespace

// ints: {diagonal}. The gradient of x is the same triangle of the incoming gradient, so nothing is saved.
constexpr OpDef kTril = {
    .name = "tril",
    .kind = OpKind::kOpaque,
    .infer = &triangle_infer,
    .host = {&cpu::tril_kernel},
    .decompose = [](std::span<const Tensor> in, const Attrs& attrs,
                    std::span<Tensor> out) { out[0] = in_parts(in[0], attrs.ints[0], true); },
    .grad = [](const GradContext& g) { g.set(0, tril(g.grad_out(), g.integer(0))); },
    .fuse_parts = false,
};
constexpr OpDef kTriu = {
    .name = "triu",
    .kind = OpKind::kOpaque,
    .infer = &triangle_infer,
    .host = {&cpu::triu_kernel},
    .decompose = [](std::span<const Tensor> in, const Attrs& attrs,
                    std::span<Tensor> out) { out[0] = in_parts(in[0], attrs.ints[0], false); },
    .grad = [](const GradContext& g) { g.set(0, triu(g.grad_out(), g.integer(0))); },
    .fuse_parts = false,
};

Tensor tril(TensorArg x, int64_t diagonal) { return call(kTril, {x}, {.ints = {diagonal}}); }
Tensor triu(TensorArg x, int64_t diagonal) { return call(kTriu, {x}, {.ints = {diagonal}}); }

constexpr OpList kTriangleOps = {&kTril, &kTriu};

}  // namespace rondo::ops
