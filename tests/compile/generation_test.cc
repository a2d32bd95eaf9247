// Generation with compiled models: a prompt runs eagerly, each further token as a region that is compiled once
// (Note [Decode steps] in modules/layers/kv_cache.h).
#include "rondo/modules/generation/generation.h"

#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/modules/transformers/vision_encoder_decoder.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compiled_runs.h"

namespace rondo::compile {
namespace {

constexpr nn::GPT2Config kGPT2 = {.vocab_size = 29, .block_size = 200, .n_layer = 2, .n_head = 2, .n_embd = 32};
constexpr nn::LlamaConfig kLlama = {
    .vocab_size = 29, .block_size = 200, .n_layer = 2, .n_head = 4, .n_kv_head = 2, .n_embd = 32, .n_hidden = 40};
const nn::GenerationOptions kGreedy = {.max_new_tokens = 15, .temperature = 0};
using Prompts = std::vector<std::vector<int64_t>>;

// Heads of their own size, normed, and a window in one layer of two.
nn::LlamaConfig with_parts() {
  nn::LlamaConfig config = kLlama;
  config.head_dim = 10;
  config.qk_norm = true;
  config.sliding_window = 6;
  config.window_layers = {false, true};
  return config;
}

std::vector<std::vector<int64_t>> texts(nn::CausalLM& model, const Prompts& prompts,
                                        const nn::GenerationOptions& options = kGreedy) {
  std::vector<std::vector<int64_t>> all;
  for (nn::Generation& text : nn::generate(model, prompts, options)) all.push_back(std::move(text.tokens));
  return all;
}

// What weights and adapters say is in the texts, and not only that tokens repeat.
void make_uneven(nn::ModuleBase& model) {
  const NoGrad off;
  for (Tensor p : model.parameters())
    if (p.rank() >= 2) p.mul_(8);
}

// Texts of several lengths are those of a model that is not compiled, and cost one recording and one compilation.
template <class Model, class Config> void expect_one_step(const Config& config, CompileOptions options) {
  const test::MeansToRun eagerly(test::Eagerly::kAll, "prompts run op by op");
  const Tensor idx = Tensor::from<int64_t>({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4});
  Model plain(config, 5), model(config, 5);
  make_uneven(plain);
  make_uneven(model);
  const Regions regions = compile_regions(model, options);
  const auto report = [&] { return regions.report()[0]; };
  const auto expect_texts = [&](const Prompts& prompts) { EXPECT_EQ(texts(model, prompts), texts(plain, prompts)); };
  expect_texts({{1, 2, 3}});
  EXPECT_EQ(report().entries, 1);
  EXPECT_LE(report().compilations, 1);
  EXPECT_EQ(report().calls, 14 * 2);
  expect_texts({{9, 8, 7, 6, 5, 4, 3, 2, 1, 9, 8, 7, 6, 5, 4, 3, 2, 1}});
  expect_texts({{3}});
  EXPECT_EQ(report().entries, 1);
  model.loss(idx, idx).backward();
  const int entries = report().entries, compilations = report().compilations;
  expect_texts({{1, 2, 3}});
  model.zero_grad();
  model.loss(idx, idx).backward();
  EXPECT_EQ(report().entries, entries);
  EXPECT_EQ(report().compilations, compilations);
  EXPECT_EQ(report().graph_breaks, 0);
  EXPECT_EQ(report().eager_runs, 0);
  EXPECT_EQ(report().failed_compilations, 0);
}

TEST(Generation, AStepOfGPT2IsCompiledOnce) {
  expect_one_step<nn::GPT2>(kGPT2, {});
  expect_one_step<nn::GPT2>(kGPT2, {.exact = true});
  expect_one_step<nn::GPT2>(kGPT2, {.mode = Mode::kReduceOverhead});
  expect_one_step<nn::GPT2>(kGPT2, {.mode = Mode::kMaxAutotune});
  expect_one_step<nn::GPT2>(kGPT2, {.capture = Capture::kReplay});
  expect_one_step<nn::GPT2>(kGPT2, {.fullgraph = true});
  expect_one_step<nn::GPT2>(kGPT2, {.dynamic = {{.argument = 0, .dim = 0, .range = {.max = 64}}}});
}
TEST(Generation, AStepOfLlamaIsCompiledOnce) {
  expect_one_step<nn::Llama>(kLlama, {});
  expect_one_step<nn::Llama>(kLlama, {.capture = Capture::kVerify});
}

// A cache of another size is planned again, and needs no other code. So is another number of rows.
TEST(Generation, OtherCaches) {
  const test::MeansToRun eagerly(test::Eagerly::kAll, "prompts run op by op");
  nn::Llama plain(kLlama, 5), model(kLlama, 5);
  const Regions regions = compile_regions(model);
  for (const int64_t more : {10, 100, 150, 20, 90}) {
    nn::GenerationOptions options = kGreedy;
    options.max_new_tokens = more;
    EXPECT_EQ(texts(model, {{1, 2, 3}}, options), texts(plain, {{1, 2, 3}}, options));
  }
  EXPECT_EQ(regions.report()[0].entries, 3);  // 64, 128 and 192 slots
  EXPECT_LE(regions.report()[0].compilations, 1);
}

// The logits of each step have the bits of eager execution over a cache of the same content: rows of different lengths,
// rows that have ended, windows.
template <class Model, class Config> void expect_exact_steps(const Config& config, DType dtype, int64_t rows) {
  SCOPED_TRACE(std::string(name_of(dtype)) + ", rows " + std::to_string(rows));
  const test::MeansToRun eagerly(test::Eagerly::kAll, "prompts run op by op");
  Model plain(config, 5), model(config, 5);
  for (Model* of : {&plain, &model}) {
    make_uneven(*of);
    of->to(dtype);
    of->eval();
  }
  const Regions regions = compile_regions(model, {.exact = true});
  const NoGrad off;
  nn::KVCacheOptions options = model.cache_options();
  options.batch = rows;
  nn::KVCache expected(options), cache(options);
  std::vector<int64_t> counts;
  for (int64_t row = 0; row < rows; ++row) counts.push_back(7 - 3 * row);
  const Tensor prompt = Tensor::randint(0, 29, {rows, 7});
  EXPECT_TRUE(test::same_bits(model.next_logits(prompt, cache, counts), plain.next_logits(prompt, expected, counts)));
  for (int64_t step = 0; step < 9; ++step) {
    const Tensor idx = Tensor::randint(0, 29, {rows, 1});
    counts.assign(counts.size(), 1);
    if (step > 5) counts[0] = 0;  // has ended
    EXPECT_TRUE(test::same_bits(model.next_logits(idx, cache, counts), plain.next_logits(idx, expected, counts)))
        << "step " << step;
  }
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    EXPECT_TRUE(test::same_bits(cache.keys(layer), expected.keys(layer)));
    EXPECT_TRUE(test::same_bits(cache.values(layer), expected.values(layer)));
  }
}
TEST(Generation, AStepIsExact) {
  for (const DType dtype : {kF32, kBF16})
    for (const int64_t rows : {1, 3}) {
      expect_exact_steps<nn::GPT2>(kGPT2, dtype, rows);
      expect_exact_steps<nn::Llama>(kLlama, dtype, rows);
      expect_exact_steps<nn::Llama>(with_parts(), dtype, rows);
    }
}

TEST(Generation, RowsThatEndAndBeams) {
  const test::MeansToRun eagerly(test::Eagerly::kAll, "prompts run op by op");
  nn::GPT2 plain(kGPT2, 5), model(kGPT2, 5);
  make_uneven(plain);
  make_uneven(model);
  const Regions regions = compile_regions(model);
  const Prompts prompts = {{1, 2, 3, 4, 5}, {6}, {7, 8}};
  nn::GenerationOptions options = {.max_new_tokens = 30, .temperature = 0, .stop_tokens = {11, 3}};
  EXPECT_EQ(texts(model, prompts, options), texts(plain, prompts, options));
  options.num_beams = 3;
  EXPECT_EQ(texts(model, prompts, options), texts(plain, prompts, options));
  EXPECT_LE(regions.report()[0].entries, 2);  // 3 and 9 rows
  EXPECT_GT(regions.report()[0].calls, 0);
  // The model's end.
  nn::GenerationOptions sliding = kGreedy;
  sliding.max_new_tokens = 30;
  sliding.slide = true;
  const std::vector<int64_t> full(190, 4);
  EXPECT_EQ(texts(model, {full}, sliding), texts(plain, {full}, sliding));
}

TEST(Generation, Adapters) {
  const test::MeansToRun eagerly(test::Eagerly::kAll, "prompts run op by op");
  nn::Llama plain(kLlama, 5), model(kLlama, 5);
  for (nn::Llama* of : {&plain, &model}) {
    default_generator() = Generator(3);
    nn::add_lora(*of, {.rank = 4, .alpha = 8, .targets = {"q_proj", "v_proj"}});
    const NoGrad off;
    for (Tensor& p : of->parameters())
      if (p.requires_grad()) p.add_(Tensor::randn(p.sizes()) * 0.5);
  }
  const Regions regions = compile_regions(model, {.exact = true});
  const Prompts prompts = {{1, 2, 3}};
  EXPECT_EQ(texts(model, prompts), texts(plain, prompts));
  EXPECT_EQ(regions.report()[0].entries, 1);
  nn::merge_adapter(model);
  nn::merge_adapter(plain);
  EXPECT_EQ(texts(model, prompts), texts(plain, prompts));
  EXPECT_EQ(regions.report()[0].graph_breaks, 0);
}

// A captioner: the encoder runs once, and the decoder's first token computes the keys of what it has encoded.
TEST(Generation, Captions) {
  const test::MeansToRun eagerly(test::Eagerly::kAll, "first tokens run op by op");
  const nn::VisionEncoderDecoderConfig config = {
      .encoder = {.image_size = 8, .patch_size = 4, .n_layer = 2, .n_head = 2, .n_embd = 16},
      .decoder = {.vocab_size = 29, .block_size = 70, .n_layer = 2, .n_head = 2, .n_embd = 16},
      .decoder_start_token_id = 1,
      .eos_token_ids = {2}};
  nn::VisionEncoderDecoder plain(config, 5), model(config, 5);
  make_uneven(plain);
  make_uneven(model);
  const Regions regions = compile_regions(model);
  const Tensor images = Tensor::randn({3, 3, 8, 8});
  const auto captions = [&](nn::VisionEncoderDecoder& of, int64_t beams) {
    std::vector<std::vector<int64_t>> all;
    for (nn::Generation& text : of.generate(images, {.max_new_tokens = 12, .temperature = 0, .num_beams = beams}))
      all.push_back(std::move(text.tokens));
    return all;
  };
  EXPECT_EQ(captions(model, 1), captions(plain, 1));
  EXPECT_EQ(captions(model, 2), captions(plain, 2));
  ASSERT_EQ(regions.report().size(), 2u);
  for (const RegionReport& report : regions.report()) {
    EXPECT_LE(report.entries, 2) << report.name;  // of the decoder: 3 and 6 rows
    EXPECT_GT(report.calls, 0) << report.name;
    EXPECT_EQ(report.graph_breaks, 0) << report.name;
  }
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
