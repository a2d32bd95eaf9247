// Generates text with a causal language model, token by token, with a KVCache.
//
//   const nn::GenerationOptions options = {.max_new_tokens = 100, .temperature = 0.8, .top_p = 0.95};
//   nn::Generation text = nn::generate(model, tokenizer.encode("Once upon a time"), options);
//   puts(tokenizer.decode(text.tokens).c_str());
//
// Runs in eval mode and without gradients, with the weights and adapters that the model has now, also between training
// steps. Afterwards every module is in the mode that it was in, even if a callback throws. Compiled blocks
// (compile::compile_regions) read the prompt eagerly and run compiled for each further token: Note [Decode steps] in
// kv_cache.h.
//
// Prompts of one batch may differ in length (padding: kv_cache.h). A row's tokens depend on the rows beside it only
// through the rounding of products. Sampling is deterministic: row b draws its n-th token with number b of the
// generator's n-th offset.
//
// Thread safety: a model generates on one thread at a time; different models may on different threads (Note [Threads]
// in runtime/base/parallel.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rondo/modules/generation/causal_lm.h"
#include "rondo/modules/generation/generation_options.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// Generates one result for each prompt. Throws Error if a prompt is empty or has more tokens than the model has
// positions (unless options.slide), if an option is out of range, or if all logits of a row are -inf or one is NaN or
// +inf.
std::vector<Generation> generate(CausalLM& model, std::span<const std::vector<int64_t>> prompts,
                                 const GenerationOptions& options = {});
Generation generate(CausalLM& model, const std::vector<int64_t>& prompt, const GenerationOptions& options = {});
// As above, for one prompt in the ids that tokenizers return.
Generation generate(CausalLM& model, std::span<const int32_t> prompt, const GenerationOptions& options = {});

}  // namespace rondo::nn
#pragma GCC visibility pop
