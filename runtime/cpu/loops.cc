#include "rondo/runtime/cpu/loops.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "rondo/runtime/cpu/streams.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/tensor/iteration_space.h"

namespace rondo::cpu {
namespace {

constexpr int64_t kTile = 64;    // rows and columns of a tile
constexpr int64_t kSquare = 16;  // rows and columns of a square that is transposed in registers

// Transposes a square. Columns of `from` are kSquare adjacent elements, and `step` elements apart. Rows of `to` are
// `width` elements apart.
template <class Word> void transpose_square(const Word* from, int64_t step, Word* to, int64_t width) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Word) == 4) {
    // Runs four perfect shuffles. Each one rotates the eight bits of an element's position (vector, lane) by one.
    typedef uint32_t Line __attribute__((vector_size(64)));
    constexpr Line kLow = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23}, kHigh = kLow + 8;
    Line lines[kSquare], next[kSquare];
    for (int64_t j = 0; j < kSquare; ++j) std::memcpy(&lines[j], from + j * step, sizeof(Line));
#pragma GCC unroll 4
    for (int round = 0; round < 4; ++round) {
#pragma GCC unroll 8
      for (int64_t i = 0; i < kSquare / 2; ++i) {
        next[2 * i] = __builtin_shuffle(lines[i], lines[i + kSquare / 2], kLow);
        next[2 * i + 1] = __builtin_shuffle(lines[i], lines[i + kSquare / 2], kHigh);
      }
#pragma GCC unroll 16
      for (int64_t i = 0; i < kSquare; ++i) lines[i] = next[i];
    }
    for (int64_t i = 0; i < kSquare; ++i) std::memcpy(to + i * width, &lines[i], sizeof(Line));
    return;
  }
#endif
  Word square[kSquare][kSquare];
  for (int64_t j = 0; j < kSquare; ++j)
    for (int64_t i = 0; i < kSquare; ++i) square[j][i] = from[j * step + i];
  for (int64_t i = 0; i < kSquare; ++i)
    for (int64_t j = 0; j < kSquare; ++j) to[i * width + j] = square[j][i];
}

// Transposes a tile. from: rows are adjacent, columns are `step` elements apart. to: dense [rows, columns]. It works in
// squares: their cache lines fit into the L1 cache even if they are far apart.
template <class Word> void transpose_tile(const Word* from, int64_t step, Word* to, int64_t rows, int64_t columns) {
  int64_t c = 0;
  for (; c + kSquare <= columns; c += kSquare) {
    int64_t r = 0;
    for (; r + kSquare <= rows; r += kSquare) {
      transpose_square(from + c * step + r, step, to + r * columns + c, columns);
      // Prefetches the next tile: columns may be a page or more apart, which hardware prefetchers do not follow.
      for (int64_t j = c; j < c + kSquare; ++j) __builtin_prefetch(from + (j + kTile) * step + r);
    }
    for (int64_t j = c; j < c + kSquare; ++j)
      for (int64_t i = r; i < rows; ++i) to[i * columns + j] = from[j * step + i];
  }
  for (; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r) to[r * columns + c] = from[c * step + r];
}
void transpose_tile(const std::byte* from, int64_t step, std::byte* to, int64_t rows, int64_t columns, int64_t width) {
  const auto as = [&]<class Word>(Word) {
    transpose_tile(reinterpret_cast<const Word*>(from), step, reinterpret_cast<Word*>(to), rows, columns);
  };
  if (width == 8) as(uint64_t{});
  else if (width == 4) as(uint32_t{});
  else if (width == 2) as(uint16_t{});
  else as(uint8_t{});
}

// How to run a call with transposed operands in tiles. Arrays are indexed by operand; 0 is the result.
template <int N> struct Tiles {
  std::array<int64_t, N + 1> width;  // bytes of an element
  std::array<bool, N + 1> transposed = {};
  bool any = false;      // some operand is transposed
  bool streams = false;  // the result is large: its stores bypass the caches
};

template <int N>
void run_tile(ops::ElementwiseRun part, ops::ElementwiseRunFn run, const double* scalars, const Tiles<N>& tiles) {
  constexpr size_t kMostBytes = kTile * kTile * 8;
  alignas(64) std::byte copies[std::max(N, 1)][kMostBytes];
  for (int k = 0; k < N; ++k) {
    if (!tiles.transposed[k + 1]) continue;
    transpose_tile(part.in[k], part.strides[k], copies[k], part.rows, part.n, tiles.width[k + 1]);
    part.in[k] = copies[k];
    part.strides[k] = 1;
    part.steps[k] = part.n * tiles.width[k + 1];
  }
  if (!tiles.streams) return run(part, scalars);
  alignas(64) std::byte rows[kMostBytes];
  std::byte* const to = std::exchange(part.out, rows);
  const int64_t step = std::exchange(part.out_step, part.n * tiles.width[0]);
  run(part, scalars);
  for (int64_t r = 0; r < part.rows; ++r)
    stream_copy(to + r * step, rows + r * part.out_step, static_cast<size_t>(part.out_step));
}

}  // namespace

