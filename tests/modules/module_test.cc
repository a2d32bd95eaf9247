#include "rondo/modules/module.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/layers/attention.h"
#include "rondo/modules/transformers/bert.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/modules/transformers/vit.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/errors.h"

namespace rondo::nn {
namespace {

using ::testing::Test;

// The block of the header's comment, as a user writes it.
struct Block : Module<Block> {
  Block(int64_t C, int64_t heads) : C(C), heads(heads) {}
  int64_t C, heads;
  LayerNorm ln_1 = child("ln_1", C);
  SelfAttention attn = child("attn", C, heads);
  LayerNorm ln_2 = child("ln_2", C);
  MLP mlp = child("mlp", C, 4 * C);
  Tensor forward(const Tensor& x_) {  // (B, T, C) -> (B, T, C)
    Tensor x = x_ + attn(ln_1(x_));
    return x + mlp(ln_2(x));
  }
};

struct Model : Module<Model> {
  explicit Model(int64_t n_layer = 2) : n_layer(n_layer) {}
  int64_t n_layer;
  Embedding wte = child("wte", 11, 8);
  ModuleList<Block> h = child("h", n_layer, 8, 2);
  Linear head = child("head", 8, 11, LinearOptions{.bias = false});
  Tensor& steps = buffer("steps", Tensor::zeros({}, {kI64}));
  Tensor& scratch = buffer("scratch", Tensor::ones({3}), /*persistent=*/false);
  Tensor forward(const Tensor& idx) {
    Tensor x = wte(idx);
    for (Block& block : h) x = block(x);
    return head(x);
  }
};

std::vector<std::string> names_of(const std::vector<NamedTensor>& list) {
  std::vector<std::string> names;
  for (const auto& named : list) names.push_back(named.name);
  return names;
}
TEST(Module, NamesFollowTheDeclaration) {
  Model model(1);
  EXPECT_EQ(names_of(model.named_parameters()),
            (std::vector<std::string>{"wte.weight", "h.0.ln_1.weight", "h.0.ln_1.bias", "h.0.attn.c_attn.weight",
                                      "h.0.attn.c_attn.bias", "h.0.attn.c_proj.weight", "h.0.attn.c_proj.bias",
                                      "h.0.ln_2.weight", "h.0.ln_2.bias", "h.0.mlp.c_fc.weight", "h.0.mlp.c_fc.bias",
                                      "h.0.mlp.c_proj.weight", "h.0.mlp.c_proj.bias", "head.weight"}));
  EXPECT_EQ(names_of(model.named_buffers()), (std::vector<std::string>{"steps", "scratch"}));
  EXPECT_EQ(model.path(), "");
  EXPECT_EQ(model.h[0].attn.c_proj.path(), "h.0.attn.c_proj");
  EXPECT_EQ(model.h[0].attn.c_proj.name(), "c_proj");
  EXPECT_EQ(model.h[0].type_name(), "Block");
  EXPECT_EQ(model.h.type_name(), "ModuleList");
  EXPECT_EQ(model.num_parameters(), 11 * 8 + (16 + 3 * 64 + 24 + 64 + 8 + 16 + 256 + 32 + 256 + 8) + 88);
  ASSERT_EQ(model.children().size(), 3u);
  EXPECT_EQ(model.children()[1], &model.h);
  EXPECT_EQ(model.h.children()[0], &model.h[0]);
  EXPECT_EQ(model.h[0].parent(), &model.h);
}

TEST(Module, ARootAndAChildAreBuiltAlike) {
  Block block(8, 2);
  EXPECT_EQ(block.path(), "");
  EXPECT_EQ(block(Tensor::randn({1, 3, 8})).sizes(), (Dims{1, 3, 8}));
}

TEST(Module, ModulesListsParentsFirst) {
  Model model(1);
  const std::vector<NamedModule> all = model.named_modules();
  EXPECT_EQ(all[0].name, "");
  EXPECT_EQ(&all[0].module, &model);
  EXPECT_EQ(all[2].name, "h");
  EXPECT_EQ(all[3].name, "h.0");
}

TEST(Module, TiedParametersComeOnce) {
  Model model;
  const size_t before = model.parameters().size();
  model.head.weight = model.wte.weight;
  EXPECT_EQ(model.parameters().size(), before - 1);
  EXPECT_FALSE(model.state_dict().contains("head.weight"));
  model.to(kF64);
  EXPECT_TRUE(model.head.weight.is_same(model.wte.weight));
  EXPECT_EQ(model.head.weight.dtype(), kF64);
}

TEST(Module, StateDictRoundTrip) {
  Model a, b;
  a.steps.fill_(7);
  const Tensor x = Tensor::randint(0, 11, {2, 4});
  EXPECT_NE(a(x).to_vector<float>(), b(x).to_vector<float>());
  EXPECT_TRUE(b.load_state_dict(a.state_dict()).empty());
  EXPECT_EQ(a(x).to_vector<float>(), b(x).to_vector<float>());
  EXPECT_EQ(b.steps.item(), 7);
  EXPECT_FALSE(a.state_dict().contains("scratch"));
  EXPECT_TRUE(b.wte.weight.requires_grad());
  EXPECT_TRUE(b.wte.weight.is_leaf());
}

TEST(Module, LoadConvertsFloats) {
  Model a, b;
  a.to(kF64);
  b.load_state_dict(a.state_dict());
  EXPECT_EQ(b.wte.weight.dtype(), kF32);
  EXPECT_EQ(b.wte.weight.to_vector<float>(), a.wte.weight.to_vector<float>());
}

TEST(Module, ABadStateDictChangesNothingAndSaysEverything) {
  Model model;
  const std::vector<float> before = model.wte.weight.to_vector<float>();
  StateDict state = Model().state_dict();
  state.erase("h.1.ln_2.bias");
  state["h.1.ln_3.bias"] = Tensor::zeros({8});
  state["head.weight"] = Tensor::zeros({8, 11});
  state["steps"] = Tensor::zeros({}, {kF32});
  try {
    model.load_state_dict(state);
    FAIL() << "no error";
  } catch (const StateDictError& e) {
    EXPECT_EQ(e.report().missing, std::vector<std::string>{"h.1.ln_2.bias"});
    EXPECT_EQ(e.report().unexpected, std::vector<std::string>{"h.1.ln_3.bias"});
    EXPECT_EQ(e.report().mismatched, (std::vector<std::string>{"steps: i64[] wanted, f32[] given",
                                                               "head.weight: f32[11, 8] wanted, f32[8, 11] given"}));
    EXPECT_NE(std::string(e.what()).find("Model: the state dict does not fit"), std::string::npos) << e.what();
  }
  EXPECT_EQ(model.wte.weight.to_vector<float>(), before);
  EXPECT_THROW(model.load_state_dict(state, /*strict=*/false), StateDictError);  // shapes still matter
  state.erase("head.weight");
  state.erase("steps");
  const StateDictReport report = model.load_state_dict(state, /*strict=*/false);
  EXPECT_EQ(report.missing.size(), 3u);
  EXPECT_EQ(report.unexpected.size(), 1u);
}

TEST(Module, TiedValuesMayComeUnderAnyName) {
  Model model;
  model.head.weight = model.wte.weight;
  StateDict state = model.state_dict();
  const Tensor value = Tensor::randn({11, 8});
  state.erase("wte.weight");
  state["head.weight"] = value;
  EXPECT_TRUE(model.load_state_dict(state).empty());
  EXPECT_EQ(model.wte.weight.to_vector<float>(), value.to_vector<float>());
  state["wte.weight"] = value.clone();
  EXPECT_TRUE(model.load_state_dict(state).empty());
  state["wte.weight"] = Tensor::zeros({11, 8});
  EXPECT_THROW(model.load_state_dict(state), StateDictError);
}

TEST(Module, HandlesSurviveToAndLoad) {
  Model model;
  const Tensor kept = model.wte.weight;
  const Tensor x = Tensor::randint(0, 11, {2, 4});
  ops::sum(model(x)).backward();
  model.to(kF64);
  EXPECT_TRUE(kept.is_same(model.wte.weight));
  EXPECT_EQ(kept.dtype(), kF64);
  EXPECT_EQ(kept.grad().dtype(), kF64);
  EXPECT_EQ(model.steps.dtype(), kI64);
  model.zero_grad();
  EXPECT_FALSE(kept.grad().defined());
  ops::sum(model(x)).backward();
  EXPECT_EQ(kept.grad().dtype(), kF64);
  EXPECT_EQ(model(x).dtype(), kF64);
}

TEST(Module, BackwardAcrossAConversionIsStale) {
  Linear linear(3, 2);
  const Tensor loss = ops::sum(linear(Tensor::randn({4, 3}).requires_grad_()));
  linear.to(kF64);
  // The layer calls the op, and the message names this file, which calls the layer.
  const std::string text = test::error_of<StaleTensorError>([&] { loss.backward(); });
  EXPECT_NE(text.find("overwritten in place"), std::string::npos) << text;
  EXPECT_NE(text.find("module_test.cc"), std::string::npos) << text;
}

TEST(Module, FreezingStopsGradients) {
  Model model;
  model.h.requires_grad_(false);
  ops::sum(model(Tensor::randint(0, 11, {2, 4}))).backward();
  EXPECT_TRUE(model.wte.weight.grad().defined());
  EXPECT_FALSE(model.h[1].mlp.c_fc.weight.grad().defined());
}

TEST(Module, TrainAndEvalReachEveryChild) {
  Model model;
  model.eval();
  EXPECT_FALSE(model.h[1].mlp.dropout.is_training());
  model.train();
  EXPECT_TRUE(model.h[1].mlp.dropout.is_training());
  int count = 0;
  model.apply([&](ModuleBase& module) { count += module.children().empty(); });
  EXPECT_EQ(count, 1 + 2 * 9 + 1);
}

TEST(Module, BadNamesAreRefused) {
  struct Twice : Module<Twice> {
    Linear a = child("a", 2, 2);
    Linear b = child("a", 2, 2);
  };
  struct Dotted : Module<Dotted> {
    Tensor& a = parameter("a.b", Tensor::zeros({1}));
  };
  EXPECT_NE(test::error_of([] { Twice module; }).find("the name 'a' is taken by a child"), std::string::npos);
  EXPECT_NE(test::error_of([] { Dotted module; }).find("contains a dot"), std::string::npos);
  // A failed construction must not leave a place behind: the next module is a root.
  Linear root(2, 2);
  EXPECT_EQ(root.parent(), nullptr);
}

// A member that child() has not made would run and never be trained.
TEST(Module, AMemberWithoutChildIsRefused) {
  struct Hidden : Module<Hidden> {
    LayerNorm ln = child("ln", 8);
    Linear fc{8, 4};
    Tensor forward(const Tensor& x) { return fc(ln(x)); }
  };
  EXPECT_NE(
      test::error_of([] { Hidden module; })
          .find("Hidden: the member module after \"ln\", a Linear, is not made by child(), so its parameters would "
                "not be trained or saved. Write: Linear fc = child(\"fc\", ...)"),
      std::string::npos);
  EXPECT_NE(test::error_of([] { std::make_unique<Hidden>(); }).find("is not made by child()"), std::string::npos);
  struct HiddenList : Module<HiddenList> {
    ModuleList<Linear> h{2, 3, 3};
  };
  EXPECT_NE(test::error_of([] { HiddenList module; }).find("HiddenList: its first member module, a ModuleList"),
            std::string::npos);
  // In a child, and in one that a list made.
  struct Outer : Module<Outer> {
    Linear first = child("first", 2, 2);
    Hidden inner = child("inner");
  };
  EXPECT_NE(test::error_of([] { Outer module; }).find("Hidden: the member module after \"ln\""), std::string::npos);
  EXPECT_NE(test::error_of([] { ModuleList<Hidden> list(1); }).find("Hidden: the member"), std::string::npos);
  struct Late : Module<Late> {
    std::optional<Linear> fc;
    int64_t after = 0;
  };
  Late late;
  EXPECT_NE(test::error_of([&] { late.fc.emplace(2, 2); }).find("Late: its first member module"), std::string::npos);
  // These are no members: neighbours, modules of a plain struct, heap memory, what forward makes.
  struct Plain {
    Linear a{2, 2}, b{2, 2};
  } plain;
  struct Makes : Module<Makes> {
    std::unique_ptr<Linear> teacher = std::make_unique<Linear>(2, 2);
    Tensor forward(const Tensor& x) { return Linear(2, 2)(x); }
  } makes;
  makes(Tensor::ones({1, 2}));
  // Another base in front does not make the module longer than it is.
  struct Front {
    std::array<char, 4096> bytes;
  };
  struct Behind : Front, Module<Behind> {
    Linear fc = child("fc", 2, 2);
  };
  const auto memory = std::make_unique<std::byte[]>(sizeof(Behind) + sizeof(Linear) + 64);
  std::byte* at = memory.get() + (64 - reinterpret_cast<uintptr_t>(memory.get()) % 64) % 64;
  auto* behind = new (at) Behind;
  auto* neighbour = new (at + sizeof(Behind)) Linear(2, 2);
  EXPECT_EQ(neighbour->parent(), nullptr);
  neighbour->~Linear();
  behind->~Behind();
}

TEST(Module, AnArgumentDeclaredLaterIsRefused) {
  struct Late : Module<Late> {
    Linear fc = child("fc", in, 4);
    int64_t in = 8;
  };
  EXPECT_NE(test::error_of([] {
              Late module;
            }).find("Late: child(\"fc\", ...): an argument is a member of Late that is declared after this child"),
            std::string::npos);
  struct Early : Module<Early> {
    int64_t in = 8;
    Linear fc = child("fc", in, 4);
    Linear again = child("again", fc.weight.size(0), in);
  } early;
  EXPECT_EQ(early.again.weight.sizes(), (Dims{8, 4}));
  for (const auto& make : std::vector<std::function<void()>>{[] { Linear(0, 2); }, [] { Linear(2, -1); },
                                                             [] { Embedding(-3, 2); }, [] { LayerNorm(0); }})
    EXPECT_NE(test::error_of(make).find("sizes must be positive, got"), std::string::npos);
}

TEST(Module, CompilingBlocksOfAModelWithoutBlocksIsAnError) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  struct Net : Module<Net> {
    Linear fc = child("fc", 2, 2);
    Tensor forward(const Tensor& x) { return fc(x); }
  } net;
  EXPECT_NE(test::error_of([&] { compile::compile_regions(net); })
                .find("compile_regions: Net has no blocks, that is, no nn::ModuleList of modules; compile the whole "
                      "model with compile_module(model)"),
            std::string::npos);
}

// The row of padding_idx gets no gradient; the other rows get the usual one.
TEST(Layers, EmbeddingWithPadding) {
  Embedding padded(5, 3, {.padding_idx = 1}), plain(5, 3);
  EXPECT_EQ(padded.weight.select(0, 1).to_vector<float>(), (std::vector<float>{0, 0, 0}));
  no_grad([&] { padded.weight.fill_(0.5); });
  plain.load_state_dict(padded.state_dict());
  const Tensor indices = Tensor::from<int64_t>({1, 2, 1, 4, 2, 0}, {2, 3}), weights = Tensor::rand({2, 3, 3});
  EXPECT_EQ(padded(indices).to_vector<float>(), plain(indices).to_vector<float>());
  ops::sum(padded(indices) * weights).backward();
  ops::sum(plain(indices) * weights).backward();
  for (int64_t row = 0; row < 5; ++row)
    EXPECT_EQ(padded.weight.grad().select(0, row).to_vector<float>(),
              row == 1 ? std::vector<float>(3, 0.0f) : plain.weight.grad().select(0, row).to_vector<float>());
  EXPECT_NE(test::error_of([] { Embedding(5, 3, {.padding_idx = 5}); }).find("padding_idx must be in [0, 5)"),
            std::string::npos);
}

// Published checkpoints as they are: names that Hugging Face's classes write.
TEST(Published, BertLlamaAndViTLoadStrictly) {
  Bert bert(
      {.vocab_size = 9, .block_size = 6, .n_layer = 1, .n_head = 2, .n_embd = 8, .n_hidden = 12, .num_classes = 2});
  EXPECT_EQ(bert.embeddings.word_embeddings.weight.select(0, 0).to_vector<float>(), std::vector<float>(8, 0.0f));
  StateDict state = bert.state_dict();
  EXPECT_FALSE(state.contains("embeddings.position_ids"));
  state["embeddings.position_ids"] = Tensor::arange(6).view({1, 6});
  EXPECT_TRUE(bert.load_state_dict(state).empty());
  state["embeddings.position_idx"] = Tensor::arange(6);
  EXPECT_THROW(bert.load_state_dict(state), StateDictError);

  const LlamaConfig config = {.vocab_size = 9,
                              .block_size = 6,
                              .n_layer = 1,
                              .n_head = 2,
                              .n_kv_head = 1,
                              .n_embd = 8,
                              .n_hidden = 12,
                              .tie_word_embeddings = true};
  Llama llama(config, 1), other(config, 2);
  EXPECT_TRUE(llama.lm_head.weight.is_same(llama.model.embed_tokens.weight));
  state = other.state_dict();
  EXPECT_FALSE(state.contains("lm_head.weight"));
  EXPECT_TRUE(llama.load_state_dict(state).empty());
  EXPECT_EQ(llama.lm_head.weight.to_vector<float>(), other.lm_head.weight.to_vector<float>());

  ViT vit({.image_size = 4, .patch_size = 2, .n_layer = 2, .n_head = 2, .n_embd = 4, .num_classes = 3}, 1);
  const std::map<std::string, Dims> of_layer = {{"attention.attention.query", {4, 4}},
                                                {"attention.attention.key", {4, 4}},
                                                {"attention.attention.value", {4, 4}},
                                                {"attention.output.dense", {4, 4}},
                                                {"intermediate.dense", {16, 4}},
                                                {"output.dense", {4, 16}},
                                                {"layernorm_before", {4}},
                                                {"layernorm_after", {4}}};
  StateDict published = {{"vit.embeddings.cls_token", Tensor::rand({1, 1, 4})},
                         {"vit.embeddings.position_embeddings", Tensor::rand({1, 5, 4})},
                         {"vit.embeddings.patch_embeddings.projection.weight", Tensor::rand({4, 3, 2, 2})},
                         {"vit.embeddings.patch_embeddings.projection.bias", Tensor::rand({4})},
                         {"vit.layernorm.weight", Tensor::rand({4})},
                         {"vit.layernorm.bias", Tensor::rand({4})},
                         {"classifier.weight", Tensor::rand({3, 4})},
                         {"classifier.bias", Tensor::rand({3})}};
  for (const std::string layer : {"vit.encoder.layer.0.", "vit.encoder.layer.1."})
    for (const auto& [name, sizes] : of_layer) {
      published[layer + name + ".weight"] = Tensor::rand(sizes);
      published[layer + name + ".bias"] = Tensor::rand({sizes[0]});
    }
  EXPECT_TRUE(vit.load_state_dict(vit_from_hugging_face(published)).empty());
  EXPECT_EQ(vit.blocks[1].attn.qkv.weight.slice(0, {4, 8}).to_vector<float>(),
            published.at("vit.encoder.layer.1.attention.attention.key.weight").to_vector<float>());
  EXPECT_EQ(vit.blocks[0].norm2.bias.to_vector<float>(),
            published.at("vit.encoder.layer.0.layernorm_after.bias").to_vector<float>());
  published.erase("vit.encoder.layer.1.attention.attention.value.bias");
  EXPECT_NE(test::error_of([&] {
              vit_from_hugging_face(published);
            }).find("vit.encoder.layer.1.attention.attention.value.bias is missing"),
            std::string::npos);
}

TEST(Module, AThrowingChildLeavesNoTrace) {
  struct Parent : Module<Parent> {
    Linear a = child("a", 2, 2);
    bool threw = false;
    Parent() {
      try {
        Linear bad = child("bad", -1, 2);
      } catch (const Error&) {
        threw = true;
      }
    }
  };
  Parent parent;
  EXPECT_TRUE(parent.threw);
  EXPECT_EQ(parent.children().size(), 1u);
}

TEST(Module, ErrorsNameThePathAndTheUsersLine) {
  Model model;
  const int line = __LINE__ + 1;
  const std::string text = test::error_of([&] { model.h[1].mlp.c_fc(Tensor::zeros({2, 5})); });
  EXPECT_NE(text.find("in h.1.mlp.c_fc"), std::string::npos) << text;
  EXPECT_NE(text.find("module_test.cc:" + std::to_string(line)), std::string::npos) << text;
}

TEST(Module, AParameterOfIntegersIsNamed) {
  struct Counts : Module<Counts> {
    Tensor& counts = parameter("counts", Tensor::zeros({3}, {kI64}));
    Tensor forward(const Tensor& x) { return x; }
  };
  const std::string text = test::error_of([] { Counts(); });
  EXPECT_NE(text.find("Counts: parameter(\"counts\") is i64[3]"), std::string::npos) << text;
}

TEST(Module, CallHooksWrapForward) {
  struct Counter : CallHook {
    std::vector<std::string> paths;
    void around(const ModuleCall& call, absl::FunctionRef<void()> forward) override {
      ModuleBase& module = call.module;
      paths.push_back(module.path());
      forward();
    }
  };
  Model model;
  const Tensor x = Tensor::randint(0, 11, {2, 4});
  const std::vector<float> expected = model(x).to_vector<float>();
  auto counter = std::make_shared<Counter>();
  for (Block& block : model.h) block.call_hook = counter;
  EXPECT_EQ(model(x).to_vector<float>(), expected);
  EXPECT_EQ(counter->paths, (std::vector<std::string>{"h.0", "h.1"}));
}

TEST(Module, ForwardMayTakeAndReturnAnything) {
  struct Pair : Module<Pair> {
    std::pair<Tensor, int> forward(const Tensor& x, double scale, std::unique_ptr<int> n) { return {x * scale, *n}; }
  };
  struct Hook : CallHook {
    void around(const ModuleCall&, absl::FunctionRef<void()> forward) override { forward(); }
  };
  Pair pair;
  EXPECT_EQ(pair(Tensor::ones({2}), 3.0, std::make_unique<int>(4)).second, 4);
  pair.call_hook = std::make_shared<Hook>();
  auto [y, n] = pair(Tensor::ones({2}), 3.0, std::make_unique<int>(4));
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{3, 3}));
}

