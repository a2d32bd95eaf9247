// Generation with compiled models: it runs eagerly and leaves their regions alone.
#include "rondo/modules/generation.h"

#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/modules/gpt2.h"
#include "rondo/modules/llama.h"
#include "rondo/runtime/autograd.h"
#include "rondo/tests/compiled_runs.h"

namespace rondo::compile {
namespace {

constexpr nn::GPT2Config kGPT2 = {.vocab_size = 29, .block_size = 24, .n_layer = 2, .n_head = 2, .n_embd = 32};
constexpr nn::LlamaConfig kLlama = {
    .vocab_size = 29, .block_size = 24, .n_layer = 2, .n_head = 4, .n_kv_head = 2, .n_embd = 32, .n_hidden = 40};
const nn::GenerationOptions kGreedy = {.max_new_tokens = 15, .temperature = 0};

template <class Model, class Config> void expect_no_trace(const Config& config, CompileOptions options) {
  const Tensor idx = Tensor::from<int64_t>({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4});
  Model plain(config, 5), model(config, 5);
  const std::vector<int64_t> expected = nn::generate(plain, {1, 2, 3}, kGreedy).tokens;
  const Regions regions = compile_regions(model, options);
  EXPECT_EQ(nn::generate(model, {1, 2, 3}, kGreedy).tokens, expected);
  EXPECT_EQ(regions.report()[0].entries, 0);
  model.loss(idx, idx).backward();
  const RegionReport before = regions.report()[0];
  EXPECT_GT(before.entries, 0);
  EXPECT_EQ(nn::generate(model, {1, 2, 3}, kGreedy).tokens, expected);
  model.zero_grad();
  model.loss(idx, idx).backward();
  const RegionReport after = regions.report()[0];
  EXPECT_EQ(after.entries, before.entries);
  EXPECT_EQ(after.compilations, before.compilations);
  EXPECT_EQ(after.graph_breaks, 0);
  EXPECT_EQ(after.eager_runs, 0);
}

TEST(Generation, RegionsOfGPT2KeepNoTrace) {
  const test::MeansToRun eagerly(test::Eagerly::kAll, "generation with a cache runs regions op by op");
  expect_no_trace<nn::GPT2>(kGPT2, {});
  expect_no_trace<nn::GPT2>(kGPT2, {.exact = true});
  expect_no_trace<nn::GPT2>(kGPT2, {.capture = Capture::kReplay});
  expect_no_trace<nn::GPT2>(kGPT2, {.fullgraph = true});
}
TEST(Generation, RegionsOfLlamaKeepNoTrace) {
  const test::MeansToRun eagerly(test::Eagerly::kAll, "generation with a cache runs regions op by op");
  expect_no_trace<nn::Llama>(kLlama, {});
  expect_no_trace<nn::Llama>(kLlama, {.capture = Capture::kVerify});
}

TEST(Generation, AWholeCompiledModel) {
  const test::MeansToRun eagerly(test::Eagerly::kNothing, "generation does not call the model as a module");
  nn::GPT2 plain(kGPT2, 5), model(kGPT2, 5);
  const Regions regions = compile_module(model);
  EXPECT_EQ(nn::generate(model, {1, 2, 3}, kGreedy).tokens, nn::generate(plain, {1, 2, 3}, kGreedy).tokens);
  EXPECT_EQ(regions.report()[0].calls, 0);
}

// Inside a region the recording ends there, and what was recorded before has its values.
TEST(Generation, InsideARegion) {
  nn::GPT2 model(kGPT2, 5);
  const std::vector<int64_t> expected = nn::generate(model, {1, 2, 3}, kGreedy).tokens;
  std::vector<int64_t> got;
  auto f = compile([&](const Tensor& x) {
    const Tensor y = x * 2.0;
    got = nn::generate(model, {1, 2, 3}, kGreedy).tokens;
    return y + 1.0;
  });
  const NoGrad off;
  EXPECT_EQ(f(Tensor::ones({3})).to_vector<float>(), std::vector<float>(3, 3.0f));
  EXPECT_EQ(got, expected);
  const int entries = f.regions().report()[0].entries;
  f(Tensor::ones({3}));
  EXPECT_EQ(f.regions().report()[0].entries, entries);
}

// Products of a few rows and attention of one query: eager and compiled take the same kernels.
TEST(Generation, OneTokenIsExactInARegion) {
  nn::GPT2 plain(kGPT2, 5), model(kGPT2, 5);
  compile_regions(model, {.exact = true});
  const NoGrad off;
  for (const DType dtype : {kF32, kBF16}) {
    plain.to(dtype);
    model.to(dtype);
    for (const Dims& shape : {Dims{1, 1}, Dims{1, 3}, Dims{2, 2}, Dims{3, 1}, Dims{1, 5}}) {
      const Tensor idx = Tensor::randint(0, 29, shape);
      EXPECT_EQ(plain(idx).to_vector<float>(), model(idx).to_vector<float>()) << shape;
    }
  }
}

}  // namespace
}  // namespace rondo::compile
