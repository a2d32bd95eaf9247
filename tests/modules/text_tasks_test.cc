// What the recorded values of pretrained_test.cc do not say of DistilBERT, of masked language models and of classifiers
// on decoders: names in files, adapters, padding, and what is refused.
#include <gtest/gtest.h>

#include <filesystem>

#include "rondo/modules/lora/lora.h"
#include "rondo/modules/pretrained/config_fields.h"
#include "rondo/modules/transformers/llama_tasks.h"
#include "rondo/runtime/autograd/autograd.h"
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
namespace fs = std::filesystem;
using Names = std::vector<std::string>;

Tensor ids_of(const std::vector<int64_t>& ids, int64_t rows = 1) {
  return Tensor::from(ids, {rows, static_cast<int64_t>(ids.size()) / rows}).to(default_device());
}
void stir(ModuleBase& model) {
  const NoGrad off;
  Generator generator(9);
  for (Tensor& p : model.parameters())
    if (p.requires_grad()) p.add_(Tensor::randn(p.sizes(), kCPU, &generator).to(p.device()) * 0.1);
}

// ---- Masked language models

constexpr struct {
  const char *name, *body, *weight, *bias, *decoder_bias;
} kMasked[] = {
    {"bert_masked", "bert", "cls.predictions.decoder.weight", "cls.predictions.bias", "cls.predictions.decoder.bias"},
    {"roberta_masked", "roberta", "lm_head.decoder.weight", "lm_head.bias", "lm_head.decoder.bias"},
    {"distilbert_masked", "distilbert", "vocab_projector.weight", "vocab_projector.bias", nullptr}};

// Files hold the tied weight and the bias once, twice, or under the other name only.
TEST(MaskedLM, TheOutputLayerUnderEitherName) {
  for (const auto& model : kMasked) {
    SCOPED_TRACE(model.name);
    const io::TensorMap in = expected_values(model.name);
    const auto file = io::load_safetensors(recorded_folder(model.name) + "/model.safetensors");
    const TempFolder folder;
    fs::copy_file(recorded_folder(model.name) + "/config.json", folder / "config.json");
    const auto load = [&](const io::TensorMap& tensors) {
      io::save_safetensors(folder / "model.safetensors", tensors, file.metadata);
      return load_case(model.name, folder.path(), {.dtype = kF64}, in).output();
    };
    const std::string words = std::string(model.body) + ".embeddings.word_embeddings.weight";
    io::TensorMap twice = file.tensors;
    ASSERT_TRUE(twice.contains(words) && twice.contains(model.bias) && !twice.contains(model.weight));
    const Tensor want = load(twice);
    twice[model.weight] = twice.at(words);
    if (model.decoder_bias != nullptr) twice[model.decoder_bias] = twice.at(model.bias);
    EXPECT_TRUE(same_bits(load(twice), want));
    io::TensorMap other = twice;
    other.erase(words);
    if (model.decoder_bias != nullptr) other.erase(model.bias);
    EXPECT_TRUE(same_bits(load(other), want));
    const std::string differs = model.decoder_bias != nullptr ? model.decoder_bias : model.weight;
    twice[differs] = twice.at(differs).clone().add_(1.0);
    EXPECT_NE(error_of<StateDictError>([&] { load(twice); }).find(differs + ": config.json ties it to"),
              std::string::npos);
  }
}

// The body of a masked language model is the bare model, and its other heads are what `ignore` leaves out.
TEST(MaskedLM, OtherModelsFromItsFile) {
  const io::TensorMap in = expected_values("distilbert_masked");
  const std::string folder = recorded_folder("distilbert_masked");
  auto body = AutoModel::from_pretrained(folder, {.ignore = {"vocab_"}});
  auto masked = AutoModelForMaskedLM::from_pretrained(folder);
  BertForMaskedLM& m = *masked.as<BertForMaskedLM>();
  const Tensor ids = in.at("input.ids"), mask = in.at("input.mask"), features = body(ids, mask).detach();
  EXPECT_TRUE(same_bits(features, m.bert(ids, mask).detach()));
  EXPECT_EQ(body.as<BertModel>()->pooler, nullptr);
  auto sorter = AutoModelForSequenceClassification::from_pretrained(
      folder, {.num_labels = 2, .fresh = {"pre_classifier.", "classifier."}, .ignore = {"vocab_"}});
  EXPECT_EQ(sorter(ids, mask).size(1), 2);
  EXPECT_EQ(sorter.published_name("distilbert.encoder.layer.1.attention.self.query.weight"),
            "distilbert.transformer.layer.1.attention.q_lin.weight");
  EXPECT_EQ(sorter.published_name("distilbert.pooler.dense.bias"), "pre_classifier.bias");
  // Segments are BERT's.
  EXPECT_NE(error_of([&] { sorter(ids, mask, ids); }).find("DistilBERT takes no segments"), std::string::npos);
  EXPECT_FALSE(sorter.facts().takes_segments);
  EXPECT_EQ(sorter.facts().num_classes, 2);
}

