// Shared by the kernels of tril and triu: the columns of a row that are kept.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rondo/runtime/op/op.h"

namespace rondo::ops {

struct Triangle {
  int64_t rows, cols;
  int64_t diagonal;  // column minus row of the last column that stays (lower) or the first (upper): -rows to cols
  bool lower;
  // Columns [first, end) of row r stay.
  int64_t first(int64_t r) const { return lower ? 0 : std::clamp<int64_t>(r + diagonal, 0, cols); }
  int64_t end(int64_t r) const { return lower ? std::clamp<int64_t>(r + diagonal + 1, 0, cols) : cols; }
};

// Clamps the diagonal: beyond the matrix all diagonals are alike, and a row plus a very large diagonal would overflow.
inline Triangle triangle_of(const Dims& sizes, int64_t diagonal, bool lower) {
  const int64_t rows = sizes[sizes.rank() - 2], cols = sizes[sizes.rank() - 1];
  return {rows, cols, std::clamp(diagonal, -rows, cols), lower};
}

}  // namespace rondo::ops
