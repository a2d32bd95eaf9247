// The loop dimensions of elementwise work on strided operands.
#pragma once

#include <array>

#include "rondo/runtime/tensor/memory_order.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo {

// The shape that N operands are iterated over: neighbouring dimensions are merged if the strides of all operands allow
// it, and dimensions of size 1 are dropped. It has at least one dimension.
template <int N> struct IterationSpace {
  Dims sizes;
  std::array<Dims, N> strides;  // in elements

  // `full`: strides of each operand for `shape`, 0 in broadcast dimensions.
  IterationSpace(const Dims& shape, const std::array<Dims, N>& full) {
    for (int d = 0; d < shape.rank(); ++d) {
      if (shape[d] == 1) continue;
      const int last = sizes.rank() - 1;
      bool merges = last >= 0;
      for (int k = 0; merges && k < N; ++k) merges = strides[k][last] == full[k][d] * shape[d];
      if (merges) {
        sizes[last] *= shape[d];
        for (int k = 0; k < N; ++k) strides[k][last] = full[k][d];
      } else {
        sizes.push_back(shape[d]);
        for (int k = 0; k < N; ++k) strides[k].push_back(full[k][d]);
      }
    }
    if (sizes.empty()) {
      sizes.push_back(1);
      for (int k = 0; k < N; ++k) strides[k].push_back(0);
    }
  }
  // Makes the space of operands that broadcast to `shape`.
  IterationSpace(const Dims& shape, const std::array<const Tensor*, N>& operands)
      : IterationSpace(shape, broadcast(shape, operands)) {}
  // As above, but with the dimensions in the order in which operand 0, which has this shape, lies in memory.
  static IterationSpace in_memory_order(const std::array<const Tensor*, N>& operands) {
    const Tensor& first = *operands[0];
    const std::array<Dims, N> full = broadcast(first.sizes(), operands);
    if (first.is_contiguous()) return {first.sizes(), full};
    Dims shape;
    std::array<Dims, N> strides;
    for (const int64_t dim : memory_order(first.sizes(), first.strides())) {
      const int d = static_cast<int>(dim);
      shape.push_back(first.sizes()[d]);
      for (int k = 0; k < N; ++k) strides[k].push_back(full[k][d]);
    }
    return {shape, strides};
  }

 private:
  static std::array<Dims, N> broadcast(const Dims& shape, const std::array<const Tensor*, N>& operands) {
    std::array<Dims, N> full;
    for (int k = 0; k < N; ++k) full[k] = broadcast_strides(operands[k]->sizes(), operands[k]->strides(), shape);
    return full;
  }
};

}  // namespace rondo
