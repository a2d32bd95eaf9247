// GenerationOptions::num_beams. Not installed: generation.h.
#pragma once

#include <span>
#include <vector>

#include "rondo/modules/generation/causal_lm.h"
#include "rondo/modules/generation/generation_options.h"

namespace rondo::nn {

// generate() with num_beams above 1, for options that it has checked, in evaluation mode and without gradients.
std::vector<Generation> beam_search(CausalLM& model, std::span<const std::vector<int64_t>> prompts,
                                    const GenerationOptions& options);

}  // namespace rondo::nn
