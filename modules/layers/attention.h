// Multi-head attention (Vaswani et al., "Attention is all you need", 2017): self-attention and cross-attention to an
// encoder, and the pre-norm transformer block of GPT-2 (Radford et al., 2019), with GPT-2's names. With PyTorch's names
// and separate queries, keys and values: multihead_attention.h.
#pragma once

#include "rondo/modules/layers/kv_cache.h"
#include "rondo/modules/layers/layers.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// Returns a mask for scaled_dot_product_attention(), i64 (B, 1, T, 1): the first token that each token attends to. It
// expresses the two bounds that causal models have:
// - positions i64 (B, T): a token at position p sees itself and the p tokens before it. Sequences that are packed in
//   one row, each with positions from 0, then see themselves only. Undefined: no such bound, and B = 1.
// - window: a token sees the last `window` tokens, itself included. 0: no such bound.
// The result is undefined if there is neither bound. Nothing of size T x T is stored.
// The result is on the device of `positions`, or on `device` if they are undefined.
Tensor first_keys(int64_t T, const Tensor& positions, int64_t window = 0, Device device = default_device());

struct SelfAttentionOptions {
  bool causal = true;
  bool bias = true;
  double dropout = 0;                                 // probability, for the attention weights and for the result
  std::optional<double> attn_dropout = std::nullopt;  // for the attention weights; nullopt: dropout
};
// One projection c_attn (3C, C) gives q, k and v, in this order. Head h is columns [hD, (h+1)D) of each; D = C / H.
// Throws Error unless n_head divides n_embd.
struct SelfAttention : Module<SelfAttention> {
  SelfAttention(int64_t n_embd, int64_t n_head, SelfAttentionOptions options = {});
  int64_t n_embd, n_head;
  SelfAttentionOptions options;
  Linear c_attn;
  Linear c_proj;
  Dropout attn_dropout;
  Dropout resid_dropout;
  // (B, T, C) -> (B, T, C). `cached`: x continues what the cache holds (kv_cache.h); for causal modules only. `mask`:
  // as ops::scaled_dot_product_attention takes it, such as first_keys(); not together with a cache.
  Tensor forward(const Tensor& x, const KVLayer& cached = {}, const Tensor& mask = {});
};

struct CrossAttentionOptions {
  bool bias = true;
  double dropout = 0;                                 // as in SelfAttentionOptions
  std::optional<double> attn_dropout = std::nullopt;  // for the attention weights; nullopt: dropout
};
// Attention to an encoder's output: q_attn (C, C) makes queries of x, and c_attn (2C, C) makes keys and values of the
// output. Heads are as in SelfAttention.
struct CrossAttention : Module<CrossAttention> {
  CrossAttention(int64_t n_embd, int64_t n_head, CrossAttentionOptions options = {});
  int64_t n_embd, n_head;
  Linear c_attn;
  Linear q_attn;
  Linear c_proj;
  Dropout attn_dropout;
  Dropout resid_dropout;
  // x (B, T, C), encoded (B, S, C) -> (B, T, C). `cached`: x attends to the cache's KVCacheOptions::encoded, whose keys
  // and values are computed once; the argument `encoded` is then undefined.
  Tensor forward(const Tensor& x, const Tensor& encoded, const KVLayer& cached = {});
};

struct TransformerBlockOptions {
  bool causal = true;
  bool bias = true;
  double dropout = 0;
  std::optional<double> attn_dropout = std::nullopt;  // for the attention weights; nullopt: dropout
  int64_t hidden = 0;                                 // units of the MLP; 0: 4C
  double norm_eps = 1e-5;
  ops::GeluKind gelu = ops::GeluKind::kTanh;
  bool cross_attention = false;  // adds a cross-attention between attn and mlp
};
struct TransformerBlock : Module<TransformerBlock> {
  TransformerBlock(int64_t n_embd, int64_t n_head, TransformerBlockOptions options = {});
  LayerNorm ln_1;
  SelfAttention attn;
  std::unique_ptr<LayerNorm> ln_cross_attn;  // null without cross-attention
  std::unique_ptr<CrossAttention> crossattention;
  LayerNorm ln_2;
  MLP mlp;
  // (B, T, C) -> (B, T, C), with the operands of SelfAttention. A block with cross-attention also needs `encoded`
  // (B, S, C), or a cache that was made with it; other blocks take no `encoded`.
  Tensor forward(const Tensor& x, const KVLayer& cached = {}, const Tensor& mask = {}, const Tensor& encoded = {});
  // This overload takes tensors only, so a compiled block can be replayed.
  Tensor forward(const Tensor& x, const Tensor& encoded) { return forward(x, KVLayer(), Tensor(), encoded); }
};

}  // namespace rondo::nn
#pragma GCC visibility pop
