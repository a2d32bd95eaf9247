// LoRA against values recorded from PEFT (tests/reference/record_lora.py), and its files.
#include "rondo/modules/lora/lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/modules/transformers/bert.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/modules/transformers/vit.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/modules/lora_models.h"
#include "rondo/tests/paths.h"
#include "rondo/tests/small_modules.h"

namespace rondo::nn {
namespace {

using namespace test_lora;
using test::error_of;
using test::OneLinear;
using test::same_bits;
using test::TempFolder;

// ---- Against PEFT

struct Case {
  const char* name;
  std::unique_ptr<ModuleBase> (*make)();
  Tensor (*logits)(ModuleBase&, const io::TensorMap&);
};
Tensor bert_logits(ModuleBase& model, const io::TensorMap& in) {
  return dynamic_cast<Bert&>(model)(in.at("ids"), in.at("mask"));
}
constexpr Case kCases[] = {
    {"gpt2", [] { return std::unique_ptr<ModuleBase>(std::make_unique<GPT2>(kTiny)); },
     [](ModuleBase& model, const io::TensorMap& in) { return dynamic_cast<GPT2&>(model)(in.at("ids")); }},
    {"gpt2_embedding", [] { return std::unique_ptr<ModuleBase>(std::make_unique<GPT2>(kTiny)); },
     [](ModuleBase& model, const io::TensorMap& in) { return dynamic_cast<GPT2&>(model)(in.at("ids")); }},
    {"llama", [] { return std::unique_ptr<ModuleBase>(std::make_unique<Llama>(kTinyLlama)); },
     [](ModuleBase& model, const io::TensorMap& in) { return dynamic_cast<Llama&>(model)(in.at("ids")); }},
    {"llama_norm", [] { return std::unique_ptr<ModuleBase>(std::make_unique<Llama>(kTinyLlama)); },
     [](ModuleBase& model, const io::TensorMap& in) { return dynamic_cast<Llama&>(model)(in.at("ids")); }},
    {"vit",
     [] {
       return std::unique_ptr<ModuleBase>(std::make_unique<ViT>(ViTConfig{.image_size = 16,
                                                                          .patch_size = 8,
                                                                          .n_layer = 2,
                                                                          .n_head = 4,
                                                                          .n_embd = 16,
                                                                          .num_classes = 3,
                                                                          .norm_eps = 1e-12,
                                                                          .n_hidden = 24}));
     },
     [](ModuleBase& model, const io::TensorMap& in) {
       return dynamic_cast<ViT&>(model)(in.at("images").to(model.parameters()[0].dtype()));
     }},
    {"bert",
     [] {
       return std::unique_ptr<ModuleBase>(std::make_unique<Bert>(BertConfig{.vocab_size = 50,
                                                                            .block_size = 16,
                                                                            .n_layer = 1,
                                                                            .n_head = 4,
                                                                            .n_embd = 32,
                                                                            .n_hidden = 64,
                                                                            .num_classes = 3}));
     },
     &bert_logits},
};
std::string folder_of(const Case& c) { return std::string(tests::kReferenceDir) + "/lora_" + c.name; }

// A model with the recorded base.
struct Recorded {
  io::TensorMap values;
  std::unique_ptr<ModuleBase> model;
  Recorded(const Case& c, DType dtype) : values(io::load_safetensors(folder_of(c) + "/values.safetensors").tensors) {
    model = c.make();
    const bool gpt2 = dynamic_cast<GPT2*>(model.get()) != nullptr;
    StateDict base;
    for (const auto& [key, tensor] : values) {
      if (!key.starts_with("base.")) continue;
      std::string name = key.substr(5);
      for (const std::string_view prefix : {"transformer.", "bert."})
        if (name.starts_with(prefix)) name = name.substr(prefix.size());
      const bool conv1d = gpt2 && name.find(".c_") != name.npos && name.ends_with("weight");
      base[name] = conv1d ? tensor.t() : tensor;
    }
    model->to(dtype);
    if (dynamic_cast<ViT*>(model.get()) != nullptr) base = vit_from_hugging_face(base);
    model->load_state_dict(base);
    model->eval();
  }
  Tensor loss(const Case& c) {
    const Tensor logits = c.logits(*model, values);
    return ops::cross_entropy(logits.reshape({-1, logits.size(-1)}), values.at("targets").reshape({-1}));
  }
};

class AgainstPeft : public testing::TestWithParam<std::tuple<Case, DType, bool>> {};

TEST_P(AgainstPeft, LogitsTenLossesAndTheTrainedAdapter) {
  const auto& [c, dtype, compiled] = GetParam();
  if (compiled && !compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  const double tolerance = dtype == kF64 ? 1e-10 : 1e-4;
  Recorded recorded(c, dtype);
  ModuleBase& model = *recorded.model;
  load_adapter(model, folder_of(c));
  std::unique_ptr<compile::Regions> regions;
  if (compiled) regions = std::make_unique<compile::Regions>(compile::compile_regions(model));
  const Tensor& logits = recorded.values.at("logits");
  EXPECT_LE(difference(c.logits(model, recorded.values), logits), tolerance * largest(logits));

  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2, .weight_decay = 0});
  const Tensor& losses = recorded.values.at(dtype == kF64 ? "losses" : "losses_f32");
  for (int step = 0; step < 10; ++step) {
    const Tensor loss = recorded.loss(c);
    const double expected = losses[step].item();
    EXPECT_LE(std::abs(loss.item() - expected), tolerance * expected) << "step " << step;
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  if (dtype != kF64) return;
  for (const auto& [name, tensor] : adapter_state_dict(model)) {
    const Tensor& expected = recorded.values.at("trained." + name);
    EXPECT_LE(difference(tensor, expected), 1e-8 * std::max(1.0, largest(expected))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, AgainstPeft,
                         testing::Combine(testing::ValuesIn(kCases), testing::Values(kF64, kF32), testing::Bool()),
                         [](const testing::TestParamInfo<std::tuple<Case, DType, bool>>& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  std::string(name_of(std::get<1>(info.param))) +
                                  (std::get<2>(info.param) ? "_regions" : "_eager");
                         });

// What PEFT wrote and we write again holds the same tensors under the same names; a file of ours loads here again.
TEST(LoraFiles, RoundTrip) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    Recorded recorded(c, kF64);
    load_adapter(*recorded.model, folder_of(c));
    const TempFolder folder;
    save_adapter(*recorded.model, folder / "out", {.base_model_name_or_path = "tiny \"base\""});
    expect_same(io::load_safetensors(folder / "out/adapter_model.safetensors").tensors,
                io::load_safetensors(folder_of(c) + "/adapter_model.safetensors").tensors);
    Recorded again(c, kF64);
    const LoraReport report = load_adapter(*again.model, folder / "out");
    EXPECT_FALSE(report.targets.empty());
    EXPECT_TRUE(
        same_bits(c.logits(*again.model, again.values).detach(), c.logits(*recorded.model, recorded.values).detach()));
    // Into the adapter that is there; and over the files that are there.
    stir(*again.model);
    load_adapter(*again.model, folder / "out");
    EXPECT_TRUE(
        same_bits(c.logits(*again.model, again.values).detach(), c.logits(*recorded.model, recorded.values).detach()));
    save_adapter(*again.model, folder / "out");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "out"), {}), 2);
    load_adapter(*again.model, folder / "out", {.adapter = "second", .trainable = false});
    for (const NamedTensor& p : again.model->named_parameters()) EXPECT_FALSE(p.tensor.requires_grad()) << p.name;
  }
}

