// Llama (Touvron et al., "LLaMA: open and efficient foundation language models", 2023), with grouped-query attention
// (Ainslie et al., 2023), rotary positions (Su et al., 2021) and SwiGLU (Shazeer, 2020).
//
//   nn::Llama model({.vocab_size = 512, .block_size = 128, .n_layer = 4, .n_head = 8, .n_kv_head = 2, .n_embd = 256,
//                    .n_hidden = 688}, /*seed=*/1337);
//   model.loss(idx, targets).backward();
//
// Parameter names are those of published checkpoints; no layer has a bias.
#pragma once

#include "rondo/modules/causal_lm.h"
#include "rondo/modules/layers.h"
#include "rondo/modules/next_token_loss.h"
#include "rondo/modules/rms_norm.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// down_proj(silu(gate_proj(x)) * up_proj(x)).
struct SwiGLU : Module<SwiGLU> {
  SwiGLU(int64_t n_embd, int64_t hidden);
  Linear gate_proj;
  Linear up_proj;
  Linear down_proj;
  Tensor forward(const Tensor& x);  // (..., C) -> (..., C)
};

struct GroupedQueryAttentionOptions {
  bool causal = true;
  bool bias = false;
};
// n_head heads of queries share n_kv_head heads of keys and values: query head h reads head h / (n_head / n_kv_head).
// n_kv_head = n_head is multi-head attention, 1 is multi-query attention.
struct GroupedQueryAttention : Module<GroupedQueryAttention> {
  GroupedQueryAttention(int64_t n_embd, int64_t n_head, int64_t n_kv_head, GroupedQueryAttentionOptions options = {});
  int64_t n_embd, n_head, n_kv_head;
  GroupedQueryAttentionOptions options;
  Linear q_proj;
  Linear k_proj;
  Linear v_proj;
  Linear o_proj;
  // (B, T, C) -> (B, T, C). `rotary`: what turns queries and keys (T, D/2), or (B T, D/2) for positions of each row;
  // undefined tables for no positions. `cached`: x continues what the cache holds (kv_cache.h).
  Tensor forward(const Tensor& x, const ops::RotaryTables& rotary = {}, const KVLayer& cached = {});
};

struct LlamaBlock : Module<LlamaBlock> {
  LlamaBlock(int64_t n_embd, int64_t n_head, int64_t n_kv_head, int64_t hidden, double norm_eps = 1e-5);
  RMSNorm input_layernorm;
  GroupedQueryAttention self_attn;
  RMSNorm post_attention_layernorm;
  SwiGLU mlp;
  // (B, T, C) -> (B, T, C)
  Tensor forward(const Tensor& x, const ops::RotaryTables& rotary = {}, const KVLayer& cached = {});
};

// The defaults are Llama 2 7B.
struct LlamaConfig {
  int64_t vocab_size = 32000;
  int64_t block_size = 4096;
  int64_t n_layer = 32;
  int64_t n_head = 32;
  int64_t n_kv_head = 32;
  int64_t n_embd = 4096;
  int64_t n_hidden = 11008;
  double norm_eps = 1e-5;
  double rope_base = 10000.0;
  int64_t whole_logits = kWholeLogits;  // loss(): logits of more elements are computed in chunks
  bool tie_word_embeddings = false;     // lm_head.weight is embed_tokens.weight; checkpoints then need only one of them
};

struct Llama : Module<Llama>, CausalLM {
  // Weights start N(0, 0.02), gains 1; the same for the same seed on any machine.
  explicit Llama(LlamaConfig config, uint64_t seed = 0, const SkipInit& skip = SkipInit());

  // Everything below the output layer; apart, because published names have it so.
  struct Body : Module<Body> {
    explicit Body(const LlamaConfig& config);
    LlamaConfig config;
    Embedding embed_tokens;
    ModuleList<LlamaBlock> layers;
    RMSNorm norm;
    Tensor forward(const Tensor& idx);  // i64 (B, T) -> (B, T, C)
    // The same for the tokens that follow those in the cache.
    Tensor forward(const Tensor& idx, KVCache::Pass& pass);

   private:
    // Of positions 0 to T - 1, in the compute dtype of x.
    const ops::RotaryTables& tables(int64_t T, const Tensor& x);
    ops::RotaryTables tables_;  // of the last length and dtype
  };

  LlamaConfig config;
  Body model = child("model", config);
  Linear lm_head = child("lm_head", config.n_embd, config.vocab_size, LinearOptions{.bias = false});

  // idx i64 (B, T), T <= block_size -> logits (B, T, V).
  Tensor forward(const Tensor& idx);
  // Mean cross-entropy in nats of targets i64 (B, T), where -100 is ignored.
  Tensor loss(const Tensor& idx, const Tensor& targets, std::source_location where = std::source_location::current());

  // ---- With a cache (causal_lm.h, generation.h)
  ModuleBase& module() override { return *this; }
  KVCacheOptions cache_options() const override;
  Tensor features(const Tensor& idx, KVCache& cache, std::span<const int64_t> counts) override;
  Tensor head(const Tensor& features) override { return lm_head(features); }
};

}  // namespace rondo::nn
#pragma GCC visibility pop
