// Non-temporal stores, which bypass the caches, for results that are larger than the caches. A normal store first reads
// the cache line that it overwrites. For kernel sources only.
//
//   if (is_streamed(to, n, n)) { stream_copy(to, from, n); ...; end_streams(); }  else std::memcpy(to, from, n);
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace rondo::cpu {

inline constexpr size_t kStreamLine = 64;  // bytes of a cache line
// Results of at least this many bytes are streamed: they would not stay in the caches until they are read.
inline constexpr int64_t kLeastStreamed = 32 << 20;

// True if streaming a result of `bytes`, written in pieces of `piece` bytes from `to` on, is faster. It is not if a
// cache line would be written in parts.
inline bool is_streamed(const void* to, int64_t bytes, int64_t piece) {
#if defined(__AVX__)
  return bytes >= kLeastStreamed && reinterpret_cast<uintptr_t>(to) % kStreamLine == 0 &&
         piece % static_cast<int64_t>(kStreamLine) == 0;
#else
  (void)to, (void)bytes, (void)piece;
  return false;
#endif
}

// Copies one cache line from `from` to `to`. `to` must be aligned to kStreamLine.
inline void stream_line(std::byte* to, const std::byte* from) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
#elif defined(__AVX__)
  for (size_t half = 0; half < kStreamLine; half += kStreamLine / 2)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + half),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + half)));
#else
  std::memcpy(to, from, kStreamLine);
#endif
}
// Copies `bytes` bytes, bypassing the caches. `bytes` must be a multiple of kStreamLine, and `to` aligned to it.
inline void stream_copy(void* to, const void* from, size_t bytes) {
  auto* const out = static_cast<std::byte*>(to);
  const auto* const in = static_cast<const std::byte*>(from);
  for (size_t at = 0; at < bytes; at += kStreamLine) stream_line(out + at, in + at);
}
inline void stream_zeros(void* to, size_t bytes) {
  constexpr std::byte kZeros[kStreamLine] = {};
  auto* const out = static_cast<std::byte*>(to);
  for (size_t at = 0; at < bytes; at += kStreamLine) stream_line(out + at, kZeros);
}
// Executes a store fence: this thread's streamed stores become visible before its later stores.
inline void end_streams() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

}  // namespace rondo::cpu
