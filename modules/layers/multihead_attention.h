// Multi-head attention as PyTorch has it (Vaswani et al., "Attention is all you need", 2017): queries, keys and values
// come from separate tensors, and checkpoints of torch.nn.MultiheadAttention load under their own names.
//
//   nn::MultiheadAttention attn(256, 8, {.batch_first = true});
//   Tensor y = attn(x, x, x);                                                         // self-attention
//   y = attn(x, memory, memory, nn::AttentionMasks{.key_padding_mask = is_padding});  // cross-attention
//
// Not here, because no model needs it: add_bias_kv, add_zero_attn, inputs without a batch dimension, and weights as a
// second result (scores are never stored). Attention with one projection and a cache of keys: attention.h.
#pragma once

#include <optional>

#include "rondo/modules/layers/layers.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

struct MultiheadAttentionOptions {
  double dropout = 0;  // probability, for the attention weights, in training
  bool bias = true;
  std::optional<int64_t> kdim = std::nullopt;  // width of keys; nullopt: embed_dim
  std::optional<int64_t> vdim = std::nullopt;  // width of values; nullopt: embed_dim
  bool batch_first = false;                    // (B, T, E) instead of PyTorch's (T, B, E)
};

// What a query may not attend to. As in PyTorch, true means NOT attended to: the opposite of what it means in the masks
// of ops::scaled_dot_product_attention. Masks of floats are added to the scores. All masks hold together.
struct AttentionMasks {
  Tensor key_padding_mask = {};  // bool or floating (B, S): keys that are padding
  Tensor attn_mask = {};         // bool or floating (L, S) or (B H, L, S), row b H + h for head h of example b
  bool is_causal = false;        // query i attends to keys 0 to i; PyTorch takes it only as a hint about attn_mask
};

// L queries (B, L, E), S keys (B, S, kdim) and S values (B, S, vdim) -> (B, L, E); without batch_first (L, B, E) and so
// on. A query that may attend to nothing gets out_proj's bias, where PyTorch gives NaN: its weights are all 0.
//
// Parameters:
//   in_proj_weight (3E, E), the rows of queries, keys and values, in this order; if kdim or vdim differ from E, instead
//   q_proj_weight (E, E), k_proj_weight (E, kdim) and v_proj_weight (E, vdim)
//   in_proj_bias (3E)
//   out_proj
// Weights start as in PyTorch: in_proj's or the three others uniform in +-sqrt(6 / (rows + columns)) (Glorot and
// Bengio, 2010), out_proj's as a Linear's, biases 0. Throws Error unless num_heads divides embed_dim, and for operands
// of other shapes.
struct MultiheadAttention : Module<MultiheadAttention> {
  MultiheadAttention(int64_t embed_dim, int64_t num_heads, MultiheadAttentionOptions options = {});
  int64_t embed_dim, num_heads;
  MultiheadAttentionOptions options;
  Tensor& in_proj_weight;                                 // undefined if kdim or vdim differ from embed_dim
  Tensor &q_proj_weight, &k_proj_weight, &v_proj_weight;  // undefined if kdim and vdim equal embed_dim
  Tensor& in_proj_bias;                                   // undefined without bias
  Linear out_proj;
  Dropout dropout;
  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionMasks& masks = {});

 private:
  // Projects queries, keys and values to the width embed_dim.
  std::vector<Tensor> project(const Tensor& query, const Tensor& key, const Tensor& value) const;
  // Joins the two tensors of `masks` into one mask for scaled_dot_product_attention.
  Tensor joined(const AttentionMasks& masks, int64_t B, int64_t L, int64_t S, DType dtype) const;
};

}  // namespace rondo::nn
#pragma GCC visibility pop
