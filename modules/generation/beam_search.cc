#include "rondo/modules/generation/beam_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "rondo/modules/generation/decoding_cache.h"
#include "rondo/runtime/base/floating_point_scope.h"

namespace rondo::nn {
namespace {

// A text that the search follows: the tokens of the prompt and the new ones, and the sum of the new tokens' log
// probabilities.
struct Beam {
  std::vector<int64_t> tokens;
  double score;
};

struct Ended {
  std::vector<int64_t> tokens;  // the new ones
  double score;                 // the score after the length penalty
  FinishReason reason;
};

// A beam and one token more.
struct Candidate {
  double score;
  size_t beam;
  int64_t token;
};
// True if `a` is better than `b`. Among equal scores the first beam and then the lowest token win, so that the choice
// is the same on every machine.
bool better(const Candidate& a, const Candidate& b) {
  if (a.score != b.score) return a.score > b.score;
  return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
}

// Adds the candidates that continue `beam` to `best`, a heap of at most `most` candidates whose front is the worst one.
// The logits are overwritten.
void add_candidates(std::span<float> logits, const Beam& beam, size_t number, double penalty, size_t most,
                    std::vector<Candidate>& best) {
  const float highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - highest);
  const double normaliser = highest + std::log(sum);
  if (!std::isfinite(normaliser))
    throw Error(absl::StrCat("generate: the logits of a row have no softmax; the largest is ", highest,
                             "; the weights have diverged, or a value overflows in this dtype"));
  const auto add = [&](int64_t token, double log_probability) {
    const Candidate candidate = {beam.score + log_probability, number, token};
    if (best.size() < most) best.push_back(candidate);
    else if (better(candidate, best.front())) {
      std::pop_heap(best.begin(), best.end(), better);
      best.back() = candidate;
    } else {
      return;
    }
    std::push_heap(best.begin(), best.end(), better);
  };
  // The penalty applies to log probabilities. They are never positive, so it multiplies them.
  std::vector<int64_t> seen;
  if (penalty != 1.0) {
    seen = beam.tokens;
    std::sort(seen.begin(), seen.end());
  }
  for (int64_t token = 0; token < std::ssize(logits); ++token) {
    const double log_probability = logits[static_cast<size_t>(token)] - normaliser;
    add(token, std::binary_search(seen.begin(), seen.end(), token) ? log_probability * penalty : log_probability);
  }
}

// The beams of one prompt.
class Search {
 public:
  Search(const std::vector<int64_t>& prompt, const GenerationOptions& options)
      : options_(options), prompt_(prompt.size()), running_(static_cast<size_t>(options.num_beams), {prompt, kNever}) {
    running_[0].score = 0;  // the other beams are copies of the first
  }
  bool active() const { return active_; }
  const std::vector<Beam>& running() const { return running_; }

  // Adds one token to each beam. Overwrites logits (num_beams V). `end`: the reason why all texts end with this token,
  // if they do. Returns for each new beam which old one it continues.
  std::vector<size_t> step(std::span<float> logits, std::optional<FinishReason> end) {
    const FloatingPointScope floating_point;
    const size_t n = running_.size(), V = logits.size() / n;
    // Enough candidates that n of them continue even if every stop token of every beam is among the candidates.
    const size_t most = std::max<size_t>(2, 1 + options_.stop_tokens.size()) * n;
    std::vector<Candidate> best;
    for (size_t i = 0; i < n; ++i)
      add_candidates(logits.subspan(i * V, V), running_[i], i, options_.repetition_penalty, most, best);
    std::sort(best.begin(), best.end(), better);
    std::vector<Beam> next;
    std::vector<size_t> parents;
    for (size_t rank = 0; rank < best.size(); ++rank) {
      const Candidate& c = best[rank];
      Beam beam = {running_[c.beam].tokens, c.score};
      beam.tokens.push_back(c.token);
      const bool stops = std::find(options_.stop_tokens.begin(), options_.stop_tokens.end(), c.token) !=
                         options_.stop_tokens.end();
      if (!stops && !end) {
        if (next.size() == n) continue;
        next.push_back(std::move(beam));
        parents.push_back(c.beam);
      } else if (rank < n && c.score > kNever / 2) {  // does not continue a copy of the first beam
        add_ended(beam, stops ? FinishReason::kStopToken : *end);
      }
    }
    const auto made = static_cast<double>(running_[0].tokens.size() + 1 - prompt_);
    const bool full = ended_.size() == n;
    active_ = next.size() == n && !(full && options_.early_stopping) &&
              (!full || next[0].score / std::pow(made, options_.length_penalty) > ended_.back().score);
    if (next.size() == n) running_ = std::move(next);
    return parents;
  }

