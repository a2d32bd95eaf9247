// Adapters and published folders together: PEFT's names for modules that are one here and several there, adapters
// beside full weights, and heads that an adapter has untied.
#include <gtest/gtest.h>

#include <filesystem>

#include "rondo/modules/lora/lora.h"
#include "rondo/modules/transformers/bert.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/modules/transformers/vision_encoder_decoder.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_device/test_device.h"
#include "rondo/tests/modules/pretrained_cases.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::nn {
namespace {

using test::error_of;
using test::same_bits;
namespace fs = std::filesystem;

void stir(ModuleBase& model) {
  const NoGrad off;
  Generator generator(9);
  for (Tensor& p : model.parameters())
    if (p.requires_grad()) p.add_(Tensor::randn(p.sizes(), p.device(), &generator).to(p.dtype()) * 0.1);
}
double difference(const Tensor& a, const Tensor& b) {
  return ops::max(ops::abs(a.detach().to(kF64) - b.detach().to(kF64))).item();
}
Tensor some_ids() { return Tensor::from<int64_t>({1, 5, 3, 2, 60}, {1, 5}); }

// ---- ViT: query, key and value are rows of one weight here

constexpr ViTConfig kTinyViT = {
    .image_size = 16, .patch_size = 8, .n_layer = 2, .n_head = 4, .n_embd = 16, .num_classes = 3, .n_hidden = 24};

Tensor images() {
  Generator generator(4);
  return Tensor::randn({2, 3, 16, 16}, kCPU, &generator).to(test::test_device());
}

TEST(LoraViT, PartsOfOneWeight) {
  const Tensor x = images();
  ViT model(kTinyViT, 1);
  model.eval();
  const Tensor before = no_grad([&] { return model(x); });
  const LoraReport report = add_lora(model, {.rank = 2, .targets = {"q_proj", "v_proj"}});
  EXPECT_EQ(report.targets, (std::vector<std::string>{"blocks.0.attn.qkv", "blocks.1.attn.qkv"}));
  EXPECT_EQ(report.trainable, 2 * 2 * 2 * (16 + 16));
  EXPECT_TRUE(same_bits(no_grad([&] { return model(x); }), before)) << "B is 0";
  stir(model);
  const Tensor with = no_grad([&] { return model(x); });
  EXPECT_GT(difference(with, before), 1e-3);
  const StateDict file = adapter_state_dict(model);
  EXPECT_EQ(file.size(), 8u);
  EXPECT_TRUE(file.contains("base_model.model.vit.layers.1.attention.v_proj.lora_B.weight"));
  // Keys keep their rows; merged is the same.
  const Tensor weight = model.blocks[0].attn.qkv.weight.detach().clone();
  merge_adapter(model);
  const Tensor changed = model.blocks[0].attn.qkv.weight.detach();
  EXPECT_TRUE(same_bits(changed.slice(0, {16, 32}), weight.slice(0, {16, 32})));
  EXPECT_GT(difference(changed.slice(0, {32, 48}), weight.slice(0, {32, 48})), 1e-3);
  EXPECT_LT(difference(no_grad([&] { return model(x); }), with), 1e-5);
}

// A pattern that gives a part of a weight another rank makes parts of it.
TEST(LoraViT, PartsOfDifferentRanks) {
  const Tensor x = images();
  const TempFolder folder;
  ViT model(kTinyViT, 1), again(kTinyViT, 1);
  model.eval();
  again.eval();
  const LoraReport report = add_lora(
      model, {.rank = 3, .targets = {"qkv"}, .rank_pattern = {{"q_proj", 2}}, .layers_to_transform = {1}});
  EXPECT_EQ(report.targets, (std::vector<std::string>{"blocks.1.attn.qkv"}));
  EXPECT_EQ(report.trainable, (2 + 3 + 3) * (16 + 16));
  stir(model);
  save_adapter(model, folder.path());
  EXPECT_EQ(load_adapter(again, folder.path()).targets, report.targets);
  EXPECT_TRUE(same_bits(no_grad([&] { return again(x); }), no_grad([&] { return model(x); })));
}

TEST(LoraViT, AnAdapterOfTheWholeIsSavedInParts) {
  const Tensor x = images();
  const TempFolder folder;
  ViT model(kTinyViT, 1), again(kTinyViT, 1), third(kTinyViT, 1);
  for (ViT* m : {&model, &again, &third}) m->eval();
  add_lora(model, {.rank = 2, .targets = {"qkv", "fc1"}, .modules_to_save = {"head", "norm1"}});
  stir(model);
  save_adapter(model, folder / "a");
  const std::string config = read_bytes(folder / "a/adapter_config.json");
  for (const char* name :
       {"vit.layers.0.attention.k_proj", "vit.layers.1.mlp.fc1", "\"classifier\"", "layernorm_before"})
    EXPECT_NE(config.find(name), std::string::npos) << name;
  load_adapter(again, folder / "a");
  const auto logits = [&](ViT& m) { return no_grad([&] { return m(x); }); };
  EXPECT_LT(difference(logits(again), logits(model)), 1e-5);
  // Now the three have matrices of their own; what is saved again is the same.
  save_adapter(again, folder / "b");
  load_adapter(third, folder / "b");
  EXPECT_TRUE(same_bits(logits(third), logits(again)));
  // Into the adapter of the whole, unless its parts have come apart.
  load_adapter(model, folder / "a");
  EXPECT_LT(difference(logits(again), logits(model)), 1e-5);
  stir(again);
  save_adapter(again, folder / "b");
  EXPECT_NE(error_of<StateDictError>([&] { load_adapter(model, folder / "b"); }).find("tied to"), std::string::npos);
  EXPECT_NE(error_of([&] {
              add_lora(model, {.targets = {"fc2"}, .modules_to_save = {"q_proj"}, .adapter = "x"});
            }).find("a part of blocks.0.attn.qkv"),
            std::string::npos);
}

// ---- Captions: an encoder with Linear layers and a decoder with Conv1D

// The names and shapes of PEFT's own file for these options (peft 0.21.2 on the recorded checkpoint).
TEST(LoraCaptioner, BothPartsHavePeftsNames) {
  const TempFolder folder;
  const auto load = [] { return AutoModelForImageTextToText::from_pretrained(recorded_folder("captioner_projected")); };
  AutoModelForImageTextToText model = load(), again = load();
  const LoraReport report = add_lora(*model, {.rank = 2,
                                              .targets = {"q_proj", "q_attn", "crossattention.c_attn"},
                                              .modules_to_save = {"enc_to_dec_proj", "ln_f", "h.0.mlp.c_fc"},
                                              .layers_to_transform = {1}});
  EXPECT_EQ(report.targets, (std::vector<std::string>{"encoder.blocks.1.attn.qkv", "decoder.h.1.crossattention.c_attn",
                                                      "decoder.h.1.crossattention.q_attn"}));
  stir(*model);
  save_adapter(*model, folder.path());
  std::string names;
  for (const auto& [name, tensor] : io::load_safetensors(folder / "adapter_model.safetensors").tensors)
    names += name + " " + to_string(tensor.sizes()) + "\n";
  const std::string layer = "base_model.model.decoder.transformer.h.1.crossattention.",
                    encoder = "base_model.model.encoder.layers.1.attention.q_proj.";
  EXPECT_EQ(names,
            "base_model.model.decoder.transformer.h.0.mlp.c_fc.bias [40]\n"
            "base_model.model.decoder.transformer.h.0.mlp.c_fc.weight [16, 40]\n" +
                layer + "c_attn.lora_A.weight [2, 16]\n" + layer + "c_attn.lora_B.weight [32, 2]\n" + layer +
                "q_attn.lora_A.weight [2, 16]\n" + layer +
                "q_attn.lora_B.weight [16, 2]\n"
                "base_model.model.decoder.transformer.ln_f.bias [16]\n"
                "base_model.model.decoder.transformer.ln_f.weight [16]\n"
                "base_model.model.enc_to_dec_proj.bias [16]\n"
                "base_model.model.enc_to_dec_proj.weight [16, 24]\n" +
                encoder + "lora_A.weight [2, 24]\n" + encoder + "lora_B.weight [24, 2]\n");
  const io::TensorMap inputs = expected_values("captioner_projected");
  const Tensor pictures = inputs.at("input.images").to(kF32), ids = inputs.at("input.ids");
  const auto logits = [&](AutoModelForImageTextToText& m) { return no_grad([&] { return m(pictures, ids); }); };
  EXPECT_GT(difference(logits(model), logits(again)), 1e-3);
  load_adapter(*again, folder.path());
  EXPECT_TRUE(same_bits(logits(again), logits(model)));
  EXPECT_NE(error_of([&] {
              add_lora(*load(), {.targets = {"c_attn"}, .modules_to_save = {"wte"}});
            }).find("the output layer of VisionEncoderDecoder reads, too"),
            std::string::npos);
}

// ---- Names of modules to save

TEST(LoraNames, ModulesToSaveMatchTheEndAsInPeft) {
  Llama llama(
      {.vocab_size = 50, .block_size = 16, .n_layer = 1, .n_head = 4, .n_kv_head = 2, .n_embd = 32, .n_hidden = 48});
  EXPECT_EQ(add_lora(llama, {.targets = {"q_proj"}, .modules_to_save = {"norm"}}).saved,
            (std::vector<std::string>{"model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm",
                                      "model.norm"}));
  // In PEFT a wte of its own would leave GPT-2's output layer as it was.
  GPT2 gpt2({.vocab_size = 65, .block_size = 16, .n_layer = 1, .n_head = 2, .n_embd = 32});
  EXPECT_NE(error_of([&] {
              add_lora(gpt2, {.targets = {"c_attn"}, .modules_to_save = {"wte"}});
            }).find("the output layer of GPT2 reads, too"),
            std::string::npos);
}

// ---- Folders

TEST(LoraFolders, AnAdapterBesideFullWeightsIsUsed) {
  const TempFolder folder;
  for (const char* file : {"config.json", "model.safetensors"})
    fs::copy_file(recorded_folder("qwen3") + "/" + file, folder / file);
  AutoModelForCausalLM model = AutoModelForCausalLM::from_pretrained(folder.path());
  const Tensor ids = some_ids();
  const auto logits = [&](AutoModelForCausalLM& m) { return no_grad([&] { return m(ids); }); };
  const Tensor base = logits(model);
  add_lora(*model, {.rank = 2, .targets = {"q_proj"}, .modules_to_save = {"norm"}});
  stir(*model);
  save_adapter(*model, folder.path());
  AutoModelForCausalLM both = AutoModelForCausalLM::from_pretrained(folder.path());
  EXPECT_TRUE(same_bits(logits(both), logits(model)));
  EXPECT_FALSE(same_bits(logits(both), base));
  EXPECT_EQ(active_adapter(*both), "default");
  for (const NamedTensor& p : both->named_parameters()) EXPECT_FALSE(p.tensor.requires_grad()) << p.name;
  for (const NamedModule& m : both->named_modules()) EXPECT_FALSE(m.module.is_training()) << m.name;
  AutoModelForCausalLM trained = AutoModelForCausalLM::from_pretrained(folder.path(), {.train_adapter = true});
  trained.loss(ids, ids).backward();
  const TempFolder saved;
  EXPECT_NE(error_of([&] { both.save_pretrained(saved.path()); }).find("merge or remove adapters first"),
            std::string::npos);
  // An adapter alone is no model.
  fs::remove(folder / "config.json");
  EXPECT_NE(error_of<FileError>([&] { AutoModelForCausalLM::from_pretrained(folder.path()); }).find("load_adapter"),
            std::string::npos);
}

// Either of two tied weights may be trained alone; what is saved then says that they are tied no more.
TEST(LoraFolders, ATiedHeadThatAnAdapterUntiedIsSaved) {
  const Tensor ids = some_ids();
  for (const char* name : {"lm_head", "embed_tokens"}) {
    SCOPED_TRACE(name);
    AutoModelForCausalLM model = AutoModelForCausalLM::from_pretrained(recorded_folder("qwen3"));  // tied
    const auto logits = [&](AutoModelForCausalLM& m) { return no_grad([&] { return m(ids); }); };
    add_lora(*model, {.rank = 2, .targets = {"q_proj"}, .modules_to_save = {name}});
    stir(*model);
    merge_and_unload(*model);
    for (const bool with_config : {true, false}) {
      const TempFolder folder;
      if (with_config) model.save_pretrained(folder.path());
      else save_pretrained(*model, folder.path());
      EXPECT_NE(read_bytes(folder / "config.json").find("\"tie_word_embeddings\": false"), std::string::npos);
      AutoModelForCausalLM again = AutoModelForCausalLM::from_pretrained(folder.path());
      EXPECT_TRUE(same_bits(logits(again), logits(model)));
    }
  }
}

// BERT's first files call the weight and bias of a LayerNorm gamma and beta.
TEST(PretrainedNames, GammaAndBeta) {
  const TempFolder folder;
  const auto file = io::load_safetensors(recorded_folder("bert_sequence") + "/model.safetensors");
  io::TensorMap renamed;
  for (const auto& [name, tensor] : file.tensors) {
    std::string old = name;
    for (const auto& [now, then] :
         {std::pair("LayerNorm.weight", "LayerNorm.gamma"), {"LayerNorm.bias", "LayerNorm.beta"}})
      if (const size_t at = old.find(now); at != old.npos) old = old.substr(0, at) + then;
    renamed[old] = tensor;
  }
  EXPECT_TRUE(renamed.contains("bert.embeddings.LayerNorm.gamma"));
  io::save_safetensors(folder / "model.safetensors", renamed, file.metadata);
  fs::copy_file(recorded_folder("bert_sequence") + "/config.json", folder / "config.json");
  auto model = AutoModelForSequenceClassification::from_pretrained(folder.path());
  auto same = AutoModelForSequenceClassification::from_pretrained(recorded_folder("bert_sequence"));
  EXPECT_TRUE(same_bits(no_grad([&] { return model(some_ids()); }), no_grad([&] { return same(some_ids()); })));
}

// ---- Losses of classifiers

TEST(ClassificationLoss, ChoosesAsTransformersAndRefusesTheRest) {
  const Tensor x = Tensor::from<float>({0.5f, -1, 2, 0.25f}, {2, 2}), one = x.slice(1, {0, 1});
  const Tensor classes = Tensor::from<int64_t>({1, 0}, {2}), many = Tensor::from<float>({1, 0, 1, 1}, {2, 2});
  EXPECT_TRUE(same_bits(classification_loss(x, classes, {}), ops::cross_entropy(x, classes)));
  EXPECT_TRUE(same_bits(classification_loss(x, classes.to(kI32), {}), ops::cross_entropy(x, classes)));
  EXPECT_TRUE(same_bits(classification_loss(x, many, {}), ops::bce_with_logits(x, many)));
  EXPECT_TRUE(same_bits(classification_loss(x, many.to(kBool), {}), ops::bce_with_logits(x, many)));
  EXPECT_TRUE(same_bits(classification_loss(x, many, ProblemType::kRegression), ops::mse_loss(x, many)));
  const Tensor scores = classes.to(kF32).view({2, 1});
  for (const Tensor& given : {classes, classes.to(kF32), scores, scores.to(kF64)})
    EXPECT_TRUE(same_bits(classification_loss(one, given, {}), ops::mse_loss(one, scores)));
  using enum ProblemType;
  const struct {
    Tensor logits, targets;
    std::optional<ProblemType> problem;
    const char* why;
  } cases[] = {{one, classes, kSingleLabel, "one class has no cross-entropy"},
               {x, many, kSingleLabel, "must be i64 (B)"},
               {x, classes, kMultiLabel, "must be floats (B, num_classes)"},
               {x, many.to(kI64), kMultiLabel, "must be floats (B, num_classes)"},
               {x, classes.to(kF32), std::nullopt, "must be floats (B, num_classes)"},
               {x, classes.to(kF32), kRegression, "targets of a regression must be (B, num_classes)"},
               {one, many, kRegression, "targets of a regression must be (B) or (B, 1)"},
               {x, Tensor(), std::nullopt, "targets are undefined"}};
  for (const auto& c : cases)
    EXPECT_NE(error_of([&] { classification_loss(c.logits, c.targets, c.problem); }).find(c.why), std::string::npos)
        << c.why;
}

}  // namespace
}  // namespace rondo::nn
