// Contractions.
#include "absl/strings/str_cat.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {
namespace {

void require_multipliable(InferContext& c) {
  for (int i = 0; i < c.n_inputs(); ++i) {
    if (!c.has(i)) continue;
    c.require_floating(i);
    c.require_same_dtype(0, i);
  }
}

void matmul_infer(InferContext& c) {
  require_multipliable(c);
  const Dims &a = c.sizes(0), &b = c.sizes(1);
  if (a.rank() < 2 || b.rank() < 2) c.fail("needs matrices; use unsqueeze for a vector");
  const int64_t k = a.back(), m = a[a.rank() - 2], n = b.back();
  if (b[b.rank() - 2] != k) c.fail(absl::StrCat("inner dimensions differ: ", k, " and ", b[b.rank() - 2]));
  Dims a_batch = a, b_batch = b, sizes;
  for (Dims* batch : {&a_batch, &b_batch})
    for (int i = 0; i < 2; ++i) batch->erase(batch->rank() - 1);
  if (!broadcast_shapes(a_batch, b_batch, sizes)) c.fail("batch dimensions do not broadcast");
  sizes.push_back(m);
  sizes.push_back(n);
  c.output(0, c.dtype(0), sizes);
}

void linear_infer(InferContext& c) {
  require_multipliable(c);
  const Dims &x = c.sizes(0), &w = c.sizes(1);
  if (x.rank() < 1 || w.rank() != 2) c.fail("needs x (..., in) and weight (out, in)");
  if (x.back() != w[1]) c.fail(absl::StrCat("inner dimensions differ: ", x.back(), " and ", w[1]));
  if (c.has(2) && !(c.sizes(2) == Dims{w[0]})) c.fail("bias must have shape (out)");
  Dims sizes = x;
  sizes[sizes.rank() - 1] = w[0];
  c.output(0, c.dtype(0), sizes);
}

// Reshapes (..., C) to (rows, C). C may be 0.
Tensor as_rows(const Tensor& t) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < t.rank(); ++i) rows *= t.sizes()[i];
  return reshape(t, {rows, t.sizes().back()});
}

// Makes the gradient dense. A product may sum in another order for another layout, and a region receives dense
// gradients. So eager execution and regions agree in every bit only if products read dense gradients. The gradient of a
// cat's operand or of a split may have gaps.
Tensor dense_gradient(const GradContext& g) { return g.grad_out().contiguous(); }

}  // namespace

constexpr OpDef kMatmul = {
    .name = "matmul",
    .kind = OpKind::kContraction,
    .saved = {.inputs = kFirst | kSecond, .product = true},
    .amp = AmpPolicy::kLower,
    .infer = &matmul_infer,
    .host = {&cpu::matmul_kernel, &cpu::prepare_matmul, &cpu::product_absorbs},
    .grad =
        [](const GradContext& g) {
          const Tensor &a = g.input(0), &b = g.input(1), grad = dense_gradient(g);
          if (g.needs(0)) g.set_reduced(0, matmul(grad, transpose(b, -1, -2)));
          if (!g.needs(1)) return;
          // The gradient of a shared matrix sums over all rows in one product.
          if (g.input_sizes(1).rank() == 2) g.set(1, matmul(transpose(as_rows(a), 0, 1), as_rows(grad)));
          else g.set_reduced(1, matmul(transpose(a, -1, -2), grad));
        },
    .trait = trait::Product{.sums_over = 2},
};

constexpr OpDef kLinear = {
    .name = "linear",
    .kind = OpKind::kContraction,
    .saved = {.inputs = kFirst | kSecond, .product = true},
    .amp = AmpPolicy::kLower,
    .infer = &linear_infer,
    .host = {&cpu::linear_kernel, &cpu::prepare_linear, &cpu::product_absorbs},
    .grad =
        [](const GradContext& g) {
          const Tensor grad = as_rows(dense_gradient(g));
          if (g.needs(0)) g.set(0, reshape(matmul(grad, g.input(1)), g.input_sizes(0)));
          if (g.needs(1)) g.set(1, matmul(transpose(grad, 0, 1), as_rows(g.input(0))));
          if (g.needs(2)) g.set(2, sum(grad, {0}));
        },
    .trait = trait::Product{.sums_over = 1},
};

Tensor matmul(TensorArg a, TensorArg b) { return call(kMatmul, {a, b}); }
Tensor linear(TensorArg x, TensorArg weight, TensorArg bias) { return call(kLinear, {x, weight, bias}); }

constexpr OpList kMatmulOps = {&kMatmul, &kLinear};

}  // namespace rondo::ops
