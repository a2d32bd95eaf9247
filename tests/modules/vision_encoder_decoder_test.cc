// Captions: what transformers writes with the recorded checkpoints (tests/reference/record_pretrained.py), the
// decoder's cross-attention and its cache, and what a wrong call says.
#include "rondo/modules/transformers/vision_encoder_decoder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/optim/adam.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/modules/pretrained_cases.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::nn {
namespace {

using test::error_of;
using test::same_bits;

VisionEncoderDecoderConfig small(int64_t encoder_width = 16) {
  return {.encoder = {.image_size = 8, .patch_size = 4, .n_layer = 2, .n_head = 2, .n_embd = encoder_width},
          .decoder = {.vocab_size = 31, .block_size = 12, .n_layer = 2, .n_head = 2, .n_embd = 16},
          .decoder_start_token_id = 1,
          .pad_token_id = 3,
          .eos_token_ids = {2}};
}

// Weights far from zero, so that texts depend on images.
void make_uneven(ModuleBase& model) {
  const NoGrad off;
  for (Tensor p : model.parameters())
    if (p.rank() >= 2) p.mul_(10);
}

Tensor some_images(int64_t B) { return Tensor::randn({B, 3, 8, 8}); }

// ---- Beside transformers

class Captions : public testing::TestWithParam<std::string> {};

TEST_P(Captions, AreThoseOfTransformers) {
  const io::TensorMap expected = expected_values(GetParam());
  const auto model = AutoModelForImageTextToText::from_pretrained(recorded_folder(GetParam()));
  VisionEncoderDecoder& captioner = model.vision_encoder_decoder();
  const Tensor images = expected.at("input.images").to(kF32).to(default_device());
  const std::pair<const char*, GenerationOptions> ways[] = {{"greedy", {}},
                                                            {"penalised", {.repetition_penalty = 1.7}},
                                                            {"beams", {.num_beams = 3}},
                                                            {"short_beams", {.num_beams = 4, .length_penalty = -1.0}},
                                                            {"early_beams", {.num_beams = 3, .early_stopping = true}}};
  for (auto [way, options] : ways) {
    SCOPED_TRACE(way);
    options.temperature = 0;
    const Tensor want = expected.at(std::string("caption.") + way);
    options.max_new_tokens = want.size(1) - 1;
    const std::vector<Generation> texts = captioner.generate(images, options);
    ASSERT_EQ(static_cast<int64_t>(texts.size()), want.size(0));
    for (size_t b = 0; b < texts.size(); ++b) {
      std::vector<int64_t> row = want[static_cast<int64_t>(b)].to_vector<int64_t>();
      const size_t n = texts[b].tokens.size();
      ASSERT_LT(n, row.size());
      EXPECT_EQ(std::vector<int64_t>(row.begin() + 1, row.begin() + 1 + static_cast<std::ptrdiff_t>(n)),
                texts[b].tokens);
      EXPECT_EQ(texts[b].reason, FinishReason::kStopToken);
      for (size_t i = n + 1; i < row.size(); ++i) EXPECT_EQ(row[i], captioner.config.pad_token_id);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Captions, testing::Values("captioner", "captioner_projected"),
                         [](const auto& info) { return info.param; });

// ---- The model

TEST(VisionEncoderDecoder, NamesAndSizes) {
  VisionEncoderDecoder model(small(24));
  EXPECT_EQ(model.config.encoder.num_classes, 0);
  EXPECT_TRUE(model.config.decoder.cross_attention);
  const StateDict state = model.state_dict();
  for (const char* name : {"encoder.blocks.1.attn.qkv.weight", "decoder.h.1.crossattention.c_attn.weight",
                           "decoder.h.0.crossattention.q_attn.bias", "decoder.h.0.crossattention.c_proj.weight",
                           "decoder.h.1.ln_cross_attn.bias", "enc_to_dec_proj.weight", "pooler_weight"})
    EXPECT_TRUE(state.contains(name)) << name;
  EXPECT_FALSE(state.contains("encoder.head.weight"));
  EXPECT_EQ(to_string(state.at("decoder.h.0.crossattention.c_attn.weight").sizes()), "[32, 16]");
  EXPECT_EQ(VisionEncoderDecoder(small()).enc_to_dec_proj, nullptr);
  const Tensor logits = model(some_images(2), Tensor::zeros({2, 5}, {kI64}));
  EXPECT_EQ(to_string(logits.sizes()), "[2, 5, 31]");
  // The same seed gives the same weights.
  const VisionEncoderDecoder again(small(24));
  for (const auto& [name, tensor] : again.state_dict()) EXPECT_TRUE(same_bits(tensor, state.at(name))) << name;
}

TEST(VisionEncoderDecoder, LabelsAreShiftedRight) {
  const Tensor labels = Tensor::from<int64_t>({7, 8, 2, -100, 5, 2, -100, -100}, {2, 4}).to(default_device());
  EXPECT_EQ(shift_tokens_right(labels, 3, 1).to_vector<int64_t>(), (std::vector<int64_t>{1, 7, 8, 2, 1, 5, 2, 3}));
  EXPECT_NE(error_of([] {
              shift_tokens_right(Tensor::zeros({2, 4}), 3, 1);
            }).find("labels must be i64 or i32 (B, T)"),
            std::string::npos);
}

// In chunks, in whole, and from logits: one loss, and one set of gradients.
TEST(VisionEncoderDecoder, TheLossNeedsNoWholeLogits) {
  std::vector<double> losses;
  std::vector<std::vector<Tensor>> gradients;
  const Tensor images = some_images(2);
  const Tensor labels = Tensor::from<int64_t>({7, 8, 9, 2, -100, 30, 0, 4, 8, 2}, {2, 5}).to(default_device());
  for (const int64_t whole : {int64_t{0}, int64_t{1} << 30}) {
    VisionEncoderDecoderConfig config = small();
    config.decoder.whole_logits = whole;
    VisionEncoderDecoder model(config, 3);
    model.to(kF64);
    const Tensor loss = model.loss(images.to(kF64), labels);
    loss.backward();
    losses.push_back(loss.item());
    gradients.emplace_back();
    for (const auto& [name, p] : model.named_parameters()) {
      ASSERT_TRUE(p.grad().defined()) << name;
      gradients.back().push_back(p.grad());
    }
    const Tensor idx = shift_tokens_right(labels, 3, 1);
    const Tensor logits = no_grad([&] { return model(images.to(kF64), idx); });
    EXPECT_NEAR(ops::cross_entropy(logits.view({10, 31}), labels.view({10})).item(), losses[0], 1e-12);
  }
  EXPECT_NEAR(losses[0], losses[1], 1e-12);
  for (size_t i = 0; i < gradients[0].size(); ++i)
    EXPECT_TRUE(test::is_close(gradients[0][i], gradients[1][i], {.absolute = 1e-13, .of_largest = 1e-10}));
}

// No token sees padding, wherever it stands: what it is changes no other token's logits.
TEST(VisionEncoderDecoder, TheMaskHidesPadding) {
  VisionEncoderDecoder model(small(), 3);
  make_uneven(model);
  model.eval();
  const NoGrad off;
  const Tensor images = some_images(1);
  const Tensor mask = Tensor::from<int64_t>({0, 1, 1, 0, 1}, {1, 5}).to(kBool).to(default_device());
  const auto logits = [&](int64_t padding, const Tensor& masked) {
    const Tensor idx = Tensor::from<int64_t>({padding, 7, 8, padding, 9}, {1, 5}).to(default_device());
    return masked.defined() ? model(images, idx, masked) : model(images, idx);
  };
  const Tensor a = logits(3, mask), b = logits(4, mask), c = logits(4, Tensor());
  for (const int64_t t : {1, 2, 4}) {
    EXPECT_TRUE(same_bits(a.select(1, t), b.select(1, t))) << t;
    EXPECT_GT(test::difference(b.select(1, t), c.select(1, t)), 1e-3) << t;
  }
  EXPECT_TRUE(std::isfinite(test::largest(a.to(kF64))));
  const std::string wrong = error_of([&] { logits(3, mask.to(kF32)); });
  EXPECT_NE(wrong.find("mask must be bool with the shape of idx, [1, 5], got f32[1, 5]"), std::string::npos) << wrong;
}

TEST(VisionEncoderDecoder, WrongCallsSayWhatToDo) {
  VisionEncoderDecoderConfig config = small();
  config.eos_token_ids = {31};
  EXPECT_NE(
      error_of([&] { VisionEncoderDecoder{config}; }).find("eos_token_ids must be a token of the decoder's 31, got 31"),
      std::string::npos);
  VisionEncoderDecoder model(small());
  const Tensor idx = Tensor::zeros({2, 3}, {kI64});
  EXPECT_NE(error_of([&] { model.decoder(idx); }).find("needs `encoded`, the encoder's output (B, S, C)"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              nn::generate(model.decoder, std::vector<int64_t>{1}, {.max_new_tokens = 2});
            }).find("GenerationOptions::encoded"),
            std::string::npos);
  GPT2 plain(GPT2Config{.vocab_size = 31, .block_size = 12, .n_layer = 1, .n_head = 2, .n_embd = 16});
  const Tensor encoded = Tensor::zeros({1, 5, 16});
  EXPECT_NE(error_of([&] { plain(idx, Tensor(), encoded); }).find("takes `encoded` only with cross-attention"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              nn::generate(plain, std::vector<int64_t>{1}, {.max_new_tokens = 2, .encoded = encoded});
            }).find("the model has no cross-attention"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              const std::vector<std::vector<int64_t>> prompts = {{1}, {1}};
              nn::generate(model.decoder, prompts, {.max_new_tokens = 2, .encoded = encoded});
            }).find("encoded must be (B, S, C) with B = 2 prompts, got [1, 5, 16]"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              model.encoder.loss(some_images(2), Tensor::zeros({2}, {kI64}));
            }).find("has no loss without a classifier"),
            std::string::npos);
}

