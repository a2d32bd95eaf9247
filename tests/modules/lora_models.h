// Small models and comparisons for the tests of LoRA.
#pragma once

#include <gtest/gtest.h>

#include "rondo/modules/state_dict.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"

namespace rondo::nn::test_lora {

using test::same_bits;

inline constexpr GPT2Config kTiny = {.vocab_size = 65, .block_size = 16, .n_layer = 2, .n_head = 2, .n_embd = 32};
inline constexpr LlamaConfig kTinyLlama = {
    .vocab_size = 50, .block_size = 16, .n_layer = 2, .n_head = 4, .n_kv_head = 2, .n_embd = 32, .n_hidden = 48};

inline Tensor tokens(int64_t rows = 2, int64_t vocabulary = 65) {
  Generator generator(3);
  return Tensor::randint(0, vocabulary, {rows, 16}, {kI64}, &generator);
}
inline StateDict copy_of(const ModuleBase& model) {
  StateDict copies;
  for (const auto& [name, tensor] : model.state_dict()) copies[name] = tensor.clone();
  return copies;
}
inline void expect_same(const StateDict& a, const StateDict& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(same_bits(tensor, b.at(name))) << name;
}
// Moves every parameter of the active adapter off its start.
inline void stir(ModuleBase& model, double scale = 0.1) {
  const NoGrad off;
  for (Tensor& p : model.parameters())
    if (p.requires_grad()) p.add_(Tensor::randn(p.sizes()).to(p.dtype()) * scale);
}
inline double largest(const Tensor& t) { return ops::max(ops::abs(t.detach().to(kF64))).item(); }
inline double difference(const Tensor& a, const Tensor& b) {
  return largest(a.detach().to(kF64) - b.detach().to(kF64));
}

}  // namespace rondo::nn::test_lora
