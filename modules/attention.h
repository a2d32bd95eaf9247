// Multi-head self-attention (Vaswani et al., "Attention is all you need", 2017) and the pre-norm transformer block of
// GPT-2 (Radford et al., 2019).
#pragma once

#include "rondo/modules/kv_cache.h"
#include "rondo/modules/layers.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// i64 (B, 1, T, 1): the first token that each token attends to, which is how attention reads the two bounds that causal
// models have. It is what scaled_dot_product_attention() takes for a mask.
// - positions i64 (B, T): a token at position p sees itself and the p tokens before it. Sequences that are packed in
//   one row, each with positions from 0, then see themselves only. Undefined: no such bound, and B = 1.
// - window: a token sees the last `window` tokens, itself included. 0: no such bound.
// Undefined if there is neither. Nothing of size T x T is stored.
// The result is on the device of `positions`, or on `device` if they are undefined.
Tensor first_keys(int64_t T, const Tensor& positions, int64_t window = 0, Device device = default_device());

struct MultiheadAttentionOptions {
  bool causal = true;
  bool bias = true;
  double dropout = 0;                                 // probability, for the attention weights and for the result
  std::optional<double> attn_dropout = std::nullopt;  // for the attention weights, if it is another one
};
// One projection c_attn (3C, C) gives q, k and v, in this order. Head h is columns [hD, (h+1)D) of each; D = C / H.
// Throws Error unless n_head divides n_embd.
struct MultiheadAttention : Module<MultiheadAttention> {
  MultiheadAttention(int64_t n_embd, int64_t n_head, MultiheadAttentionOptions options = {});
  int64_t n_embd, n_head;
  MultiheadAttentionOptions options;
  Linear c_attn;
  Linear c_proj;
  Dropout attn_dropout;
  Dropout resid_dropout;
  // (B, T, C) -> (B, T, C). `cached`: x continues what the cache holds (kv_cache.h). Only a causal module takes one.
  // `first_key`: what first_keys() makes; without a cache.
  Tensor forward(const Tensor& x, const KVLayer& cached = {}, const Tensor& first_key = {});
};

struct TransformerBlockOptions {
  bool causal = true;
  bool bias = true;
  double dropout = 0;
  std::optional<double> attn_dropout = std::nullopt;  // of the attention weights, if it is another one
  int64_t hidden = 0;                                 // units of the MLP; 0: 4C
  double norm_eps = 1e-5;
  ops::GeluKind gelu = ops::GeluKind::kTanh;
};
struct TransformerBlock : Module<TransformerBlock> {
  TransformerBlock(int64_t n_embd, int64_t n_head, TransformerBlockOptions options = {});
  LayerNorm ln_1;
  MultiheadAttention attn;
  LayerNorm ln_2;
  MLP mlp;
  // (B, T, C) -> (B, T, C), with the operands of MultiheadAttention.
  Tensor forward(const Tensor& x, const KVLayer& cached = {}, const Tensor& first_key = {});
};

}  // namespace rondo::nn
#pragma GCC visibility pop
