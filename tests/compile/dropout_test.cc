// Dropout inside a region: the random state is data, so new numbers need no new recording.
#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/gpt2.h"
#include "rondo/runtime/random.h"

namespace rondo {
namespace {

TEST(CompiledDropout, DrawsEagersMasksFromOneRecording) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  const nn::GPT2Config config = {
      .vocab_size = 65, .block_size = 16, .n_layer = 4, .n_head = 2, .n_embd = 32, .dropout = 0.2};
  nn::GPT2 eager(config, 1), compiled(config, 1);
  const compile::Regions regions = compile::compile_regions(compiled, {.exact = true});
  const Tensor idx = Tensor::randint(0, 65, {2, 16});
  double previous = 0;
  for (uint64_t step = 0; step < 3; ++step) {
    manual_seed(100 + step);
    const Tensor a = eager.loss(idx, idx);
    a.backward();
    manual_seed(100 + step);
    const Tensor b = compiled.loss(idx, idx);
    b.backward();
    EXPECT_EQ(a.item(), b.item());
    EXPECT_NE(a.item(), previous);
    previous = a.item();
    EXPECT_EQ(eager.h[1].mlp.c_fc.weight.grad().to_vector<float>(),
              compiled.h[1].mlp.c_fc.weight.grad().to_vector<float>());
  }
  EXPECT_EQ(regions.report().at(0).entries, 1);
}

// A backward that recomputes its forward draws the masks again from the same state, those of attention too.
TEST(CompiledDropout, RecomputesTheSameMasks) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  const nn::GPT2Config config = {
      .vocab_size = 65, .block_size = 18, .n_layer = 2, .n_head = 2, .n_embd = 32, .dropout = 0.2};
  const Tensor idx = Tensor::randint(0, 65, {2, 18});
  const auto grads = [&](std::optional<compile::Recompute> recompute) {
    nn::GPT2 model(config, 1);
    std::optional<compile::Regions> regions;
    if (recompute)
      regions = compile::compile_regions(model, {.exact = true, .recompute = *recompute, .recompute_budget = 2000});
    manual_seed(3);
    for (int step = 0; step < 2; ++step) model.loss(idx, idx).backward();
    std::vector<std::vector<float>> all;
    for (const Tensor& p : model.parameters()) all.push_back(p.grad().to_vector<float>());
    return all;
  };
  const auto expected = grads(std::nullopt);
  for (const compile::Recompute recompute :
       {compile::Recompute::kAuto, compile::Recompute::kNone, compile::Recompute::kFull, compile::Recompute::kBudget})
    EXPECT_EQ(grads(recompute), expected) << static_cast<int>(recompute);
}

// Every call stands somewhere else in the stream: a call's masks count from where the call begins.
TEST(CompiledDropout, GoesOnInTheStreamWithOneRecording) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  const nn::GPT2Config config = {
      .vocab_size = 65, .block_size = 16, .n_layer = 3, .n_head = 2, .n_embd = 32, .dropout = 0.2};
  nn::GPT2 eager(config, 1), compiled(config, 1);
  const compile::Regions regions = compile::compile_regions(compiled, {.exact = true});
  const Tensor idx = Tensor::randint(0, 65, {2, 16});
  const auto losses = [&](nn::GPT2& model) {
    manual_seed(5);
    std::vector<double> list;
    for (int step = 0; step < 4; ++step) {
      list.push_back(model.loss(idx, idx).item());
      if (step % 2 == 1) Tensor::randn({3});  // somebody else draws, too
    }
    list.push_back(static_cast<double>(default_generator().offset()));
    return list;
  };
  const std::vector<double> expected = losses(eager);
  EXPECT_NE(expected[0], expected[1]);
  EXPECT_EQ(losses(compiled), expected);
  EXPECT_EQ(regions.report().at(0).entries, 1);
}

}  // namespace
}  // namespace rondo
