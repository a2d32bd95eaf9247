// Reductions over the rows of a block of columns, in the order of Note [Column order] in ops/reduction_order.h. The
// compiler vectorises the loops over columns.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::cpu {

// The number of columns that a thread reduces together: their accumulators fit into the L1 cache.
inline constexpr int64_t kColumnBlock = 256;

// Sets totals[c] to the combination of value(0, c), ..., value(rows - 1, c), for each c < width. REQUIRES: width <=
// kColumnBlock. `value` must be inlinable and free of side effects.
template <class C, class Value, class Combine>
inline void reduce_columns(int64_t rows, int64_t width, C identity, Value value, Combine combine, C* totals) {
  const int64_t chunk = column_chunk_rows(rows);
  C sums[kColumnBlock];
  std::fill_n(totals, width, identity);
  for (int64_t r = 0; r < rows;) {
    std::fill_n(sums, width, identity);
    for (const int64_t last = std::min(rows, r + chunk); r < last; ++r)
      for (int64_t c = 0; c < width; ++c) sums[c] = combine(sums[c], value(r, c));
    for (int64_t c = 0; c < width; ++c) totals[c] = combine(totals[c], sums[c]);
  }
}

template <class C, class Value> inline void sum_columns(int64_t rows, int64_t width, Value value, C* totals) {
  reduce_columns<C>(
      rows, width, C(0), value, [](C a, C b) { return a + b; }, totals);
}

}  // namespace rondo::cpu
