// The decomposition of lookups: a check of the indices, and an elementwise op that reads the elements (kPick of
// indexing.cc) and that a compiler can fuse.
#pragma once

#include "rondo/runtime/op/op.h"

namespace rondo::ops {

// The op for which indices are checked. It is an attribute of kCheckIndices.
enum class Lookup : int64_t { kEmbedding, kIndexSelect, kGather, kScatterAdd, kEmbeddingGrad };
// How error messages name a lookup.
struct LookupName {
  const char* op;
  bool at_position;  // the message says at which position the bad index is
};
LookupName lookup_in(int64_t lookup);
LookupName lookup_of(const Attrs& checks);  // `checks`: the attributes of a kCheckIndices

// Computes the same as index_select, but the result is not dense: it lies in memory with dimension `dim` first. For
// callers that consume the result at once.
Tensor select_slices(const TensorArg& x, int dim, const TensorArg& index);

// Adds the gradient of a lookup, in place: total (V, C) += rows (..., C) at indices (...), in the order of the indices.
void add_rows(const Tensor& total, const Tensor& rows, const Tensor& indices);

// Throws the Error of the op `lookup` unless all indices (i64) lie in [0, size).
void check_indices(const Tensor& index, int64_t size, Lookup lookup);

}  // namespace rondo::ops
