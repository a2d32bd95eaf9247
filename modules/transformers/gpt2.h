// GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019).
//
//   nn::GPT2 model({.vocab_size = 65, .block_size = 64, .n_layer = 4, .n_head = 4, .n_embd = 128}, /*seed=*/1337);
//   model.loss(idx, targets).backward();
//
// Parameter names are those of published checkpoints, without the prefix "transformer.". Weights are (out, in). The
// output layer is tied to wte: both are one parameter.
#pragma once

#include "rondo/modules/generation/causal_lm.h"
#include "rondo/modules/layers/attention.h"
#include "rondo/modules/layers/next_token_loss.h"

#pragma GCC visibility push(default)
namespace rondo {
class Generator;
}

namespace rondo::nn {

// The defaults are GPT-2 124M.
struct GPT2Config {
  int64_t vocab_size = 50257;
  int64_t block_size = 1024;
  int64_t n_layer = 12;
  int64_t n_head = 12;
  int64_t n_embd = 768;
  double dropout = 0;
  bool bias = true;
  // loss() computes logits in chunks if they have more elements than this, in training and evaluation.
  int64_t whole_logits = kWholeLogits;
  int64_t n_inner = 0;                                // hidden units of each MLP; 0: 4 n_embd
  std::optional<double> attn_dropout = std::nullopt;  // for the attention weights; nullopt: dropout
  std::optional<double> embd_dropout = std::nullopt;  // for the embeddings; nullopt: dropout
  double norm_eps = 1e-5;
  ops::GeluKind gelu = ops::GeluKind::kTanh;
  // Each block also attends to an encoder's output, whose width is n_embd: transformers' add_cross_attention.
  bool cross_attention = false;
};

struct GPT2 : Module<GPT2>, CausalLM {
  // Weights start N(0, 0.02), those of residual projections N(0, 0.02 / sqrt(2 n_layer)), biases 0. The same seed gives
  // the same weights on any machine and with any number of threads. Do not pass `skip`: its default keeps the layers
  // from initialising weights that this constructor initialises itself.
  explicit GPT2(GPT2Config config, uint64_t seed = 0, const SkipInit& skip = SkipInit());

  GPT2Config config;
  Embedding wte = child("wte", config.vocab_size, config.n_embd);
  Embedding wpe = child("wpe", config.block_size, config.n_embd);
  Dropout drop = child("drop", config.embd_dropout.value_or(config.dropout));
  ModuleList<TransformerBlock> h = child("h", config.n_layer, config.n_embd, config.n_head,
                                         TransformerBlockOptions{.bias = config.bias,
                                                                 .dropout = config.dropout,
                                                                 .attn_dropout = config.attn_dropout,
                                                                 .hidden = config.n_inner,
                                                                 .norm_eps = config.norm_eps,
                                                                 .gelu = config.gelu,
                                                                 .cross_attention = config.cross_attention});
  LayerNorm ln_f = child("ln_f", config.n_embd, LayerNormOptions{.eps = config.norm_eps, .bias = config.bias});

  // idx i64 (B, T), T <= block_size -> logits (B, T, V). positions i64 (B, T), below T: several sequences in a row,
  // each with positions from 0, do not see each other (first_keys() in attention.h); undefined: each row is one
  // sequence. encoded (B, S, C): what cross-attention attends to; required if the model has cross-attention. mask bool
  // (B, T), true = a real token: no token sees padding; not together with positions. The results of a token that sees
  // nothing have no meaning.
  Tensor forward(const Tensor& idx, const Tensor& positions = {}, const Tensor& encoded = {}, const Tensor& mask = {});
  // Returns the input of the output layer, after ln_f: (B, T) -> (B, T, C).
  Tensor features(const Tensor& idx, const Tensor& positions = {}, const Tensor& encoded = {}, const Tensor& mask = {});
  // Returns the mean cross-entropy in nats. targets i64 (B, T); positions with target -100 are ignored.
  Tensor loss(const Tensor& idx, const Tensor& targets, std::source_location where = std::source_location::current());
  // As above, for packed rows (see forward): the mean over the targets of all sequences, which do not see each other.
  Tensor loss(const Tensor& idx, const Tensor& targets, const Tensor& positions,
              std::source_location where = std::source_location::current());

  // ---- With a cache (causal_lm.h, generation.h)
  ModuleBase& module() override { return *this; }
  KVCacheOptions cache_options() const override;
  Tensor features(const Tensor& idx, KVCache& cache, std::span<const int64_t> counts) override;
  Tensor head(const Tensor& features) override;
  // Runs nn::generate() for prompts of one length: appends max_new_tokens sampled tokens to each row of idx (B, T) ->
  // (B, T + max_new_tokens). The model sees the last block_size tokens. temperature 0 takes the most likely token.
  // top_k 0 samples from all tokens. A null generator is the default one (random.h).
  Tensor generate(const Tensor& idx, int64_t max_new_tokens, double temperature = 1.0, int64_t top_k = 0,
                  Generator* generator = nullptr);
};

}  // namespace rondo::nn
#pragma GCC visibility pop
