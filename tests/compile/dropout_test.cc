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