// Logits that are computed in chunks of rows: the same loss and gradients, the bias's among them.
TEST(MaskedLM, ChunksOfLogits) {
  const io::TensorMap in = expected_values("bert_masked");
  std::vector<Tensor> losses, gradients;
  for (const int64_t whole : {int64_t{0}, int64_t{1} << 30}) {
    const PretrainedCase c = load_case("bert_masked", recorded_folder("bert_masked"), {.dtype = kF64}, in);
    auto& model = *c.model->as<BertForMaskedLM>();
    model.config.whole_logits = whole;
    losses.push_back(c.loss());
    losses.back().backward();
    gradients.push_back(model.head.decoder.bias.grad());
    gradients.push_back(model.head.decoder.weight.grad());
  }
  EXPECT_TRUE(test::is_close(losses[0].detach(), losses[1].detach(), {.of_largest = 1e-12}));
  for (const size_t i : {0, 1}) EXPECT_TRUE(test::is_close(gradients[i], gradients[i + 2], {.of_largest = 1e-12}));
  EXPECT_NE(gradients[0].abs().max().item(), 0);
}

TEST(MaskedLM, RefusesTargetsOfAnotherShape) {
  BertForMaskedLM model({.vocab_size = 9, .block_size = 4, .n_layer = 1, .n_head = 1, .n_embd = 4, .n_hidden = 4});
  const Tensor ids = ids_of({5, 6, 7});
  EXPECT_NE(error_of([&] {
              model.loss(ids, {}, {}, ids_of({5, 6}));
            }).find("targets must have idx's shape"),
            std::string::npos);
}

// An adapter's targets have transformers' names; what no published model has is refused.
TEST(MaskedLM, Adapters) {
  const io::TensorMap in = expected_values("bert_masked");
  const TempFolder folder;
  PretrainedCase c = load_case("bert_masked", recorded_folder("bert_masked"), {}, in);
  add_lora(**c.model, {.rank = 2, .targets = {"query", "cls.predictions.transform.dense"}});
  stir(**c.model);
  save_adapter(**c.model, folder.path());
  EXPECT_TRUE(io::load_safetensors(folder / "adapter_model.safetensors")
                  .tensors.contains("base_model.model.cls.predictions.transform.dense.lora_A.weight"));
  PretrainedCase again = load_case("bert_masked", recorded_folder("bert_masked"), {}, in);
  load_adapter(**again.model, folder.path());
  EXPECT_TRUE(same_bits(no_grad(again.output), no_grad(c.output)));
  merge_and_unload(**c.model);
  const TempFolder merged;
  c.model->save_pretrained(merged.path());
  const PretrainedCase one = load_case("bert_masked", merged.path(), {}, in);
  EXPECT_TRUE(same_bits(no_grad(one.output), no_grad(c.output)));
  // An output layer of its own.
  add_lora(**c.model, {.rank = 2, .targets = {"query"}, .modules_to_save = {"decoder"}});
  stir(**c.model);
  merge_and_unload(**c.model);
  EXPECT_NE(error_of([&] { c.model->save_pretrained(merged.path()); }).find("that is not the word embeddings"),
            std::string::npos);
}

// ---- DistilBERT

TEST(DistilBert, AdaptersHavePeftsNames) {
  const io::TensorMap in = expected_values("distilbert_sequence");
  const std::string base = recorded_folder("distilbert_sequence");
  const TempFolder folder;
  PretrainedCase c = load_case("distilbert_sequence", base, {}, in);
  const LoraReport report = add_lora(
      **c.model, {.rank = 2, .targets = {"q_lin", "v_lin"}, .modules_to_save = {"classifier", "pre_classifier"}});
  EXPECT_EQ(report.targets.size(), 4u);
  EXPECT_EQ(report.saved, (Names{"distilbert.pooler.dense", "classifier"}));
  stir(**c.model);
  save_adapter(**c.model, folder.path());
  const io::TensorMap file = io::load_safetensors(folder / "adapter_model.safetensors").tensors;
  EXPECT_TRUE(file.contains("base_model.model.distilbert.transformer.layer.1.attention.q_lin.lora_B.weight"));
  EXPECT_TRUE(file.contains("base_model.model.pre_classifier.weight"));
  EXPECT_TRUE(file.contains("base_model.model.classifier.bias"));
  PretrainedCase again = load_case("distilbert_sequence", base, {}, in);
  load_adapter(**again.model, folder.path());
  EXPECT_TRUE(same_bits(no_grad(again.output), no_grad(c.output)));
}

