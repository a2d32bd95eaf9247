// Visits tensors line by line along one dimension: for ops in which the elements of a line depend on each other
// (gather, sort, cumsum, argmax). One thread computes a line, so results do not depend on the number of threads.
#pragma once

#include <array>
#include <cstdint>

#include "rondo/runtime/cpu/loops.h"

namespace rondo::cpu {

// Calls fn(offsets, steps) for every line of `sizes` along `dim`: the offset of each operand's line, and the step
// between its elements. Operand k has strides[k], one per dimension of `sizes`. The length of a line is sizes[dim] (1
// for a scalar).
template <int N, class Fn> void for_each_line(const Dims& sizes, int dim, const std::array<Dims, N>& strides, Fn fn) {
  if (sizes.numel() == 0) return;
  const int rank = sizes.rank();
  const int64_t length = rank == 0 ? 1 : sizes[dim], lines = sizes.numel() / length;
  std::array<int64_t, N> steps{};
  if (rank > 0)
    for (int k = 0; k < N; ++k) steps[k] = strides[k][dim];
  parallel_for(lines, std::max<int64_t>(1, kElementwiseGrain / 8 / length), [&](int64_t begin, int64_t end) {
    // The coordinates of the first line; later lines are found by counting up, like an odometer.
    std::array<int64_t, kMaxRank> at{};
    std::array<int64_t, N> offsets{};
    int64_t rest = begin;
    for (int d = rank - 1; d >= 0; --d) {
      if (d == dim) continue;
      at[d] = rest % sizes[d];
      rest /= sizes[d];
      for (int k = 0; k < N; ++k) offsets[k] += at[d] * strides[k][d];
    }
    for (int64_t line = begin; line < end; ++line) {
      fn(offsets, steps);
      for (int d = rank - 1; d >= 0; --d) {
        if (d == dim) continue;
        for (int k = 0; k < N; ++k) offsets[k] += strides[k][d];
        if (++at[d] < sizes[d]) break;
        for (int k = 0; k < N; ++k) offsets[k] -= at[d] * strides[k][d];
        at[d] = 0;
      }
    }
  });
}

}  // namespace rondo::cpu
