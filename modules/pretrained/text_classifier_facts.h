// TextClassifierFacts: what AutoModelForSequenceClassification::facts() returns.
#pragma once

#include <cstdint>
#include <optional>

#include "rondo/modules/layers/classification_loss.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// What a program must know of a text classifier to prepare its inputs.
struct TextClassifierFacts {
  int64_t vocab_size = 0;  // ids of tokens are below this
  int64_t max_length = 0;  // tokens of the longest sequence
  std::optional<int64_t> padding_idx = std::nullopt;
  bool takes_segments = false;
  int64_t num_classes = 0;
  std::optional<ProblemType> problem_type = std::nullopt;
};

}  // namespace rondo::nn
#pragma GCC visibility pop