// ---- The cache

// Token by token, several at once, and rows of other lengths: the logits of an uncached forward.
TEST(CrossAttentionCache, GivesTheLogitsOfAnUncachedForward) {
  VisionEncoderDecoder model(small(24), 3);
  make_uneven(model);
  model.eval();
  const NoGrad off;
  const Tensor idx = Tensor::randint(0, 31, {2, 9}, {kI64});
  const Tensor encoded = model.encode(some_images(2));
  const Tensor want = model.decoder(idx, Tensor(), encoded);
  KVCacheOptions options = model.decoder.cache_options();
  options.batch = 2;
  options.encoded = encoded;
  KVCache cache(options);
  const int64_t bytes = cache.bytes();
  for (const int64_t T : {3, 1, 1, 2, 1, 1}) {
    const int64_t at = cache.length(0);
    const Tensor logits = model.decoder.cached_logits(idx.slice(1, {at, at + T}), cache);
    EXPECT_TRUE(test::is_close(logits.to(kF64), want.slice(1, {at, at + T}).to(kF64), {.of_largest = 1e-5})) << at;
    // Keys and values of 5 positions of 2 images, in 2 layers: made once.
    EXPECT_EQ(cache.bytes() - bytes, 2 * 2 * (2 * 5 * 16) * 4);
  }
  cache.reset();
  const int64_t counts[] = {2, 4};
  const Tensor padded = model.decoder.next_logits(idx.slice(1, {0, 4}), cache, counts);
  EXPECT_TRUE(test::is_close(padded[0].to(kF64), want[0][1].to(kF64), {.of_largest = 1e-5}));
  EXPECT_TRUE(test::is_close(padded[1].to(kF64), want[1][3].to(kF64), {.of_largest = 1e-5}));
}

