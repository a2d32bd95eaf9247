// The loss of a model that gives each example num_classes numbers, by transformers' problem_type.
//
//   config.problem_type = nn::ProblemType::kRegression;      // or "problem_type" in config.json
//   model.loss(idx, mask, segments, scores).backward();      // scores f32 (B, num_classes)
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

enum class ProblemType {
  kRegression,   // mean squared error
  kSingleLabel,  // cross-entropy in nats: one class for each example
  kMultiLabel,   // binary cross-entropy in nats of each class: any number of classes for each example
};
// Returns the name in config.json: "regression", "single_label_classification", "multi_label_classification".
std::string_view name_of(ProblemType problem);

// Returns `problem` if it is set. Otherwise the number of classes and the targets decide, as in transformers: one class
// is a regression; targets i64 or i32 are kSingleLabel, all others kMultiLabel.
ProblemType problem_of(std::optional<ProblemType> problem, int64_t num_classes, DType targets);

// Returns the mean loss of logits (B, num_classes): a scalar.
//   kRegression   targets (B, num_classes), and for one class (B) as well; any number type
//   kSingleLabel  targets i64 (B); -100 is ignored
//   kMultiLabel   targets (B, num_classes), floats in [0, 1] or bool
// Throws Error for targets of another dtype or shape, and for kSingleLabel with one class, whose loss would always be
// 0. The values of targets of kMultiLabel are not checked.
Tensor classification_loss(TensorArg logits, const Tensor& targets, std::optional<ProblemType> problem);

}  // namespace rondo::nn
#pragma GCC visibility pop