// What we save loads in PEFT with equal logits: every kind of target, saved modules, patterns, rslora.
TEST(LoraFiles, PeftReadsThem) {
  const char* venv = std::getenv("RONDO_PEERS_VENV");
  const std::string python = std::string(venv != nullptr ? venv : "") + "/bin/python";
  if (venv == nullptr || std::system((python + " -c 'import peft, transformers' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "RONDO_PEERS_VENV names no Python with peft and transformers";
  const TempFolder folder;
  for (const Case& c : kCases) {
    Recorded recorded(c, kF64);
    manual_seed(5);
    const bool bert = std::string_view(c.name) == "bert", llama = std::string_view(c.name).starts_with("llama");
    const bool vit = std::string_view(c.name) == "vit";
    LoraOptions options = {.rank = 5, .alpha = 7.5};
    if (std::string_view(c.name) == "gpt2") options.targets = {"all-linear"};
    else if (llama) options.target_pattern = R"(model\.layers\.1\..*_proj|model\.embed_tokens)";
    else if (vit) options.targets = {"qkv", "fc1", "attn.proj"};
    else if (bert) options.targets = {"word_embeddings", "attention.output.dense"};
    else options.targets = {"wte", "attn.c_proj"};
    options.rslora = llama;
    if (llama) options.rank_pattern = {{"up_proj", 2}}, options.alpha_pattern = {{"embed_tokens", 3}};
    if (vit) options.rank_pattern = {{"q_proj", 2}};
    if (vit) options.modules_to_save = {"head", "norm1"};
    if (bert) options.modules_to_save = {"classifier", "pooler"};
    if (std::string_view(c.name) == "gpt2_embedding") options.modules_to_save = {"mlp.c_fc", "ln_f"};
    add_lora(*recorded.model, options);
    stir(*recorded.model);
    save_adapter(*recorded.model, folder / c.name);
    io::save_safetensors(folder / (std::string(c.name) + ".safetensors"),
                         {{"logits", c.logits(*recorded.model, recorded.values).detach()}});
  }
  const std::string command = python + " " + tests::kReferenceDir + "/record_lora.py --check " + folder.path() + " >" +
                              folder.path() + "/log 2>&1";
  const int status = std::system(command.c_str());
  std::ifstream log(folder / "log");
  EXPECT_EQ(status, 0) << std::string(std::istreambuf_iterator<char>(log), {});
}

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }
std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// ---- Ranks, alphas and layers by pattern

// W + alpha / rank * B A for each target of the file, in a model without adapters.
void merge_by_hand(ModuleBase& model, const io::TensorMap& file, const std::map<std::string, double>& scalings) {
  const NoGrad off;
  const StateDict state = model.state_dict();
  for (const auto& [target, scaling] : scalings) {
    const std::string name = "base_model.model.transformer." + target;
    Tensor weight = state.at(target + ".weight");
    weight.add_(ops::matmul(file.at(name + ".lora_B.weight"), file.at(name + ".lora_A.weight")) * scaling);
  }
  EXPECT_EQ(file.size(), 2 * scalings.size());
}

TEST(LoraFiles, RanksAndAlphasByPattern) {
  const Case& c = kCases[0];
  for (const bool rslora : {false, true}) {
    Recorded recorded(c, kF64), plain(c, kF64), again(c, kF64);
    const auto logits = [&](Recorded& r) { return c.logits(*r.model, r.values).detach(); };
    const LoraOptions options = {.rank = 4,
                                 .alpha = 8,
                                 .targets = {"c_attn", "c_proj"},
                                 .rslora = rslora,
                                 .rank_pattern = {{R"(h\.1\.attn\.c_attn)", 2}, {"mlp.c_proj", 6}},
                                 .alpha_pattern = {{R"(h\.\d\.attn\.c_attn)", 3}}};
    manual_seed(5);
    add_lora(*recorded.model, options);
    stir(*recorded.model);
    const TempFolder folder;
    save_adapter(*recorded.model, folder.path());
    const io::TensorMap file = io::load_safetensors(folder / "adapter_model.safetensors").tensors;
    const auto scaling = [&](double alpha, double rank) { return alpha / (rslora ? std::sqrt(rank) : rank); };
    merge_by_hand(*plain.model, file,
                  {{"h.0.attn.c_attn", scaling(3, 4)},
                   {"h.1.attn.c_attn", scaling(3, 2)},
                   {"h.0.attn.c_proj", scaling(8, 4)},
                   {"h.1.attn.c_proj", scaling(8, 4)},
                   {"h.0.mlp.c_proj", scaling(8, 6)},
                   {"h.1.mlp.c_proj", scaling(8, 6)}});
    EXPECT_EQ(file.at("base_model.model.transformer.h.1.attn.c_attn.lora_A.weight").sizes(), (Dims{2, 32}));
    const Tensor want = logits(plain);
    EXPECT_LE(difference(logits(recorded), want), 1e-12 * largest(want));
    load_adapter(*again.model, folder.path());
    EXPECT_TRUE(same_bits(logits(again), logits(recorded)));
    const LoraOptions read = adapter_options(*again.model, "default");
    EXPECT_EQ(read.rank_pattern, options.rank_pattern);
    EXPECT_EQ(read.alpha_pattern, options.alpha_pattern);
    merge_and_unload(*recorded.model);
    EXPECT_LE(difference(logits(recorded), want), 1e-12 * largest(want));
    // The same shapes with another alpha are another adapter.
    GPT2 other(kTiny, 1);
    LoraOptions uniform = options;
    uniform.alpha_pattern.clear();
    add_lora(other, uniform);
    EXPECT_NE(error_of([&] { load_adapter(other, folder.path()); }).find("alpha_pattern"), std::string::npos);
  }
  GPT2 model(kTiny, 1);
  EXPECT_NE(error_of([&] {
              add_lora(model, {.targets = {"c_attn"}, .rank_pattern = {{"c_proj", 2}}});
            }).find("rank_pattern names 'c_proj', which fits no target"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              add_lora(model, {.targets = {"c_attn"}, .alpha_pattern = {{"(", 2}}});
            }).find("is no regular expression"),
            std::string::npos);
  EXPECT_THROW(add_lora(model, {.targets = {"c_attn"}, .rank_pattern = {{"c_attn", 0}}}), Error);
}

// PEFT matches in Python. What means something else there is refused, not guessed.
TEST(LoraFiles, PatternsThatPythonReadsOtherwise) {
  GPT2 model(kTiny, 1);
  for (const char* name : {"c_at.{,3}", "[[:alpha:]_]+", "[^][=a=]]attn", "c_at{,}n"}) {
    const std::string what = error_of([&] { add_lora(model, {.targets = {"c_attn"}, .alpha_pattern = {{name, 2}}}); });
    EXPECT_NE(what.find("Python"), std::string::npos) << name << ": " << what;
    EXPECT_NE(error_of([&] { add_lora(model, {.target_pattern = std::string(".*") + name}); }).find("Python"),
              std::string::npos)
        << name;
  }
  for (const char* name :
       {"h[.]1[.]attn[.]c_attn", R"(c\_attn|x\{,3})", "[c:]_attn", "c_att[^]:[]", "c_at{2}n|c_attn"}) {
    const std::string escaped = name;
    EXPECT_NO_THROW(add_lora(model, {.targets = {"c_attn"}, .alpha_pattern = {{escaped, 2}}})) << name;
    remove_adapter(model, "default");
  }
}

// A layer's number is the first one in its path, as in PEFT: a list inside of a layer has numbers, too.
struct Experts : Module<Experts> {
  ModuleList<OneLinear> experts = child("experts", 2, 4);
};
struct Mixture : Module<Mixture> {
  ModuleList<Experts> layers = child("layers", 2);
};
struct Wrapped : Module<Wrapped> {
  Mixture model = child("model");
};
TEST(LoraFiles, ListsInsideOfLayers) {
  using Names = std::vector<std::string>;
  LoraOptions options = {.targets = {"fc"}, .layers_to_transform = {0}};
  Wrapped wrapped, by_list;
  EXPECT_EQ(add_lora(wrapped, options).targets, (Names{"model.layers.0.experts.0.fc", "model.layers.0.experts.1.fc"}));
  Mixture bare;  // PEFT takes no list that the path begins with, if there is another
  EXPECT_EQ(add_lora(bare, options).targets, (Names{"layers.0.experts.0.fc", "layers.1.experts.0.fc"}));
  options.layers_pattern = {"experts"};
  EXPECT_EQ(add_lora(by_list, options).targets, (Names{"model.layers.0.experts.0.fc", "model.layers.1.experts.0.fc"}));
}

TEST(LoraFiles, SomeLayersOnly) {
  const auto targets = [](const LoraOptions& options) {
    GPT2 model(kTiny, 1);
    return add_lora(model, options).targets;
  };
  using Names = std::vector<std::string>;
  const LoraOptions second = {.targets = {"c_attn", "mlp.c_proj"}, .layers_to_transform = {1}};
  EXPECT_EQ(targets(second), (Names{"h.1.attn.c_attn", "h.1.mlp.c_proj"}));
  LoraOptions by_list = second;
  by_list.layers_pattern = {"layers", "h"};
  EXPECT_EQ(targets(by_list), targets(second));
  // Transformers' whole path counts in any layer; what is in no layer does not count.
  EXPECT_EQ(targets({.targets = {"transformer.h.0.attn.c_attn", "c_proj"}, .layers_to_transform = {1}}),
            (Names{"h.0.attn.c_attn", "h.1.attn.c_proj", "h.1.mlp.c_proj"}));
  const auto error = [&](const LoraOptions& options) { return error_of([&] { targets(options); }); };
  by_list.layers_pattern = {"layers"};
  EXPECT_NE(error(by_list).find("in layers_to_transform is named 'c_attn'"), std::string::npos) << error(by_list);
  EXPECT_NE(error({.targets = {"wpe"}, .layers_to_transform = {0}}).find("is named 'wpe'"), std::string::npos);
  EXPECT_NE(error({.targets = {"all-linear"}, .layers_to_transform = {1}}).find("goes with names in targets"),
            std::string::npos);
  EXPECT_NE(error({.targets = {"c_attn"}, .layers_pattern = {"h"}}).find("needs layers_to_transform"),
            std::string::npos);
  // Into a file and back: a list, or one number.
  GPT2 model(kTiny, 1);
  add_lora(model, second);
  stir(model);
  const TempFolder folder;
  save_adapter(model, folder.path());
  const std::string config = folder / "adapter_config.json", text = read(config), field = "\"layers_to_transform\": ";
  const auto with = [&](const std::string& value) {
    std::string changed = text;
    const size_t at = changed.find(field + "[1]");
    EXPECT_NE(at, changed.npos) << text;
    write(config, changed.replace(at + field.size(), 3, value));
  };
  for (const char* value : {"[1]", "1", "[1, 7]"}) {
    with(value);
    GPT2 again(kTiny, 1);
    EXPECT_EQ(load_adapter(again, folder.path()).targets, targets(second));
    expect_same(adapter_state_dict(again), adapter_state_dict(model));
  }
  with("[0]");
  GPT2 other(kTiny, 1);
  EXPECT_NE(error_of<StateDictError>([&] { load_adapter(other, folder.path()); }), "");
}

// ---- Files that do not fit

TEST(LoraFiles, AnAdapterForAnotherBaseIsRefusedByName) {
  const std::string folder = folder_of(kCases[0]);  // of a GPT-2 of two layers, width 32, rank 4
  const auto error = [&](ModuleBase& model) {
    const StateDict before = copy_of(model);
    const std::string text = error_of<StateDictError>([&] { load_adapter(model, folder); });
    expect_same(model.state_dict(), before);
    for (const Tensor& p : model.parameters()) EXPECT_TRUE(p.requires_grad());
    return text;
  };
  GPT2Config config = kTiny;
  config.n_layer = 1;
  GPT2 shallow(config);
  EXPECT_NE(error(shallow).find("unexpected: base_model.model.transformer.h.1.attn.c_attn.lora_A.weight"),
            std::string::npos);
  config.n_layer = 3;
  GPT2 deep(config);
  EXPECT_NE(error(deep).find("missing: base_model.model.transformer.h.2.attn.c_attn.lora_A.weight"), std::string::npos);
  config = kTiny;
  config.n_embd = 64;
  GPT2 wide(config);
  EXPECT_NE(error(wide).find("h.0.attn.c_attn.lora_A.weight: f32[4, 64] wanted, f64[4, 32] given"), std::string::npos);
  Llama llama(kTinyLlama);
  EXPECT_NE(error(llama).find("unexpected: base_model.model.transformer.h.0"), std::string::npos);
  GPT2 model(kTiny, 1);
  add_lora(model, {.rank = 8, .alpha = 16, .targets = {"c_attn", "c_proj"}});
  EXPECT_NE(error_of([&] { load_adapter(model, folder); }).find("scales otherwise"), std::string::npos);
  add_lora(model, {.rank = 8, .alpha = 8, .targets = {"c_attn", "c_proj"}, .adapter = "other"});
  EXPECT_NE(error_of<StateDictError>([&] {
              load_adapter(model, folder, {.adapter = "other"});
            }).find("lora_A.weight: f32[8, 32] wanted, f64[4, 32] given"),
            std::string::npos);
}

TEST(LoraFiles, DamagedFilesAreRefused) {
  const std::string good = folder_of(kCases[0]);
  const TempFolder folder;
  const std::string config = folder / "adapter_config.json", weights = folder / "adapter_model.safetensors";
  const std::string text = read(good + "/adapter_config.json"), bytes = read(good + "/adapter_model.safetensors");
  GPT2 model(kTiny, 1);
  const auto error = [&] {
    const std::string what = error_of<FileError>([&] { load_adapter(model, folder.path()); });
    EXPECT_EQ(model.parameters().size(), 28u);
    return what;
  };
  EXPECT_NE(error().find("adapter_config.json"), std::string::npos);
  write(config, text);
  EXPECT_NE(error().find("adapter_model.safetensors"), std::string::npos);
  write(folder / "adapter_model.bin", "x");
  EXPECT_NE(error().find("is a pickle"), std::string::npos);
  for (size_t length : {size_t{0}, size_t{7}, bytes.size() / 2, bytes.size() - 1}) {
    write(weights, bytes.substr(0, length));
    EXPECT_NE(error(), "") << length;
  }
  write(weights, bytes);
  for (size_t length = 0; length < text.size() - 1; length += 37) {
    write(config, text.substr(0, length));
    EXPECT_NE(error(), "") << length;
  }
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const size_t at = changed.find(from);
    EXPECT_NE(at, changed.npos) << from;
    changed.replace(at, from.size(), to);
    write(config, changed);
    return error();
  };
  EXPECT_NE(with("\"r\": 4", "\"r\": 0").find("r must be in [1,"), std::string::npos);
  EXPECT_NE(with("\"LORA\"", "\"IA3\"").find("peft_type is \"IA3\", not \"LORA\""), std::string::npos);
  EXPECT_NE(with("\"bias\": \"none\"", "\"bias\": \"all\"").find("asks for what Rondo does not do: bias = all"),
            std::string::npos);
  const std::string several = with("\"use_dora\": false", "\"use_dora\": true, \"future_field\": {\"x\": 1}");
  EXPECT_NE(several.find("use_dora, future_field"), std::string::npos) << several;
  EXPECT_NE(with("\"rank_pattern\": {}", "\"rank_pattern\": {\"c_attn\": 0}").find("rank_pattern must be in [1,"),
            std::string::npos);
  EXPECT_NE(with("\"alpha_pattern\": {}", "\"alpha_pattern\": {\"c_attn\": \"2\"}"), "");
  for (const std::string name : {"alpha_pattern", "rank_pattern"})
    EXPECT_NE(with("\"" + name + "\": {}", "\"" + name + R"(": {"c_attn": 2, "c_proj": 2, "c\u005fattn": 4})")
                  .find("the pattern \"c_attn\" stands there twice"),
              std::string::npos);
  EXPECT_NE(with("\"layers_to_transform\": null", "\"layers_to_transform\": [0, -1]"), "");
  EXPECT_NE(with("\"layers_pattern\": null", "\"layers_pattern\": [\"(h)\"]").find("is no name of a module"),
            std::string::npos);
  EXPECT_NE(with("\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\"").find("init_lora_weights = pissa"),
            std::string::npos);
  EXPECT_NE(with("\"lora_alpha\": 8", "\"lora_alpha\": 1e999").find("number out of range"), std::string::npos);
  // A tie is another computation; and a name that no module can have is no name.
  const std::string saves = "\"modules_to_save\": null";
  for (const auto& [from, to] : {std::pair("\"ensure_weight_tying\": false", "\"ensure_weight_tying\": true"),
                                 {"\"arrow_config\": null", "\"arrow_config\": {\"k\": 1}"}})
    EXPECT_NE(with(from, to).find("asks for what Rondo does not do"), std::string::npos) << to;
  for (const char* name : {"../../x", "", ".", "a..b", "ln_f\\n", "/etc", "*"})
    EXPECT_NE(with(saves, std::string("\"modules_to_save\": [\"") + name + "\"]").find("is no name of a module"),
              std::string::npos)
        << name;
}

// Nothing half-written: where the second file cannot be written, what was there stays.
TEST(LoraFiles, AFailedSaveLeavesTheOldAdapter) {
  GPT2 model(kTiny, 1);
  add_lora(model, {.rank = 4, .targets = {"c_attn"}});
  const TempFolder folder;
  save_adapter(model, folder.path());
  const std::string config = read(folder / "adapter_config.json"), weights = read(folder / "adapter_model.safetensors");
  stir(model);
  std::filesystem::create_directory(folder / ".tmp-adapter_model.safetensors");  // where the new weights would go
  EXPECT_NE(error_of<FileError>([&] { save_adapter(model, folder.path()); }), "");
  EXPECT_EQ(read(folder / "adapter_config.json"), config);
  EXPECT_EQ(read(folder / "adapter_model.safetensors"), weights);
  std::filesystem::remove(folder / ".tmp-adapter_model.safetensors");
  save_adapter(model, folder.path());
  EXPECT_NE(read(folder / "adapter_model.safetensors"), weights);
  EXPECT_NE(error_of<FileError>([&] { save_adapter(model, folder / "adapter_config.json"); }), "");
}

}  // namespace
}  // namespace rondo::nn
