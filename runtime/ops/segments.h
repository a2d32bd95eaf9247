// Sums by index in parts, for a compiler that fuses the sums with the ops that make the values
// (compile/transform/segments.cc): the indices are sorted, the values are made in that order, and neighbours are added
// up. The bits are those of the whole op: Note [Segments] of cpu/row_sums.h.
#pragma once

#include "rondo/runtime/op/op.h"

namespace rondo::ops {

struct SortedRows {
  Tensor order;   // (N), i64: the rows of each segment, in ascending order, one segment after the other
  Tensor starts;  // (segments + 1), i64: where in `order` each segment begins
};
// Sorts the rows by index (N), i64. Throws the Error of `scatters`, an op with trait::SumByIndex, unless all indices
// lie in [0, segments).
SortedRows sort_segments(const OpDef& scatters, const Tensor& index, int64_t segments);
// Returns the rows of x in the given order: row i of the result is row order[i] of x.
Tensor in_order(const Tensor& x, const Tensor& order);
// Sums the rows of each segment: values (N, ...) -> (segments, ...). `starts` says which rows are in a segment. Adds
// the sums to `onto` if it is defined. 16-bit sums are rounded before they are added.
Tensor sum_segments(const Tensor& values, const Tensor& starts, const Tensor& onto);

}  // namespace rondo::ops
