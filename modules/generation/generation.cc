#include "rondo/modules/generation/generation.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/modules/generation/beam_search.h"
#include "rondo/modules/generation/decoding_cache.h"
#include "rondo/modules/generation/sampler.h"
#include "rondo/modules/generation/stop_strings.h"
#include "rondo/modules/mode_scope.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/random/random.h"

namespace rondo::nn {
namespace {

// One prompt and what follows it.
struct Row {
  std::vector<int64_t> tokens;  // prompt and new ones
  StopStrings stops;
  bool active = true;
  Generation result = {};
  void end(FinishReason reason) {
    active = false;
    result.reason = reason;
  }
};

void check(std::span<const std::vector<int64_t>> prompts, const GenerationOptions& options, int64_t positions) {
  if (options.encoded.defined() && (options.encoded.rank() != 3 || options.encoded.size(0) != std::ssize(prompts)))
    throw Error(absl::StrCat("generate: encoded must be (B, S, C) with B = ", prompts.size(), " prompts, got ",
                             to_string(options.encoded.sizes())));
  if (options.max_new_tokens < 0)
    throw Error(absl::StrCat("generate: max_new_tokens must not be negative, got ", options.max_new_tokens));
  if (!options.stop_strings.empty() && options.decode == nullptr)
    throw Error("generate: stop_strings need `decode`, which makes text of tokens");
  for (const std::string& stop : options.stop_strings)
    if (stop.empty()) throw Error("generate: a stop string is empty");
  for (const int64_t stop : options.stop_tokens)
    if (stop < 0)
      throw Error(absl::StrCat("generate: stop token ", stop, " is no token; leave it out if there is none"));
  constexpr int64_t kMostBeams = 1 << 16;
  if (options.num_beams < 1 || options.num_beams > kMostBeams)
    throw Error(absl::StrCat("generate: num_beams must be from 1 to ", kMostBeams, ", got ", options.num_beams));
  if (!std::isfinite(options.length_penalty))
    throw Error(absl::StrCat("generate: length_penalty must be finite, got ", options.length_penalty));
  if (options.num_beams > 1 &&
      (options.temperature != 0 || !options.stop_strings.empty() || options.on_token != nullptr || options.slide))
    throw Error(
        "generate: num_beams above 1 needs temperature 0, and takes neither stop_strings nor on_token nor slide");
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty())
      throw Error(absl::StrCat("generate: prompt ", i,
                               " is empty; begin with a token, for example the model's "
                               "beginning of text"));
    if (static_cast<int64_t>(prompts[i].size()) > positions && !options.slide)
      throw Error(absl::StrCat("generate: prompt ", i, " has ", prompts[i].size(), " tokens, but the model has ",
                               positions, " positions; shorten it, or set `slide` to use its end only"));
  }
}

// The rows of one call, decoded together.
class Decoding {
 public:
  Decoding(CausalLM& model, Sampler sampler, std::span<const std::vector<int64_t>> prompts,
           const GenerationOptions& options)
      : model_(model),
        options_(options),
        sampler_(std::move(sampler)),
        random_(sampler_.greedy()              ? nullptr
                : options.generator != nullptr ? options.generator
                                               : &default_generator()),
        cache_(decoding_cache(model, prompts, options)),
        counts_(prompts.size()) {
    for (const std::vector<int64_t>& prompt : prompts)
      rows_.push_back({.tokens = prompt, .stops = StopStrings(options.decode, options.stop_strings)});
  }

  std::vector<Generation> run() {
    for (int64_t made = 1; step(made == options_.max_new_tokens); ++made) {
    }
    std::vector<Generation> results;
    for (Row& row : rows_) {
      if (options_.decode != nullptr && row.result.reason != FinishReason::kStopString)
        row.result.text = options_.decode(row.result.tokens);
      results.push_back(std::move(row.result));
    }
    return results;
  }

 private:
  int64_t max_length() const { return cache_.options().max_length; }

