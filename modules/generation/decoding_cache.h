// The key-value cache that a call of generate() decodes with. This header is not installed; users include generation.h.
#pragma once

#include <span>
#include <vector>

#include "rondo/modules/generation/causal_lm.h"
#include "rondo/modules/generation/generation_options.h"

namespace rondo::nn {

// Returns the options of a cache for these prompts, with num_beams rows for each.
KVCacheOptions decoding_cache(const CausalLM& model, std::span<const std::vector<int64_t>> prompts,
                              const GenerationOptions& options);

}  // namespace rondo::nn
