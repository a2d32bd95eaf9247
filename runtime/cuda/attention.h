// Scaled dot-product attention on CUDA, forward and backward. It computes what cpu/attention.h specifies.
//
// Note [Chunks of queries]. The method that works for every call takes one chunk of queries at a time. A product
//   (cuBLASLt) makes the scores of the chunk, a kernel their softmax, and another product the output. The backward
//   computes the scores of a chunk again, and the weights from the logsumexp. Both directions take memory for the
//   scores of one chunk, which is linear in the number of keys. They also take memory for dense copies of operands
//   whose batches and heads are not evenly spaced (those of packed projections), so that one launch makes the products
//   of all batches and heads (or one launch for each query head of a group). Sums over chunks run in f32 (f64 for f64),
//   in the order of the chunks. The chunks depend only on the shape, so the results have the same bits in every run.
// Note [Keys that are not read]. A masked key has weight 0, but 0 * NaN is NaN, so its k and v must be finite. Some
//   masked keys are not read, and their k and v may hold anything, as in the unused slots of a KVCache. These are keys
//   before the smallest first key of all queries, keys from the largest end on, and keys that a mask of bool forbids to
//   all queries at once (a call of one query, or a mask with stride 0 over queries).
// Note [Large logsumexp]. The backward computes a weight as exp(score - logsumexp). If a mask lowers a whole row, by
//   -1e9 or the lowest finite number, the logsumexp is so large that log(sum) is lost in its rounding. Each weight
//   would be 1, not 1 / keys. So if the logsumexp is large, the backward divides the weights by their sum. The fused
//   kernels divide only if the call has an added mask. Without an added mask, a logsumexp is large only if the scores
//   are large, and then weights in f32 have a relative error of 2^-24 times the logsumexp.
// Heads of at most 128 elements use another method, without scores in memory (fused_attention.h). The functions below
// choose between the two by AttentionCall alone. If a program asks for cuDNN, a plan of cuDNN runs instead
// (dnn_attention.h).
//
// Thread safe: free functions, which enqueue on the compute stream and return.
#pragma once

#include <cstdint>

#include "rondo/runtime/cuda/attention_call.h"

namespace rondo::cuda {

struct Source;

// Returns the number of queries in a chunk: the largest multiple of 16 whose scores take at most 64 MiB, but at least
// 16.
int64_t chunk_of(const AttentionCall& call);

// Overwrites out [B, H, Tq, D] and logsumexp [B, H, Tq] (dense, of the compute dtype; -inf where no key is allowed).
void attention_forward(const AttentionCall& call, const AttentionOperands& operands, void* out,
                       const HeadsStrides& out_strides, void* logsumexp);

void attention_backward(const AttentionCall& call, const AttentionOperands& operands,
                        const AttentionGradients& gradients);

// Returns the source of the kernels of Note [Chunks of queries].
const Source& attention_source();

}  // namespace rondo::cuda
