// Stable orders of 64-bit keys: of the lines of a tensor (sort.cc), and of indices, so that what belongs to one place
// is added up in order and without atomics (embedding.cc, indexing.cc).
#pragma once

#include "rondo/runtime/tensor.h"

namespace rondo::cuda {

// `keys`: unsigned words as i64, [lines, length]; its memory is used up. Each line in ascending order, and where each
// element of it was in its line; equal keys keep their order.
struct Order {
  Tensor keys, positions;
};
Order sort_keys(Tensor keys, int64_t lines, int64_t length);

}  // namespace rondo::cuda
