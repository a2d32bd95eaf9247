// Attention of one query for each row and head: what decoding a token costs beside its products. attention_forward()
// comes here for shape.queries == 1 without dropout, so that the choice is made in one place.
#pragma once

#include <limits>

#include "rondo/runtime/cpu/attention_call.h"

namespace rondo::cpu {

// Note [Base 2] in attention.cc.
inline constexpr double kLog2E = 1.4426950408889634074, kLn2 = 0.69314718055994530942;
template <class A> inline constexpr A kInfinity = std::numeric_limits<A>::infinity();

// An addend of a mask, small enough to stay finite in base 2, where the scores are: a row that is masked whole by the
// lowest finite number has equal weights, and one that is masked by -infinity has none. Numbers beyond a quarter of the
// largest one count as that quarter.
template <class A> constexpr A bounded_addend(A addend) {
  constexpr A most = std::numeric_limits<A>::max() / 4;
  if (addend < -most && addend != -kInfinity<A>) return -most;
  return addend > most && addend != kInfinity<A> ? most : addend;
}

// As attention_forward with shape.queries == 1. Reads each key and value once for all query heads that share it. Keys
// before the first and after the last one that the mask (`allowed`, or both bounds) lets some head of the group read
// are not touched at all: they may hold anything. Where there are ends of keys, keys behind all of them take no time.
// Determinism: keys are split into chunks by their number alone; sums of chunks are added in order.
template <class T>
void attention_decode(const AttentionShape& shape, HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v,
                      const AttentionMask<T>& mask, HeadsView<T> out, AttentionAccumulator<T>* logsumexp);

}  // namespace rondo::cpu