TEST(Sequential, RunsItsLayersInOrder) {
  Sequential net(layer<Linear>(2, 16), layer<Tanh>(), layer<Linear>(16, 1, LinearOptions{.bias = false}));
  EXPECT_EQ(names_of(net.named_parameters()), (std::vector<std::string>{"0.weight", "0.bias", "2.weight"}));
  EXPECT_EQ(net(Tensor::randn({5, 2})).sizes(), (Dims{5, 1}));
  EXPECT_EQ(net[1].type_name(), "Tanh");
  EXPECT_EQ(test::error_of([&] { net[3]; }), "Sequential: there is no module 3; there are 3");
  ModuleList<Linear> list(2, 3, 3);
  EXPECT_EQ(test::error_of([&] { list[-1]; }), "ModuleList: there is no module -1; there are 2");
  EXPECT_EQ(test::error_of([&] { ModuleList<Linear>(-2, 3, 3); }),
            "ModuleList: the number of modules must not be negative, got -2");
}

TEST(Layers, DropoutIsTheIdentityWhereItShouldBe) {
  const Tensor x = Tensor::randn({4, 4});
  Dropout none(0.0), half(0.5);
  EXPECT_TRUE(none(x).is_same(x));
  half.eval();
  EXPECT_TRUE(half(x).is_same(x));
  half.train();
  EXPECT_FALSE(half(x).is_same(x));
  EXPECT_THROW(Dropout(1.1), Error);
}