// One list for several families: PEFT leaves out the names that a model lacks. Rondo's layers have them.
TEST(DistilBert, AdaptersOfAListForOtherFamilies) {
  const io::TensorMap in = expected_values("distilbert_sequence");
  const std::string base = recorded_folder("distilbert_sequence");
  const TempFolder folder;
  PretrainedCase c = load_case("distilbert_sequence", base, {}, in);
  add_lora(**c.model,
           {.rank = 2, .targets = {"q_lin"}, .modules_to_save = {"distilbert.embeddings.LayerNorm", "classifier"}});
  stir(**c.model);
  save_adapter(**c.model, folder.path());
  const std::string path = folder / "adapter_config.json";
  ConfigFields fields(path, read_bytes(path));
  fields.set("target_modules", R"(["query", "dense", "q_lin"])");
  fields.set("modules_to_save", R"(["LayerNorm", "classifier"])");
  write_fields(path, fields.fields());
  PretrainedCase again = load_case("distilbert_sequence", base, {}, in);
  const LoraReport report = load_adapter(**again.model, folder.path());
  EXPECT_EQ(report.targets.size(), 2u);
  EXPECT_EQ(report.saved, (Names{"distilbert.embeddings.LayerNorm", "distilbert.pooler.dense", "classifier"}));
  EXPECT_TRUE(same_bits(no_grad(again.output), no_grad(c.output)));
}

// Dropout is where DistilBERT has it: none behind the attention, and the classifier's own.
TEST(DistilBert, Dropout) {
  const auto model = AutoModelForSequenceClassification::from_pretrained(recorded_folder("distilbert_sequence"));
  BertForSequenceClassification& m = *model.as<BertForSequenceClassification>();
  const BertLayer& layer = m.bert.encoder.layer[0];
  EXPECT_EQ(layer.attention.output.dropout.p, 0);
  EXPECT_EQ(layer.attention.self.dropout.p, 0.1);
  EXPECT_EQ(layer.output.dropout.p, 0.1);
  EXPECT_EQ(m.dropout.p, 0.2);
}

TEST(DistilBert, RefusesWhatNoPublishedModelHas) {
  const TempFolder folder;
  const BertConfig config{
      .vocab_size = 9, .block_size = 4, .n_layer = 1, .n_head = 1, .n_embd = 4, .n_hidden = 4, .distilbert = true};
  const auto refused = [&](ModuleBase& model) { return error_of([&] { save_pretrained(model, folder.path()); }); };
  BertModel pooled(config);
  EXPECT_NE(refused(pooled).find("it has a pooler"), std::string::npos);
  BertConfig other = config;
  other.norm_eps = 1e-5;
  BertForMaskedLM eps(other);
  EXPECT_NE(refused(eps).find("norm_eps = 1e-05"), std::string::npos);
  BertForTokenClassification token(config, {.classifier_dropout = 0.3});
  EXPECT_NE(refused(token).find("classifier_dropout"), std::string::npos);
  BertModel bare(config, /*has_pooler=*/false);
  EXPECT_EQ(refused(bare), "");
}

// ---- Classifiers on decoders

