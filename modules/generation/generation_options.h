// The options and the result of generate() (generation.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rondo/runtime/base/dtype.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo {
class Generator;
}

namespace rondo::nn {

struct GenerationOptions {
  int64_t max_new_tokens = 128;
  // How a token is drawn from the logits of the whole vocabulary: the next five options, applied in this order, as in
  // Hugging Face's generate() under the same names. repetition_penalty changes the logit of each token that the row
  // (prompt included) already holds: a positive logit is divided by the penalty, any other logit is multiplied by it
  // (Keskar et al., "CTRL", 2019). 1: off. Must be positive.
  double repetition_penalty = 1.0;
  // Logits are divided by this. 0: always the most likely token; among equal ones the lowest id.
  double temperature = 1.0;
  // Keeps only the k most likely tokens; among equal ones the lowest ids. 0: all.
  int64_t top_k = 0;
  // Keeps only the most likely tokens that together reach this probability, at least one (Holtzman et al., "The curious
  // case of neural text degeneration", 2020). 1: all.
  double top_p = 1.0;
  // Keeps only tokens whose probability is at least this share of the most likely token's. 0: all.
  double min_p = 0;
  // Above 1: beam search, as in transformers. For each prompt it follows this many texts at once, those with the
  // greatest sums of log probabilities, and returns the best text among those that have ended. It needs temperature 0,
  // and does not work with stop_strings, on_token or slide.
  int64_t num_beams = 1;
  // The sum of a text's log probabilities is divided by (new tokens)^length_penalty: values above 0 favour longer
  // texts.
  double length_penalty = 1.0;
  // True: the search ends when num_beams texts have ended. False: it goes on while some unfinished text, if it ended
  // now, would be among the num_beams best.
  bool early_stopping = false;
  // A row ends with any of these tokens, which is then the last one of the result.
  std::vector<int64_t> stop_tokens = {};
  // A row ends when its new text contains one of these, even if it spans several tokens. Needs `decode`.
  std::vector<std::string> stop_strings = {};
  // Turns new tokens into text, by the caller's tokenizer. It is called with all new tokens of a row, and for
  // stop_strings also with only the last tokens (modules/generation/stop_strings.h).
  std::function<std::string(std::span<const int64_t> tokens)> decode = nullptr;
  // Called with each new token, as soon as it is chosen. Returns false to end all rows.
  std::function<bool(int64_t row, int64_t token)> on_token = nullptr;
  // For a model with cross-attention: the encoder's output (B, S, C), with one example for each prompt.
  Tensor encoded = {};
  // Null: default_generator(). Not used with temperature 0.
  Generator* generator = nullptr;
  // What happens when the text outgrows the model. False: the row ends (FinishReason::kModelFull), and a prompt that is
  // too long is an Error. True: the row goes on with the last tokens that fit, and each new token computes all of them
  // again.
  bool slide = false;
  // The dtype of the cache. nullopt: the dtype of the weights, or autocast's.
  std::optional<DType> cache_dtype = std::nullopt;
};

enum class FinishReason : uint8_t {
  kMaxTokens,  // max_new_tokens are made
  kStopToken,
  kStopString,
  kModelFull,  // the model has no position for another token
  kCancelled,  // on_token returned false
};

struct Generation {
  std::vector<int64_t> tokens;  // the new tokens
  std::string text;             // what `decode` makes of `tokens`, up to the stop string; empty without `decode`
  FinishReason reason = FinishReason::kMaxTokens;
};

}  // namespace rondo::nn
#pragma GCC visibility pop
