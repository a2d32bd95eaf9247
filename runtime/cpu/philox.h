// Philox for vectors: random.h's generator, word for word, on several counters at once.
#pragma once

#include <cstdint>

#include "rondo/runtime/cpu/simd.h"

namespace rondo::cpu {

// One number for each of kLanes counters.
template <int kLanes> struct PhiloxLanes {
  typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
  typedef uint64_t Counters __attribute__((vector_size(8 * kLanes)));
  typedef uint64_t Pairs __attribute__((vector_size(4 * kLanes)));  // of words: even lanes are low halves
};
template <int kLanes> using PhiloxWords = typename PhiloxLanes<kLanes>::Words;
template <int kLanes> using PhiloxCounters = typename PhiloxLanes<kLanes>::Counters;

// The counters first, first + step, ...
template <int kLanes> inline PhiloxCounters<kLanes> counters_from(uint64_t first, uint64_t step) {
  PhiloxCounters<kLanes> counters;
  for (int i = 0; i < kLanes; ++i) counters[i] = first + static_cast<uint64_t>(i) * step;
  return counters;
}

// The products of the low halves.
template <class Pairs> inline Pairs multiply_low_halves(Pairs a, uint32_t b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Pairs) == 64)
    return (Pairs)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, _mm512_set1_epi32(static_cast<int>(b)));
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(Pairs) == 32) return (Pairs)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi32(static_cast<int>(b)));
#endif
  return (a & 0xFFFFFFFFu) * b;
}
// The upper halves of the products of 32-bit numbers.
template <int kLanes> inline PhiloxWords<kLanes> multiply_high(PhiloxWords<kLanes> a, uint32_t b) {
  using Pairs = typename PhiloxLanes<kLanes>::Pairs;
  const Pairs pairs = vector_cast<Pairs>(a);
  const Pairs even = multiply_low_halves(pairs, b), odd = multiply_low_halves<Pairs>(pairs >> 32, b);
  return vector_cast<PhiloxWords<kLanes>>((even >> 32) | (odd & ~uint64_t{0xFFFFFFFF}));
}

// words[k]: word k of each counter, of the stream (seed, offset).
template <int kLanes>
inline void draw(uint64_t seed, uint64_t offset, PhiloxCounters<kLanes> counters, PhiloxWords<kLanes> (&words)[4]) {
  using Words = PhiloxWords<kLanes>;
  Words c0 = __builtin_convertvector(counters, Words), c1 = __builtin_convertvector(counters >> 32, Words);
  Words c2 = static_cast<uint32_t>(offset) - Words{}, c3 = static_cast<uint32_t>(offset >> 32) - Words{};
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const Words high0 = multiply_high<kLanes>(c0, 0xD2511F53u), low0 = c0 * 0xD2511F53u;
    const Words high1 = multiply_high<kLanes>(c2, 0xCD9E8D57u), low1 = c2 * 0xCD9E8D57u;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

}  // namespace rondo::cpu