// Each lies on pages of its own, which are gone with it: to read of a destroyed one is a crash.
struct OnPages : Module<OnPages> {
  static void* operator new(size_t size) {
    void* const pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    return pages;
  }
  static void operator delete(void* pages, size_t size) { munmap(pages, size); }
};

// A module looks at its neighbours in memory, to see whether it lies in one of them.
TEST(Module, AreMadeWhileOtherThreadsDestroyTheirs) {
  std::atomic<bool> done = false;
  std::vector<std::thread> others, threads;
  for (int t = 0; t < 3; ++t)
    others.emplace_back([&] {
      while (!done) const OnPages on_the_stack;
    });
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < 20000; ++i) const auto made = std::make_unique<OnPages>();
    });
  for (std::thread& thread : threads) thread.join();
  done = true;
  for (std::thread& thread : others) thread.join();
}

// At once: with memory for the first of them, not for all.
TEST(Layers, MoreThanMemoryHoldsIsRefusedAtOnce) {
  const auto refusal = [](const GPT2Config& config) {
    return test::error_of<OutOfMemoryError>([&] { GPT2 model(config); });
  };
  const GPT2Config small{.vocab_size = 65, .block_size = 16, .n_layer = 1, .n_head = 1, .n_embd = 32};
  GPT2Config deep = small, wide = small, words = small, tokens = small;
  deep.n_layer = 1'000'000'000;
  wide.n_embd = words.vocab_size = tokens.block_size = 1'000'000'000'000;
  EXPECT_NE(refusal(deep).find("1000000000 modules take"), std::string::npos) << refusal(deep);
  for (const GPT2Config& config : {wide, words, tokens}) EXPECT_NE(refusal(config), "");
  EXPECT_NE(test::error_of<OutOfMemoryError>([] { ModuleList<Dropout> many(int64_t{1} << 60); }), "");
  // Also where a published model's sizes come before its memory.
  const SkipInit none(SkipInit::Memory::kNone);
  EXPECT_NE(refusal(deep), "");
  ModuleList<Block> some(100, 8, 2);
  EXPECT_EQ(some.size(), 100);
}

TEST(Layers, LayerNormWithoutBias) {
  LayerNorm norm(4, {.bias = false});
  EXPECT_EQ(norm.parameters().size(), 1u);
  EXPECT_EQ(norm.state_dict().size(), 1u);
  norm.to(kF64);
  EXPECT_EQ(norm(Tensor::randn({2, 4}, {kF64})).dtype(), kF64);
}

// Attention with dropout of the weights stores the scores; without, it must be the fused op's result.
TEST(Layers, AttentionPathsAgree) {
  SelfAttention attn(16, 4, {.dropout = 1e-12});
  const Tensor x = Tensor::randn({2, 5, 16});
  attn.train();
  const std::vector<float> stored = attn(x).to_vector<float>();
  attn.eval();
  const std::vector<float> fused = attn(x).to_vector<float>();
  for (size_t i = 0; i < stored.size(); ++i) EXPECT_NEAR(stored[i], fused[i], 1e-5);
}

}  // namespace
}  // namespace rondo::nn
