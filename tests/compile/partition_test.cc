// What a region keeps for its backward: bytes against what is expected by hand, and the same bits whatever is kept.
#include <gtest/gtest.h>

#include <set>

#include "rondo/compile/compile.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"

namespace rondo {
namespace {

using compile::Recompute;

class Partition : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    allocator::set_poison_on_free(true);
  }
  void TearDown() override { allocator::set_poison_on_free(false); }
};

struct Body : nn::Module<Body> {
  using Function = std::function<Tensor(const Tensor& x, const Tensor& w)>;
  explicit Body(Function function) : function(std::move(function)) {}
  Function function;
  Tensor& weight = parameter("weight", Tensor::randn({32, 32}));
  Tensor forward(const Tensor& x) { return function(x, weight); }
};

struct Outcome {
  Tensor y, grad_x, grad_w;
  int64_t kept_bytes = 0;
};

Outcome run(const Body::Function& function, std::optional<Recompute> recompute, DType dtype = kF32) {
  manual_seed(11);
  Body body(function);
  body.to(dtype);
  std::optional<compile::Regions> regions;
  if (recompute) regions = compile::compile_module(body, {.exact = true, .recompute = *recompute});
  const Tensor x = Tensor::randn({64, 32}).to(dtype).detach().requires_grad_();
  const Tensor y = body(x * 1.0);
  ops::sum(y * y).backward();
  return {y.detach(), x.grad(), body.weight.grad(), regions ? regions->report()[0].kept_bytes : 0};
}

class PartitionBytes : public Partition, public testing::WithParamInterface<DType> {};
INSTANTIATE_TEST_SUITE_P(, PartitionBytes, testing::Values(kF32, kBF16, kF64));

void expect_bytes(DType dtype, const Body::Function& function, int64_t automatic, int64_t none, int64_t full) {
  const Outcome eager = run(function, std::nullopt, dtype);
  const auto size = static_cast<int64_t>(size_of(dtype));
  for (auto [recompute, bytes] :
       {std::pair{Recompute::kAuto, automatic}, {Recompute::kNone, none}, {Recompute::kFull, full}}) {
    SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << static_cast<int>(recompute));
    const Outcome compiled = run(function, recompute, dtype);
    EXPECT_TRUE(test::same_bits(eager.y, compiled.y));
    EXPECT_TRUE(test::same_bits(eager.grad_x, compiled.grad_x));
    EXPECT_TRUE(test::same_bits(eager.grad_w, compiled.grad_w));
    EXPECT_EQ(compiled.kept_bytes, bytes * 64 * 32 * size);
  }
}

TEST_P(PartitionBytes, AnActivationIsComputedAgain) {
  // matmul(gelu(matmul(x, w)), w): the inner product is kept; gelu of it is not.
  expect_bytes(
      GetParam(), [](const Tensor& x, const Tensor& w) { return ops::matmul(ops::gelu(ops::matmul(x, w)), w); }, 1, 2,
      0);
}

TEST_P(PartitionBytes, ChainsOfActivations) {
  expect_bytes(
      GetParam(),
      [](const Tensor& x, const Tensor& w) {
        return ops::matmul(ops::sigmoid(ops::tanh(ops::relu(ops::exp(ops::matmul(x, w) * 0.1)))), w);
      },
      1, 3, 0);  // relu's gradient reads exp's result
}

TEST_P(PartitionBytes, ViewsOfOneMemoryCountOnce) {
  expect_bytes(
      GetParam(),
      [](const Tensor& x, const Tensor& w) {
        const Tensor y = ops::matmul(x, w);
        return y.slice(1, {0, 16}) * y.slice(1, {16, 32}) *
               ops::transpose(ops::reshape(y, {16, 2, 64}), 1, 2).slice(2, {0, 1}).reshape({64, 16});
      },
      1, 2, 0);  // two halves are computed from it
}

TEST_P(PartitionBytes, TheSumOfTwoProductsIsOneValue) {
  // Only exp of the sum is read, so one value is kept, not two.
  expect_bytes(
      GetParam(),
      [](const Tensor& x, const Tensor& w) {
        return ops::matmul(ops::exp((ops::matmul(x, w) + ops::matmul(x, w.t())) * 0.01), w);
      },
      1, 1, 0);
}

// A parameter takes no memory of its own, so what is cheap to compute of it is computed again.
TEST_F(Partition, WhatIsComputedOfAParameterIsNotKept) {
  const Body::Function function = [](const Tensor& x, const Tensor& w) { return ops::matmul(x, ops::exp(w * 0.1)); };
  const Outcome eager = run(function, std::nullopt), automatic = run(function, Recompute::kAuto);
  EXPECT_TRUE(test::same_bits(eager.grad_w, automatic.grad_w));
  EXPECT_EQ(automatic.kept_bytes, 0);
  EXPECT_EQ(run(function, Recompute::kNone).kept_bytes, 32 * 32 * 4);
}

