#include "rondo/runtime/cpu/loops.h"

#include <algorithm>

#include "rondo/runtime/iteration_space.h"
#include "rondo/runtime/ops/kernels.h"

namespace rondo::cpu {
namespace {

constexpr int64_t kTile = 64;  // rows and columns

// from: rows are neighbours, columns are `step` elements apart -> to: dense [rows, columns]. In squares, whose lines
// all fit the first cache, however far apart they are.
template <class Word> void transpose_tile(const Word* from, int64_t step, Word* to, int64_t rows, int64_t columns) {
  constexpr int64_t kSquare = 16;
  int64_t c = 0;
  for (; c + kSquare <= columns; c += kSquare) {
    int64_t r = 0;
    for (; r + kSquare <= rows; r += kSquare) {
      Word square[kSquare][kSquare];
      for (int64_t j = 0; j < kSquare; ++j)
        for (int64_t i = 0; i < kSquare; ++i) square[j][i] = from[(c + j) * step + r + i];
      for (int64_t i = 0; i < kSquare; ++i)
        for (int64_t j = 0; j < kSquare; ++j) to[(r + i) * columns + c + j] = square[j][i];
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
  // The part of `whole` that starts at these elements.
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
  const IterationSpace<N + 1> space(result.sizes(), operands);
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
  const int64_t rows = space.sizes[last - 1];  // one step apart
  whole.out_step = space.strides[0][last - 1] * width[0];
  for (int k = 0; k < N; ++k) whole.steps[k] = space.strides[k + 1][last - 1] * width[k + 1];
  // An operand whose rows are neighbours in memory, and whose columns lie apart, is read in tiles, which are laid out
  // as the result is.
  bool transposed = false;
  const auto is_transposed = [&](int k) {
    return std::abs(space.strides[k][last]) > 1 && space.strides[k][last - 1] == 1;
  };
  for (int k = 1; k <= N; ++k) transposed = transposed || is_transposed(k);
  const int64_t tile = transposed ? kTile : n, tile_rows = transposed ? kTile : rows;
  parallel_for(all_rows, std::max<int64_t>(transposed ? kTile : 1, kElementwiseGrain / n),
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
                     alignas(64) std::byte tiles[std::max(N, 1)][kTile * kTile * 8];
                     for (int k = 0; transposed && k < N; ++k) {
                       if (!is_transposed(k + 1)) continue;
                       transpose_tile(part.in[k], part.strides[k], tiles[k], part.rows, part.n, width[k + 1]);
                       part.in[k] = tiles[k];
                       part.strides[k] = 1;
                       part.steps[k] = part.n * width[k + 1];
                     }
                     run(part, scalars);
                     for (int k = 0; k <= N; ++k) offsets[k] += tile * space.strides[k][last];
                   }
                   row += together;
                 }
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
