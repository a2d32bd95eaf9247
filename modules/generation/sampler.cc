#include "rondo/modules/generation/sampler.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/hash_map.h"

namespace rondo::nn {

void check(const SamplingOptions& o) {
  const FloatingPointScope floating_point;
  const auto require = [](bool holds, const char* rule, double got) {
    if (!holds) throw Error(absl::StrCat("generate: ", rule, ", got ", got));
  };
  require(o.repetition_penalty > 0 && std::isfinite(o.repetition_penalty), "repetition_penalty must be positive",
          o.repetition_penalty);
  require(o.temperature >= 0 && std::isfinite(o.temperature), "temperature must not be negative", o.temperature);
  require(o.top_k >= 0, "top_k must not be negative", static_cast<double>(o.top_k));
  require(o.top_p >= 0 && o.top_p <= 1, "top_p must be from 0 to 1", o.top_p);
  require(o.min_p >= 0 && o.min_p <= 1, "min_p must be from 0 to 1", o.min_p);
}

namespace {

// True if `a` comes before `b`: the most likely token first, and among equal ones the lowest, so that the choice is the
// same on every machine. Before the softmax, `probability` holds the logit.
bool before(const TokenProbability& a, const TokenProbability& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.token < b.token;
}

// Keeps the most likely tokens that together reach `share` of the whole, in order. Sorts no more than it needs: usually
// a few hundred of 50,000 tokens.
void keep_nucleus(std::vector<TokenProbability>& tokens, double share) {
  double sum = 0;
  size_t sorted = 0, kept = 0;
  while (kept < tokens.size() && (kept == 0 || sum < share)) {
    if (kept == sorted) {
      sorted = std::min(tokens.size(), std::max<size_t>(64, 4 * sorted));
      const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(kept);
      std::partial_sort(from, tokens.begin() + static_cast<std::ptrdiff_t>(sorted), tokens.end(), before);
    }
    sum += tokens[kept++].probability;
  }
  tokens.resize(kept);
}

void normalise(std::vector<TokenProbability>& tokens) {
  double sum = 0;
  for (const TokenProbability& t : tokens) sum += t.probability;
  for (TokenProbability& t : tokens) t.probability /= sum;
}

}  // namespace

std::span<const TokenProbability> Sampler::candidates(std::span<float> logits, std::span<const int64_t> seen) {
  const FloatingPointScope floating_point;
  if (options_.repetition_penalty != 1.0) {
    const auto penalty = static_cast<float>(options_.repetition_penalty);
    HashSet<int64_t> penalised;
    for (const int64_t token : seen)
      if (token >= 0 && token < static_cast<int64_t>(logits.size()) && penalised.insert(token).second) {
        float& logit = logits[static_cast<size_t>(token)];
        logit = logit > 0 ? logit / penalty : logit * penalty;
      }
  }
  std::vector<TokenProbability>& kept = candidates_;
  kept.clear();
  double highest = -INFINITY;
  int64_t best = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double logit = logits[i];
    if (std::isnan(logit) || logit == INFINITY)
      throw Error(absl::StrCat("generate: the logit of token ", i, " is ", logit,
                               "; the weights have diverged, or a value overflows in this dtype"));
    if (logit > highest) highest = logit, best = static_cast<int64_t>(i);
  }
  if (best < 0) throw Error("generate: the logits of all tokens are -inf, so none can be chosen");
  if (greedy()) {
    kept.push_back({best, 1.0});
    return kept;
  }
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] != -INFINITY) kept.push_back({static_cast<int64_t>(i), logits[i]});
  if (const auto k = static_cast<size_t>(options_.top_k); k > 0 && k < kept.size()) {
    std::nth_element(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(k), kept.end(), before);
    kept.resize(k);
    std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.token < b.token; });
  }
  for (TokenProbability& t : kept) t.probability = std::exp((t.probability - highest) / options_.temperature);
  normalise(kept);
  if (options_.top_p < 1) {
    keep_nucleus(kept, options_.top_p);
    normalise(kept);
  }
  if (options_.min_p > 0) {
    double most = 0;
    for (const TokenProbability& t : kept) most = std::max(most, t.probability);
    std::erase_if(kept, [&](const TokenProbability& t) { return t.probability < options_.min_p * most; });
    normalise(kept);
  }
  return kept;
}

int64_t Sampler::draw(std::span<float> logits, std::span<const int64_t> seen, double uniform) {
  const FloatingPointScope floating_point;
  const std::span<const TokenProbability> tokens = candidates(logits, seen);
  double left = uniform;
  for (const TokenProbability& t : tokens)
    if ((left -= t.probability) < 0) return t.token;
  return tokens.back().token;
}

}  // namespace rondo::nn
