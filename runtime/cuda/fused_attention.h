// Attention as one kernel for each direction, without scores in memory (FlashAttention-2: Dao, 2023): START with
// attention.h, which chooses between this and Note [Chunks of queries].
//
// Note [Fused attention]. A block owns a tile of queries and walks over the tiles of keys. It makes products of tiles,
//   and a softmax whose maximum and sum are updated at each tile. The backward is one launch with two kinds of blocks.
//   Some own a tile of keys and walk over queries, for the gradients of keys and values; the others own a tile of
//   queries and walk over keys. Both compute the weights again from the logsumexp, so nothing is added up between
//   blocks: no atomics, and the same bits in every run. A warp owns 16 rows of a tile. Products of 16-bit types run on
//   tensor cores (mma_16x8x16), others on fused multiply-adds; sums are f32 (f64 for f64).
//   With dropout, the lanes of a warp that hold weights of the same four keys each draw the numbers of one counter, and
//   exchange one bit for each weight. Some backward kernels spill registers (NVRTC 13.0). With dropout and a mask of
//   bool or of first keys: 8 to 32 bytes, for f16 heads of more than 96 elements and bf16 heads of 128. With an added
//   mask: 16 bytes, and 40 with dropout, for f16 heads of 128 elements on sm_80.
// Thread safe: free functions, which enqueue on the compute stream and return.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "rondo/runtime/cuda/attention_call.h"

namespace rondo::cuda {

struct Source;

// The sizes of a kernel, which are constants in its text.
struct AttentionTile {
  int head_dim = 0;  // a multiple of 16, at least the call's head_dim
  int rows = 0;      // of the tile that a block owns, and of the tiles that it walks over
  int threads() const { return rows * 2; }
};
// Returns the sizes of a call's tiles. nullopt: the heads have no element or more than 128, or the tiles of a block do
// not fit into shared memory.
std::optional<AttentionTile> attention_tile(DType dtype, int64_t head_dim);

void fused_attention_forward(const AttentionCall& call, const AttentionTile& tile, const AttentionOperands& operands,
                             void* out, const HeadsStrides& out_strides, void* logsumexp);
void fused_attention_backward(const AttentionCall& call, const AttentionTile& tile, const AttentionOperands& operands,
                              const AttentionGradients& gradients);

// Return the sources of the kernels: of the forward, of the factors that Note [Large logsumexp] needs, and of the
// backward. The sources need the defines T, HEAD_DIM, ROWS, THREADS, MASK, DROPOUT. The kernel of the factors runs only
// before the backward of a call with an added mask.
const Source& fused_attention_source();
const Source& fused_attention_rescale_source();
const Source& fused_attention_grad_source();

}  // namespace rondo::cuda
