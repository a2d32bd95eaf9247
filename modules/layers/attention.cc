#include "rondo/modules/layers/attention.h"

#include "absl/strings/str_cat.h"

namespace rondo::nn {
namespace {

// (B, T, C) -> (B, H, T, D)
Tensor heads_of(const Tensor& x, int64_t n_head) {
  return x.view({x.size(0), x.size(1), n_head, x.size(2) / n_head}).transpose(1, 2);
}
// (B, H, T, D) -> (B, T, C)
Tensor joined_heads(const Tensor& y) {
  return y.transpose(1, 2).reshape({y.size(0), y.size(2), y.size(1) * y.size(3)});
}

}  // namespace

Tensor first_keys(int64_t T, const Tensor& positions, int64_t window, Device device) {
  if (window < 0) throw Error(absl::StrCat("first_keys: the window must not be negative, got ", window));
  if (positions.defined() && !is_index(positions.dtype()))
    throw Error(
        absl::StrCat("first_keys: positions must be i64 or i32, got ", std::string(name_of(positions.dtype()))));
  if (!positions.defined() && window == 0) return Tensor();
  const Device here = positions.defined() ? positions.device() : device;
  const Tensor at = Tensor::arange(T, {kI64, here}).view({1, 1, T, 1});
  if (!positions.defined()) return at - (window - 1);
  const Tensor reach = window > 0 ? ops::minimum(positions, window - 1) : positions;
  return at - reach.view({positions.size(0), 1, T, 1});
}

SelfAttention::SelfAttention(int64_t n_embd, int64_t n_head, SelfAttentionOptions options)
    : n_embd(n_embd),
      n_head(n_head),
      options(options),
      c_attn(child("c_attn", n_embd, 3 * n_embd, LinearOptions{.bias = options.bias})),
      c_proj(child("c_proj", n_embd, n_embd, LinearOptions{.bias = options.bias})),
      attn_dropout(child("attn_dropout", options.attn_dropout.value_or(options.dropout))),
      resid_dropout(child("resid_dropout", options.dropout)) {
  if (n_head <= 0 || n_embd % n_head != 0)
    throw Error(absl::StrCat("SelfAttention: n_head must divide n_embd, got ", n_head, " and ", n_embd));
}

Tensor SelfAttention::forward(const Tensor& x, const KVLayer& cached, const Tensor& mask) {
  if (x.rank() != 3)
    throw_op_error("SelfAttention", "x must be (B, T, C), got " + to_string(x.sizes()),
                   std::source_location::current());
  if (cached && !options.causal)
    throw_op_error("SelfAttention", "only causal attention takes a KVCache", std::source_location::current());
  if (cached && mask.defined())
    throw_op_error("SelfAttention", "a KVCache has a mask of its own", std::source_location::current());
  std::vector<Tensor> qkv = ops::split(c_attn(x), n_embd, -1);  // 3 x (B, T, C)
  for (Tensor& part : qkv) part = heads_of(part, n_head);       // 3 x (B, H, T, D)
  const Tensor y = cached
                       ? cached.attend(qkv[0], qkv[1], qkv[2])
                       : ops::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], mask,
                                                           {.causal = options.causal, .dropout = attn_dropout.rate()});
  return resid_dropout(c_proj(joined_heads(y)));  // (B, T, C)
}

CrossAttention::CrossAttention(int64_t n_embd, int64_t n_head, CrossAttentionOptions options)
    : n_embd(n_embd),
      n_head(n_head),
      c_attn(child("c_attn", n_embd, 2 * n_embd, LinearOptions{.bias = options.bias})),
      q_attn(child("q_attn", n_embd, n_embd, LinearOptions{.bias = options.bias})),
      c_proj(child("c_proj", n_embd, n_embd, LinearOptions{.bias = options.bias})),
      attn_dropout(child("attn_dropout", options.attn_dropout.value_or(options.dropout))),
      resid_dropout(child("resid_dropout", options.dropout)) {
  if (n_head <= 0 || n_embd % n_head != 0)
    throw Error(absl::StrCat("CrossAttention: n_head must divide n_embd, got ", n_head, " and ", n_embd));
}

Tensor CrossAttention::forward(const Tensor& x, const Tensor& encoded, const KVLayer& cached) {
  if (x.rank() != 3)
    throw_op_error("CrossAttention", "x must be (B, T, C), got " + to_string(x.sizes()),
                   std::source_location::current());
  if (cached ? encoded.defined() : !encoded.defined() || encoded.rank() != 3)
    throw_op_error("CrossAttention",
                   cached ? "a KVCache has the encoder's output already"
                          : "needs `encoded`, the encoder's output (B, S, C), or a KVCache that was made with it",
                   std::source_location::current());
  const auto keys_and_values = [&](const Tensor& of) -> KeysAndValues {
    const std::vector<Tensor> kv = ops::split(c_attn(of), n_embd, -1);  // 2 x (B, S, C)
    return {heads_of(kv[0], n_head), heads_of(kv[1], n_head)};          // (B, H, S, D) each
  };
  const auto attend = [&](const Tensor& q) {
    if (cached) return cached.attend_encoded(q, keys_and_values);
    const KeysAndValues kv = keys_and_values(encoded);
    return ops::scaled_dot_product_attention(q, kv.keys, kv.values, {}, {.dropout = attn_dropout.rate()});
  };
  return resid_dropout(c_proj(joined_heads(attend(heads_of(q_attn(x), n_head)))));
}

TransformerBlock::TransformerBlock(int64_t n_embd, int64_t n_head, TransformerBlockOptions options)
    : ln_1(child("ln_1", n_embd, LayerNormOptions{.eps = options.norm_eps, .bias = options.bias})),
      attn(child("attn", n_embd, n_head,
                 SelfAttentionOptions{.causal = options.causal,
                                      .bias = options.bias,
                                      .dropout = options.dropout,
                                      .attn_dropout = options.attn_dropout})),
      ln_cross_attn(options.cross_attention ? child("ln_cross_attn", n_embd,
                                                    LayerNormOptions{.eps = options.norm_eps, .bias = options.bias})
                                                  .make<LayerNorm>()
                                            : std::unique_ptr<LayerNorm>()),
      crossattention(options.cross_attention ? child("crossattention", n_embd, n_head,
                                                     CrossAttentionOptions{.bias = options.bias,
                                                                           .dropout = options.dropout,
                                                                           .attn_dropout = options.attn_dropout})
                                                   .make<CrossAttention>()
                                             : std::unique_ptr<CrossAttention>()),
      ln_2(child("ln_2", n_embd, LayerNormOptions{.eps = options.norm_eps, .bias = options.bias})),
      mlp(child("mlp", n_embd, options.hidden > 0 ? options.hidden : 4 * n_embd,
                MLPOptions{.bias = options.bias, .dropout = options.dropout, .gelu = options.gelu})) {}

Tensor TransformerBlock::forward(const Tensor& x_, const KVLayer& cached, const Tensor& mask, const Tensor& encoded) {
  if (encoded.defined() && crossattention == nullptr)
    throw_op_error("TransformerBlock", "takes `encoded` only with cross-attention", std::source_location::current());
  const Tensor normed = ln_1(x_);
  Tensor x = x_ + (cached || mask.defined() ? attn(normed, cached, mask) : attn(normed));
  if (crossattention != nullptr) {
    const Tensor queries = (*ln_cross_attn)(x);
    x = x + (cached ? (*crossattention)(queries, encoded, cached) : (*crossattention)(queries, encoded));
  }
  return x + mlp(ln_2(x));
}

}  // namespace rondo::nn
