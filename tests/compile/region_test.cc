// Compiled regions against eager execution: equal in every bit, forward, backward and over training steps.
#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/clip.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"

namespace rondo {
namespace {

void expect_same_bits(const Tensor& a, const Tensor& b, const std::string& what) {
  EXPECT_TRUE(test::same_bits(a, b)) << what;
}

class RegionTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
};

struct Block : nn::Module<Block> {
  explicit Block(int64_t width) : width(width) {}
  int64_t width;
  nn::LayerNorm norm = child("norm", width);
  nn::MLP mlp = child("mlp", width, 4 * width);
  Tensor forward(const Tensor& x) { return x + mlp(norm(x)); }
};
struct Stack : nn::Module<Stack> {
  nn::ModuleList<Block> blocks = child("blocks", 3, 24);
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (Block& block : blocks) y = block(y);
    return y;
  }
};

TEST_F(RegionTest, MlpStackEqualsEagerInEveryBit) {
  for (DType dtype : {kF32, kF64, kBF16}) {
    Stack model;
    manual_seed(3);
    for (Tensor p : model.parameters()) no_grad([&] { p.copy_(Tensor::randn(p.sizes()) * 0.2); });
    model.to(dtype);
    Tensor x = Tensor::randn({5, 7, 24}).to(dtype);
    x.requires_grad_();
    auto run = [&](std::vector<Tensor>& grads) {
      model.zero_grad();
      x.zero_grad();
      Tensor y = model(x);
      ops::sum(y * y).backward();
      for (const Tensor& p : model.parameters()) grads.push_back(p.grad());
      grads.push_back(x.grad());
      return y;
    };
    std::vector<Tensor> eager_grads, compiled_grads;
    const Tensor eager = run(eager_grads);
    compile::Regions regions = compile::compile_regions(model, {.exact = true});
    const Tensor compiled = run(compiled_grads);
    expect_same_bits(eager, compiled, "output");
    for (size_t i = 0; i < eager_grads.size(); ++i)
      expect_same_bits(eager_grads[i], compiled_grads[i],
                       std::string(name_of(dtype)) + " gradient " + std::to_string(i));
    ASSERT_EQ(regions.report().size(), 1u);
    // The first block's input is a leaf, the others' are results of ops: two plans, one compilation.
    EXPECT_EQ(regions.report()[0].entries, 2) << regions.summary();
    EXPECT_LE(regions.report()[0].compilations, 1) << regions.summary();
    EXPECT_EQ(regions.report()[0].calls, 3);
    EXPECT_EQ(regions.report()[0].layers, 3);
    compile::disable(model);
  }
}

// Five steps of training: every loss and every parameter.
TEST_F(RegionTest, Gpt2TrainingEqualsEagerInEveryBit) {
  for (std::optional<DType> autocast : {std::optional<DType>(), std::optional<DType>(kBF16)}) {
    const nn::GPT2Config config{.vocab_size = 61, .block_size = 19, .n_layer = 3, .n_head = 2, .n_embd = 48};
    auto train = [&](bool compiled) {
      nn::GPT2 model(config, 7);
      optim::AdamW optimizer(model.parameters(), {.lr = 1e-2, .weight_decay = 0.1});
      std::optional<compile::Regions> regions;
      if (compiled) regions = compile::compile_regions(model, {.exact = true});
      Generator data(5);
      std::vector<Tensor> trail;
      for (int step = 0; step < 5; ++step) {
        const Tensor tokens = Tensor::randint(0, 61, {3, 20}, {kI64}, &data);
        std::optional<amp::Autocast> lower;
        if (autocast) lower.emplace(*autocast);
        const Tensor loss = model.loss(tokens.slice(1, {0, 19}), tokens.slice(1, {1}));
        lower.reset();
        loss.backward();
        optim::clip_grad_norm_(model.parameters(), 1.0);
        optimizer.step();
        optimizer.zero_grad();
        trail.push_back(loss.detach());
      }
      for (const Tensor& p : model.parameters()) trail.push_back(p.detach().clone());
      if (compiled) {
        EXPECT_EQ(regions->report().size(), 1u);
        EXPECT_EQ(regions->report()[0].entries, 1) << regions->summary();
        EXPECT_EQ(regions->report()[0].graph_breaks, 0) << regions->summary();
        EXPECT_EQ(regions->report()[0].layers, 3);
      }
      return trail;
    };
    const std::vector<Tensor> eager = train(false), compiled = train(true);
    for (size_t i = 0; i < eager.size(); ++i)
      expect_same_bits(eager[i], compiled[i], (autocast ? "autocast, value " : "value ") + std::to_string(i));
  }
}

}  // namespace
}  // namespace rondo
