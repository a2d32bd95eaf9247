#include "rondo/modules/llama.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "rondo/modules/init.h"

namespace rondo::nn {

SwiGLU::SwiGLU(int64_t n_embd, int64_t hidden)
    : gate_proj(child("gate_proj", n_embd, hidden, LinearOptions{.bias = false})),
      up_proj(child("up_proj", n_embd, hidden, LinearOptions{.bias = false})),
      down_proj(child("down_proj", hidden, n_embd, LinearOptions{.bias = false})) {}
Tensor SwiGLU::forward(const Tensor& x) { return down_proj(ops::silu(gate_proj(x)) * up_proj(x)); }

namespace {

int64_t kv_width(int64_t n_embd, int64_t n_head, int64_t n_kv_head) {
  if (n_head <= 0 || n_kv_head <= 0 || n_embd % n_head != 0 || n_head % n_kv_head != 0)
    throw Error(
        absl::StrCat("GroupedQueryAttention: n_head must divide n_embd and n_kv_head divide n_head, got n_embd ",
                     n_embd, ", n_head ", n_head, ", n_kv_head ", n_kv_head));
  return n_embd / n_head * n_kv_head;
}

}  // namespace

GroupedQueryAttention::GroupedQueryAttention(int64_t n_embd, int64_t n_head, int64_t n_kv_head,
                                             GroupedQueryAttentionOptions options)
    : n_embd(n_embd),
      n_head(n_head),
      n_kv_head(n_kv_head),
      options(options),
      q_proj(child("q_proj", n_embd, n_embd, LinearOptions{.bias = options.bias})),
      k_proj(child("k_proj", n_embd, kv_width(n_embd, n_head, n_kv_head), LinearOptions{.bias = options.bias})),
      v_proj(child("v_proj", n_embd, kv_width(n_embd, n_head, n_kv_head), LinearOptions{.bias = options.bias})),
      o_proj(child("o_proj", n_embd, n_embd, LinearOptions{.bias = options.bias})) {}

Tensor GroupedQueryAttention::forward(const Tensor& x, const ops::RotaryTables& rotary, const KVLayer& cached) {
  if (x.rank() != 3)
    throw_op_error("GroupedQueryAttention", "x must be (B, T, C), got " + to_string(x.sizes()),
                   std::source_location::current());
  const int64_t B = x.size(0), T = x.size(1), D = n_embd / n_head;
  const auto heads = [&](const Tensor& t, int64_t n) { return t.view({B, T, n, D}).transpose(1, 2); };  // (B, n, T, D)
  const auto turned = [&](const Tensor& t) {
    if (!rotary.cos.defined()) return t;
    if (rotary.cos.size(0) == T) return ops::rotary_embedding(t, rotary);
    // Positions of each row: as if all rows were one sequence of B T tokens, which is a view.
    const int64_t n = t.size(1);
    return ops::rotary_embedding(t.transpose(0, 1).reshape({n, B * T, D}), rotary).view({n, B, T, D}).transpose(0, 1);
  };
  const Tensor q = turned(heads(q_proj(x), n_head)), k = turned(heads(k_proj(x), n_kv_head)),
               v = heads(v_proj(x), n_kv_head);
  if (cached && !options.causal)
    throw_op_error("GroupedQueryAttention", "only causal attention takes a KVCache", std::source_location::current());
  const Tensor y = cached ? cached.attend(q, k, v)
                          : ops::scaled_dot_product_attention(q, k, v, {}, {.causal = options.causal});
  return o_proj(y.transpose(1, 2).reshape({B, T, n_embd}));
}

LlamaBlock::LlamaBlock(int64_t n_embd, int64_t n_head, int64_t n_kv_head, int64_t hidden, double norm_eps)
    : input_layernorm(child("input_layernorm", n_embd, RMSNormOptions{.eps = norm_eps})),
      self_attn(child("self_attn", n_embd, n_head, n_kv_head)),
      post_attention_layernorm(child("post_attention_layernorm", n_embd, RMSNormOptions{.eps = norm_eps})),
      mlp(child("mlp", n_embd, hidden)) {}

Tensor LlamaBlock::forward(const Tensor& x_, const ops::RotaryTables& rotary, const KVLayer& cached) {
  const Tensor x = x_ + self_attn(input_layernorm(x_), rotary, cached);
  return x + mlp(post_attention_layernorm(x));
}

Llama::Body::Body(const LlamaConfig& config)
    : config(config),
      embed_tokens(child("embed_tokens", config.vocab_size, config.n_embd)),
      layers(child("layers", config.n_layer, config.n_embd, config.n_head, config.n_kv_head, config.n_hidden,
                   config.norm_eps)),
      norm(child("norm", config.n_embd, RMSNormOptions{.eps = config.norm_eps})) {}

Tensor Llama::Body::forward(const Tensor& idx) {
  const auto fail = [&](std::string_view what) {
    throw_op_error("Llama",
                   absl::StrCat(std::string(what), ", got ", std::string(name_of(idx.dtype())), to_string(idx.sizes())),
                   std::source_location::current());
  };
  if (idx.rank() != 2 || idx.dtype() != kI64) fail("idx must be i64 (B, T)");
  const int64_t T = idx.size(1);
  if (T > config.block_size) fail(absl::StrCat("T must be at most block_size = ", config.block_size));
  Tensor x = embed_tokens(idx);  // (B, T, C)
  const ops::RotaryTables& rotary = tables(T, x);
  for (LlamaBlock& block : layers) x = block(x, rotary);
  return norm(x);
}

Tensor Llama::Body::forward(const Tensor& idx, KVCache::Pass& pass) {
  Tensor x = embed_tokens(idx);  // (B, T, C)
  const ops::RotaryTables& all = tables(pass.max_length(), x);
  const Tensor at = pass.positions().view({-1});
  const ops::RotaryTables rotary = {ops::index_select(all.cos, 0, at), ops::index_select(all.sin, 0, at)};
  for (int64_t i = 0; i < layers.size(); ++i) x = layers[i](x, rotary, pass.layer(i));
  return norm(x);
}

const ops::RotaryTables& Llama::Body::tables(int64_t T, const Tensor& x) {
  const DType dtype = compute_dtype(x.dtype());
  if (!tables_.cos.defined() || tables_.cos.size(0) != T || tables_.cos.dtype() != dtype)
    tables_ = ops::rotary_tables(T, config.n_embd / config.n_head, config.rope_base, 0, dtype);
  return tables_;
}

Llama::Llama(LlamaConfig config, uint64_t seed, const SkipInit&) : config(config) {
  if (config.tie_word_embeddings) lm_head.weight = model.embed_tokens.weight;
  init_normal(*this, seed);
}

Tensor Llama::forward(const Tensor& idx) { return lm_head(model(idx)); }

Tensor Llama::features(const Tensor& idx, KVCache& cache, std::span<const int64_t> counts) {
  check_cached_call("Llama", idx, cache);
  KVCache::Pass pass(cache, idx.size(1), counts);
  const Tensor x = model(idx, pass);
  pass.finish();
  return x;
}

KVCacheOptions Llama::cache_options() const {
  return {.layers = config.n_layer,
          .kv_heads = config.n_kv_head,
          .max_length = config.block_size,
          .head_dim = config.n_embd / config.n_head,
          .dtype = cached_dtype(lm_head.weight.dtype())};
}

Tensor Llama::loss(const Tensor& idx, const Tensor& targets, std::source_location where) {
  const auto logits = [&] { return (*this)({idx, where}); };
  const auto below = [&] { return model(idx); };
  // A hook on the output layer wants its forward.
  const int64_t whole = !lm_head.is_plain() ? std::numeric_limits<int64_t>::max() : config.whole_logits;
  return NextTokenLoss{*this, lm_head.weight, whole, logits, below}(idx, targets, where);
}

}  // namespace rondo::nn
