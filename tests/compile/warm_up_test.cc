// compile::warm_up(): every bucket is compiled before the first step, and the model is as it was.
#include "rondo/compile/warm_up.h"

#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/small_modules.h"

namespace rondo {
namespace {

using Batch = std::span<const Tensor>;

class WarmUp : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    compile::reset();  // of what other tests of this process have left
    manual_seed(1);
  }
  static Tensor tokens(int64_t B, int64_t T) { return Tensor::randint(0, 31, {B, T}); }
};

nn::GPT2Config small() { return {.vocab_size = 31, .block_size = 32, .n_layer = 2, .n_head = 2, .n_embd = 16}; }

TEST_F(WarmUp, LaterStepsCompileNothing) {
  nn::GPT2 model(small(), 1);
  model.to(default_device());
  const compile::Regions regions = compile::compile_module(model, {.shapes = compile::Shapes::kStatic});
  const Tensor x = tokens(2, 8), y = tokens(2, 8);
  const DynamicRange range{.min = 1, .max = 32, .bucket_bounds = {8, 16, 32}};
  for (const Tensor& t : {x, y}) compile::mark_dynamic(t, 1, range);
  std::vector<int64_t> sizes;
  const auto step = [&](Batch at) {
    sizes.push_back(at[0].size(1));
    model.loss(at[0], at[1]).backward();
  };
  const compile::WarmUp report = compile::warm_up(model, {x, y}, step);
  EXPECT_EQ(sizes, (std::vector<int64_t>{32, 16, 8}));
  EXPECT_EQ(report.steps, 3);
  EXPECT_GT(report.kernels, 0);
  const int compilations = regions.report()[0].compilations;
  const int64_t misses = compile::cache_report().misses;
  for (const int64_t T : {8, 16, 32, 16}) {
    const Tensor a = tokens(2, T), b = tokens(2, T);
    for (const Tensor& t : {a, b}) compile::mark_dynamic(t, 1, range);
    model.loss(a, b).backward();
    model.zero_grad();
  }
  EXPECT_EQ(regions.report()[0].compilations, compilations);
  EXPECT_EQ(compile::cache_report().misses, misses);
}

// A block's argument that varies, and other sizes than those that were warmed up: the code of their bucket.
TEST_F(WarmUp, BucketsOfRegions) {
  nn::GPT2 model(small(), 1);
  model.to(default_device());
  const DynamicRange range{.min = 1, .max = 32, .buckets = 2};
  const compile::Regions regions = compile::compile_regions(model,
                                                            {.dynamic = {{.argument = 0, .dim = 1, .range = range}}});
  const Tensor x = tokens(3, 32);
  const compile::WarmUp report = compile::warm_up(model, {x}, [&](Batch at) { model.loss(at[0], at[0]).backward(); },
                                                  {{.argument = 0, .dim = 1, .range = range}});
  EXPECT_EQ(report.steps, 2);
  const int compilations = regions.report()[0].compilations;
  for (const int64_t T : {5, 7, 20, 29, 31}) model.loss(tokens(3, T), tokens(3, T)).backward();
  EXPECT_EQ(regions.report()[0].compilations, compilations);
}

struct Counting : nn::Module<Counting> {
  explicit Counting(int64_t width) : gate(child("gate", width)), dropout(child("dropout", 0.3)) {}
  test::Gate gate;
  nn::Dropout dropout;
  Tensor& calls = buffer("calls", Tensor::zeros({1}));
  Tensor forward(const Tensor& x) {
    {
      const NoGrad off;
      calls.add_(1.0);
    }
    return dropout(gate(x));
  }
};

TEST_F(WarmUp, TheModelIsAsItWas) {
  Counting model(8);
  compile::compile_module(model);
  const Tensor x = Tensor::randn({4, 8});
  ops::sum(model(x)).backward();
  const Tensor gradient = model.gate.gate.weight.grad(), before = gradient.clone();
  const uint64_t offset = default_generator().offset();
  int64_t rows = 0;
  compile::warm_up(model, {x},
                   [&](Batch at) {
                     rows += at[0].size(0);
                     EXPECT_FALSE(model.gate.gate.weight.grad().defined());
                     ops::sum(model(at[0])).backward();
                   },
                   {{.argument = 0, .dim = 0, .range = {.min = 1, .max = 64, .bucket_bounds = {2, 64}}}});
  EXPECT_EQ(rows, 66);
  EXPECT_TRUE(model.gate.gate.weight.grad().is_same(gradient));
  EXPECT_TRUE(test::same_bits(gradient, before));
  EXPECT_EQ(model.calls.to_vector<float>()[0], 1);
  EXPECT_EQ(default_generator().offset(), offset);
}