// Projects the encoder's output in the first step only.
TEST(CrossAttentionCache, ProjectsTheEncodersOutputOnce) {
  struct Count : CallHook {
    explicit Count(int& calls) : calls(calls) {}
    int& calls;
    void around(const ModuleCall&, absl::FunctionRef<void()> forward) override {
      ++calls;
      forward();
    }
  };
  VisionEncoderDecoder model(small(), 3);
  int projections = 0, queries = 0, encodings = 0;
  for (TransformerBlock& block : model.decoder.h) {
    block.crossattention->c_attn.call_hook = std::make_shared<Count>(projections);
    block.crossattention->q_attn.call_hook = std::make_shared<Count>(queries);
  }
  model.encoder.call_hook = std::make_shared<Count>(encodings);
  model.config.eos_token_ids.clear();
  for (const int64_t beams : {1, 3}) {
    projections = queries = encodings = 0;
    model.generate(some_images(2), {.max_new_tokens = 6, .temperature = 0, .num_beams = beams});
    EXPECT_EQ(encodings, 1);
    EXPECT_EQ(projections, 2);
    EXPECT_EQ(queries, 2 * 6);
  }
  for (const NamedModule& m : model.named_modules()) EXPECT_TRUE(m.module.is_training()) << m.name;
}

TEST(CrossAttentionCache, Errors) {
  const auto made = [](KVCacheOptions options) { return error_of([&] { KVCache{options}; }); };
  KVCacheOptions options = {.layers = 1, .batch = 4, .kv_heads = 2, .max_length = 4, .head_dim = 4, .encoded_width = 8};
  EXPECT_NE(made(options).find("the cache needs the encoder's output"), std::string::npos);
  options.encoded = Tensor::zeros({3, 5, 8});
  EXPECT_NE(made(options).find("with an E that divides the 4 rows, got [3, 5, 8]"), std::string::npos);
  options.encoded = Tensor::zeros({2, 5, 7});
  EXPECT_NE(made(options).find("encoded must be (E, S, 8)"), std::string::npos);
  options.encoded = Tensor::zeros({2, 5, 8});
  KVCache cache(options);
  const int64_t across[] = {0, 2, 2, 3}, within[] = {1, 1, 3, 2};
  EXPECT_NE(error_of([&] { cache.reorder(across); }).find("row 1 cannot become row 2"), std::string::npos);
  cache.reorder(within);
  VisionEncoderDecoder model(small());
  KVCacheOptions own = model.decoder.cache_options();
  own.encoded = Tensor::zeros({1, 5, 16});
  KVCache for_model(own);
  EXPECT_NE(error_of([&] {
              model.decoder.next_logits(Tensor::zeros({1, 2}, {kI64}), for_model);
            }).find("a cached forward has no gradient"),
            std::string::npos);
  CrossAttention attention(8, 2);
  EXPECT_NE(error_of([&] {
              attention(Tensor::zeros({1, 2, 8}), Tensor());
            }).find("needs `encoded`"),
            std::string::npos);
}

