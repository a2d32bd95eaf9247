// Multi-head self-attention (Vaswani et al., "Attention is all you need", 2017) and the pre-norm transformer block of
// GPT-2 (Radford et al., 2019).
#pragma once

#include "rondo/modules/kv_cache.h"
#include "rondo/modules/layers.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

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
  Tensor forward(const Tensor& x, const KVLayer& cached = {});
};

// scaled_dot_product_attention(q, k, v, mask) with `weights` applied to the attention weights. They are stored only if
// it drops some. q, k, v (B, H, T, D); mask bool, broadcast to (B, H, T, T), or undefined.
Tensor attention_with_dropout(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, bool causal,
                              Dropout& weights);

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
  Tensor forward(const Tensor& x, const KVLayer& cached = {});  // (B, T, C) -> (B, T, C)
};

}  // namespace rondo::nn
#pragma GCC visibility pop