  Generation result() {
    Generation out;
    out.tokens = std::move(ended_.front().tokens);
    out.reason = ended_.front().reason;
    if (options_.decode != nullptr) out.text = options_.decode(out.tokens);
    return out;
  }

 private:
  static constexpr double kNever = -1e9;

  void add_ended(const Beam& beam, FinishReason reason) {
    Ended ended = {{beam.tokens.begin() + static_cast<std::ptrdiff_t>(prompt_), beam.tokens.end()}, 0, reason};
    ended.score = beam.score / std::pow(static_cast<double>(ended.tokens.size()), options_.length_penalty);
    const auto at = std::find_if(ended_.begin(), ended_.end(), [&](const Ended& e) { return e.score < ended.score; });
    ended_.insert(at, std::move(ended));
    if (ended_.size() > running_.size()) ended_.pop_back();
  }

  const GenerationOptions& options_;
  const size_t prompt_;        // tokens of the prompt
  std::vector<Beam> running_;  // the best first
  std::vector<Ended> ended_;   // the best first, at most num_beams
  bool active_ = true;
};

}  // namespace

std::vector<Generation> beam_search(CausalLM& model, std::span<const std::vector<int64_t>> prompts,
                                    const GenerationOptions& options) {
  KVCache cache(decoding_cache(model, prompts, options));
  const auto beams = static_cast<size_t>(options.num_beams);
  std::vector<Search> searches;
  for (const std::vector<int64_t>& prompt : prompts) searches.emplace_back(prompt, options);
  const auto rows = std::ssize(prompts) * options.num_beams;
  for (int64_t made = 1;; ++made) {
    // Row i * beams + k is beam k of prompt i.
    int64_t T = 1;
    std::vector<int64_t> counts;
    for (size_t i = 0; i < searches.size(); ++i) {
      const int64_t count = !searches[i].active() ? 0 : made == 1 ? std::ssize(prompts[i]) : 1;
      T = std::max(T, count);
      counts.insert(counts.end(), beams, count);
    }
    std::vector<int64_t> idx(static_cast<size_t>(rows * T), 0);
    for (size_t row = 0; row < counts.size(); ++row) {
      const std::vector<int64_t>& tokens = searches[row / beams].running()[row % beams].tokens;
      std::copy(tokens.end() - counts[row], tokens.end(), idx.begin() + static_cast<int64_t>(row) * T);
    }
    std::vector<float> logits =
        model.next_logits(Tensor::from(idx, {rows, T}, cache.options().device), cache, counts).to_vector<float>();
    const size_t V = logits.size() / counts.size();
    std::vector<int64_t> order(counts.size());  // which row each row continues
    std::iota(order.begin(), order.end(), 0);
    bool reorders = false;
    for (size_t i = 0; i < searches.size(); ++i) {
      if (!searches[i].active()) continue;
      const bool is_full = cache.lengths()[i * beams] == cache.options().max_length;
      const std::optional<FinishReason> end = made == options.max_new_tokens ? std::optional(FinishReason::kMaxTokens)
                                              : is_full                      ? std::optional(FinishReason::kModelFull)
                                                                             : std::nullopt;
      const std::vector<size_t> parents = searches[i].step(std::span(logits).subspan(i * beams * V, beams * V), end);
      for (size_t k = 0; k < parents.size(); ++k) {
        order[i * beams + k] = static_cast<int64_t>(i * beams + parents[k]);
        reorders |= parents[k] != k;
      }
    }
    if (std::none_of(searches.begin(), searches.end(), [](const Search& search) { return search.active(); })) break;
    if (reorders) cache.reorder(order);
  }
  std::vector<Generation> results;
  for (Search& search : searches) results.push_back(search.result());
  return results;
}

}  // namespace rondo::nn
