// Attention with one query for each batch row and head, as when a model generates token by token. attention_forward()
// calls this if shape.queries == 1 and there is no dropout, so callers need not choose.
#pragma once

#include <limits>

#include "rondo/runtime/cpu/attention_call.h"

namespace rondo::cpu {

// Factors to convert to base 2 and back: Note [Base 2] in attention.cc.
inline constexpr double kLog2E = 1.4426950408889634074, kLn2 = 0.69314718055994530942;
template <class A> inline constexpr A kInfinity = std::numeric_limits<A>::infinity();

// Returns an addend of a mask, limited so that it stays finite when scores are converted to base 2: finite numbers
// beyond a quarter of the largest number become that quarter. So if the lowest finite number masks a whole row, its
// weights are equal. If -infinity masks a whole row, its weights are 0.
template <class A> constexpr A bounded_addend(A addend) {
  constexpr A most = std::numeric_limits<A>::max() / 4;
  if (addend < -most && addend != -kInfinity<A>) return -most;
  return addend > most && addend != kInfinity<A> ? most : addend;
}

// Computes the same as attention_forward with shape.queries == 1. Reads each key and value once for all query heads
// that share it. The mask (`allowed`, or first_key and end_key) gives the first and the last key that some head of the
// group may read. Keys outside of this range are not read, so they may contain anything. Keys from the largest
// `end_key` of all rows on take no time. Determinism: the split of keys into chunks depends only on their number; sums
// of chunks are added in order.
template <class T>
void attention_decode(const AttentionShape& shape, HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v,
                      const AttentionMask<T>& mask, HeadsView<T> out, AttentionAccumulator<T>* logsumexp);

}  // namespace rondo::cpu
