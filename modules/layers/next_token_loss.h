// The loss of a language model, for the models of modules/transformers.
#pragma once

#include "absl/functional/function_ref.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/base/source_location.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// A loss with more logits than this (32 MB in f32) computes them in chunks of rows (ops::linear_cross_entropy).
// Compared with whole logits at GPT-2 124M's head, forward and backward (bench_head): 256 rows 1% faster in f32 and 5%
// in bf16, 1024 rows 1 to 3% slower, 4096 rows 2 to 4% faster; peak memory -0%, -40% and -83% in f32.
inline constexpr int64_t kWholeLogits = int64_t{1} << 23;

struct NextTokenLoss {
  const ModuleBase& model;
  const Tensor& weight;  // (V, C) of the output layer
  // Logits of more elements than this are computed in chunks.
  int64_t whole_logits = kWholeLogits;
  absl::FunctionRef<Tensor()> logits;    // (B, T, V)
  absl::FunctionRef<Tensor()> features;  // (B, T, C)
  Tensor bias = {};                      // (V) of the output layer; undefined without one

  // Returns the mean cross-entropy in nats. idx and targets are i64 (B, T); targets of -100 are ignored.
  Tensor operator()(const Tensor& idx, const Tensor& targets, std::source_location where) const;
};

// Throws Error, in the name of `model`, unless positions are i64 with idx's shape.
void check_positions(const char* model, const Tensor& idx, const Tensor& positions);

}  // namespace rondo::nn
#pragma GCC visibility pop