// ---- Compiled

// Regions for the blocks of both parts, with the encoder's output as an input of each of the decoder's: three steps of
// training with dropout, bit for bit as in eager execution, recorded and replayed. A caption's length is another
// recording.
TEST(VisionEncoderDecoder, RegionsTrainTheSame) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  for (const bool autocast : {false, true}) {
    SCOPED_TRACE(autocast ? "autocast" : "f32");
    const Tensor images = some_images(2);
    std::vector<std::vector<double>> losses;
    std::vector<StateDict> states;
    const std::optional<compile::Capture> ways[] = {std::nullopt, compile::Capture::kRecord, compile::Capture::kReplay};
    for (const auto& way : ways) {
      VisionEncoderDecoderConfig config = small(24);
      config.encoder.dropout = config.decoder.dropout = 0.1;
      VisionEncoderDecoder model(config, 3);
      manual_seed(4);
      std::optional<compile::Regions> regions;
      if (way) regions = compile::compile_regions(model, {.exact = true, .capture = *way});
      optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
      losses.emplace_back();
      for (const int64_t T : {6, 9, 6}) {
        const Tensor labels = Tensor::full({2, T}, 5, {kI64});
        const Tensor loss = [&] {
          const amp::Autocast lower(autocast ? std::optional(kBF16) : std::nullopt);
          return model.loss(images, labels);
        }();
        losses.back().push_back(loss.item());
        optimizer.zero_grad();
        loss.backward();
        optimizer.step();
      }
      states.push_back(model.state_dict());
      EXPECT_EQ(losses.back(), losses[0]);
      for (const auto& [name, tensor] : states[0]) EXPECT_TRUE(same_bits(tensor, states.back().at(name))) << name;
      if (!way) continue;
      const auto report = regions->report();
      ASSERT_EQ(report.size(), 2u);
      for (const compile::RegionReport& region : report) {
        EXPECT_EQ(region.layers, 2) << region.name;
        EXPECT_EQ(region.calls, 6) << region.name;
        EXPECT_EQ(region.eager_runs, 0) << region.name;
        EXPECT_EQ(region.graph_breaks, 0) << region.name << ": " << region.last_break;
        EXPECT_GT(region.kernels, 0) << region.name;
        if (way == compile::Capture::kReplay) {
          EXPECT_GT(region.replays, 0) << region.name;
        }
      }
    }
  }
}

