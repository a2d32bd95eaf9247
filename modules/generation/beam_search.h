// Beam search: generate() with GenerationOptions::num_beams above 1. This header is not installed; users include
// generation.h.
#pragma once

#include <span>
#include <vector>

#include "rondo/modules/generation/causal_lm.h"
#include "rondo/modules/generation/generation_options.h"

namespace rondo::nn {

// Runs generate() for num_beams above 1. REQUIRES: generate() has checked the options; the model is in evaluation mode;
// no gradients are recorded.
std::vector<Generation> beam_search(CausalLM& model, std::span<const std::vector<int64_t>> prompts,
                                    const GenerationOptions& options);

}  // namespace rondo::nn
