// CausalLM: the interface of language models for generation (generation.h). GPT2 and Llama are CausalLMs; a model of
// your own becomes one by these functions:
//
//   struct MyModel : nn::Module<MyModel>, nn::CausalLM {
//     nn::ModuleBase& module() override { return *this; }
//     nn::KVCacheOptions cache_options() const override { return {.layers = 4, .kv_heads = 2, ...}; }
//     Tensor features(const Tensor& idx, nn::KVCache& cache, std::span<const int64_t> counts) override;
//     Tensor head(const Tensor& features) override { return lm_head(features); }
//   };
//
// `features` makes a KVCache::Pass and hands pass.layer(i) to the attention of layer i. A model that also attends to an
// encoder's output sets encoded_width in its options, and hands pass.layer(i) to its CrossAttention, too (attention.h).
#pragma once

#include <span>

#include "rondo/modules/layers/kv_cache.h"
#include "rondo/modules/module.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

class CausalLM {
 public:
  virtual ~CausalLM() = default;

  virtual ModuleBase& module() = 0;
  // Returns the options of a cache for one row with the model's longest sequence, in the dtype of its weights or
  // autocast's.
  virtual KVCacheOptions cache_options() const = 0;
  // Computes the output layer's input for T new tokens of each row: idx i64 (B, T) -> (B, T, C). The first counts[b]
  // tokens of row b are real, the others are padding; no counts: all are real. Appends the real ones to the cache.
  virtual Tensor features(const Tensor& idx, KVCache& cache, std::span<const int64_t> counts) = 0;
  // Applies the output layer: (..., C) -> (..., V).
  virtual Tensor head(const Tensor& features) = 0;

  // Returns the logits of the token that follows each new token: (B, T) -> (B, T, V).
  Tensor cached_logits(const Tensor& idx, KVCache& cache, std::span<const int64_t> counts = {});
  // Returns the logits of the token that follows the last real token of each row: (B, T) -> (B, V). Computes no other
  // logits.
  Tensor next_logits(const Tensor& idx, KVCache& cache, std::span<const int64_t> counts = {});

 protected:
  // Throws Error, in the name of `model`, unless idx is i64 (B, T) with the cache's B, and the cache has
  // the options of cache_options(), except for the batch, the dtype, and a length that may be shorter.
  void check_cached_call(const char* model, const Tensor& idx, const KVCache& cache) const;
  // Returns the dtype in which attention computes if the model's weights have the dtype `weights`.
  static DType cached_dtype(DType weights);
};

}  // namespace rondo::nn
#pragma GCC visibility pop
