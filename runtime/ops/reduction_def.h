// Shared by ops over sets of dimensions. Their attributes begin with ints = {mask of the reduced dimensions, keepdim}.
#pragma once

#include <bit>

#include "rondo/runtime/op/op.h"

namespace rondo::ops {

// Returns the attributes of a reduction of x over `dims` (empty: all). Throws Error if x is undefined or a dimension is
// out of range.
Attrs reduction_attrs(const char* op, TensorArg x, const Dims& dims, bool keepdim);

// Infers one output: it has input 0's dtype and its shape without the reduced dimensions. With keepdim they stay, with
// size 1.
void reduction_infer(InferContext& c);

// Returns the sizes of the result of a reduction.
Dims reduced_sizes(const Dims& sizes, int64_t mask, bool keepdim);

// Returns `sizes` with 1 for every reduced dimension.
Dims kept_sizes(const Dims& sizes, int64_t mask);

// Returns the number of elements that are reduced to one result.
int64_t reduced_numel(const Dims& sizes, int64_t mask);

// Returns the dimension of a reduction over one dimension, or 0 for a scalar, which has none.
inline int reduced_dim(int64_t mask) { return mask == 0 ? 0 : std::countr_zero(static_cast<uint64_t>(mask)); }

// The last run of reduced dimensions: Note [Runs] of ops/reduction_order.h.
struct ReducedRun {
  int64_t mask = 0;  // its dimensions
  int64_t outer = 1, reduced = 1, inner = 1;
  bool by_columns = false;  // in column order, else in row order
  bool is_all = true;       // no other dimension is reduced
};
ReducedRun last_run(const Dims& sizes, int64_t mask);

// True for a call that first reduces each row to one number, and then these numbers: Note [Full order].
bool reduces_rows_first(const Dims& sizes, const Attrs& attrs);

// Returns the dimension of a softmax over a tensor of these sizes: ints {dim}, or the last one if there are no ints.
inline int softmax_dim(const Dims& sizes, const Attrs& attrs) {
  return attrs.ints.empty() ? sizes.rank() - 1 : static_cast<int>(attrs.ints[0]);
}

}  // namespace rondo::ops
