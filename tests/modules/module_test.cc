#include "rondo/modules/module.h"

#include <gtest/gtest.h>

#include "rondo/modules/attention.h"
#include "rondo/runtime/random.h"
#include "rondo/tests/errors.h"

namespace rondo::nn {
namespace {

using ::testing::Test;

// The block of the header's comment, as a user writes it.
struct Block : Module<Block> {
  Block(int64_t C, int64_t heads) : C(C), heads(heads) {}
  int64_t C, heads;
  LayerNorm ln_1 = child("ln_1", C);
  MultiheadAttention attn = child("attn", C, heads);
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
  EXPECT_THROW(loss.backward(), StaleTensorError);
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

TEST(Layers, LayerNormWithoutBias) {
  LayerNorm norm(4, {.bias = false});
  EXPECT_EQ(norm.parameters().size(), 1u);
  EXPECT_EQ(norm.state_dict().size(), 1u);
  norm.to(kF64);
  EXPECT_EQ(norm(Tensor::randn({2, 4}, {kF64})).dtype(), kF64);
}

// Attention with dropout of the weights stores the scores; without, it must be the fused op's result.
TEST(Layers, AttentionPathsAgree) {
  MultiheadAttention attn(16, 4, {.dropout = 1e-12});
  const Tensor x = Tensor::randn({2, 5, 16});
  attn.train();
  const std::vector<float> stored = attn(x).to_vector<float>();
  attn.eval();
  const std::vector<float> fused = attn(x).to_vector<float>();
  for (size_t i = 0; i < stored.size(); ++i) EXPECT_NEAR(stored[i], fused[i], 1e-5);
}

}  // namespace
}  // namespace rondo::nn
