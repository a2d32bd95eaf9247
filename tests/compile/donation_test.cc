// A backward that is the last to read what its forward kept writes results over it; nobody else may see that.
#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compiled_runs.h"

namespace rondo {
namespace {

using test::same_bits;

class Donation : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    manual_seed(7);
    allocator::set_poison_on_free(true);
    set_num_threads(1);  // each thread of a product has a scratchpad
  }
  void TearDown() override {
    allocator::set_poison_on_free(false);
    set_num_threads(threads_);
  }
  const int threads_ = num_threads();
};

// So many that the workspace of a product, half a megabyte, does not count.
constexpr int64_t kRows = 300, kClasses = 8000;
constexpr int64_t kLogitsBytes = kRows * kClasses * 4;

// Logits and their loss, from leaves.
struct Classifier {
  Tensor x = Tensor::randn({kRows, 8}).requires_grad_();
  Tensor w = Tensor::randn({8, kClasses}).requires_grad_();
  Tensor target = Tensor::randint(0, kClasses, {kRows});
  std::pair<Tensor, Tensor> operator()(const Tensor& input) const {
    const Tensor logits = ops::matmul(input, w);
    return {ops::cross_entropy(logits, target), logits};
  }
  std::vector<Tensor> grads() {
    std::vector<Tensor> result{x.grad(), w.grad()};
    x.set_grad({});
    w.set_grad({});
    return result;
  }
};

// The memory that a backward takes at its peak, beyond what was there before.
int64_t bytes_taken(const Tensor& loss, bool retain_graph = false) {
  const int64_t before = allocator::stats().bytes_in_use;
  allocator::reset_peak();
  loss.backward({}, retain_graph);
  return allocator::stats().peak_bytes - before;
}

TEST_F(Donation, CrossEntropyPutsItsGradientWhereTheLogitsWere) {
  for (bool exact : {true, false}) {
    Classifier model;
    model(model.x).first.backward();
    const std::vector<Tensor> expected = model.grads();
    auto loss_of = compile::compile([&](const Tensor& x) { return model(x).first; }, {.exact = exact});
    for (bool retain : {false, true, false}) {
      const Tensor loss = loss_of(model.x);
      const int64_t bytes = bytes_taken(loss, retain);
      EXPECT_EQ(bytes >= kLogitsBytes, retain) << bytes;
      EXPECT_EQ(bytes < kLogitsBytes / 2, !retain) << bytes;
      const std::vector<Tensor> grads = model.grads();
      for (size_t i = 0; i < grads.size(); ++i) EXPECT_TRUE(same_bits(grads[i], expected[i])) << i;
      if (!retain) {
        EXPECT_THROW(loss.backward(), Error) << "what was saved is gone";
        continue;
      }
      EXPECT_LT(bytes_taken(loss), kLogitsBytes / 2);
      const std::vector<Tensor> again = model.grads();
      for (size_t i = 0; i < again.size(); ++i) EXPECT_TRUE(same_bits(again[i], expected[i])) << i;
    }
  }
}

TEST_F(Donation, WhatSomebodyHoldsStays) {
  Classifier model;
  const auto [expected_loss, expected] = model(model.x);
  auto compiled = compile::compile([&](const Tensor& x) { return model(x); }, {.exact = true});
  {
    const auto [loss, logits] = compiled(model.x);
    EXPECT_GE(bytes_taken(loss), kLogitsBytes);
    EXPECT_TRUE(same_bits(logits, expected));
  }
  {
    auto [loss, logits] = compiled(model.x);
    const Tensor view = ops::transpose(logits, 0, 1).slice(0, {3, 9}).detach();
    const Tensor before = view.clone();
    logits = Tensor();
    EXPECT_GE(bytes_taken(loss), kLogitsBytes);
    EXPECT_TRUE(same_bits(view, before));
  }
  {
    auto [loss, logits] = compiled(model.x);
    logits = Tensor();
    EXPECT_LT(bytes_taken(loss), kLogitsBytes / 2);
  }
}

