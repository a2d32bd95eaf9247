#include "rondo/modules/transformers/llama.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "rondo/modules/layers/init.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo::nn {

SwiGLU::SwiGLU(int64_t n_embd, int64_t hidden, LinearOptions options)
    : gate_proj(child("gate_proj", n_embd, hidden, options)),
      up_proj(child("up_proj", n_embd, hidden, options)),
      down_proj(child("down_proj", hidden, n_embd, options)) {}
Tensor SwiGLU::forward(const Tensor& x) { return down_proj(ops::silu(gate_proj(x)) * up_proj(x)); }

namespace {

// Returns D * `heads`: the width of the queries, or of the keys.
int64_t width_of(int64_t heads, int64_t n_embd, int64_t n_head, int64_t n_kv_head, int64_t head_dim) {
  if (n_head <= 0 || n_kv_head <= 0 || (head_dim <= 0 && n_embd % n_head != 0) || n_head % n_kv_head != 0)
    throw Error(
        absl::StrCat("GroupedQueryAttention: n_head must divide n_embd and n_kv_head divide n_head, got n_embd ",
                     n_embd, ", n_head ", n_head, ", n_kv_head ", n_kv_head));
  return heads * (head_dim > 0 ? head_dim : n_embd / n_head);
}

}  // namespace

GroupedQueryAttention::GroupedQueryAttention(int64_t n_embd, int64_t n_head, int64_t n_kv_head,
                                             GroupedQueryAttentionOptions options)
    : n_embd(n_embd),
      n_head(n_head),
      n_kv_head(n_kv_head),
      options(options),
      q_proj(child("q_proj", n_embd, width_of(n_head, n_embd, n_head, n_kv_head, options.head_dim),
                   LinearOptions{.bias = options.bias})),
      k_proj(child("k_proj", n_embd, width_of(n_kv_head, n_embd, n_head, n_kv_head, options.head_dim),
                   LinearOptions{.bias = options.bias})),
      v_proj(child("v_proj", n_embd, width_of(n_kv_head, n_embd, n_head, n_kv_head, options.head_dim),
                   LinearOptions{.bias = options.bias})),
      o_proj(child("o_proj", width_of(n_head, n_embd, n_head, n_kv_head, options.head_dim), n_embd,
                   LinearOptions{.bias = options.o_bias.value_or(options.bias)})) {
  if (!options.qk_norm) return;
  const int64_t D = head_dim();
  q_norm = child("q_norm", D, RMSNormOptions{.eps = options.norm_eps}).make<RMSNorm>();
  k_norm = child("k_norm", D, RMSNormOptions{.eps = options.norm_eps}).make<RMSNorm>();
}

Tensor GroupedQueryAttention::forward(const Tensor& x, const ops::RotaryTables& rotary, const KVLayer& cached,
                                      const Tensor& first_key) {
  if (x.rank() != 3)
    throw_op_error("GroupedQueryAttention", "x must be (B, T, C), got " + to_string(x.sizes()),
                   std::source_location::current());
  const int64_t B = x.size(0), T = x.size(1), D = head_dim();
  const auto heads = [&](const Tensor& t, int64_t n, RMSNorm* norm = nullptr) {  // (B, n, T, D)
    const Tensor apart = t.view({B, T, n, D});
    return (norm ? (*norm)(apart) : apart).transpose(1, 2);
  };
  const auto turned = [&](const Tensor& t) {
    if (!rotary.cos.defined()) return t;
    if (rotary.cos.size(0) == T) return ops::rotary_embedding(t, rotary);
    // Rows have different positions: they are rotated as one sequence of B T tokens, which is a view.
    const int64_t n = t.size(1);
    return ops::rotary_embedding(t.transpose(0, 1).reshape({n, B * T, D}), rotary).view({n, B, T, D}).transpose(0, 1);
  };
  const Tensor q = turned(heads(q_proj(x), n_head, q_norm.get())),
               k = turned(heads(k_proj(x), n_kv_head, k_norm.get())), v = heads(v_proj(x), n_kv_head);
  if (cached && !options.causal)
    throw_op_error("GroupedQueryAttention", "only causal attention takes a KVCache", std::source_location::current());
  if (cached && first_key.defined())
    throw_op_error("GroupedQueryAttention", "a KVCache has first keys of its own", std::source_location::current());
  const auto attend = [&] {
    if (cached) return cached.attend(q, k, v, {.window = options.window});
    const int64_t window = options.window < T ? options.window : 0;
    const Tensor mask = first_key.defined() ? first_key : first_keys(T, Tensor(), window, x.device());
    return ops::scaled_dot_product_attention(q, k, v, mask, {.causal = options.causal});
  };
  return o_proj(attend().transpose(1, 2).reshape({B, T, n_head * D}));
}

