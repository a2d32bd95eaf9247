// The loss of a language model, for the models of this folder.
#pragma once

#include "absl/functional/function_ref.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/base/source_location.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// From so many logits on (32 MB in f32), a loss computes them in chunks of rows (ops::linear_cross_entropy). Measured
// at GPT-2 124M's head, forward and backward, beside whole logits (bench_head): 256 rows 1% faster in f32 and 5% in
// bf16, 1024 rows 1 to 3% slower, 4096 rows 2 to 4% faster; peak memory -0%, -40% and -83% in f32.
inline constexpr int64_t kWholeLogits = int64_t{1} << 23;

struct NextTokenLoss {
  const ModuleBase& model;
  const Tensor& weight;  // (V, C) of the output layer
  // Logits of more elements than this are never whole.
  int64_t whole_logits = kWholeLogits;
  absl::FunctionRef<Tensor()> logits;    // (B, T, V)
  absl::FunctionRef<Tensor()> features;  // (B, T, C)
  Tensor bias = {};                      // (V) of the output layer; undefined without one

  // Mean cross-entropy in nats of targets i64 (B, T), as idx, where -100 is ignored.
  Tensor operator()(const Tensor& idx, const Tensor& targets, std::source_location where) const;
};

// Throws Error, in the name of `model`, unless positions are i64 with idx's shape.
void check_positions(const char* model, const Tensor& idx, const Tensor& positions);

}  // namespace rondo::nn
#pragma GCC visibility pop
