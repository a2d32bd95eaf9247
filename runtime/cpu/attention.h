// Scaled dot-product attention on CPU, forward and backward, tiled: no [Tq, Tk] matrix is stored, unless the caller
// asks for grad_scores. These functions take raw pointers and strides; the op that calls them checks the shapes.
//
//   out[i] = sum_j softmax_j(scale * q[i] . k[j] + mask[i, j]) v[j]
//
// The method is that of Dao et al., "FlashAttention" (2022): the forward keeps a running maximum and sum per query and
// saves the logsumexp; the backward recomputes the probabilities from it.
//
// Element types: double, float, BFloat16, Float16. Arithmetic and all sums are f64 for double, else f32.
// Determinism: the shape alone fixes the order of each sum; results do not depend on the number of threads.
// Thread safety: calls share no memory except the arrays of their callers. Inputs and outputs must not overlap.
//
//   attention_forward<float>(shape, q, k, v, {}, out, logsumexp);
#pragma once

#include "rondo/runtime/cpu/attention_call.h"

namespace rondo::cpu {

// Overwrites out [B, H, Tq, D] and logsumexp [B, H, Tq] (dense; natural log; -inf where no key is allowed).
template <class T>
void attention_forward(const AttentionShape& shape, HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v,
                       const AttentionMask<T>& mask, HeadsView<T> out, AttentionAccumulator<T>* logsumexp);

// Overwrites grad_q [B, H, Tq, D], grad_k and grad_v [B, kv_heads, Tk, D], given the results of the forward and
// grad_out [B, H, Tq, D]. If grad_scores is not null, it is also overwritten: [B, H, Tq, Tk], dense, the gradient of
// the masked scores.
template <class T>
void attention_backward(const AttentionShape& shape, HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v,
                        const AttentionMask<T>& mask, HeadsView<const T> out, const AttentionAccumulator<T>* logsumexp,
                        HeadsView<const T> grad_out, HeadsView<T> grad_q, HeadsView<T> grad_k, HeadsView<T> grad_v,
                        AttentionAccumulator<T>* grad_scores = nullptr);

}  // namespace rondo::cpu
