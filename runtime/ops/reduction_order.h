// The order of every floating-point reduction. It depends on shapes only, never on the number of threads or the ISA,
// and generated kernels follow it too: this is what makes "compiled equals eager, bit for bit" possible.
//
// Note [Row order]. A reduction over the contiguous columns of a row keeps kLanes accumulators: column c goes to lane
//   c % kLanes, in increasing c. The lanes are then combined in a tree: in steps k = 8, 4, 2, 1 lane i takes lane
//   i + k. Lanes start at the identity (0, or -inf for max). After every kRowBlock columns each lane is combined
//   into its total, which also starts at the identity, and is reset to the identity. At the end the totals are
//   combined in the tree.
// Note [Column order]. A reduction over the rows splits them into chunks of column_chunk_rows(rows); in each chunk rows
//   are added in order onto 0; the chunks' partial sums are then added in order onto the first.
// Note [Runs]. Neighbouring dimensions that are all reduced, or all kept, are one run; a dimension of size 1 joins any
//   run. The last reduced run (ops/reduction_def.h, last_run()) splits a tensor into (outer, reduced, inner). If inner
//   is 1, each row of (outer, reduced) is reduced in row order. Otherwise each of the `outer` matrices of (reduced,
//   inner) is reduced in column order. One exception: if outer and inner are 1, and a kept dimension of size 1 follows,
//   the tensor is a matrix of one column, and it is reduced in column order. The other reduced runs follow in the same
//   way, from the last to the first. The results between two runs have the dtype of the accumulators.
// Blocks and chunks are bounded, so that no more than some thousand numbers are added one after the other: an f32 sum
//   of 8 million small numbers, added one by one, is off by a part in 300.
// Note [Full order]. A reduction over every dimension, without keepdim, splits the elements, in row-major order, into
//   chunks of kFullChunk. Each chunk is reduced in row order, and then so are the results of the chunks. If full_row()
//   is not 0, the rows are reduced first, each in row order. Their results, in the dtype of the accumulators, are then
//   reduced in chunks. So a compiler can fuse the first step with the ops that compute the elements. With keepdim a
//   full reduction follows row order, because normalisations use it as a row reduction.
// Accumulators are f32 for f32, bf16 and f16, and f64 for f64.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rondo {

inline constexpr int kLanes = 16;
inline constexpr int64_t kRowBlock = 1 << 12;

inline constexpr int64_t kFullChunk = 1 << 12;

// True for a reduction that follows Note [Full order]: `mask` has a bit for each reduced dimension.
constexpr bool is_full_reduction(int64_t mask, bool keepdim, int rank) {
  return !keepdim && rank > 0 && mask == (int64_t{1} << rank) - 1;
}

// Returns the number of columns of a row of Note [Full order], for a tensor of `numel` elements whose last dimension
// has the size `last`. Returns 0 if the rows are not reduced first. Short rows would cost more than they save, and few
// long ones would keep few threads busy.
constexpr int64_t full_row(int64_t numel, int64_t last) {
  constexpr int64_t kLeastRow = 32, kMostRow = 1 << 16;
  return last >= kLeastRow && last <= kMostRow && numel > last ? last : 0;
}

inline constexpr int64_t kLeastChunk = 16, kMostChunk = 1 << 12;
constexpr int64_t column_chunk_rows(int64_t rows) {
  return std::clamp<int64_t>((rows + 63) / 64, kLeastChunk, kMostChunk);
}

// Combines the lanes in the tree of Note [Row order].
template <class T, class Combine> inline T combine_lanes(T (&lanes)[kLanes], Combine combine) {
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] = combine(lanes[i], lanes[i + width]);
  return lanes[0];
}

}  // namespace rondo
