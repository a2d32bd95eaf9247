// Seams: when the gradients of each part of a model are final. A fake group of two ranks averages them in place.
#include "rondo/optim/seam.h"

#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"

namespace rondo {
namespace {

const nn::GPT2Config kConfig{.vocab_size = 31, .block_size = 8, .n_layer = 3, .n_head = 2, .n_embd = 16};
const std::vector<int64_t> kTokens = {1, 2, 3, 4, 5, 6, 7, 8};

Tensor loss_of(nn::GPT2& model) {
  const Tensor tokens = Tensor::from<int64_t>(kTokens, {1, 8});
  return model.loss(tokens, tokens);
}

class SeamTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
  void compile_if_wanted(nn::GPT2& model) {
    if (GetParam()) compile::compile_regions(model, {.exact = true});
  }
};

TEST_P(SeamTest, TheHeadThenBlocksFromTheLastThenEmbeddings) {
  nn::GPT2 model(kConfig, 1), alone(kConfig, 1);
  compile_if_wanted(model);
  loss_of(alone).backward();
  std::vector<std::string> order;
  const std::vector<nn::NamedTensor> expected = alone.named_parameters(), names = model.named_parameters();
  optim::Seams seams(model, [&](const optim::Seam& seam) {
    order.push_back(seam.path);
    EXPECT_TRUE(seam.complete);
    // Final: what a whole backward gives.
    for (const Tensor& p : seam.parameters)
      for (size_t i = 0; i < names.size(); ++i) {
        if (names[i].tensor.impl() != p.impl()) continue;
        EXPECT_TRUE(test::same_bits(p.grad(), expected[i].tensor.grad())) << names[i].name;
      }
  });
  size_t parameters = 0;
  for (const optim::Seam& seam : seams.plan()) parameters += seam.parameters.size();
  EXPECT_EQ(parameters, names.size());
  loss_of(model).backward();
  EXPECT_EQ(order, (std::vector<std::string>{"", "h.2", "h.1", "h.0", ""}));
  seams.finish();
  EXPECT_EQ(order.size(), 5u);
  model.zero_grad();
  loss_of(model).backward();
  EXPECT_EQ(order.size(), 10u);
}

TEST_P(SeamTest, TwoRanksThatAverageAreOneWithBothBatches) {
  nn::GPT2 one(kConfig, 1), two(kConfig, 1), whole(kConfig, 1);
  compile_if_wanted(one);
  compile_if_wanted(two);
  const Tensor a = Tensor::from<int64_t>(kTokens, {1, 8}), b = Tensor::from<int64_t>({9, 8, 7, 6, 5, 4, 3, 2}, {1, 8});
  // The second rank has finished; the first one averages at its seams.
  two.loss(b, b).backward();
  std::map<const TensorImpl*, Tensor> theirs;
  const std::vector<Tensor> mine = one.parameters(), other = two.parameters();
  for (size_t i = 0; i < mine.size(); ++i) theirs[mine[i].impl()] = other[i].grad();
  optim::Seams seams(one, [&](const optim::Seam& seam) {
    for (const Tensor& p : seam.parameters) {
      Tensor grad = p.grad();
      no_grad([&] { grad.add_(theirs.at(p.impl())).mul_(0.5); });
    }
  });
  one.loss(a, a).backward();
  seams.finish();
  ((whole.loss(a, a) + whole.loss(b, b)) * 0.5).backward();
  const std::vector<Tensor> expected = whole.parameters();
  for (size_t i = 0; i < mine.size(); ++i) {
    const double difference = ops::max(ops::abs(mine[i].grad() - expected[i].grad())).item();
    EXPECT_LE(difference, 1e-6 * (1 + ops::max(ops::abs(expected[i].grad())).item())) << i;
  }
}

TEST_P(SeamTest, WhatGetsNoGradientIsReportedByFinish) {
  nn::GPT2 model(kConfig, 1);
  compile_if_wanted(model);
  model.h[1].requires_grad_(false);
  std::vector<std::pair<std::string, bool>> called;
  optim::Seams seams(model, [&](const optim::Seam& seam) { called.emplace_back(seam.path, seam.complete); });
  EXPECT_EQ(seams.plan().size(), 4u);  // ln_f, h.2, h.0, the embeddings
  // Only the last block takes part.
  ops::sum(model.h[2](Tensor::randn({1, 4, 16}))).backward();
  EXPECT_EQ(called, (std::vector<std::pair<std::string, bool>>{{"h.2", true}}));
  seams.finish();
  EXPECT_EQ(called,
            (std::vector<std::pair<std::string, bool>>{{"h.2", true}, {"", false}, {"h.0", false}, {"", false}}));
}

INSTANTIATE_TEST_SUITE_P(EagerAndCompiled, SeamTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "compiled" : "eager"; });

}  // namespace
}  // namespace rondo
