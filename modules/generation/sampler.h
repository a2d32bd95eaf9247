// Draws a token from logits. The steps and their order are those of GenerationOptions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace rondo::nn {

struct SamplingOptions {
  double repetition_penalty = 1.0;
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0;
};
// Throws Error, which names the option, for a value out of its range.
void check(const SamplingOptions& options);

struct TokenProbability {
  int64_t token;
  double probability;
};

class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options) { check(options); }
  // Returns the tokens that may be drawn after `seen`. Overwrites logits (V). Probabilities sum to 1; their order is
  // that in which draw() walks them. Throws Error if all logits are -inf, or one is NaN or +inf.
  std::span<const TokenProbability> candidates(std::span<float> logits, std::span<const int64_t> seen);
  // Returns one of the candidates(), chosen by `uniform` in (0, 1).
  int64_t draw(std::span<float> logits, std::span<const int64_t> seen, double uniform);
  bool greedy() const { return options_.temperature == 0; }

 private:
  SamplingOptions options_;
  std::vector<TokenProbability> candidates_;  // a member, so that each token reuses the memory of V entries
};

}  // namespace rondo::nn