// Each part compiled by itself, and the model as one: all of them run compiled, in the loss and in an encoder's pass
// before generation.
TEST(VisionEncoderDecoder, PartsCompileApart) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  const Tensor images = some_images(2), labels = Tensor::full({2, 6}, 5, {kI64});
  const auto loss_of = [&](VisionEncoderDecoder& model) { return model.loss(images, labels).item(); };
  VisionEncoderDecoder eager(small(), 3), whole(small(), 3), parts(small(), 3);
  const double want = loss_of(eager);
  const compile::Regions one = compile::compile_module(whole, {.exact = true});
  EXPECT_EQ(loss_of(whole), want);
  EXPECT_EQ(one.report()[0].calls, 1);
  const compile::Regions encoder = compile::compile_module(parts.encoder, {.exact = true});
  const compile::Regions decoder = compile::compile_module(parts.decoder, {.exact = true});
  EXPECT_EQ(loss_of(parts), want);
  for (const compile::Regions* part : {&encoder, &decoder}) {
    EXPECT_EQ(part->report()[0].calls, 1);
    EXPECT_EQ(part->report()[0].graph_breaks, 0);
    EXPECT_GT(part->report()[0].kernels, 0);
  }
  const GenerationOptions greedy = {.max_new_tokens = 5, .temperature = 0};
  EXPECT_EQ(parts.generate(images, greedy)[1].tokens, eager.generate(images, greedy)[1].tokens);
  EXPECT_EQ(encoder.report()[0].calls, 2);
}

// ---- Memory

// All layers of the decoder attend to one tensor, under autocast and in regions, too: a further layer takes no copy.
TEST(VisionEncoderDecoder, TheEncodersOutputIsNotCopiedPerLayer) {
  const auto kept = [](bool compiled, int64_t layers, int64_t S) {
    VisionEncoderDecoderConfig config = small();
    config.decoder.n_layer = layers;
    VisionEncoderDecoder model(config, 3);
    std::optional<compile::Regions> regions;
    if (compiled) regions = compile::compile_regions(model.decoder);
    const Tensor encoded = Tensor::randn({1, S, 16}).requires_grad_(), idx = Tensor::zeros({1, 2}, {kI64});
    const int64_t before = memory::stats(default_device()).bytes_in_use;
    const amp::Autocast lower(kBF16);
    const Tensor logits = model.decoder(idx, Tensor(), encoded);
    return memory::stats(default_device()).bytes_in_use - before;
  };
  for (const bool compiled : {false, compile::jit_available()}) {
    const auto more = [&](int64_t layers) { return kept(compiled, layers, 4096) - kept(compiled, layers, 1024); };
    // Of each further position a layer keeps its key and its value, in bf16. A copy would be half as much again.
    EXPECT_LT(more(3) - more(2), 3072 * 2 * 16 * 2 * 14 / 10) << compiled;
  }
}

