// Scaling of rotary positions for sequences longer than in a model's pretraining: the kinds that config.json names.
//
//   const nn::RopeScaling yarn = {.kind = nn::RopeScaling::Kind::kYarn, .factor = 4, .original_positions = 32768};
//   nn::Llama model({.block_size = 131072, .rope_scaling = yarn});
//
// Every kind keeps the pairs of rotary positions and changes their rates, the radians that a pair turns for each
// position. Without scaling, the rate of pair i of D / 2 is base^(-2 i / D).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rondo/runtime/ops/ops.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

struct RopeScaling {
  enum class Kind {
    kNone,
    // Divides every rate by factor (Chen et al., "Extending context window of large language models via positional
    // interpolation", 2023).
    kLinear,
    // Divides low rates by factor and keeps high rates, with a ramp between them (Llama 3.1's model code).
    kLlama3,
    // As kLlama3, but the ramp runs over the numbers of the pairs, and queries and keys are multiplied by an attention
    // factor (Peng et al., "YaRN: efficient context window extension of large language models", 2023).
    kYarn,
    // A larger base for sequences longer than the model's positions ("dynamic NTK", same paper, appendix B). The rates
    // depend on the length of the call's sequence, and with a KVCache on the length of each row so far. Cached keys
    // keep the rates of their own call, as in transformers. One difference: here the rates of a row depend on no other
    // row and on no earlier call. In transformers they depend on the longest row of the batch, and after a call that
    // was longer than the model's positions, later calls keep its rates unless they are longer still, or shorter than
    // the model's positions.
    kDynamic,
  };
  Kind kind = Kind::kNone;
  double factor = 1;
  // kLlama3: the wave length of a pair is 2 pi / rate, in positions. A pair with a wave length above
  // original_positions / low_freq_factor has its rate divided by factor. A pair with a wave length below
  // original_positions / high_freq_factor keeps its rate.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_positions = 8192;  // kLlama3, kYarn: positions of the pretraining
  // kYarn: pairs that turn more than beta_fast times in original_positions keep their rate. Pairs that turn less than
  // beta_slow times have their rate divided by factor. The ramp's ends are whole pairs if `truncate`.
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;
  std::optional<double> attention_factor = std::nullopt;  // kYarn: nullopt: 0.1 ln(factor) + 1, or 1 for factor <= 1

  // Returns the length of the longest sequence of a model with `positions` (max_position_embeddings): kLinear and
  // kDynamic reach positions * factor, kYarn original_positions * factor if that is more.
  int64_t max_length(int64_t positions) const;
};

// Returns tables (T, D/2) for positions start .. start + T - 1 of a model with `positions` positions. `length`: the
// length of the whole sequence, for kDynamic; 0: start + T. Throws Error if D is odd or not positive, or not above 2
// for kDynamic.
ops::RotaryTables rotary_tables(const RopeScaling& scaling, double base, int64_t positions, int64_t T, int64_t D,
                                int64_t start = 0, TensorOptions options = {}, int64_t length = 0);

}  // namespace rondo::nn
#pragma GCC visibility pop
