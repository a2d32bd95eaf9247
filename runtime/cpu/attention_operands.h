// Packs the operands of attention's products: rows of q, k, v and the output's gradient, and weights. Only kernel
// sources include this.
//
// TileOperands<T> has two implementations with the same members. One multiplies numbers of the compute type (f64, f32;
// f16 and bf16 as f32). The other multiplies pairs of bf16 if the processor supports this (Note [Pairs]).
#pragma once

#include "rondo/runtime/cpu/gemm_tile.h"

namespace rondo::cpu {

template <class T, bool kPairs = std::is_same_v<T, BFloat16>&& kMultipliesPairs> struct TileOperands {
  using A = Compute<T>;
  using Element = A;
  // The number of numbers in one element. They are adjacent along the depth, the dimension that a product sums over.
  static constexpr int64_t kDepth = 1;
  // How a product of scores starts. The product applies no factor, because q is multiplied by it when q is packed.
  static constexpr Start kScores = Start::kZero;
  // Rows of the compute type are read in place; others are packed to rows of `stride_of(cols)` elements.
  static constexpr bool kDirect = std::is_same_v<T, A>;
  static int64_t stride_of(int64_t cols) { return round_up(cols, kWidth<A>); }

  // Returns a left operand: its rows are the rows of the source.
  static LeftOperand<A, false> left_rows(const T* rows, int64_t stride, int64_t n, int64_t cols, A* packed) {
    if constexpr (kDirect) return {rows, stride};
    else return {right_rows(rows, stride, n, cols, packed), stride_of(cols)};
  }
  // Returns a left operand: its rows are the columns of the source.
  static LeftOperand<A, true> left_columns(const T* rows, int64_t stride, int64_t n, int64_t cols, A* packed) {
    if constexpr (kDirect) return {rows, stride};
    else return {right_rows(rows, stride, n, cols, packed), stride_of(cols)};
  }
  // Returns a right operand: its depth runs over the rows of the source.
  static const A* right_rows(const T* rows, int64_t stride, int64_t n, int64_t cols, A* packed) {
    pack_rows<T>(rows, stride, n, cols, packed, stride_of(cols));
    return packed;
  }
  // Packs a right operand, multiplied by `factor`: its depth runs over the columns of the source.
  static void right_columns(const T* rows, int64_t stride, int64_t n, int64_t cols, A factor, A* packed,
                            int64_t packed_stride) {
    pack_transposed<T>(rows, stride, n, cols, factor, packed, packed_stride);
  }
  // Returns `weights` [keys, stride] as an operand in rows of `stride` elements: its depth runs over the keys.
  static const A* by_keys(const A* weights, int64_t, int64_t, int, A*) { return weights; }
  // Like by_keys(), but the depth runs over the queries, in rows of stride / kDepth elements.
  static const A* by_queries(const A* weights, int64_t, int64_t, int, A*) { return weights; }
};

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
template <> struct TileOperands<BFloat16, true> {
  using A = float;
  using T = BFloat16;
  using Element = BFloat16Pair;
  static constexpr int64_t kDepth = 2;
  // q is packed unchanged, because q times the factor would have to be rounded again. The product applies the factor.
  static constexpr Start kScores = Start::kTimes;
  static int64_t stride_of(int64_t cols) { return round_up(cols, kWidth<A>); }

  static LeftOperand<Element, false> left_rows(const T* rows, int64_t stride, int64_t n, int64_t cols,
                                               Element* packed) {
    if (cols % 2 == 0 && stride % 2 == 0) return {reinterpret_cast<const Element*>(rows), stride / 2};
    for (int64_t r = 0; r < n; ++r)
      for (int64_t c = 0; c < cols; c += 2 * kWidth<A>)
        put(packed + r * stride_of(cols) + c / 2, load_pairs(rows + r * stride + c, cols - c));
    return {packed, stride_of(cols)};
  }
  static LeftOperand<Element, true> left_columns(const T* rows, int64_t stride, int64_t n, int64_t cols,
                                                 Element* packed) {
    return {right_rows(rows, stride, n, cols, packed), stride_of(cols)};
  }
  static const Element* right_rows(const T* rows, int64_t stride, int64_t n, int64_t cols, Element* packed) {
    for (int64_t r = 0; r < n; r += 2) {
      const T *const even = rows + r * stride, *const odd = even + stride;
      for (int64_t c = 0; c < cols; c += kWidth<A>) {
        const auto first = vector_cast<BitVector<A>>(load(even + c, cols - c));
        const auto second = r + 1 < n ? vector_cast<BitVector<A>>(load(odd + c, cols - c)) : BitVector<A>{};
        put(packed + r / 2 * stride_of(cols) + c, vector_cast<Vector<A>>(first >> 16 | second));
      }
    }
    return packed;
  }
  static void right_columns(const T* rows, int64_t stride, int64_t n, int64_t cols, A, Element* packed,
                            int64_t packed_stride) {
    constexpr int kN = kWidth<A>;
    const int64_t depth = (cols + 1) / 2;
    for (int64_t r = 0; r < n; r += kN)
      for (int64_t c = 0; c < depth; c += kN) {
        Vector<A> block[kN];
        for (int i = 0; i < kN; ++i)
          block[i] = r + i < n ? load_pairs(rows + (r + i) * stride + 2 * c, cols - 2 * c) : Vector<A>{};
        transpose<A>(block);
        for (int64_t i = 0; i < std::min<int64_t>(kN, depth - c); ++i)
          put(packed + (c + i) * packed_stride + r, block[i]);
      }
  }
  static const Element* by_keys(const A* weights, int64_t stride, int64_t keys, int vectors, Element* packed) {
    // The order that interleaves the two halves: 0, 16, 1, 17, ...
    const auto mixed = (__m512i)(((BitVector<A>)lane_numbers<A>() + 16) << 16 | (BitVector<A>)lane_numbers<A>());
    for_row_pairs(weights, stride, keys, vectors, [&](int64_t j, int64_t i, __m512i both) {
      put(packed + j / 2 * stride + i, (Vector<A>)_mm512_permutexvar_epi16(mixed, both));
    });
    return packed;
  }
  static const Element* by_queries(const A* weights, int64_t stride, int64_t keys, int vectors, Element* packed) {
    for_row_pairs(weights, stride, keys, vectors, [&](int64_t j, int64_t i, __m512i both) {
      Element* const to = packed + j * (stride / 2) + i / 2;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(both));
      if (j + 1 < keys)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + stride / 2), _mm512_extracti64x4_epi64(both, 1));
    });
    return packed;
  }

 private:
  static void put(Element* to, Vector<A> pairs) { __builtin_memcpy(static_cast<void*>(to), &pairs, sizeof(pairs)); }
  // Loads the next pairs of a row that has `n` more numbers. Numbers after the end of the row are 0.
  static Vector<A> load_pairs(const T* p, int64_t n) {
    Vector<A> pairs{};
    std::memcpy(&pairs, p, static_cast<size_t>(std::min<int64_t>(n, 2 * kWidth<A>)) * sizeof(T));
    return pairs;
  }
  // Calls visit(j, i, both) for each vector of columns, which begins at column i, of each pair of rows. `both`: row j
  // in the low half and row j + 1 in the high half (0 after the last row), rounded to bf16.
  template <class Visit>
  static void for_row_pairs(const A* weights, int64_t stride, int64_t keys, int vectors, Visit visit) {
    for (int64_t j = 0; j < keys; j += 2)
      for (int64_t i = 0; i < vectors * kWidth<A>; i += kWidth<A>) {
        const A* const at = weights + j * stride + i;
        const Vector<A> next = j + 1 < keys ? load(at + stride) : Vector<A>{};
        visit(j, i, (__m512i)_mm512_cvtne2ps_pbh((__m512)next, (__m512)load(at)));
      }
  }
};
#endif

}  // namespace rondo::cpu
