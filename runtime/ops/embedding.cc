// Lookups of rows of a table.
#include "rondo/runtime/autograd/backward.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/lookup.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

// ints: {rows of the table}
constexpr OpDef kEmbeddingGrad = {
    .name = "embedding_grad",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kSecond},
    .infer =
        [](InferContext& c) {
          c.require_floating(0);
          c.output(0, c.dtype(0), {c.integer(0), c.sizes(0).back()});
        },
    .host = {&cpu::embedding_grad_kernel},
    .grad = [](const GradContext& g) { g.set(0, embedding(g.grad_out(), g.input(1))); },
    .trait = trait::SumByIndex{},
    .checks = true,
};

// Inputs total (V, C), grad, indices: the total with the gradient of the table added. Only the rows that were looked up
// change, so if the total's memory may be reused, the cost is that of these rows and not that of the table.
constexpr OpDef kEmbeddingGradOnto = {
    .name = "embedding_grad_onto",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kThird},
    .infer =
        [](InferContext& c) {
          c.require_floating(0);
          c.require_same_dtype(0, 1);
          if (c.dtype(2) != kI64) c.fail("indices must be i64");
          Dims rows = c.sizes(2);
          if (c.sizes(0).rank() == 2) rows.push_back(c.sizes(0)[1]);
          if (c.sizes(0).rank() != 2 || !(c.sizes(1) == rows))
            c.fail("needs a total (V, C), and gradients of the indices' shape and (C)");
          c.output(0, c.dtype(0), c.sizes(0));
        },
    .host = {&cpu::embedding_grad_onto_kernel},
    .grad =
        [](const GradContext& g) {
          if (g.needs(0)) g.set(0, g.grad_out());
          if (g.needs(1)) g.set(1, embedding(g.grad_out(), g.input(2)));
        },
    .reuses = 0,
    .checks = true,
};

namespace {

// Infers the output (..., C) for inputs table (V, C), indices (...): one row for each index.
void rows_infer(InferContext& c) {
  if (c.sizes(0).rank() != 2) c.fail("the table must have shape (V, C)");
  if (c.dtype(1) != kI64) c.fail("indices must be i64");
  Dims sizes = c.sizes(1);
  sizes.push_back(c.sizes(0)[1]);
  c.output(0, c.dtype(0), sizes);
}
void rows_grad(const GradContext& g) {
  if (autograd::offer_rows(g.grad_out(), g.input(1))) return;  // the leaf took the rows
  Tensor total = g.take_total(0);
  if (!total.defined())
    return g.set(0, call(kEmbeddingGrad, {g.grad_out(), g.input(1)}, {.ints = {g.input_sizes(0)[0]}}));
  const bool in_place = autograd::may_overwrite(total);
  const std::initializer_list<TensorArg> operands = {total, g.grad_out(), g.input(1)};
  if (in_place) call_in_place(kEmbeddingGradOnto, operands);
  else total = call(kEmbeddingGradOnto, operands);
  g.set(0, std::move(total));
}
// Reads rows by kPick, with one index for all elements of a row.
void pick_rows(std::span<const Tensor> in, Lookup lookup, std::span<Tensor> out) {
  const int64_t rows = in[1].numel(), cols = in[0].sizes()[1];
  check_indices(in[1], in[0].sizes()[0], lookup);
  const Tensor index = expand(reshape(in[1], {rows, 1}), {rows, cols});
  Dims sizes = in[1].sizes();
  sizes.push_back(cols);
  out[0] = reshape(call(kPick, {in[0], index}, {.ints = {0}}), sizes);
}

}  // namespace

constexpr OpDef kEmbedding = {
    .name = "embedding",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kSecond},
    .infer =
        [](InferContext& c) {
          c.require_floating(0);
          rows_infer(c);
        },
    .host = {&cpu::embedding_kernel},
    .decompose = [](std::span<const Tensor> in, const Attrs&,
                    std::span<Tensor> out) { pick_rows(in, Lookup::kEmbedding, out); },
    .grad = &rows_grad,
    .grad_adds = true,
    .checks = true,
};

// Like kEmbedding, but for a table of any dtype. The public function index_select() reshapes its operand to a table and
// calls this op.
constexpr OpDef kIndexSelect = {
    .name = "index_select",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kSecond},
    .infer = &rows_infer,
    .host = {&cpu::embedding_kernel},
    .decompose = [](std::span<const Tensor> in, const Attrs&,
                    std::span<Tensor> out) { pick_rows(in, Lookup::kIndexSelect, out); },
    .grad = &rows_grad,
    .grad_adds = true,
    .checks = true,
};

Tensor embedding(TensorArg weight, TensorArg indices) {
  const Tensor at = index_operand("embedding", indices);
  return call(kEmbedding, {weight, {at, indices.where, indices.tensor.dtype()}});
}

void add_rows(const Tensor& total, const Tensor& rows, const Tensor& indices) {
  call_in_place(kEmbeddingGradOnto, {total, rows, indices});
}

constexpr OpList kEmbeddingOps = {&kEmbedding, &kEmbeddingGrad, &kEmbeddingGradOnto, &kIndexSelect};

}  // namespace rondo::ops