// ---- Files

// A model that was made here becomes a folder with all that transformers' generate() reads.
TEST(VisionEncoderDecoder, SavesWhatGenerateReads) {
  const TempFolder folder;
  VisionEncoderDecoderConfig config = small(24);
  config.eos_token_ids = {2, 9};
  VisionEncoderDecoder model(config, 3);
  make_uneven(model);
  save_pretrained(model, folder.path());
  const std::string generation = read_bytes(folder / "generation_config.json");
  EXPECT_NE(generation.find("\"decoder_start_token_id\": 1"), std::string::npos) << generation;
  EXPECT_NE(generation.find("\"eos_token_id\": [2, 9]"), std::string::npos) << generation;
  // The decoder's own, too, which transformers' GPT-2 else takes for 50256.
  const std::string written = read_bytes(folder / "config.json"),
                    decoder = written.substr(written.find("\"decoder\": {"));
  EXPECT_NE(decoder.find("\"bos_token_id\": 1"), std::string::npos) << written;
  EXPECT_NE(decoder.find("\"eos_token_id\": [2, 9]"), std::string::npos) << written;
  const auto again = AutoModelForImageTextToText::from_pretrained(folder.path());
  EXPECT_EQ(again.model_type(), "vision-encoder-decoder");
  VisionEncoderDecoder& loaded = again.vision_encoder_decoder();
  EXPECT_EQ(loaded.config.eos_token_ids, config.eos_token_ids);
  EXPECT_FALSE(loaded.is_training());
  const Tensor images = some_images(3);
  const GenerationOptions greedy = {.max_new_tokens = 8, .temperature = 0};
  const std::vector<Generation> a = model.generate(images, greedy), b = loaded.generate(images, greedy);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].tokens, b[i].tokens);
  // What lies beside the model comes along.
  write_bytes(folder / "preprocessor_config.json", "{\"do_resize\": true}");
  const TempFolder other;
  AutoModelForImageTextToText::from_pretrained(folder.path()).save_pretrained(other.path());
  EXPECT_EQ(read_bytes(other / "generation_config.json"), generation);
  EXPECT_EQ(read_bytes(other / "preprocessor_config.json"), "{\"do_resize\": true}");
  EXPECT_EQ(other.entries(), 4);
}

// The loss, texts, and what is saved, are those of the parts that stand in for others.
TEST(VisionEncoderDecoder, ReplacedPartsCount) {
  VisionEncoderDecoderConfig config = small(16);
  VisionEncoderDecoder model(config, 3);
  make_uneven(model);
  config.decoder.n_layer += 2;
  config.decoder.block_size += 8;
  config.decoder.n_head *= 2;
  config.encoder.n_head /= 2;
  const VisionEncoderDecoder wanted(config, 5);
  model.replace("decoder", std::make_unique<GPT2>(wanted.decoder.config, 6));
  model.replace("encoder", std::make_unique<ViT>(wanted.encoder.config, 7));
  make_uneven(model);
  model.eval();
  const TempFolder folder;
  save_pretrained(model, folder.path());
  const auto again = AutoModelForImageTextToText::from_pretrained(folder.path());
  VisionEncoderDecoder& loaded = again.vision_encoder_decoder();
  EXPECT_EQ(loaded.config.decoder.n_layer, config.decoder.n_layer);
  EXPECT_EQ(loaded.config.encoder.n_head, config.encoder.n_head);
  loaded.to(default_device());
  model.to(default_device());
  const Tensor images = some_images(2), idx = Tensor::randint(0, config.decoder.vocab_size, {2, 5});
  EXPECT_TRUE(same_bits(model(images, idx), loaded(images, idx)));
  EXPECT_TRUE(same_bits(model.loss(images, idx), loaded.loss(images, idx)));
  const GenerationOptions greedy = {.max_new_tokens = 100, .temperature = 0};
  const std::vector<Generation> ours = model.generate(images, greedy), theirs = loaded.generate(images, greedy);
  for (size_t b = 0; b < 2; ++b) {
    EXPECT_EQ(ours[b].tokens, theirs[b].tokens);
    EXPECT_EQ(std::ssize(ours[b].tokens), config.decoder.block_size);
  }
  EXPECT_NE(error_of([&] {
              model.replace("decoder", std::make_unique<GPT2>(config.decoder))
                  .replace("h", std::make_unique<ModuleList<TransformerBlock>>());
            }).find("items, and the model's code calls so many"),
            std::string::npos);
}

