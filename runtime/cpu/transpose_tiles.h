// Copies a matrix to its transpose, or back, tile by tile. Tiles of floats are transposed in registers. For kernel
// sources only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "rondo/runtime/cpu/simd.h"

namespace rondo::cpu {

// Copies a tile of `rows` x `columns` from one matrix to its transpose; with kBack, from `to` to `from`.
template <bool kBack, class Word>
inline void transpose_tile(std::conditional_t<kBack, Word, const Word>* from, int64_t step,
                           std::conditional_t<kBack, const Word, Word>* to, int64_t to_step, int64_t rows,
                           int64_t columns) {
  if constexpr (std::is_same_v<Word, float>) {
    constexpr int W = kWidth<float>;
    if (rows == W && columns == W) {
      Vector<float> lines[W];
      for (int i = 0; i < W; ++i) lines[i] = kBack ? load(to + i * to_step) : load(from + i * step);
      transpose<float>(lines);
      for (int i = 0; i < W; ++i) {
        if constexpr (kBack) store(from + i * step, lines[i]);
        else store(to + i * to_step, lines[i]);
      }
      return;
    }
  }
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t i = 0; i < rows; ++i) {
      if constexpr (kBack) from[i * step + j] = to[j * to_step + i];
      else to[j * to_step + i] = from[i * step + j];
    }
}

// Copies (images, rows, columns) in `from` to (images, columns, rows) in `to`; with kBack, from `to` to `from`. `to` is
// dense. In `from`, rows are `step` elements apart, and images `image` elements.
template <bool kBack, class Word>
inline void transpose_tiles(std::conditional_t<kBack, Word, const Word>* from,
                            std::conditional_t<kBack, const Word, Word>* to, int64_t images, int64_t image,
                            int64_t rows, int64_t step, int64_t columns) {
  constexpr int64_t kTile = std::is_same_v<Word, float> ? kWidth<float> : 16;
  for (int64_t n = 0; n < images; ++n, from += image, to += rows * columns)
    for (int64_t c = 0; c < columns; c += kTile)
      for (int64_t r = 0; r < rows; r += kTile)
        transpose_tile<kBack, Word>(from + r * step + c, step, to + c * rows + r, rows, std::min(kTile, rows - r),
                                    std::min(kTile, columns - c));
}

}  // namespace rondo::cpu
