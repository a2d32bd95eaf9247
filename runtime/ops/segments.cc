#include "rondo/runtime/ops/segments.h"

#include "rondo/runtime/op/lowering.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/lookup.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

// Input index (N); outputs order, starts. ints: {segments, Lookup}
constexpr OpDef kSortSegments = {
    .name = "sort_segments",
    .kind = OpKind::kOpaque,
    .n_outputs = 2,
    .infer =
        [](InferContext& c) {
          if (c.dtype(0) != kI64 || c.sizes(0).rank() != 1) c.fail("indices must be i64, of shape (N)");
          if (c.integer(0) < 0) c.fail("a number of segments is negative");
          lookup_in(c.integer(1));
          c.output(0, kI64, c.sizes(0));
          c.output(1, kI64, {c.integer(0) + 1});
        },
    .host = {&cpu::sort_segments_kernel},
    .checks = true,
};

// Inputs values (N, ...), starts (segments + 1), and perhaps a tensor to which the sums are added.
constexpr OpDef kSumSegments = {
    .name = "sum_segments",
    .kind = OpKind::kOpaque,
    .infer =
        [](InferContext& c) {
          if (c.dtype(1) != kI64 || c.sizes(1).rank() != 1 || c.sizes(1)[0] < 1)
            c.fail("the starts of segments must be i64, of shape (segments + 1)");
          if (c.sizes(0).empty()) c.fail("needs rows");
          if (c.dtype(0) == kBool) c.fail("sums of bool; cast to a number first");
          Dims sizes = c.sizes(0);
          sizes[0] = c.sizes(1)[0] - 1;
          if (c.has(2)) {
            c.require_same_dtype(0, 2);
            if (!(c.sizes(2) == sizes)) c.fail("the tensor to add to must have the sizes of the result");
          }
          c.output(0, c.dtype(0), sizes);
        },
    .host = {&cpu::sum_segments_kernel},
    .lower = [](LoopBuilder& b) { b.output(0, b.reduce(LoopOp::kReduceSum, b.input(0))); },
    .trait = trait::SumSegments{},
};

SortedRows sort_segments(const OpDef& scatters, const Tensor& index, int64_t segments) {
  const Lookup lookup = &scatters == &kEmbeddingGrad ? Lookup::kEmbeddingGrad : Lookup::kScatterAdd;
  Tensor out[2];
  call(kSortSegments, {index}, {.ints = {segments, static_cast<int64_t>(lookup)}}, out);
  return {out[0], out[1]};
}
Tensor in_order(const Tensor& x, const Tensor& order) {
  Dims sizes = x.sizes(), column = Dims::filled(x.rank(), 1);
  sizes[0] = column[0] = order.numel();
  return call(kPick, {x, expand(reshape(order, column), sizes)}, {.ints = {0}});
}
Tensor sum_segments(const Tensor& values, const Tensor& starts, const Tensor& onto) {
  return onto.defined() ? call(kSumSegments, {values, starts, onto}) : call(kSumSegments, {values, starts});
}

constexpr OpList kSegmentOps = {&kSortSegments, &kSumSegments};

}  // namespace rondo::ops
