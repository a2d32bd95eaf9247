// Note [Used, but never called]: a compiled module whose parts are used, but which is never called, says so once.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/log.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/compiled_runs.h"

namespace rondo {
namespace {

using test::Eagerly;
using test::MeansToRun;

class UsedWithoutCall : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    before_ = compile::log::set_log_sink([this](std::string_view message) { warnings_.emplace_back(message); });
  }
  void TearDown() override { compile::log::set_log_sink(before_); }
  void expect_one_warning(const std::string& part) {
    ASSERT_EQ(warnings_.size(), 1u);
    EXPECT_NE(warnings_[0].find(part), std::string::npos) << warnings_[0];
    warnings_.clear();
  }

  std::vector<std::string> warnings_;

 private:
  compile::log::Sink before_;
};

// Its loss calls the parts, as a model does that needs more than forward returns. A warning comes once in a process for
// each text, so each test has a class of its own, with this inside.
struct Layers : nn::Module<Layers> {
  nn::Linear body = child("body", 8, 8);
  nn::Linear head = child("head", 8, 1);
  Tensor forward(const Tensor& x) { return head(ops::relu(body(x))); }
};

TEST_F(UsedWithoutCall, ALossThatCallsThePartsIsSaidOnce) {
  struct Parts : nn::Module<Parts> {
    Layers layers = child("layers");
    Tensor forward(const Tensor& x) { return layers(x); }
    Tensor loss(const Tensor& x) { return ops::sum(layers(x)); }
  } model;
  const MeansToRun never(Eagerly::kNothing, "only parts are called");
  const compile::Regions regions = compile::compile_module(model);
  for (int step = 0; step < 3; ++step) model.loss(Tensor::ones({2, 8})).backward();
  expect_one_warning("Parts is compiled, but runs eagerly: its part layers was called");
  EXPECT_EQ(regions.report()[0].used_without_call, "its part layers was called");
  EXPECT_NE(regions.summary().find("not called yet, shared by 1 layer; runs eagerly, as its part layers was called"),
            std::string::npos)
      << regions.summary();
}

TEST_F(UsedWithoutCall, SoIsEvaluation) {
  struct Evaluated : nn::Module<Evaluated> {
    Layers layers = child("layers");
    Tensor forward(const Tensor& x) { return layers(x); }
    Tensor loss(const Tensor& x) { return ops::sum(layers(x)); }
  } model;
  model.eval();
  const MeansToRun never(Eagerly::kNothing, "only parts are called");
  compile::compile_module(model);
  const NoGrad off;
  model.loss(Tensor::ones({2, 8}));
  expect_one_warning("its part layers was called");
}

TEST_F(UsedWithoutCall, SoAreBlocksWhoseForwardIsCalled) {
  struct Inner : nn::Module<Inner> {
    Layers layers = child("layers");
    Tensor forward(const Tensor& x) { return layers(x); }
    Tensor loss(const Tensor& x) { return ops::sum(layers(x)); }
  };
  struct Model : nn::Module<Model> {
    nn::ModuleList<Inner> blocks = child("blocks", 3);
    Tensor forward(const Tensor& x) {
      Tensor sum;
      for (Inner& block : blocks) sum = sum.defined() ? sum + block.forward(x) : block.forward(x);
      return sum;
    }
  } model;
  const MeansToRun never(Eagerly::kNothing, "forward is called, and not the block");
  compile::compile_regions(model);
  ops::sum(model(Tensor::ones({2, 8}))).backward();
  expect_one_warning("Inner is compiled, but runs eagerly: its part layers was called");
}

// There is no part whose call could be seen.
TEST_F(UsedWithoutCall, AGradientOfItsOwnParameterIsSaid) {
  struct Own : nn::Module<Own> {
    Tensor& gain = parameter("gain", Tensor::ones({8}));
    Tensor forward(const Tensor& x) { return x * gain; }
  } model;
  {
    const MeansToRun never(Eagerly::kNothing, "forward is called, and not the model");
    compile::compile_module(model);
    for (int step = 0; step < 2; ++step) ops::sum(model.forward(Tensor::ones({2, 8}))).backward();
    expect_one_warning("its parameter gain got a gradient");
  }
  ops::sum(model(Tensor::ones({2, 8}))).backward();
  ops::sum(model.forward(Tensor::ones({2, 8}))).backward();  // it was called: this one may be meant
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(UsedWithoutCall, WhatIsCalledIsNot) {
  struct Called : nn::Module<Called> {
    Layers layers = child("layers");
    Tensor forward(const Tensor& x) { return layers(x); }
    Tensor loss(const Tensor& x) { return ops::sum(layers(x)); }
  } model;
  compile::compile_module(model);
  const auto is_watched = [](nn::ModuleBase& module) { return module.call_hook != nullptr; };
  EXPECT_TRUE(is_watched(model.layers.body));
  for (int step = 0; step < 2; ++step) ops::sum(model(Tensor::ones({2, 8}))).backward();
  EXPECT_FALSE(is_watched(model.layers.body) || is_watched(model.layers)) << "later steps would pay for it";
  model.loss(Tensor::ones({2, 8})).backward();
  EXPECT_TRUE(warnings_.empty());
}

// Blocks inside of a compiled model are part of its recording, and generation calls parts on purpose.
TEST_F(UsedWithoutCall, NorAreBlocksOfARecordingAndGeneration) {
  nn::GPT2 model({.vocab_size = 31, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 16}, 1);
  compile::compile_regions(model);
  compile::compile_module(model);
  const Tensor tokens = Tensor::from<int64_t>({1, 2, 3, 4, 5, 6, 7, 8}, {1, 8});
  {
    const MeansToRun eagerly(Eagerly::kAll, "generation");
    model.generate(tokens.slice(1, {0, 4}), 2, 0.0);
  }
  model.loss(tokens, tokens).backward();
  EXPECT_TRUE(warnings_.empty());
}

// A model that was compiled, and then explained before its first step.
TEST_F(UsedWithoutCall, NorIsWhatAnExplanationRuns) {
  struct Explained : nn::Module<Explained> {
    Layers layers = child("layers");
    Tensor forward(const Tensor& x) { return layers(x); }
    Tensor loss(const Tensor& x) { return ops::sum(layers(x)); }
  } model;
  compile::compile_module(model);
  {
    const compile::TemporaryRegions temporary(model);
    ops::sum(model(Tensor::ones({2, 8}))).backward();
    ops::sum(model.layers.forward(Tensor::ones({2, 8}))).backward();
  }
  EXPECT_TRUE(warnings_.empty());
  ops::sum(model(Tensor::ones({2, 8}))).backward();
  EXPECT_TRUE(warnings_.empty());
}

}  // namespace
}  // namespace rondo
