// Stable orders of 64-bit keys: of the lines of a tensor (sort.cc), and of indices, so that what belongs to one place
// is added up in order and without atomics (embedding.cc, indexing.cc).
#pragma once

#include "rondo/runtime/cuda/bad_index.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::cuda {

// `keys`: unsigned words as i64, [lines, length]. Each line in ascending order, and where each element of it was in its
// line; equal keys keep their order.
struct Order {
  Tensor keys, positions;
};
Order sort_keys(const Tensor& keys, int64_t lines, int64_t length);
// One line of indices of rows, dense i64. Those out of range, which are reported, have key ~0 and come last.
Order sort_rows(const Tensor& index, int64_t rows, const IndexCheck& check);

}  // namespace rondo::cuda