// transformers' generate() reads generation_config.json, and GPT-2's own fields where that file is not there.
TEST(VisionEncoderDecoder, TheFileOfGenerateCounts) {
  const TempFolder folder;
  VisionEncoderDecoderConfig config = small(24);
  config.eos_token_ids = {2};
  VisionEncoderDecoder model(config, 3);
  save_pretrained(model, folder.path());
  const auto load = [&] { return AutoModelForImageTextToText::from_pretrained(folder.path()); };
  write_bytes(folder / "generation_config.json", "{\"decoder_start_token_id\": 5, \"eos_token_id\": 2}");
  EXPECT_NE(
      error_of(load).find("decoder_start_token_id: 1, wanted decoder_start_token_id of generation_config.json, 5"),
      std::string::npos)
      << error_of(load);
  std::string text = read_bytes(folder / "config.json");
  const auto change = [&](const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    ASSERT_NE(at, text.npos) << from << "\n" << text;
    text.replace(at, from.size(), to);
    write_bytes(folder / "config.json", text);
  };
  change("\"decoder_start_token_id\": 1,", "");
  EXPECT_EQ(load().vision_encoder_decoder().config.decoder_start_token_id, 5);
  std::filesystem::remove(folder / "generation_config.json");
  EXPECT_NE(error_of(load).find("decoder_start_token_id"), std::string::npos);
  change("{", "{\n  \"decoder_start_token_id\": 1,");
  change("\n  \"eos_token_id\": 2,", "");
  EXPECT_EQ(load().vision_encoder_decoder().config.eos_token_ids, std::vector<int64_t>{2});  // the decoder's
  EXPECT_NE(error_of([&] {
              AutoModelForImageTextToText::from_pretrained(folder.path(), {.num_labels = 3});
            }).find("num_labels, label_names and problem_type are of models that sort into classes"),
            std::string::npos);
}

TEST(VisionEncoderDecoder, WrongFieldsAreListed) {
  const TempFolder folder;
  std::string text = read_bytes(recorded_folder("captioner") + "/config.json");
  const auto change = [&](const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    ASSERT_NE(at, text.npos) << from;
    text.replace(at, from.size(), to);
  };
  change("\"add_cross_attention\": true", "\"add_cross_attention\": false");
  change("\"qkv_bias\": true", "\"qkv_bias\": true, \"new_field\": 3");
  change("\"pad_token_id\": 3", "\"pad_token_id\": 99");
  change("\"scale_attn_weights\": true", "\"scale_attn_weights\": false");
  write_bytes(folder / "config.json", text);
  const std::string error = error_of([&] { AutoModelForImageTextToText::from_pretrained(folder.path()); });
  for (const char* part : {"decoder.add_cross_attention: false", "encoder.new_field: 3", "pad_token_id: 99",
                           "decoder.scale_attn_weights: false"})
    EXPECT_NE(error.find(part), std::string::npos) << part << "\n" << error;
  change("\"model_type\": \"vit\"", "\"model_type\": \"deit\"");
  write_bytes(folder / "config.json", text);
  const std::string other = error_of([&] { AutoModelForImageTextToText::from_pretrained(folder.path()); });
  EXPECT_NE(other.find("encoder.model_type: \"deit\""), std::string::npos) << other;
  EXPECT_NE(error_of([&] {
              AutoModelForCausalLM::from_pretrained(recorded_folder("captioner"));
            }).find("there is no such model of the family vision-encoder-decoder"),
            std::string::npos);
}

}  // namespace
}  // namespace rondo::nn