ops::RotaryTables rotary_tables(const LlamaConfig& config, int64_t T, int64_t start, TensorOptions options,
                                int64_t length) {
  return rotary_tables(config.rope_scaling, config.rope_base, config.block_size, T, config.rotary_dim(), start, options,
                       length);
}

LlamaBlock::LlamaBlock(const LlamaConfig& config, int64_t layer)
    : input_layernorm(child("input_layernorm", config.n_embd, RMSNormOptions{.eps = config.norm_eps})),
      self_attn(child("self_attn", config.n_embd, config.n_head, config.n_kv_head,
                      GroupedQueryAttentionOptions{.bias = config.qkv_bias,
                                                   .o_bias = config.o_bias,
                                                   .head_dim = config.head_dim,
                                                   .qk_norm = config.qk_norm,
                                                   .norm_eps = config.norm_eps,
                                                   .window = config.window(layer)})),
      post_attention_layernorm(
          child("post_attention_layernorm", config.n_embd, RMSNormOptions{.eps = config.norm_eps})),
      mlp(child("mlp", config.n_embd, config.n_hidden, LinearOptions{.bias = config.mlp_bias})) {}

LlamaBlock::LlamaBlock(int64_t n_embd, int64_t n_head, int64_t n_kv_head, int64_t hidden, double norm_eps)
    : LlamaBlock(
          LlamaConfig{
              .n_head = n_head, .n_kv_head = n_kv_head, .n_embd = n_embd, .n_hidden = hidden, .norm_eps = norm_eps},
          0) {}

Tensor LlamaBlock::forward(const Tensor& x_, const ops::RotaryTables& rotary, const KVLayer& cached,
                           const Tensor& first_key) {
  const Tensor x = x_ + self_attn(input_layernorm(x_), rotary, cached, first_key);
  return x + mlp(post_attention_layernorm(x));
}

Llama::Body::Body(const LlamaConfig& config)
    : config(config),
      embed_tokens(
          child("embed_tokens", config.vocab_size, config.n_embd, EmbeddingOptions{.padding_idx = config.padding_idx})),
      layers(child("layers")),
      norm(child("norm", config.n_embd, RMSNormOptions{.eps = config.norm_eps})) {
  if (!config.window_layers.empty() && static_cast<int64_t>(config.window_layers.size()) != config.n_layer)
    throw Error(absl::StrCat("Llama: window_layers needs one flag for each of the ", config.n_layer, " layers, got ",
                             config.window_layers.size()));
  for (int64_t i = 0; i < config.n_layer; ++i) layers.emplace_back(config, i);
}

Tensor Llama::Body::forward(const Tensor& idx, const Tensor& positions, const Tensor& mask) {
  const auto fail = [&](std::string_view what) {
    throw_op_error("Llama",
                   absl::StrCat(std::string(what), ", got ", std::string(name_of(idx.dtype())), to_string(idx.sizes())),
                   std::source_location::current());
  };
  if (idx.rank() != 2 || !is_index(idx.dtype())) fail("idx must be i64 or i32 (B, T)");
  const int64_t T = idx.size(1);
  if (T > config.max_length())
    fail(config.max_length() == config.block_size
             ? absl::StrCat("T must be at most block_size = ", config.block_size)
             : absl::StrCat("T must be at most ", config.max_length(), " = what rope_scaling makes of block_size ",
                            config.block_size));
  if (positions.defined() && config.rates_depend_on_length() && T > config.block_size)
    fail(absl::StrCat("packed rows of a model with dynamic rope_scaling must have at most block_size = ",
                      config.block_size, " tokens: their sequences would turn at the rates of the whole row"));
  if (mask.defined() && (mask.dtype() != kBool || !(mask.sizes() == idx.sizes()) || positions.defined()))
    fail(absl::StrCat("mask must be bool (B, T), without positions, and is ", std::string(name_of(mask.dtype())),
                      to_string(mask.sizes())));
  Tensor x = embed_tokens(idx);  // (B, T, C)
  ops::RotaryTables rotary = tables(T, x);
  if (positions.defined()) {
    check_positions("Llama", idx, positions);
    const Tensor at = positions.reshape({-1});
    rotary = {ops::index_select(rotary.cos, 0, at), ops::index_select(rotary.sin, 0, at)};
  }
  const bool windowed = config.sliding_window > 0 && T > config.sliding_window;
  Tensor all = first_keys(T, positions, 0, idx.device());
  Tensor near = windowed ? first_keys(T, positions, config.sliding_window, idx.device()) : all;
  if (mask.defined()) {
    all = mask.view({idx.size(0), 1, 1, T});
    const Tensor keys = Tensor::arange(T, {kI64, idx.device()});
    near = windowed ? ops::bitwise_and(all, ops::greater_equal(keys, near)) : all;  // (B, 1, T, T)
  }
  for (int64_t i = 0; i < layers.size(); ++i) {
    const Tensor& first_key = config.window(i) > 0 ? near : all;
    x = first_key.defined() ? layers[i](x, rotary, KVLayer(), first_key) : layers[i](x, rotary);
  }
  return norm(x);
}

