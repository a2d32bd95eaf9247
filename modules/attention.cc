#include "rondo/modules/attention.h"

#include "absl/strings/str_cat.h"

namespace rondo::nn {

Tensor first_keys(int64_t T, const Tensor& positions, int64_t window, Device device) {
  if (!positions.defined() && window == 0) return Tensor();
  const Device here = positions.defined() ? positions.device() : device;
  const Tensor at = Tensor::arange(T, {kI64, here}).view({1, 1, T, 1});
  if (!positions.defined()) return at - (window - 1);
  const Tensor reach = window > 0 ? ops::minimum(positions, window - 1) : positions;
  return at - reach.view({positions.size(0), 1, T, 1});
}

MultiheadAttention::MultiheadAttention(int64_t n_embd, int64_t n_head, MultiheadAttentionOptions options)
    : n_embd(n_embd),
      n_head(n_head),
      options(options),
      c_attn(child("c_attn", n_embd, 3 * n_embd, LinearOptions{.bias = options.bias})),
      c_proj(child("c_proj", n_embd, n_embd, LinearOptions{.bias = options.bias})),
      attn_dropout(child("attn_dropout", options.attn_dropout.value_or(options.dropout))),
      resid_dropout(child("resid_dropout", options.dropout)) {
  if (n_head <= 0 || n_embd % n_head != 0)
    throw Error(absl::StrCat("MultiheadAttention: n_head must divide n_embd, got ", n_head, " and ", n_embd));
}

Tensor MultiheadAttention::forward(const Tensor& x, const KVLayer& cached, const Tensor& first_key) {
  if (x.rank() != 3)
    throw_op_error("MultiheadAttention", "x must be (B, T, C), got " + to_string(x.sizes()),
                   std::source_location::current());
  if (cached && !options.causal)
    throw_op_error("MultiheadAttention", "only causal attention takes a KVCache", std::source_location::current());
  if (cached && first_key.defined())
    throw_op_error("MultiheadAttention", "a KVCache has first keys of its own", std::source_location::current());
  const int64_t B = x.size(0), T = x.size(1), D = n_embd / n_head;
  std::vector<Tensor> qkv = ops::split(c_attn(x), n_embd, -1);                   // 3 x (B, T, C)
  for (Tensor& part : qkv) part = part.view({B, T, n_head, D}).transpose(1, 2);  // 3 x (B, H, T, D)
  const Tensor y = cached
                       ? cached.attend(qkv[0], qkv[1], qkv[2])
                       : ops::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], first_key,
                                                           {.causal = options.causal, .dropout = attn_dropout.rate()});
  return resid_dropout(c_proj(y.transpose(1, 2).reshape({B, T, n_embd})));  // (B, T, C)
}

TransformerBlock::TransformerBlock(int64_t n_embd, int64_t n_head, TransformerBlockOptions options)
    : ln_1(child("ln_1", n_embd, LayerNormOptions{.eps = options.norm_eps, .bias = options.bias})),
      attn(child("attn", n_embd, n_head,
                 MultiheadAttentionOptions{.causal = options.causal,
                                           .bias = options.bias,
                                           .dropout = options.dropout,
                                           .attn_dropout = options.attn_dropout})),
      ln_2(child("ln_2", n_embd, LayerNormOptions{.eps = options.norm_eps, .bias = options.bias})),
      mlp(child("mlp", n_embd, options.hidden > 0 ? options.hidden : 4 * n_embd,
                MLPOptions{.bias = options.bias, .dropout = options.dropout, .gelu = options.gelu})) {}

Tensor TransformerBlock::forward(const Tensor& x_, const KVLayer& cached, const Tensor& first_key) {
  const Tensor normed = ln_1(x_);
  const Tensor x = x_ + (cached || first_key.defined() ? attn(normed, cached, first_key) : attn(normed));
  return x + mlp(ln_2(x));
}

}  // namespace rondo::nn
