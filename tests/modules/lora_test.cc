// LoRA: its own promises. lora_files_test.cc has the comparison with PEFT, and its files.
#include "rondo/modules/lora/lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

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
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/device/memory.h"
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
using test::same_bits;
using test::TempFolder;

// ---- add_lora

TEST(Lora, StartsAsTheBaseAndFreezesIt) {
  GPT2 model(kTiny, 1);
  const Tensor idx = tokens(), before = model(idx);
  model.loss(idx, idx).backward();
  const LoraReport report = add_lora(model, {.rank = 4, .alpha = 8, .targets = {"c_attn"}});
  EXPECT_EQ(report.targets, (std::vector<std::string>{"h.0.attn.c_attn", "h.1.attn.c_attn"}));
  EXPECT_EQ(report.trainable, 2 * 4 * (32 + 96));
  EXPECT_EQ(report.total, model.num_parameters());
  EXPECT_TRUE(same_bits(model(idx).detach(), before.detach()));
  std::vector<std::string> trained;
  for (const NamedTensor& p : model.named_parameters()) {
    EXPECT_FALSE(p.tensor.grad().defined()) << p.name;
    if (p.tensor.requires_grad()) trained.push_back(p.name);
  }
  EXPECT_EQ(trained, (std::vector<std::string>{
                         "h.0.attn.c_attn.lora.default.lora_A.weight", "h.0.attn.c_attn.lora.default.lora_B.weight",
                         "h.1.attn.c_attn.lora.default.lora_A.weight", "h.1.attn.c_attn.lora.default.lora_B.weight"}));
  // Uniform in +-1/sqrt(in).
  const Tensor a = model.state_dict().at(trained[0]);
  EXPECT_LE(largest(a), 1 / std::sqrt(32.0));
  EXPECT_GT(largest(a), 0.8 / std::sqrt(32.0));
  EXPECT_EQ(largest(model.state_dict().at(trained[1])), 0);

  // Training changes the adapter and nothing else.
  const StateDict base = copy_of(model);
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    model.loss(idx, idx).backward();
    for (const NamedTensor& p : model.named_parameters())
      EXPECT_EQ(p.tensor.grad().defined(), p.tensor.requires_grad()) << p.name;
    optimizer.step();
  }
  for (const auto& [name, tensor] : model.state_dict())
    EXPECT_EQ(same_bits(tensor, base.at(name)), name.find("lora") == name.npos) << name;
  // Frozen parameters have no state: a step count and two moments for each of four.
  int states = 0;
  for (const auto& [name, tensor] : optimizer.state_dict()) states += name.starts_with("state.");
  EXPECT_EQ(states, 4 * 3);
}