Tensor Llama::Body::forward(const Tensor& idx, KVCache::Pass& pass) {
  Tensor x = embed_tokens(idx);  // (B, T, C)
  const ops::RotaryTables rotary = tables(pass, x);
  for (int64_t i = 0; i < layers.size(); ++i) x = layers[i](x, rotary, pass.layer(i));
  return norm(x);
}

const ops::RotaryTables& Llama::Body::tables(int64_t T, const Tensor& x) {
  const DType dtype = compute_dtype(x.dtype());
  if (!tables_.cos.defined() || tables_.cos.size(0) != T || tables_.cos.dtype() != dtype ||
      !(tables_.cos.device() == x.device()))
    tables_ = rotary_tables(config, T, 0, {dtype, x.device()});
  return tables_;
}

ops::RotaryTables Llama::Body::tables(KVCache::Pass& pass, const Tensor& x) {
  if (!config.rates_depend_on_length()) {
    const ops::RotaryTables& all = tables(pass.max_length(), x);
    const Tensor at = pass.positions().view({-1});
    return {ops::index_select(all.cos, 0, at), ops::index_select(all.sin, 0, at)};
  }
  // The rates of each row follow from its own length, as if it were alone.
  const std::vector<int64_t> starts(pass.lengths_before().begin(), pass.lengths_before().end());
  const std::vector<int64_t> ends = pass.lengths_after();
  std::vector<Tensor> cos, sin;
  for (size_t row = 0; row < ends.size(); ++row) {
    const ops::RotaryTables one = rotary_tables(config, x.size(1), starts[row], {compute_dtype(x.dtype()), x.device()},
                                                ends[row]);
    cos.push_back(one.cos);
    sin.push_back(one.sin);
  }
  return {ops::cat(cos, 0), ops::cat(sin, 0)};
}

Llama::Llama(LlamaConfig config, uint64_t seed, const SkipInit&) : config(config) {
  if (config.tie_word_embeddings) lm_head.weight = model.embed_tokens.weight;
  init_normal(*this, seed);
  model.embed_tokens.zero_padding();
}

Tensor Llama::forward(const Tensor& idx, const Tensor& positions) {
  return lm_head(positions.defined() ? model(idx, positions) : model(idx));
}

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
          .max_length = config.max_length(),
          .head_dim = config.rotary_dim(),
          .dtype = cached_dtype(lm_head.weight.dtype()),
          .device = lm_head.weight.device()};
}

Tensor Llama::loss(const Tensor& idx, const Tensor& targets, std::source_location where) {
  return loss(idx, targets, Tensor(), where);
}
Tensor Llama::loss(const Tensor& idx, const Tensor& targets, const Tensor& positions, std::source_location where) {
  const auto logits = [&] { return positions.defined() ? (*this)({idx, where}, positions) : (*this)({idx, where}); };
  const auto below = [&] { return positions.defined() ? model(idx, positions) : model(idx); };
  // A hook on the output layer runs only if its forward is called, and forward makes all logits at once.
  const int64_t whole = !lm_head.is_plain() ? std::numeric_limits<int64_t>::max() : config.whole_logits;
  return NextTokenLoss{*this, lm_head.weight, whole, logits, below}(idx, targets, where);
}

}  // namespace rondo::nn