  // Adds one token to each active row. Returns false if no row is active any more.
  bool step(bool is_last) {
    const Tensor idx = pending();
    std::vector<float> logits = model_.next_logits(idx, cache_, counts_).to_vector<float>();
    const size_t V = logits.size() / rows_.size();
    const uint64_t offset = random_ == nullptr ? 0 : random_->next_offset();
    bool go_on = true;
    for (size_t b = 0; b < rows_.size() && go_on; ++b)
      if (rows_[b].active) go_on = extend(b, std::span(logits).subspan(b * V, V), offset);
    bool full = false, any = false;
    for (size_t b = 0; b < rows_.size(); ++b) {
      Row& row = rows_[b];
      if (!row.active) continue;
      if (!go_on) row.end(FinishReason::kCancelled);
      else if (is_last) row.end(FinishReason::kMaxTokens);
      else if (cache_.lengths()[b] == max_length() && !options_.slide) row.end(FinishReason::kModelFull);
      full = full || (row.active && cache_.lengths()[b] == max_length());
      any = any || row.active;
    }
    if (any && full) cache_.reset();  // pending() then gives the last tokens of each row
    return any;
  }

  // Returns the tokens of each active row that the cache does not hold, at most the last max_length() of them, padded
  // to one length.
  Tensor pending() {
    int64_t T = 1;
    for (size_t b = 0; b < rows_.size(); ++b) {
      const auto size = std::ssize(rows_[b].tokens), held = cache_.lengths()[b];
      counts_[b] = !rows_[b].active ? 0 : held == 0 ? std::min(size, max_length()) : 1;
      T = std::max(T, counts_[b]);
    }
    const auto B = std::ssize(rows_);
    std::vector<int64_t> idx(static_cast<size_t>(B * T), 0);
    for (size_t b = 0; b < rows_.size(); ++b)
      std::copy(rows_[b].tokens.end() - counts_[b], rows_[b].tokens.end(), idx.begin() + static_cast<int64_t>(b) * T);
    return Tensor::from(idx, {B, T}, cache_.options().device);
  }

  // Chooses and handles the next token of a row. Returns false if the caller has ended the generation.
  bool extend(size_t b, std::span<float> logits, uint64_t offset) {
    Row& row = rows_[b];
    const double uniform = random_ == nullptr ? 0.5 : uniform_from_bits(philox(random_->seed(), b, offset)[0]);
    const int64_t token = sampler_.draw(logits, row.tokens, uniform);
    row.tokens.push_back(token);
    row.result.tokens.push_back(token);
    const bool go_on = options_.on_token == nullptr || options_.on_token(static_cast<int64_t>(b), token);
    if (std::find(options_.stop_tokens.begin(), options_.stop_tokens.end(), token) != options_.stop_tokens.end())
      row.end(FinishReason::kStopToken);
    if (options_.stop_strings.empty() || !row.active) return go_on;
    if (std::optional<std::string> text = row.stops.text_before_stop(row.result.tokens)) {
      row.result.text = std::move(*text);
      row.end(FinishReason::kStopString);
    }
    return go_on;
  }

  CausalLM& model_;
  const GenerationOptions& options_;
  Sampler sampler_;
  Generator* const random_;  // null: greedy, which draws nothing
  KVCache cache_;
  std::vector<Row> rows_;
  std::vector<int64_t> counts_;  // by row: how many tokens are fed next
};

}  // namespace

std::vector<Generation> generate(CausalLM& model, std::span<const std::vector<int64_t>> prompts,
                                 const GenerationOptions& options) try {
  check(prompts, options, model.cache_options().max_length);
  Sampler sampler({.repetition_penalty = options.repetition_penalty,
                   .temperature = options.temperature,
                   .top_k = options.top_k,
                   .top_p = options.top_p,
                   .min_p = options.min_p});
  if (prompts.empty() || options.max_new_tokens == 0) return std::vector<Generation>(prompts.size());
  const NoGrad off;
  const ModeScope modes(model.module());
  model.module().eval();
  if (options.num_beams > 1) return beam_search(model, prompts, options);
  return Decoding(model, std::move(sampler), prompts, options).run();
} catch (const std::bad_alloc&) {
  throw_out_of_memory("generate");
}

Generation generate(CausalLM& model, const std::vector<int64_t>& prompt, const GenerationOptions& options) try {
  return std::move(generate(model, std::span(&prompt, 1), options)[0]);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("generate");
}

Generation generate(CausalLM& model, std::span<const int32_t> prompt, const GenerationOptions& options) try {
  return generate(model, std::vector<int64_t>(prompt.begin(), prompt.end()), options);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("generate");
}

}  // namespace rondo::nn
