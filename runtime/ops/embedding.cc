// Rows of a table.
#include "rondo/runtime/cpu/indexing.h"
#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

// ints: {rows of the table}
constexpr OpDef kEmbeddingGrad = {
    .name = "embedding_grad",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kSecond},
    .infer = [](InferContext& c) { c.output(0, c.dtype(0), {c.integer(0), c.sizes(0).back()}); },
    .kernel = {&cpu::embedding_grad_kernel},
    .grad = [](const GradContext& g) { g.set(0, embedding(g.grad_out(), g.input(1))); },
};

constexpr OpDef kEmbedding = {
    .name = "embedding",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kSecond},
    .infer =
        [](InferContext& c) {
          c.require_floating(0);
          if (c.sizes(0).rank() != 2) c.fail("the table must have shape (V, C)");
          if (c.dtype(1) != kI64) c.fail("indices must be i64");
          Dims sizes = c.sizes(1);
          sizes.push_back(c.sizes(0)[1]);
          c.output(0, c.dtype(0), sizes);
        },
    .kernel = {&cpu::embedding_kernel},
    .grad =
        [](const GradContext& g) {
          g.set(0, call(kEmbeddingGrad, {g.grad_out(), g.input(1)}, {.ints = {g.input_sizes(0)[0]}}));
        },
};

Tensor embedding(TensorArg weight, TensorArg indices) { return call(kEmbedding, {weight, indices}); }

}  // namespace rondo::ops
