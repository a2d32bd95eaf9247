// Llama (Touvron et al., "LLaMA: open and efficient foundation language models", 2023), with grouped-query attention
// (Ainslie et al., 2023), rotary positions (Su et al., 2021) and SwiGLU (Shazeer, 2020).
//
//   nn::Llama model({.vocab_size = 512, .block_size = 128, .n_layer = 4, .n_head = 8, .n_kv_head = 2, .n_embd = 256,
//                    .n_hidden = 688}, /*seed=*/1337);
//   model.loss(idx, targets).backward();
//
// With other options it is Qwen 2 and 3 or Mistral. Parameter names are those of published checkpoints.
#pragma once

#include "rondo/modules/generation/causal_lm.h"
#include "rondo/modules/layers/attention.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/modules/layers/next_token_loss.h"
#include "rondo/modules/layers/rms_norm.h"
#include "rondo/modules/layers/rope_scaling.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// down_proj(silu(gate_proj(x)) * up_proj(x)).
struct SwiGLU : Module<SwiGLU> {
  SwiGLU(int64_t n_embd, int64_t hidden, LinearOptions options = {.bias = false});
  Linear gate_proj;
  Linear up_proj;
  Linear down_proj;
  Tensor forward(const Tensor& x);  // (..., C) -> (..., C)
};

struct GroupedQueryAttentionOptions {
  bool causal = true;
  bool bias = false;                          // the projections have a bias
  std::optional<bool> o_bias = std::nullopt;  // o_proj has a bias; nullopt: as `bias`
  int64_t head_dim = 0;                       // D; 0: n_embd / n_head
  bool qk_norm = false;                       // RMSNorm over D of queries and keys, before their rotation (Qwen 3)
  double norm_eps = 1e-6;                     // eps of q_norm and k_norm
  int64_t window = 0;  // sliding window: a token sees the last `window` tokens, itself included; 0: all
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
  std::unique_ptr<RMSNorm> q_norm, k_norm;  // null without qk_norm
  int64_t head_dim() const { return options.head_dim > 0 ? options.head_dim : n_embd / n_head; }
  // (B, T, C) -> (B, T, C). `rotary`: tables for the rotation of queries and keys, (T, D/2), or (B T, D/2) if rows have
  // different positions; undefined: no rotation. `cached`: x continues what the cache holds (kv_cache.h). `first_key`:
  // first_keys() of packed rows, with the window of these options, or a bool mask. Undefined: each row is one sequence.
  Tensor forward(const Tensor& x, const ops::RotaryTables& rotary = {}, const KVLayer& cached = {},
                 const Tensor& first_key = {});
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
  RopeScaling rope_scaling = {};
  int64_t head_dim = 0;  // 0: n_embd / n_head
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  // A query sees this many positions, its own included; 0: all before it.
  int64_t sliding_window = 0;
  // True for the layers that have the window: one flag for each. Empty: all of them.
  std::vector<bool> window_layers = {};
  std::optional<int64_t> padding_idx = std::nullopt;  // embed_tokens gives this token's row no gradient

  int64_t rotary_dim() const { return head_dim > 0 ? head_dim : n_embd / n_head; }
  // Returns the length of the longest sequence, in tokens: block_size, or more if rope_scaling stretches the positions.
  int64_t max_length() const { return rope_scaling.max_length(block_size); }
  // True if the rates of rotary positions depend on the length of the sequence.
  bool rates_depend_on_length() const { return rope_scaling.kind == RopeScaling::Kind::kDynamic; }
  // Returns the sliding window of one layer, in tokens. 0: the layer sees everything.
  int64_t window(int64_t layer) const {
    return window_layers.empty() || window_layers.at(static_cast<size_t>(layer)) ? sliding_window : 0;
  }
};

// Returns the tables for positions start .. start + T - 1 (T, D/2), with the config's base and scaling. `length`: the
// length of the whole sequence; 0: start + T.
ops::RotaryTables rotary_tables(const LlamaConfig& config, int64_t T, int64_t start = 0, TensorOptions options = {},
                                int64_t length = 0);

struct LlamaBlock : Module<LlamaBlock> {
  LlamaBlock(int64_t n_embd, int64_t n_head, int64_t n_kv_head, int64_t hidden, double norm_eps = 1e-5);
  LlamaBlock(const LlamaConfig& config, int64_t layer);
  RMSNorm input_layernorm;
  GroupedQueryAttention self_attn;
  RMSNorm post_attention_layernorm;
  SwiGLU mlp;
  // (B, T, C) -> (B, T, C), with the operands of GroupedQueryAttention.
  Tensor forward(const Tensor& x, const ops::RotaryTables& rotary = {}, const KVLayer& cached = {},
                 const Tensor& first_key = {});
};

struct Llama : Module<Llama>, CausalLM {
  // Weights start N(0, 0.02), gains 1; the same for the same seed on any machine.
  explicit Llama(LlamaConfig config, uint64_t seed = 0, const SkipInit& skip = SkipInit());

  // Everything below the output layer: a module of its own, as in published names.
  struct Body : Module<Body> {
    explicit Body(const LlamaConfig& config);
    LlamaConfig config;
    Embedding embed_tokens;
    ModuleList<LlamaBlock> layers;
    RMSNorm norm;
    // i64 (B, T) -> (B, T, C). mask bool (B, T), true = a real token: no token attends to padding, but padding counts
    // in positions. Undefined: all are real. With a mask, each row is one sequence, and `positions` is undefined.
    Tensor forward(const Tensor& idx, const Tensor& positions = {}, const Tensor& mask = {});
    // As above, for the tokens of `pass`, which follow those in the cache.
    Tensor forward(const Tensor& idx, KVCache::Pass& pass);

   private:
    // Returns the tables for positions 0 to T - 1, in the dtype in which x is computed.
    const ops::RotaryTables& tables(int64_t T, const Tensor& x);
    // Returns the tables for the new tokens of a pass: (B T, D/2).
    ops::RotaryTables tables(KVCache::Pass& pass, const Tensor& x);
    ops::RotaryTables tables_;  // cache: the tables of the last T and dtype
  };

  LlamaConfig config;
  Body model = child("model", config);
  Linear lm_head = child("lm_head", config.n_embd, config.vocab_size, LinearOptions{.bias = false});

  // idx i64 (B, T), T <= config.max_length() -> logits (B, T, V). positions i64 (B, T), below T: several sequences in a
  // row, each with positions from 0, do not see each other (first_keys() in attention.h). Undefined: each row is one
  // sequence.
  Tensor forward(const Tensor& idx, const Tensor& positions = {});
  // Returns the mean cross-entropy in nats of targets i64 (B, T), where -100 is ignored.
  Tensor loss(const Tensor& idx, const Tensor& targets, std::source_location where = std::source_location::current());
  // As above, for packed rows (see forward): the mean over the targets of all sequences, which do not see each other.
  Tensor loss(const Tensor& idx, const Tensor& targets, const Tensor& positions,
              std::source_location where = std::source_location::current());

  // ---- With a cache (causal_lm.h, generation.h)
  ModuleBase& module() override { return *this; }
  KVCacheOptions cache_options() const override;
  Tensor features(const Tensor& idx, KVCache& cache, std::span<const int64_t> counts) override;
  Tensor head(const Tensor& features) override { return lm_head(features); }
};

}  // namespace rondo::nn
#pragma GCC visibility pop
