// Results that are larger than the caches, written past them: a store that goes through a cache first reads the line
// that it is about to overwrite. Kernel sources only.
//
//   if (is_streamed(bytes)) { stream_copy(to, from, n); ...; end_streams(); }  else std::memcpy(to, from, n);
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace rondo::cpu {

inline constexpr size_t kStreamLine = 64;  // bytes of a cache line
// A result of so many bytes has left the caches when its reader comes.
inline constexpr int64_t kLeastStreamed = 32 << 20;

// True if a result of `bytes`, written in pieces of `piece` bytes from `to` on, is best streamed: lines that are
// written in parts are slow.
inline bool is_streamed(const void* to, int64_t bytes, int64_t piece) {
#if defined(__AVX__)
  return bytes >= kLeastStreamed && reinterpret_cast<uintptr_t>(to) % kStreamLine == 0 &&
         piece % static_cast<int64_t>(kStreamLine) == 0;
#else
  (void)to, (void)bytes, (void)piece;
  return false;
#endif
}

// The line at `to`, which is aligned to lines, becomes the one at `from`.
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
// `bytes` is a multiple of kStreamLine, and `to` aligned to it.
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
// What this thread streamed is there before what it writes from now on.
inline void end_streams() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

}  // namespace rondo::cpu