TEST_F(WarmUp, SeveralDimensionsInAllCombinations) {
  test::OneLinear model(4);
  std::vector<Dims> sizes;
  const auto note = [&](Batch at) {
    sizes.push_back(at[0].sizes());
    EXPECT_EQ(at[0].size(1), at[1].size(0)) << "equal sizes of an equal range vary together";
  };
  const DynamicRange length{.min = 4, .max = 16, .multiple_of = 4, .bucket_bounds = {10, 16}};
  const std::vector<compile::DynamicArgument> dynamic = {
      {.argument = 0, .dim = 0, .range = {.max = 6, .bucket_bounds = {3, 6}}},
      {.argument = 0, .dim = -1, .range = length},
      {.argument = 1, .dim = 0, .range = length}};
  compile::warm_up(model, {Tensor::zeros({2, 8}), Tensor::zeros({8})}, note, dynamic);
  EXPECT_EQ(sizes, (std::vector<Dims>{{6, 16}, {3, 16}, {6, 8}, {3, 8}}));
  sizes.clear();
  compile::warm_up(model, {Tensor::zeros({2, 8}), Tensor::zeros({8})}, note);
  EXPECT_EQ(sizes, (std::vector<Dims>{{2, 8}})) << "nothing is marked";
}

TEST_F(WarmUp, InputsMayBeUndefinedAndRangesOpen) {
  nn::GPT2 model(small(), 1);
  model.to(default_device());
  const compile::Regions regions = compile::compile_module(model);
  std::vector<int64_t> sizes;
  const auto step = [&](Batch at) {
    sizes.push_back(at[0].size(1));
    EXPECT_FALSE(at[1].defined());
    ops::sum(model(at[0], at[1])).backward();
  };
  EXPECT_EQ(compile::warm_up(model, {tokens(2, 8), Tensor()}, step).steps, 1);
  compile::warm_up(model, {tokens(2, 8), Tensor()}, step,
                   {{.argument = 0, .dim = 1, .range = {.min = 1, .bucket_bounds = {4, INT64_MAX}}}});
  EXPECT_EQ(sizes, (std::vector<int64_t>{8, 8, 4}));
}

TEST_F(WarmUp, WhatIsRefused) {
  test::OneLinear model(4);
  const Tensor x = Tensor::ones({2, 4});
  const auto error = [&](const std::vector<compile::DynamicArgument>& dynamic, const auto& step) {
    return test::error_of([&] { compile::warm_up(model, {x}, step, dynamic); });
  };
  const auto nothing = [](Batch) {};
  EXPECT_EQ(error({{.argument = 1}}, nothing), "warm_up: there is no input 1");
  EXPECT_EQ(error({{.argument = 0, .dim = 2}}, nothing), "warm_up: dimension 2 is out of range for input 0, [2, 4]");
  EXPECT_NE(error({{.argument = 0, .dim = 0, .range = {.max = 1 << 20, .buckets = 60}},
                   {.argument = 0, .dim = 1, .range = {.min = 1, .max = 1 << 20, .buckets = 60}}},
                  nothing)
                .find("have more than 1024 combinations"),
            std::string::npos);
  const auto range_error = [&](DynamicRange range) {
    return error({{.argument = 0, .dim = 0, .range = std::move(range)}}, nothing);
  };
  EXPECT_NE(range_error({.multiple_of = 0}).find("multiple_of must be positive"), std::string::npos);
  EXPECT_NE(range_error({.min = 9, .max = 8}).find("no size is 9..8"), std::string::npos);
  EXPECT_NE(range_error({.bucket_bounds = {8, 4}}).find("bucket bounds must ascend"), std::string::npos);
  EXPECT_NE(range_error({.max = 2000000000, .buckets = 2000000000}).find("buckets must be from 1 to 1024"),
            std::string::npos);
  EXPECT_NE(range_error({.max = INT64_MAX - 1}).find("warm_up"), std::string::npos);
  EXPECT_THROW(compile::warm_up(model, {x}, nullptr), Error);
  EXPECT_THROW(compile::warm_up(model, {Tensor()}, nothing, {{.argument = 0}}), Error);
  optim::AdamW adamw(model.parameters(), {.lr = 0.1});
  EXPECT_NE(error({},
                  [&](Batch at) {
                    ops::sum(model(at[0])).backward();
                    adamw.step();
                  })
                .find("warm_up: the step changed the parameter fc.weight; leave the optimizer's step out"),
            std::string::npos);
  EXPECT_EQ(error({}, [](Batch) { throw Error("the step's own"); }), "the step's own");
}

}  // namespace
}  // namespace rondo