// The logits are those of the last token that is no padding, wherever the padding is.
TEST(LlamaSequence, TheLastTokenThatIsNoPadding) {
  const LlamaConfig config{
      .vocab_size = 20, .block_size = 16, .n_layer = 2, .n_head = 2, .n_kv_head = 1, .n_embd = 8, .n_hidden = 12};
  LlamaConfig padded = config;
  padded.padding_idx = 1;
  LlamaForSequenceClassification model(padded, {.num_classes = 3, .seed = 4});
  const auto logits = [&](const Tensor& idx, const Tensor& mask = {}) {
    return no_grad([&] { return model(idx, mask); });
  };
  const Tensor alone = logits(ids_of({5, 6, 7}));
  const Tensor ids = ids_of({5, 6, 7, 1, 1, 1, 1, 5, 6, 7}, 2), mask = ops::not_equal(ids, int64_t{1});
  const auto close = [](const Tensor& a, const Tensor& b) { return test::is_close(a, b, {.of_largest = 1e-5}); };
  const Tensor both = logits(ids, mask);
  EXPECT_EQ(both.sizes(), (Dims{2, 3}));
  for (const int64_t row : {0, 1}) EXPECT_TRUE(close(both[row], alone[0])) << row;
  // Without a mask padding on the right does not matter, and on the left it is attended to.
  EXPECT_TRUE(close(logits(ids)[0], alone[0]));
  EXPECT_FALSE(close(logits(ids)[1], alone[0]));
  // A token in the middle that is masked is not seen. A row of padding has the logits of its first token.
  const Tensor hole = Tensor::from<int64_t>({1, 1, 0, 1}, {1, 4}).to(default_device()).to(kBool);
  EXPECT_TRUE(same_bits(logits(ids_of({5, 6, 7, 8}), hole), logits(ids_of({5, 6, 9, 8}), hole)));
  EXPECT_TRUE(close(logits(ids_of({1, 1})), logits(ids_of({1}))));
  // i32 tokens.
  EXPECT_TRUE(same_bits(logits(ids.to(kI32), mask), both));
  // One class of the classification's losses for each.
  model.loss(ids, mask, {}, Tensor::from<int64_t>({2, 0}, {2}).to(default_device())).backward();
  EXPECT_NE(model.score.weight.grad().abs().max().item(), 0);
}

TEST(LlamaSequence, RefusesRowsWithoutAPaddingToken) {
  const LlamaConfig config{
      .vocab_size = 20, .block_size = 16, .n_layer = 1, .n_head = 2, .n_kv_head = 1, .n_embd = 8, .n_hidden = 12};
  LlamaForSequenceClassification model(config);
  const Tensor one = ids_of({5, 6}), two = ids_of({5, 6, 7, 8}, 2);
  EXPECT_EQ(model(one).sizes(), (Dims{1, 2}));
  EXPECT_NE(error_of([&] { model(two); }).find("idx has 2 rows, and the model has no padding_idx"), std::string::npos);
  EXPECT_NE(error_of([&] { model(one, Tensor(), one); }).find("takes no segments"), std::string::npos);
  EXPECT_NE(error_of([&] { model(one, ids_of({1, 1})); }).find("mask must be bool (B, T)"), std::string::npos);
  // A language model's folder becomes a classifier; the option gives it what its config.json lacks.
  const TempFolder folder;
  {
    auto sorter = AutoModelForSequenceClassification::from_pretrained(
        recorded_folder("qwen2"),
        {.label_names = {"no", "yes"}, .fresh = {"score."}, .pad_token_id = 4, .ignore = {"lm_head."}});
    EXPECT_EQ(sorter.facts().padding_idx, 4);
    EXPECT_EQ(sorter(two).sizes(), (Dims{2, 2}));
    sorter.save_pretrained(folder.path());
  }
  EXPECT_NE(read_bytes(folder / "config.json").find("Qwen2ForSequenceClassification"), std::string::npos);
  auto again = AutoModelForSequenceClassification::from_pretrained(folder.path());
  EXPECT_EQ(again.facts().padding_idx, 4);
  EXPECT_EQ(again.label_names(), (Names{"no", "yes"}));
  const auto with = [&](int64_t token) {
    return AutoModelForSequenceClassification::from_pretrained(folder.path(), {.pad_token_id = token});
  };
  EXPECT_THROW(with(61), ConfigError);
  // The first Llamas' config.json has -1. It is no token, and not the last one of the vocabulary either.
  EXPECT_NE(error_of([&] { with(-1); }).find("pad_token_id: -1, wanted a token"), std::string::npos);
}

TEST(LlamaSequence, Adapters) {
  const io::TensorMap in = expected_values("llama_sequence");
  const std::string base = recorded_folder("llama_sequence");
  const TempFolder folder;
  PretrainedCase c = load_case("llama_sequence", base, {}, in);
  const LoraReport all = add_lora(**c.model, {.rank = 2, .targets = {"all-linear"}, .modules_to_save = {"score"}});
  EXPECT_EQ(all.targets.size(), 2u * 7u);
  EXPECT_EQ(all.saved, Names{"score"});
  stir(**c.model);
  save_adapter(**c.model, folder.path());
  PretrainedCase again = load_case("llama_sequence", base, {}, in);
  load_adapter(**again.model, folder.path());
  EXPECT_TRUE(same_bits(no_grad(again.output), no_grad(c.output)));
}

}  // namespace
}  // namespace rondo::nn
