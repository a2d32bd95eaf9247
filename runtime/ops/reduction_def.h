// What ops over sets of dimensions share. Their attributes begin with ints = {mask of the reduced dimensions, keepdim}.
#pragma once

#include "rondo/runtime/op.h"

namespace rondo::ops {

// The attributes of a reduction of x over `dims` (empty: all). Throws Error if x is undefined or a dimension is out of
// range.
Attrs reduction_attrs(const char* op, TensorArg x, const Dims& dims, bool keepdim);

// One output: input 0's dtype, and its shape without the reduced dimensions (1 in their place for keepdim).
void reduction_infer(InferContext& c);

// `sizes` with 1 for every reduced dimension.
Dims kept_sizes(const Dims& sizes, int64_t mask);

// The number of elements that each result is made of.
int64_t reduced_numel(const Dims& sizes, int64_t mask);

}  // namespace rondo::ops
