// The cache that a call of generate() decodes with. Not installed: generation.h.
#pragma once

#include <span>
#include <vector>

#include "rondo/modules/generation/causal_lm.h"
#include "rondo/modules/generation/generation_options.h"

namespace rondo::nn {

// For these prompts and num_beams rows of each.
KVCacheOptions decoding_cache(const CausalLM& model, std::span<const std::vector<int64_t>> prompts,
                              const GenerationOptions& options);

}  // namespace rondo::nn