TEST(Lora, TargetsMatchAsInPeft) {
  const auto targets = [](LoraOptions options) {
    GPT2 model(kTiny);
    return add_lora(model, options).targets;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(targets({.targets = {"mlp.c_proj"}}), (Names{"h.0.mlp.c_proj", "h.1.mlp.c_proj"}));
  EXPECT_EQ(targets({.targets = {"h.1.attn.c_attn", "wpe"}}), (Names{"wpe", "h.1.attn.c_attn"}));
  EXPECT_EQ(targets({.targets = {"transformer.h.1.attn.c_attn"}}), (Names{"h.1.attn.c_attn"}));
  EXPECT_EQ(targets({.target_pattern = R"(h\.0\..*c_.*)"}).size(), 4u);
  EXPECT_EQ(targets({.target_pattern = R"(.*\.h\.0\.attn\.c_attn)"}), (Names{"h.0.attn.c_attn"}));
  EXPECT_EQ(targets({.targets = {"all-linear"}}).size(), 8u);
  // Not in the middle of a name.
  EXPECT_NE(error_of([&] {
              targets({.targets = {"attn.c_attn", "_proj"}});
            })
                .find("add_lora: no module of GPT2 is named '_proj'; those that can get an adapter are wte, wpe, "
                      "c_attn, c_proj, c_fc"),
            std::string::npos);
  Llama llama(kTinyLlama);
  for (const std::string& name : add_lora(llama, {.targets = {"all-linear"}}).targets) EXPECT_NE(name, "lm_head");
}

TEST(Lora, SaysWhatIsWrongAndChangesNothing) {
  GPT2 model(kTiny, 1);
  const auto error = [&](LoraOptions options) {
    const std::string text = error_of([&] { add_lora(model, options); });
    EXPECT_EQ(model.parameters().size(), 28u);
    for (const Tensor& p : model.parameters()) EXPECT_TRUE(p.requires_grad());
    return text;
  };
  EXPECT_NE(error({}).find("give either targets or a target_pattern"), std::string::npos);
  EXPECT_NE(error_of([&] { load_adapter(model, ""); }).find("the folder's name is empty"), std::string::npos);
  EXPECT_NE(error({.targets = {"attn"}}).find("the target h.0.attn is a SelfAttention; only"), std::string::npos);
  EXPECT_NE(error({.rank = 0, .targets = {"c_attn"}}).find("rank must be positive, got 0"), std::string::npos);
  EXPECT_NE(error({.dropout = 1, .targets = {"c_attn"}}).find("dropout must be in [0, 1)"), std::string::npos);
  EXPECT_NE(error({.alpha = INFINITY, .targets = {"c_attn"}}).find("alpha must be finite"), std::string::npos);
  EXPECT_NE(error({.targets = {"c_attn"}, .adapter = "12"}).find("only digits"), std::string::npos);
  EXPECT_NE(error({.targets = {"c_attn"}, .modules_to_save = {"score"}}).find("no module of GPT2 is named 'score'"),
            std::string::npos);
  for (const std::vector<std::string>& nested : {std::vector<std::string>{"mlp", "c_fc"}, {"c_fc", "mlp"}})
    EXPECT_NE(error({.targets = {"c_attn"}, .modules_to_save = nested}).find("one of which is a part of the other"),
              std::string::npos);
  GPT2 named_twice(kTiny, 1);
  EXPECT_EQ(add_lora(named_twice, {.targets = {"c_attn"}, .modules_to_save = {"c_fc", "mlp.c_fc"}}).saved.size(),
            static_cast<size_t>(kTiny.n_layer));
  EXPECT_NE(error({.targets = {"c_attn"}, .modules_to_save = {"attn"}}).find("is trained whole, too"),
            std::string::npos);
  EXPECT_NE(error({.target_pattern = "(("}).find("is no regular expression"), std::string::npos);
  EXPECT_NE(error({.target_pattern = "c_attn"}).find("matches the path of no module"), std::string::npos);
  // The work of a hostile pattern is bounded.
  EXPECT_NE(error({.target_pattern = "(((([a-z0-9_.]+)+)+)+)+[!?]"}).find("cannot be matched"), std::string::npos);
  std::string many;
  for (int i = 0; i < 200; ++i) many += ".*";
  EXPECT_NE(error({.target_pattern = many + "[!?]"}).find("cannot be matched"), std::string::npos);
  EXPECT_NE(error({.target_pattern = std::string(20'000, 'a')}).find("has 20000 bytes; at most 16384"),
            std::string::npos);
  add_lora(model, {.targets = {"c_attn"}});
  EXPECT_NE(error_of([&] { add_lora(model, {.targets = {"c_attn"}}); }).find("has an adapter 'default' already"),
            std::string::npos);
  EXPECT_NE(error_of([&] { set_adapter(model, "other"); }).find("GPT2 has no adapter 'other'; it has default"),
            std::string::npos);
}

TEST(Lora, FollowsTheEquation) {
  for (const bool rslora : {false, true}) {
    struct One : Module<One> {
      Linear fc = child("fc", 6, 5);
      Embedding table = child("table", 7, 6, EmbeddingOptions{.padding_idx = 2});
      Tensor forward(const Tensor& idx) { return fc(table(idx)); }
    } one;
    one.to(kF64);
    add_lora(one, {.rank = 4, .alpha = 6, .targets = {"fc", "table"}, .rslora = rslora});
    stir(one);
    const StateDict s = one.state_dict();
    const double scaling = 6 / (rslora ? 2.0 : 4.0);
    const Tensor a = s.at("fc.lora.default.lora_A.weight"), b = s.at("fc.lora.default.lora_B.weight"),
                 ea = s.at("table.lora.default.lora_embedding_A.weight"),
                 eb = s.at("table.lora.default.lora_embedding_B.weight");
    EXPECT_EQ(a.sizes(), (Dims{4, 6}));
    EXPECT_EQ(ea.sizes(), (Dims{7, 4}));
    const Tensor idx = Tensor::from<int64_t>({0, 2, 6}, {3});
    const Tensor rows = ops::embedding(s.at("table.weight") + ea.matmul(eb.t()) * scaling, idx);
    const Tensor expected = ops::linear(rows, s.at("fc.weight") + b.matmul(a) * scaling, s.at("fc.bias"));
    EXPECT_LE(difference(one(idx), expected), 1e-12);
    // The padding row gets no gradient.
    ops::sum(one(idx)).backward();
    for (const NamedTensor& p : one.named_parameters())
      EXPECT_TRUE(!p.name.ends_with("lora_embedding_A.weight") || largest(p.tensor.grad().select(0, 2)) == 0);
  }
}

TEST(Lora, DropoutIsForTheInputOfA) {
  test::OneLinear holder(64, 8);
  add_lora(holder, {.rank = 4, .dropout = 0.5, .targets = {"fc"}});
  stir(holder);
  const Tensor x = Tensor::ones({3, 64});
  EXPECT_FALSE(same_bits(holder(x).detach(), holder(x).detach()));
  holder.eval();
  EXPECT_TRUE(same_bits(holder(x).detach(), holder(x).detach()));
}

// Adapters of 16-bit weights are f32, and the results keep the base's dtype.
TEST(Lora, Dtypes) {
  const Tensor idx = tokens();
  for (DType dtype : {kBF16, kF16, kF64}) {
    GPT2 model(kTiny, 1);
    model.to(dtype);
    add_lora(model, {.rank = 4, .targets = {"c_attn", "wte"}});
    stir(model);
    for (const NamedTensor& p : model.named_parameters())
      EXPECT_EQ(p.tensor.dtype(), p.name.find("lora") == p.name.npos || dtype == kF64 ? dtype : kF32) << p.name;
    EXPECT_EQ(model(idx).dtype(), dtype);
    model.loss(idx, idx).backward();
    for (const Tensor& p : model.parameters()) EXPECT_EQ(p.grad().defined(), p.requires_grad());
  }
  GPT2 model(kTiny, 1);
  add_lora(model, {.rank = 4, .targets = {"c_attn"}});
  stir(model);
  const double full = model.loss(idx, idx).item();
  const amp::Autocast lower(kBF16);
  EXPECT_NEAR(model.loss(idx, idx).item(), full, 0.02 * full);
}

// The whole model is a target, the output layer of a Llama, a batch of none.
TEST(Lora, AtTheEdges) {
  Llama model(kTinyLlama, 1);
  const Tensor idx = tokens(2, 50);
  LlamaConfig chunked = kTinyLlama;
  chunked.whole_logits = 1;
  Llama small(chunked, 1);
  for (Llama* m : {&model, &small}) {
    manual_seed(1);
    add_lora(*m, {.targets = {"lm_head"}});
    stir(*m);
  }
  EXPECT_NEAR(model.loss(idx, idx).item(), small.loss(idx, idx).item(), 1e-5);
  EXPECT_EQ(model(Tensor::zeros({0, 4}, {kI64})).sizes(), (Dims{0, 4, 50}));
}

// ---- modules_to_save

TEST(Lora, ModulesToSaveAreCopies) {
  Bert model(
      {.vocab_size = 50, .block_size = 16, .n_layer = 1, .n_head = 4, .n_embd = 32, .n_hidden = 64, .num_classes = 3},
      1);
  const Tensor idx = tokens(2, 50), targets = Tensor::from<int64_t>({0, 2}, {2});
  const StateDict base = copy_of(model);
  const Tensor before = model(idx);
  const LoraReport report = add_lora(model, {.targets = {"query"}, .modules_to_save = {"classifier"}});
  EXPECT_EQ(report.saved, (std::vector<std::string>{"classifier"}));
  EXPECT_EQ(report.trainable, 8 * 64 + 32 * 3 + 3);
  EXPECT_TRUE(same_bits(model(idx).detach(), before.detach()));
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    model.loss(idx, {}, {}, targets).backward();
    optimizer.step();
  }
  EXPECT_FALSE(same_bits(model.classifier.weight.detach(), base.at("classifier.weight")));
  const Tensor trained = model(idx);
  {
    const DisableAdapters disabled(model);
    EXPECT_TRUE(same_bits(model(idx).detach(), before.detach()));
    for (const Tensor& p : model.parameters()) EXPECT_FALSE(p.requires_grad());
  }
  EXPECT_TRUE(same_bits(model(idx).detach(), trained.detach()));
  // A second adapter starts from the base's classifier.
  add_lora(model, {.targets = {"value"}, .modules_to_save = {"classifier"}, .adapter = "second"});
  EXPECT_TRUE(same_bits(model(idx).detach(), before.detach()));
  set_adapter(model, "default");
  EXPECT_TRUE(same_bits(model(idx).detach(), trained.detach()));
  remove_adapter(model, "default");
  EXPECT_TRUE(same_bits(model(idx).detach(), before.detach()));
  remove_adapter(model, "second");
  expect_same(model.state_dict(), base);
  EXPECT_TRUE(adapter_names(model).empty());
}

// ---- Several adapters

TEST(Lora, SeveralAdaptersOnOneBase) {
  GPT2 model(kTiny, 1);
  const Tensor idx = tokens(), base = model(idx);
  add_lora(model, {.rank = 2, .targets = {"c_attn"}, .adapter = "a"});
  stir(model);
  const Tensor with_a = model(idx);
  add_lora(model, {.rank = 4, .targets = {"c_fc", "wpe"}, .adapter = "b"});
  EXPECT_EQ(active_adapter(model), "b");
  EXPECT_TRUE(same_bits(model(idx).detach(), base.detach()));
  stir(model);
  const Tensor with_b = model(idx);
  EXPECT_EQ(adapter_names(model), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(adapter_options(model, "a").rank, 2);
  {
    const UseAdapter use(model, "a");
    EXPECT_TRUE(same_bits(model(idx).detach(), with_a.detach()));
    const DisableAdapters off(model);
    EXPECT_TRUE(same_bits(model(idx).detach(), base.detach()));
  }
  EXPECT_TRUE(same_bits(model(idx).detach(), with_b.detach()));
  set_adapter(model, "a");
  EXPECT_TRUE(same_bits(model(idx).detach(), with_a.detach()));
  for (const NamedTensor& p : model.named_parameters())
    EXPECT_EQ(p.tensor.requires_grad(), p.name.find(".lora.a.") != p.name.npos) << p.name;
  // A backward after the scope goes to the adapter that made the loss.
  Tensor loss;
  {
    const UseAdapter use(model, "b");
    loss = model.loss(idx, idx);
  }
  loss.backward();
  for (const NamedTensor& p : model.named_parameters())
    EXPECT_EQ(p.tensor.grad().defined(), p.name.find(".lora.b.") != p.name.npos) << p.name;
  remove_adapter(model, "a");
  EXPECT_EQ(active_adapter(model), "");
  EXPECT_TRUE(same_bits(model(idx).detach(), base.detach()));
}

// ---- Merging

TEST(Lora, MergedEqualsUnmerged) {
  for (DType dtype : {kF32, kF64, kBF16}) {
    SCOPED_TRACE(name_of(dtype));
    Llama model(kTinyLlama, 1);
    model.to(dtype);
    const Tensor idx = tokens(2, 50);
    add_lora(model, {.rank = 4, .alpha = 2, .targets = {"all-linear"}});
    add_lora(model, {.rank = 4, .alpha = 2, .targets = {"embed_tokens", "q_proj"}, .adapter = "second"});
    stir(model, 0.05);
    const StateDict before = copy_of(model);
    const Tensor unmerged = model(idx);
    merge_adapter(model);
    const double rounding = dtype == kF64 ? 1e-13 : dtype == kF32 ? 1e-5 : 0.05;
    EXPECT_LE(difference(model(idx), unmerged), rounding * largest(unmerged));
    EXPECT_NE(error_of([&] { set_adapter(model, "default"); }).find("'second' is merged"), std::string::npos);
    EXPECT_NE(error_of([&] { merge_adapter(model); }).find("is merged"), std::string::npos);
    unmerge_adapter(model);
    expect_same(model.state_dict(), before);  // bit for bit
    EXPECT_TRUE(same_bits(model(idx).detach(), unmerged.detach()));
    merge_adapter(model, {.keep_base = false});
    unmerge_adapter(model);
    for (const auto& [name, tensor] : model.state_dict())
      EXPECT_LE(difference(tensor, before.at(name)), rounding * 0.1 * std::max(1.0, largest(tensor))) << name;
  }
}

TEST(Lora, MergeAndUnload) {
  GPT2 model(kTiny, 1), plain(kTiny, 1);
  const Tensor idx = tokens();
  add_lora(model, {.rank = 4, .targets = {"c_attn", "c_fc"}, .modules_to_save = {"ln_f"}});
  stir(model);
  const Tensor before = model(idx);
  merge_and_unload(model);
  EXPECT_LE(difference(model(idx), before), 1e-5 * largest(before));
  EXPECT_EQ(model.named_parameters().size(), plain.named_parameters().size());
  plain.load_state_dict(model.state_dict());
  EXPECT_TRUE(same_bits(plain(idx).detach(), model(idx).detach()));
}

// Merged weights that were written cannot be unmerged. They can still become the model's own.
TEST(Lora, UnloadsAfterMergedWeightsWereWritten) {
  GPT2 model(kTiny, 1), plain(kTiny, 1);
  add_lora(model, {.rank = 4, .targets = {"c_attn"}, .modules_to_save = {"ln_f"}});
  stir(model);
  merge_adapter(model);
  model.to(kBF16);
  const Tensor idx = tokens(), before = model(idx);
  EXPECT_NE(error_of([&] { unmerge_adapter(model); }).find("another device or dtype by .to()"), std::string::npos);
  merge_and_unload(model);
  EXPECT_TRUE(adapter_names(model).empty());
  EXPECT_TRUE(same_bits(before.detach(), model(idx).detach()));
  EXPECT_EQ(model.named_parameters().size(), plain.named_parameters().size());
}

TEST(Lora, MergingSaysWhatIsWrong) {
  GPT2 model(kTiny, 1);
  EXPECT_NE(error_of([&] { merge_adapter(model); }).find("no adapter is active"), std::string::npos);
  EXPECT_NE(error_of([&] { unmerge_adapter(model); }).find("no adapter is merged"), std::string::npos);
  add_lora(model, {.targets = {"wte"}});
  EXPECT_NE(error_of([&] { merge_adapter(model); }).find("wte.weight is used elsewhere"), std::string::npos);
  remove_adapter(model, "default");
  LlamaConfig tied = kTinyLlama;
  tied.tie_word_embeddings = true;
  Llama llama(tied, 1);
  add_lora(llama, {.targets = {"embed_tokens"}});
  EXPECT_NE(error_of([&] { merge_adapter(llama); }).find("used elsewhere"), std::string::npos);
  add_lora(model, {.targets = {"c_attn"}});
  merge_adapter(model);
  no_grad([&] { model.h[0].attn.c_attn.weight.mul_(2.0); });
  EXPECT_NE(error_of([&] { unmerge_adapter(model); }).find("h.0.attn.c_attn.weight was written after"),
            std::string::npos);
}

// What cannot be merged is known before anything is trained.
TEST(Lora, AddLoraSaysWhatCannotBeMerged) {
  GPT2 model(kTiny, 1);
  const StateDict before = copy_of(model);
  const std::string error = error_of([&] { add_lora(model, {.targets = {"c_attn", "wte"}, .mergeable = true}); });
  EXPECT_NE(error.find("add_lora: wte.weight is used elsewhere in the model, too, and merging would change"),
            error.npos)
      << error;
  EXPECT_TRUE(adapter_names(model).empty());
  expect_same(model.state_dict(), before);
  EXPECT_TRUE(add_lora(model, {.targets = {"c_attn"}, .adapter = "a", .mergeable = true}).unmergeable.empty());
  merge_and_unload(model);
  EXPECT_EQ(add_lora(model, {.targets = {"c_attn", "wte"}}).unmergeable, std::vector<std::string>{"wte"});
  LlamaConfig config = kTinyLlama;
  for (const bool tied : {true, false}) {
    config.tie_word_embeddings = tied;
    Llama llama(config, 1);
    const LoraReport report = add_lora(llama, {.targets = {"embed_tokens", "q_proj"}});
    EXPECT_EQ(report.unmergeable.size(), tied ? 1u : 0u);
    if (tied)
      EXPECT_NE(error_of([&] { merge_adapter(llama); }).find("merge_adapter: " + report.unmergeable[0]),
                std::string::npos);
    else merge_adapter(llama);
  }
}

// ---- With the rest of the folder

// Cached decoding goes through the adapter: it gives what whole forwards give.
TEST(Lora, GenerationUsesTheAdapter) {
  GPT2 model(kTiny, 1);
  add_lora(model, {.rank = 4, .targets = {"c_attn", "c_fc", "wte", "wpe"}});
  stir(model, 0.3);
  const Tensor prompt = tokens(1).slice(1, {0, 5}).contiguous();
  const std::vector<int64_t> got = model.generate(prompt, 8, 0).to_vector<int64_t>();
  std::vector<int64_t> expected = prompt.to_vector<int64_t>();
  model.eval();
  for (int i = 0; i < 8; ++i) {
    const auto length = static_cast<int64_t>(expected.size());
    const Tensor logits = model(Tensor::from(expected, {1, length})).select(1, -1);
    expected.push_back(logits.argmax(1).to_vector<int64_t>()[0]);
  }
  EXPECT_EQ(got, expected);
  const DisableAdapters off(model);
  EXPECT_NE(model.generate(prompt, 8, 0).to_vector<int64_t>(), got);
}

// A model that was read from a folder trains, saves and loads its adapter.
TEST(Lora, OnAModelReadFromAFolder) {
  const std::string folder = std::string(tests::kReferenceDir) + "/pretrained/qwen2";
  const AutoModelForCausalLM model = AutoModelForCausalLM::from_pretrained(folder);
  AutoModelForCausalLM again = AutoModelForCausalLM::from_pretrained(folder);
  const Tensor idx = Tensor::from<int64_t>({1, 5, 3, 2}, {1, 4});
  const LoraReport report = add_lora(*model, {.rank = 2, .targets = {"q_proj", "down_proj"}});
  EXPECT_FALSE(report.targets.empty());
  stir(*model);
  const TempFolder saved;
  save_adapter(*model, saved.path());
  load_adapter(*again, saved.path());
  EXPECT_TRUE(same_bits(model.as<Llama>()->forward(idx).detach(), again.as<Llama>()->forward(idx).detach()));
  again.loss(idx, idx).backward();
  for (const NamedTensor& p : again->named_parameters())
    EXPECT_EQ(p.tensor.grad().defined(), p.tensor.requires_grad()) << p.name;
}

// ---- Frozen operands cost nothing

// A layer whose weight is larger than everything else: neither its gradient nor, on the tape, its input is there.
TEST(Lora, FrozenOperandsTakeNoMemory) {
  struct Wide : Module<Wide> {
    Linear first = child("first", 512, 512);
    Linear second = child("second", 512, 512);
    Tensor forward(const Tensor& x) { return second(ops::gelu(first(x))); }
  };
  const int64_t weight = 512 * 512 * 4;
  const auto peak = [&](bool lora) {
    Wide wide;
    if (lora) add_lora(wide, {.rank = 2, .targets = {"first"}});
    optim::AdamW optimizer(wide.parameters(), {});
    const Tensor x = Tensor::randn({4, 512});
    memory::Recording recording;
    const memory::Report before = recording.report();
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      ops::sum(wide(x)).backward();
      optimizer.step();
    }
    memory::Report after = recording.report();
    after.gradients -= before.gradients;
    after.states -= before.states;
    after.workspace -= before.workspace;
    return after;
  };
  const memory::Report full = peak(false), lora = peak(true);
  EXPECT_GE(full.gradients + full.workspace, 2 * weight);
  EXPECT_GE(full.states, 4 * weight);
  EXPECT_LT(lora.gradients + lora.states + lora.workspace + lora.most_activations, weight / 4);
}

// The tape keeps the operands of the gradients that are wanted, and no others.
TEST(Lora, AFrozenWeightKeepsNoInput) {
  for (const bool frozen : {false, true}) {
    Linear fc(64, 64);
    fc.requires_grad_(!frozen);
    Tensor x = Tensor::randn({1024, 64}).requires_grad_();
    const memory::Recording recording;
    const int64_t before = recording.report().most_activations;
    const Tensor y = fc(x * 2.0);
    const int64_t kept = recording.report().most_activations - before;
    EXPECT_EQ(kept < 1024 * 64 * 4, frozen) << kept;
    ops::sum(y).backward();
    EXPECT_LE(difference(x.grad(), ops::matmul(Tensor::full({1024, 64}, 2.0), fc.weight)), 1e-5);
    EXPECT_EQ(fc.weight.grad().defined(), !frozen);
  }
}

}  // namespace
}  // namespace rondo::nn
