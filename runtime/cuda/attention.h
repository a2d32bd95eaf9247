// Scaled dot-product attention on CUDA, forward and backward: what cpu/attention.h says.
//
// Note [Chunks of queries]. The way that always works: a chunk of queries at a time, the scores of the chunk are a
//   product (cuBLASLt), their softmax is a kernel, the output another product. The backward computes the scores of a
//   chunk again, from the logsumexp. Memory is that of one chunk's scores, linear in the number of keys, and of dense
//   copies of operands whose batches and heads are not one row of matrices (those of packed projections), so that a
//   product is one launch for all of them (one for each query head of a group). Sums over chunks run in f32 (f64 for
//   f64), in the order of the chunks, and chunks follow from the shape: bits do too.
// Note [Keys that are not read]. A masked key has weight 0, but 0 * NaN is NaN, so its k and v must be finite. Some
//   masked keys may hold anything, as the slots of a KVCache behind a row's end do: those before the least first key
//   of the queries and behind the greatest end, and those that a mask of bool forbids to all queries at once (a call of
//   one query, or a mask with stride 0 over queries).
// Note [Large logsumexp]. The backward computes a weight as exp(score - logsumexp). A row that a mask lowers whole, by
//   -1e9 or the lowest finite number, has a logsumexp of that size. The logarithm of its sum is rounded away, and each
//   weight would be 1, not 1 / keys. So where the logsumexp is large, the backward divides the weights by their sum.
//   The fused kernels do so for added masks only: without one a logsumexp is large only if the scores are, and weights
//   of f32 are off by 2^-24 times the logsumexp.
// Heads of at most 128 elements take another way, without scores in memory (fused_attention.h). The way is chosen at
// the top of the two functions below, and AttentionCall is all that the choice depends on. A third is a plan of cuDNN,
// where a program asks for it (dnn_attention.h).
//
// Thread safe: free functions, which enqueue on the compute stream and return.
#pragma once

#include <cstdint>

#include "rondo/runtime/cuda/attention_call.h"

namespace rondo::cuda {

struct Source;

// As many queries as have 64 MiB of scores, but at least 16.
int64_t chunk_of(const AttentionCall& call);

// Overwrites out [B, H, Tq, D] and logsumexp [B, H, Tq] (dense, of the compute dtype; -inf where no key is allowed).
void attention_forward(const AttentionCall& call, const AttentionOperands& operands, void* out,
                       const HeadsStrides& out_strides, void* logsumexp);

void attention_backward(const AttentionCall& call, const AttentionOperands& operands,
                        const AttentionGradients& gradients);

// Its kernels.
const Source& attention_source();

}  // namespace rondo::cuda
