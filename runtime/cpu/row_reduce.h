// Reductions over one contiguous row, in the order of Note [Row order] in ops/reduction_order.h. The compiler
// vectorises the loops over lanes.
#pragma once

#include "rondo/runtime/ops/reduction_order.h"
#include "rondo/runtime/ops/scalar_math.h"

namespace rondo::cpu {

// Combines value(0), ..., value(n - 1). `value` must be inlinable and free of side effects.
template <class C, class Value, class Combine>
inline C reduce_row(int64_t n, C identity, Value value, Combine combine) {
  C totals[kLanes];
  for (int l = 0; l < kLanes; ++l) totals[l] = identity;
  int64_t i = 0;
  do {
    const int64_t end = std::min(n, i + kRowBlock);
    C lanes[kLanes];
    for (int l = 0; l < kLanes; ++l) lanes[l] = identity;
    for (; i + kLanes <= end; i += kLanes)
      for (int l = 0; l < kLanes; ++l) lanes[l] = combine(lanes[l], value(i + l));
    for (int l = 0; i < end; ++i, ++l) lanes[l] = combine(lanes[l], value(i));
    for (int l = 0; l < kLanes; ++l) totals[l] = combine(totals[l], lanes[l]);
  } while (i < n);
  return combine_lanes(totals, combine);
}

template <class C, class Value> inline C sum_row(int64_t n, Value value) {
  return reduce_row<C>(n, C(0), value, [](C a, C b) { return a + b; });
}

template <class C, class Value> inline C max_row(int64_t n, Value value) {
  if constexpr (std::is_floating_point_v<C>)
    return reduce_row<C>(n, -std::numeric_limits<C>::infinity(), value, [](C a, C b) { return scalar::maximum(a, b); });
  else return reduce_row<C>(n, std::numeric_limits<C>::lowest(), value, [](C a, C b) { return a < b ? b : a; });
}

}  // namespace rondo::cpu