// The region's own inputs: given away once the caller has dropped them, and never while he holds them or an op saved
// them.
TEST_F(Donation, Inputs) {
  const auto function = [](const Tensor& x) { return ops::tanh(x) * x; };
  auto compiled = compile::compile(function, {.exact = true});
  const Tensor seed = Tensor::randn({64, 512});
  Tensor leaf = Tensor::randn({64, 512}).requires_grad_();
  const Tensor copy = leaf.detach().clone();
  const auto grad_of = [&](const Tensor& y) {
    y.backward(seed);
    const Tensor grad = leaf.grad();
    leaf.set_grad({});
    return grad;
  };
  EXPECT_TRUE(same_bits(grad_of(compiled(leaf)), grad_of(function(leaf))));
  EXPECT_TRUE(same_bits(leaf, copy));
  EXPECT_TRUE(same_bits(grad_of(compiled(ops::exp(leaf))), grad_of(function(ops::exp(leaf))))) << "saved by exp, too";
  const Tensor held = leaf * 2.0;
  const Tensor held_copy = held.detach().clone();
  EXPECT_TRUE(same_bits(grad_of(compiled(held)), grad_of(function(leaf * 2.0))));
  EXPECT_TRUE(same_bits(held, held_copy));
  const Tensor dropped = compiled(leaf * 2.0);
  EXPECT_TRUE(same_bits(grad_of(dropped), grad_of(function(leaf * 2.0))));
}

TEST_F(Donation, HooksSeeGradientsAndKeepThem) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "a hook inside the region");
  Classifier model;
  auto compiled = compile::compile([&](const Tensor& x) { return model(x); }, {.exact = true});
  std::vector<Tensor> seen[2], retained[2];
  for (bool use : {false, true}) {
    auto [loss, logits] = use ? compiled(model.x) : model(model.x);
    logits.retain_grad();
    logits.register_hook([&seen = seen[use]](const Tensor& grad) {
      seen.push_back(grad);
      return Tensor();
    });
    loss.backward();
    retained[use].push_back(logits.grad());
    logits = Tensor();
    for (const Tensor& grad : model.grads()) retained[use].push_back(grad);
  }
  ASSERT_EQ(seen[0].size(), seen[1].size());
  for (size_t i = 0; i < seen[0].size(); ++i) EXPECT_TRUE(same_bits(seen[0][i], seen[1][i])) << i;
  for (size_t i = 0; i < retained[0].size(); ++i) EXPECT_TRUE(same_bits(retained[0][i], retained[1][i])) << i;
}

TEST_F(Donation, DoubleBackwardReadsWhatWasKept) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "gradients with a history");
  const auto function = [](const Tensor& x) { return ops::sum(ops::tanh(x) * ops::gelu(x)); };
  auto compiled = compile::compile(function, {.exact = true});
  Tensor x = Tensor::randn({16, 33}).requires_grad_();
  std::vector<Tensor> second;
  for (bool use : {false, true}) {
    const Tensor y = use ? compiled(x) : function(x);
    const Tensor grad = autograd::grad({&y, 1}, {&x, 1}, {}, true, true)[0];
    ops::sum(grad * grad).backward();
    second.push_back(x.grad());
    x.set_grad({});
  }
  EXPECT_TRUE(same_bits(second[0], second[1]));
}

// A whole model: the same gradients, and less memory than with everything retained.
TEST_F(Donation, ATrainingStepTakesLessMemory) {
  const nn::GPT2Config config{
      .vocab_size = 800, .block_size = 64, .n_layer = 2, .n_head = 2, .n_embd = 48, .dropout = 0.1};
  const Tensor ids = ops::reshape(Tensor::randint(0, 800, {4 * 64}), {4, 64});
  std::vector<std::vector<Tensor>> grads;
  std::vector<int64_t> taken;
  for (int run = 0; run < 3; ++run) {
    nn::GPT2 model(config, 3);
    std::optional<compile::Regions> regions;
    if (run > 0) regions = compile::compile_module(model, {.exact = true});
    manual_seed(5);
    const Tensor loss = model.loss(ids, ids);
    taken.push_back(bytes_taken(loss, run == 1));
    std::vector<Tensor>& all = grads.emplace_back();
    for (const Tensor& p : model.parameters()) all.push_back(p.grad());
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(same_bits(all[i], grads[0][i])) << i;
  }
  EXPECT_LT(taken[2], taken[1] - 4 * 64 * 800 * 4 / 2) << "half of the logits' bytes at least";
}

}  // namespace
}  // namespace rondo