// Two results that are computed of a small view take less than the whole memory that the view would keep.
TEST_F(Partition, AViewKeepsAllThatItLooksInto) {
  const Body::Function function = [](const Tensor& x, const Tensor& w) {
    const Tensor part = ops::matmul(x, w).slice(1, {0, 8});
    return ops::exp(part) * ops::sigmoid(part);
  };
  const Outcome eager = run(function, std::nullopt), automatic = run(function, Recompute::kAuto);
  EXPECT_TRUE(test::same_bits(eager.grad_w, automatic.grad_w));
  EXPECT_EQ(automatic.kept_bytes, 2 * 64 * 8 * 4);
}

// A view is kept, and views of it are made again: each begins where it began.
TEST_F(Partition, ViewsOfAKeptView) {
  const Body::Function function = [](const Tensor& x, const Tensor& w) {
    const Tensor middle = ops::matmul(x, w).slice(1, {8, 24});
    const Tensor a = middle.slice(1, {0, 8}), b = middle.slice(1, {8, 16});
    return ops::exp(a) * ops::sigmoid(a) * ops::tanh(a) + ops::exp(b) * ops::sigmoid(b) * ops::tanh(b);
  };
  const Outcome eager = run(function, std::nullopt), automatic = run(function, Recompute::kAuto);
  EXPECT_TRUE(test::same_bits(eager.grad_x, automatic.grad_x));
  EXPECT_TRUE(test::same_bits(eager.grad_w, automatic.grad_w));
  EXPECT_EQ(automatic.kept_bytes, 64 * 32 * 4);
}

// Of inputs and outputs, nothing is kept that eager execution does not keep: writing to them is allowed.
TEST_F(Partition, WritesThatEagerExecutionAllows) {
  const Body::Function functions[] = {
      // The gradient of exp reads its result, which is not x.
      [](const Tensor& x, const Tensor& w) { return ops::matmul(ops::exp(x), w); },
      // Keeping x would take less memory than keeping both results.
      [](const Tensor& x, const Tensor& w) { return ops::matmul(ops::exp(x) * ops::sigmoid(x), w); }};
  for (const Body::Function& function : functions)
    for (bool compiled : {false, true}) {
      manual_seed(11);
      Body body(function);
      if (compiled) compile::compile_module(body, {.exact = true});
      const Tensor leaf = Tensor::randn({64, 32}).requires_grad_();
      Tensor x = leaf * 1.0;
      Tensor y = body(x);
      no_grad([&] { x.detach().fill_(7); });
      y.add_(1.0);
      EXPECT_NO_THROW(ops::sum(y).backward()) << compiled;
    }
}

TEST_F(Partition, GptKeepsLessAndComputesTheSame) {
  const nn::GPT2Config config{
      .vocab_size = 31, .block_size = 16, .n_layer = 2, .n_head = 2, .n_embd = 24, .dropout = 0.2};
  std::vector<std::vector<Tensor>> grads;
  std::vector<int64_t> bytes;
  for (std::optional<Recompute> recompute :
       {std::optional<Recompute>(), {Recompute::kAuto}, {Recompute::kNone}, {Recompute::kFull}}) {
    nn::GPT2 model(config, 3);
    manual_seed(5);
    std::optional<compile::Regions> regions;
    if (recompute) regions = compile::compile_regions(model, {.exact = true, .recompute = *recompute});
    const Tensor tokens = Tensor::from<int64_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {2, 6});
    model.loss(tokens, tokens).backward();
    std::vector<Tensor>& all = grads.emplace_back();
    for (const Tensor& p : model.parameters()) all.push_back(p.grad());
    if (regions) bytes.push_back(regions->report()[0].kept_bytes);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(test::same_bits(all[i], grads[0][i])) << i;
  }
  EXPECT_LT(bytes[0], bytes[1]);
  EXPECT_EQ(bytes[2], 0);
}

// A training step of a small GPT, by block or as a whole.
struct Step {
  std::vector<Tensor> grads;
  compile::RegionReport report;
  int library_calls_again = 0;  // in the backward
};
Step gpt_step(std::optional<compile::CompileOptions> options, bool whole = false, int64_t tokens = 24) {
  const nn::GPT2Config config{
      .vocab_size = 31, .block_size = 64, .n_layer = 3, .n_head = 2, .n_embd = 24, .dropout = 0.2};
  nn::GPT2 model(config, 3);
  manual_seed(5);
  std::optional<compile::Regions> regions;
  if (options) regions = whole ? compile::compile_module(model, *options) : compile::compile_regions(model, *options);
  const Tensor ids = ops::reshape(Tensor::randint(0, 31, {2 * tokens}), {2, tokens});
  model.loss(ids, ids).backward();
  Step step;
  for (const Tensor& p : model.parameters()) step.grads.push_back(p.grad());
  if (!regions) return step;
  step.report = regions->report()[0];
  const compile::Explanation explanation = compile::explain(*regions);
  for (const compile::LaunchExplanation& launch : explanation.regions[0].entries[0].programs[1].launches)
    step.library_calls_again += !launch.generated && launch.sources[0].starts_with("recomputed ");
  return step;
}

