// Vectorised Philox: the same random words as philox() in random.h, for several counters at once.
//
// Note [Wide lanes]. A round needs the full 64-bit products of 32-bit numbers, and processors multiply the low halves
// of 64-bit lanes. So each word is in the low half of a 64-bit lane, and the upper half is arbitrary. The low half of a
// product is one of the next words without any further work, and a shift gives the other. A round for a vector of
// counters thus takes two multiplications, two shifts and two three-way xors.
#pragma once

#include <cstdint>
#include <utility>

#include "rondo/runtime/cpu/simd.h"

namespace rondo::cpu {

// Types of vectors with one number for each of kLanes counters.
template <int kLanes> struct PhiloxLanes {
  typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
  typedef uint64_t Counters __attribute__((vector_size(8 * kLanes)));
  // The number of 64-bit lanes in one vector: at most as many as the host's vectors have.
  static constexpr int kWide = kLanes < kVectorBytes / 8 ? kLanes : kVectorBytes / 8;
  static constexpr int kParts = kLanes / kWide;
  typedef uint64_t Wide __attribute__((vector_size(8 * kWide)));
  typedef uint32_t Halves __attribute__((vector_size(8 * kWide)));  // halves of Wide; those with even index are low
  typedef uint32_t Low __attribute__((vector_size(4 * kWide)));
};
template <int kLanes> using PhiloxWords = typename PhiloxLanes<kLanes>::Words;
template <int kLanes> using PhiloxCounters = typename PhiloxLanes<kLanes>::Counters;

// Returns the counters first, first + step, ...
template <int kLanes> inline PhiloxCounters<kLanes> counters_from(uint64_t first, uint64_t step) {
  PhiloxCounters<kLanes> lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<uint64_t>(i);
  return first + lanes * step;
}

// Returns the 64-bit products of the low halves of `a` with b.
template <class Wide> inline Wide multiply_low_halves(Wide a, uint32_t b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Wide) == 64)
    return (Wide)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, _mm512_set1_epi32(static_cast<int>(b)));
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(Wide) == 32) return (Wide)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi32(static_cast<int>(b)));
#endif
  return (a & 0xFFFFFFFFu) * b;
}
template <class Wide> inline Wide xor_of(Wide a, Wide b, uint64_t c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Wide) == 64)
    return (Wide)_mm512_ternarylogic_epi64((__m512i)a, (__m512i)b, _mm512_set1_epi64(static_cast<long long>(c)), 0x96);
#endif
  return a ^ b ^ c;
}

namespace detail {
// Returns the low halves of the lanes of a, followed by those of b.
template <class Words, class Halves, int... I>
inline Words low_halves(Halves a, Halves b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (2 * I)...);
}
}  // namespace detail

// Sets words[k] to word k of each counter, in the stream (seed, offset).
template <int kLanes>
inline void draw(uint64_t seed, uint64_t offset, PhiloxCounters<kLanes> counters, PhiloxWords<kLanes> (&words)[4]) {
  using Lanes = PhiloxLanes<kLanes>;
  using Wide = typename Lanes::Wide;
  constexpr uint32_t kFirst = 0xD2511F53u, kSecond = 0xCD9E8D57u;
  constexpr int kParts = Lanes::kParts;
  static_assert(kParts == 1 || kParts == 2 || kParts == 4 || kParts == 8);
  Wide c[kParts][4];
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  // The first round is cheaper: two words of the counter are the offset, which is the same in all lanes.
  const uint64_t same = uint64_t{kSecond} * static_cast<uint32_t>(offset);
  Wide part[kParts];
  __builtin_memcpy(part, &counters, sizeof(part));
  for (int i = 0; i < kParts; ++i) {
    const Wide product = multiply_low_halves(part[i], kFirst);
    c[i][0] = (part[i] >> 32) ^ (same >> 32 ^ k0);
    c[i][1] = Wide{} + same;
    c[i][2] = (product >> 32) ^ (offset >> 32 ^ k1);
    c[i][3] = product;
  }
#pragma GCC unroll 9
  for (int round = 1; round < 10; ++round) {
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
#pragma GCC unroll 8
    for (int i = 0; i < kParts; ++i) {
      const Wide first = multiply_low_halves(c[i][0], kFirst), second = multiply_low_halves(c[i][2], kSecond);
      c[i][0] = xor_of(second >> 32, c[i][1], k0);
      c[i][1] = second;
      c[i][2] = xor_of(first >> 32, c[i][3], k1);
      c[i][3] = first;
    }
  }
  using Halves = typename Lanes::Halves;
  using Low = typename Lanes::Low;
  for (int k = 0; k < 4; ++k) {
    if constexpr (kParts % 2 == 0) {
      typedef uint32_t Pair __attribute__((vector_size(8 * Lanes::kWide)));
      Pair pairs[kParts / 2];
      for (int i = 0; i < kParts; i += 2)
        pairs[i / 2] = detail::low_halves<Pair>(vector_cast<Halves>(c[i][k]), vector_cast<Halves>(c[i + 1][k]),
                                                std::make_integer_sequence<int, 2 * Lanes::kWide>());
      __builtin_memcpy(&words[k], pairs, sizeof(pairs));
    } else {
      const Low low = __builtin_convertvector(c[0][k], Low);
      words[k] = vector_cast<PhiloxWords<kLanes>>(low);
    }
  }
}

}  // namespace rondo::cpu
