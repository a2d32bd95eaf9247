// Small matrix products on packed tiles, the inner loops of attention: C (+)= A B with a register-blocked micro-kernel.
//
// B and C are row-major with whole vectors per row (pad the columns); A is read element by element, so it may have any
// strides. Each C[i, j] is one chain of FMAs over increasing depth: its bits depend neither on the blocking nor on the
// vector width. For kernel sources only.
//
// Note [Pairs]. An element of A and B is a number of C's type, or a BFloat16Pair: two bf16 numbers that are adjacent
// along the depth. One instruction multiplies 16 pairs and adds both products of each pair to a sum in f32, so a
// product of pairs takes half the time. An odd depth is padded with 0. The instruction treats subnormal inputs as 0.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rondo/runtime/cpu/simd.h"

namespace rondo::cpu {

// Rows of C per micro-kernel. With 2 vectors per row this gives 16 sums (AVX-512 has 32 registers) or 12 sums (AVX2 has
// 16 registers). They hide the latency of two FMA units with 4 cycles each.
inline constexpr int kTileRows = kVectorBytes == 64 ? 8 : kVectorBytes == 32 ? 6 : 4;
// Vectors of C per micro-kernel.
inline constexpr int kTileVectors = 2;
template <class A> inline constexpr int kTileColumns = kTileVectors* kWidth<A>;

// How a product starts: kZero from 0, kAdd from C, kScale from C times one factor per column. kTimes: from 0, and the
// sums are multiplied by one factor at the end. kTotal: from 0, and the sums are added to C at the end.
enum class Start { kZero, kAdd, kScale, kTimes, kTotal };

// Two bf16 numbers that are adjacent along the depth: Note [Pairs].
struct BFloat16Pair {
  BFloat16 first, second;
};
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
inline constexpr bool kMultipliesPairs = true;
#else
inline constexpr bool kMultipliesPairs = false;
#endif

// Operations on a vector of elements of A or B: load, broadcast, multiply-add.
template <class E> struct Factors {
  using Type = Vector<E>;
  static Type load(const E* p) { return cpu::load(p); }
  static Type broadcast(const E* p) { return cpu::broadcast(*p); }
  static Type multiply_add(Type a, Type b, Type sum) { return fma(a, b, sum); }
};
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
template <> struct Factors<BFloat16Pair> {
  using Type = __m512bh;
  static Type load(const BFloat16Pair* p) { return (Type)_mm512_loadu_si512(p); }
  static Type broadcast(const BFloat16Pair* p) {
    int bits;
    __builtin_memcpy(&bits, p, sizeof(bits));
    return (Type)_mm512_set1_epi32(bits);
  }
  static Vector<float> multiply_add(Type a, Type b, Vector<float> sum) {
    return (Vector<float>)_mm512_dpbf16_ps((__m512)sum, a, b);
  }
};
#endif

// The left operand: element (i, k) is at data[i * row_stride + k * depth_stride]. With kRowsAdjacent the row stride is
// 1, else the depth stride is 1. kRowsAdjacent is a template parameter so that broadcasts get immediate offsets.
template <class E, bool kRowsAdjacent> struct LeftOperand {
  const E* data;
  int64_t stride;
  const E* at(int64_t row, int64_t depth) const {
    return kRowsAdjacent ? data + row + depth * stride : data + row * stride + depth;
  }
};

// Computes C[M, N vectors] (+)= A[M, depth] B[depth, N vectors].
template <Start kStart, int M, int N, class E, bool kRowsAdjacent, class A = Compute<E>>
[[gnu::always_inline]] inline void multiply_micro(int64_t depth, LeftOperand<E, kRowsAdjacent> a, const E* b,
                                                  int64_t b_stride, A* c, int64_t c_stride, const A* factors) {
  Vector<A> sum[M][N];
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      sum[i][j] = Vector<A>{};
      if constexpr (kStart == Start::kAdd || kStart == Start::kScale)
        sum[i][j] = load(c + i * c_stride + j * kWidth<A>);
      if constexpr (kStart == Start::kScale) sum[i][j] *= load(factors + j * kWidth<A>);
    }
  }
  // Unrolled, because counting and branching take 3 of 23 micro-operations per k. Measured on Zen 3, where another
  // process runs on the core's second hardware thread: 1.11 times as fast; on a quiet core equally fast.
#pragma GCC unroll 4
  for (int64_t k = 0; k < depth; ++k) {
    typename Factors<E>::Type row[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) row[j] = Factors<E>::load(b + k * b_stride + j * kWidth<A>);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      const typename Factors<E>::Type left = Factors<E>::broadcast(a.at(i, k));
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) sum[i][j] = Factors<E>::multiply_add(left, row[j], sum[i][j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      if constexpr (kStart == Start::kTimes) sum[i][j] *= *factors;
      if constexpr (kStart == Start::kTotal) sum[i][j] = load(c + i * c_stride + j * kWidth<A>) + sum[i][j];
      store(c + i * c_stride + j * kWidth<A>, sum[i][j]);
    }
  }
}

// Returns the number of rows of the next smaller micro-kernel.
constexpr int fewer_rows(int rows) { return rows == 6 ? 4 : rows / 2; }

