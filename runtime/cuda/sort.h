// Sorts 64-bit keys in a stable order: the lines of a tensor (sort.cc), or indices, so that the values for one place
// are added up in order and without atomics (embedding.cc, indexing.cc).
#pragma once

#include "rondo/runtime/cuda/bad_index.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::cuda {

// The result of sorting. `keys`: unsigned 64-bit numbers, stored as i64, [lines, length], each line in ascending order;
// equal keys keep their order. `positions`: the position of each key in its line before sorting.
struct Order {
  Tensor keys, positions;
};
Order sort_keys(const Tensor& keys, int64_t lines, int64_t length);
// Sorts one line of row indices, dense i64. Indices out of range are reported, have key ~0 and come last.
Order sort_rows(const Tensor& index, int64_t rows, const IndexCheck& check);

}  // namespace rondo::cuda