template <int N> void for_each_run(const KernelContext& context, ops::ElementwiseRunFn run, const double* scalars) {
  Tensor& result = context.out();
  ops::ElementwiseRun whole;
  whole.out = result.impl()->data();
  bool dense = result.is_contiguous();
  for (int k = 0; k < N; ++k) {
    const Tensor& input = context.in(k);
    whole.in[k] = input.impl()->data();
    whole.strides[k] = 1;
    dense = dense && input.is_contiguous() && input.sizes() == result.sizes();
  }
  whole.n = result.numel();
  if (dense && whole.n <= kElementwiseGrain) return run(whole, scalars);
  if (whole.n == 0) return;
  std::array<const Tensor*, N + 1> operands;
  std::array<int64_t, N + 1> width;  // bytes of an element
  for (int k = 0; k <= N; ++k) {
    operands[k] = k == 0 ? &result : &context.in(k - 1);
    width[k] = static_cast<int64_t>(size_of(operands[k]->dtype()));
  }
  // Returns the part of `whole` that has n elements and starts at these offsets.
  const auto part_at = [&](const std::array<int64_t, N + 1>& offsets, int64_t n) {
    ops::ElementwiseRun part = whole;
    part.out += offsets[0] * width[0];
    for (int k = 0; k < N; ++k) part.in[k] += offsets[k + 1] * width[k + 1];
    part.n = n;
    return part;
  };
  if (dense) {
    parallel_for(whole.n, kElementwiseGrain, [&](int64_t begin, int64_t end) {
      std::array<int64_t, N + 1> offsets;
      offsets.fill(begin);
      run(part_at(offsets, end - begin), scalars);
    });
    return;
  }
  const auto space = IterationSpace<N + 1>::in_memory_order(operands);
  const int last = space.sizes.rank() - 1;
  const int64_t n = space.sizes[last];
  whole.out_stride = space.strides[0][last];
  for (int k = 0; k < N; ++k) whole.strides[k] = space.strides[k + 1][last];
  if (last == 0) {
    parallel_for(n, kElementwiseGrain, [&](int64_t begin, int64_t end) {
      std::array<int64_t, N + 1> offsets;
      for (int k = 0; k <= N; ++k) offsets[k] = begin * space.strides[k][0];
      run(part_at(offsets, end - begin), scalars);
    });
    return;
  }
  int64_t all_rows = 1;
  for (int d = 0; d < last; ++d) all_rows *= space.sizes[d];
  const int64_t rows = space.sizes[last - 1];  // rows that are a constant step apart
  whole.out_step = space.strides[0][last - 1] * width[0];
  for (int k = 0; k < N; ++k) whole.steps[k] = space.strides[k + 1][last - 1] * width[k + 1];
  // A transposed operand (rows adjacent in memory, columns apart) is read in tiles. Each tile is first copied to the
  // layout of the result.
  Tiles<N> tiles{.width = width};
  for (int k = 1; k <= N; ++k) {
    tiles.transposed[k] = std::abs(space.strides[k][last]) > 1 && space.strides[k][last - 1] == 1;
    tiles.any = tiles.any || tiles.transposed[k];
  }
  tiles.streams = tiles.any && whole.out_stride == 1 && is_streamed(whole.out, result.numel() * width[0], n * width[0]);
  for (int d = 0; d < last; ++d)
    tiles.streams = tiles.streams && is_streamed(whole.out, result.numel() * width[0], space.strides[0][d] * width[0]);
  const int64_t tile = tiles.any ? kTile : n, tile_rows = tiles.any ? kTile : rows;
  parallel_for(all_rows, std::max<int64_t>(tiles.any ? kTile : 1, kElementwiseGrain / n),
               [&](int64_t begin, int64_t end) {
                 for (int64_t row = begin; row < end;) {
                   std::array<int64_t, N + 1> offsets{};
                   int64_t rest = row;
                   for (int d = last - 1; d >= 0; --d) {
                     const int64_t index = rest % space.sizes[d];
                     rest /= space.sizes[d];
                     for (int k = 0; k <= N; ++k) offsets[k] += index * space.strides[k][d];
                   }
                   const int64_t together = std::min({end - row, rows - row % rows, tile_rows});
                   for (int64_t column = 0; column < n; column += tile) {
                     ops::ElementwiseRun part = part_at(offsets, std::min(tile, n - column));
                     part.rows = together;
                     if (tiles.any) run_tile<N>(part, run, scalars, tiles);
                     else run(part, scalars);
                     for (int k = 0; k <= N; ++k) offsets[k] += tile * space.strides[k][last];
                   }
                   row += together;
                 }
                 if (tiles.streams) end_streams();
               });
}

template void for_each_run<0>(const KernelContext&, ops::ElementwiseRunFn, const double*);
template void for_each_run<1>(const KernelContext&, ops::ElementwiseRunFn, const double*);
template void for_each_run<2>(const KernelContext&, ops::ElementwiseRunFn, const double*);
template void for_each_run<3>(const KernelContext&, ops::ElementwiseRunFn, const double*);

void elementwise_kernel(const KernelContext& context) {
  const ops::ElementwiseBody& body = *context.op.body;
  const ops::ElementwiseRunFn run = body.run[static_cast<int>(context.in(body.inputs - 1).dtype())];
  const auto& floats = context.attrs.floats;
  double scalars[2] = {};
  for (size_t i = 0; i < floats.size(); ++i) scalars[i] = floats[i];
  switch (body.inputs) {
    case 1: return for_each_run<1>(context, run, scalars);
    case 2: return for_each_run<2>(context, run, scalars);
    default: return for_each_run<3>(context, run, scalars);
  }
}

}  // namespace rondo::cpu