// Multiplies `rows` rows by N vectors: M rows at a time, the rest by smaller micro-kernels. A micro-kernel of two rows
// is limited by latency, so eight rows are computed as four and four, not as six and two.
template <Start kStart, int N, int M = kTileRows, class E, bool kRowsAdjacent, class A = Compute<E>>
inline void multiply_rows(int64_t rows, int64_t depth, LeftOperand<E, kRowsAdjacent> a, const E* b, int64_t b_stride,
                          A* c, int64_t c_stride, const A* factors) {
  int64_t i = 0;
  for (; i + M <= rows && (M != 6 || rows - i != 8); i += M) {
    multiply_micro<kStart, M, N>(depth, LeftOperand<E, kRowsAdjacent>{a.at(i, 0), a.stride}, b, b_stride,
                                 c + i * c_stride, c_stride, factors);
  }
  if constexpr (M > 1) {
    if (i < rows) {
      multiply_rows<kStart, N, fewer_rows(M)>(rows - i, depth, LeftOperand<E, kRowsAdjacent>{a.at(i, 0), a.stride}, b,
                                              b_stride, c + i * c_stride, c_stride, factors);
    }
  }
}

// Computes C[rows, vectors] (+)= A[rows, depth] B[depth, vectors] for at most kTileVectors vectors. Depth and the
// strides of A and B are in elements.
template <Start kStart, class E, bool kRowsAdjacent, class A = Compute<E>>
inline void multiply_panel(int64_t rows, int vectors, int64_t depth, LeftOperand<E, kRowsAdjacent> a, const E* b,
                           int64_t b_stride, A* c, int64_t c_stride, const A* factors = nullptr) {
  if (vectors == 2) multiply_rows<kStart, 2>(rows, depth, a, b, b_stride, c, c_stride, factors);
  else multiply_rows<kStart, 1>(rows, depth, a, b, b_stride, c, c_stride, factors);
}

// ---- Packing: element type to compute type, zero-padded to whole vectors

// Sets dst[c, r] to src[r, c] * scale. dst is [cols, dst_stride]; its rows are padded with 0 to a multiple of the
// width.
template <class T>
inline void pack_transposed(const T* src, int64_t src_stride, int64_t rows, int64_t cols, Compute<T> scale,
                            Compute<T>* dst, int64_t dst_stride) {
  using A = Compute<T>;
  constexpr int kN = kWidth<A>;
  for (int64_t r = 0; r < rows; r += kN) {
    const int valid = static_cast<int>(std::min<int64_t>(kN, rows - r));
    for (int64_t c = 0; c < cols; c += kN) {
      Vector<A> block[kN];
      const int64_t width = std::min<int64_t>(kN, cols - c);
      const T* from = src + r * src_stride + c;
      if (valid == kN && width == kN) {
#pragma GCC unroll 16
        for (int i = 0; i < kN; ++i) block[i] = load(from + i * src_stride) * scale;
        transpose<A>(block);
#pragma GCC unroll 16
        for (int i = 0; i < kN; ++i) store(dst + (c + i) * dst_stride + r, block[i]);
        continue;
      }
      for (int i = 0; i < kN; ++i) block[i] = i < valid ? load(from + i * src_stride, width) * scale : Vector<A>{};
      transpose<A>(block);
      for (int i = 0; i < width; ++i) store(dst + (c + i) * dst_stride + r, block[i]);
    }
  }
}

// The inverse of pack_transposed, from compute type to element type: dst[c, r] = src[r, c] * column_factors[c]. Rows of
// src are whole vectors.
template <class T>
inline void unpack_transposed(const Compute<T>* src, int64_t src_stride, int64_t rows, int64_t cols,
                              const Compute<T>* column_factors, T* dst, int64_t dst_stride) {
  using A = Compute<T>;
  constexpr int kN = kWidth<A>;
  for (int64_t c = 0; c < cols; c += kN) {
    const Vector<A> factor = load(column_factors + c);
    const int64_t valid = std::min<int64_t>(kN, cols - c);
    for (int64_t r = 0; r < rows; r += kN) {
      Vector<A> block[kN];
      const int64_t width = std::min<int64_t>(kN, rows - r);
      T* to = dst + c * dst_stride + r;
      if (valid == kN && width == kN) {
#pragma GCC unroll 16
        for (int i = 0; i < kN; ++i) block[i] = load(src + (r + i) * src_stride + c) * factor;
        transpose<A>(block);
#pragma GCC unroll 16
        for (int i = 0; i < kN; ++i) store(to + i * dst_stride, block[i]);
        continue;
      }
      for (int i = 0; i < kN; ++i) block[i] = i < width ? load(src + (r + i) * src_stride + c) * factor : Vector<A>{};
      transpose<A>(block);
      for (int i = 0; i < valid; ++i) store(to + i * dst_stride, block[i], width);
    }
  }
}

// Sets dst[r, c] to src[r, c]. Rows are padded with 0 up to a multiple of the width.
template <class T>
inline void pack_rows(const T* src, int64_t src_stride, int64_t rows, int64_t cols, Compute<T>* dst,
                      int64_t dst_stride) {
  constexpr int kN = kWidth<Compute<T>>;
  for (int64_t r = 0; r < rows; ++r) {
    const T* const from = src + r * src_stride;
    Compute<T>* const to = dst + r * dst_stride;
    int64_t c = 0;
    for (; c + kN <= cols; c += kN) store(to + c, load(from + c));
    if (c < cols) store(to + c, load(from + c, cols - c));
  }
}

// Sets dst[r, c] to src[r, c] * scale, converted from compute type to element type.
template <class T>
inline void unpack_rows(const Compute<T>* src, int64_t src_stride, int64_t rows, int64_t cols, Compute<T> scale, T* dst,
                        int64_t dst_stride) {
  constexpr int kN = kWidth<Compute<T>>;
  for (int64_t r = 0; r < rows; ++r) {
    const Compute<T>* const from = src + r * src_stride;
    T* const to = dst + r * dst_stride;
    int64_t c = 0;
    for (; c + kN <= cols; c += kN) store(to + c, load(from + c) * scale);
    if (c < cols) store(to + c, load(from + c) * scale, cols - c);
  }
}

}  // namespace rondo::cpu