TEST_F(Partition, ABudgetIsKeptAndTheLargerItIsTheLessIsComputedAgain) {
  for (bool whole : {false, true}) {
    const Step eager = gpt_step(std::nullopt);
    const auto run = [&](Recompute recompute, int64_t budget) {
      SCOPED_TRACE(testing::Message() << "whole " << whole << ", budget " << budget);
      Step step = gpt_step(compile::CompileOptions{.exact = true, .recompute = recompute, .recompute_budget = budget},
                           whole);
      for (size_t i = 0; i < eager.grads.size(); ++i) EXPECT_TRUE(test::same_bits(step.grads[i], eager.grads[i])) << i;
      return step;
    };
    const Step automatic = run(Recompute::kAuto, 0), full = run(Recompute::kFull, 0);
    const int64_t all = automatic.report.kept_bytes;
    EXPECT_EQ(automatic.report.recomputed_flops, 0);
    EXPECT_EQ(automatic.library_calls_again, 0);
    int64_t flops = 0, kept = all;
    int calls = 0;
    std::set<int64_t> steps;
    for (int64_t sixteenth = 16; sixteenth >= 0; sixteenth -= whole ? 4 : 1) {
      const int64_t budget = all * sixteenth / 16;
      const Step step = run(Recompute::kBudget, budget);
      EXPECT_LE(step.report.kept_bytes, budget);
      EXPECT_LE(step.report.kept_bytes, kept) << budget;
      EXPECT_GE(step.report.recomputed_flops, flops) << budget;
      EXPECT_GE(step.library_calls_again, calls) << budget;
      steps.insert(flops = step.report.recomputed_flops);
      kept = step.report.kept_bytes;
      calls = step.library_calls_again;
      if (sixteenth == 8) {
        EXPECT_EQ(run(Recompute::kBudget, kept).report.kept_bytes, kept) << "what fits exactly fits";
      }
      EXPECT_TRUE(flops == 0 || sixteenth < 16) << "what kAuto keeps fits";
    }
    EXPECT_EQ(kept, 0);
    EXPECT_EQ(flops, full.report.recomputed_flops);
    EXPECT_GE(steps.size(), 4u) << "time grows bit by bit";
  }
}

TEST_F(Partition, ABudgetIsKeptAtEverySize) {
  const int64_t kept = gpt_step(compile::CompileOptions{}).report.kept_bytes;
  for (int64_t tokens : {24, 60}) {  // the longer one alone, and after the shorter one
    nn::GPT2 model({.vocab_size = 31, .block_size = 64, .n_layer = 1, .n_head = 2, .n_embd = 24}, 3);
    const compile::Regions regions = compile::compile_regions(
        model, {.recompute = Recompute::kBudget, .recompute_budget = kept});
    for (int64_t length : {tokens, int64_t{60}}) {
      const Tensor ids = ops::reshape(Tensor::randint(0, 31, {2 * length}), {2, length});
      model.loss(ids, ids).backward();
      EXPECT_LE(regions.report()[0].kept_bytes, kept) << length;
      EXPECT_EQ(regions.report()[0].recomputed_flops > 0, length == 60) << length;
    }
  }
}

// What is computed again waits until it is read.
TEST_F(Partition, ABudgetLowersTheMemoryOfATrainingStep) {
  const nn::GPT2Config config{.vocab_size = 31, .block_size = 64, .n_layer = 8, .n_head = 2, .n_embd = 48};
  const Tensor ids = ops::reshape(Tensor::randint(0, 31, {8 * 64}), {8, 64});
  const OneThread alone;  // several may hold scratch memory of products at one time, or not
  for (bool whole : {false, true}) {
    int64_t kept = 0;
    std::vector<int64_t> peaks;
    for (int fraction : {0, 1, 2, 4}) {
      nn::GPT2 model(config, 3);
      compile::CompileOptions options;
      if (fraction > 0) options.recompute = Recompute::kBudget, options.recompute_budget = kept / fraction;
      const compile::Regions regions = whole ? compile::compile_module(model, options)
                                             : compile::compile_regions(model, options);
      model.loss(ids, ids).backward();
      if (fraction == 0) kept = regions.report()[0].kept_bytes;
      else EXPECT_LE(regions.report()[0].kept_bytes, kept / fraction) << whole;
      const int64_t before = allocator::stats().bytes_in_use;
      allocator::reset_peak();
      model.loss(ids, ids).backward();
      peaks.push_back(allocator::stats().peak_bytes - before);
    }
    EXPECT_EQ(peaks[1], peaks[0]);
    EXPECT_LT(peaks[2], peaks[1] * 0.85) << whole;
    EXPECT_LE(peaks[3], peaks[2]) << whole;
  }
}

TEST_F(Partition, OptionsOutOfRangeAreErrors) {
  nn::Linear layer(4, 4);
  EXPECT_THROW(compile::compile_module(layer, {.recompute = Recompute::kBudget, .recompute_budget = -1}), Error);
  EXPECT_THROW(compile::compile_module(layer, {.max_entries = 0}), Error);
  EXPECT_THROW(compile::compile_module(layer, {.recompile_limit = -1}), Error);
}

}  // namespace
}  // namespace rondo
