// Llama, Qwen and Mistral with a classifier of sequences, as they are published.
//
//   nn::LlamaForSequenceClassification model({.vocab_size = 512, .n_layer = 4, .padding_idx = 0}, {.num_classes = 3});
//   model.loss(idx, mask, {}, targets).backward();
//
// Shapes: idx i64 (B, T); mask bool (B, T), true = a real token, undefined = all. Parameter names are those of
// published checkpoints.
#pragma once

#include "rondo/modules/layers/classification_loss.h"
#include "rondo/modules/transformers/llama.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

struct LlamaTaskOptions {
  int64_t num_classes = 2;
  std::optional<ProblemType> problem_type = std::nullopt;
  uint64_t seed = 0;
};

// A classifier of sequences: logits (B, num_classes) of each row's last token that is not config.padding_idx, or of its
// first token if all tokens are padding. This is transformers' rule: the mask only restricts attention.
struct LlamaForSequenceClassification : Module<LlamaForSequenceClassification> {
  explicit LlamaForSequenceClassification(LlamaConfig config, LlamaTaskOptions options = {},
                                          const SkipInit& skip = SkipInit());
  LlamaConfig config;
  LlamaTaskOptions options;
  Llama::Body model = child("model", config);
  Linear score = child("score", config.n_embd, options.num_classes, LinearOptions{.bias = false});
  // Throws Error for segments, which are BERT's, and for several rows without a padding_idx.
  Tensor forward(const Tensor& idx, const Tensor& mask = {}, const Tensor& segments = {});
  // Returns the mean loss of the targets; options.problem_type chooses the loss (classification_loss.h).
  Tensor loss(const Tensor& idx, const Tensor& mask, const Tensor& segments, const Tensor& targets,
              std::source_location where = std::source_location::current());
};

}  // namespace rondo::nn
#pragma GCC visibility pop
