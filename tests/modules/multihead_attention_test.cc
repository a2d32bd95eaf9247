// MultiheadAttention: recorded values of PyTorch (tests/reference/record_attention.py), its masks, and regions against
// eager execution.
#include "rondo/modules/layers/multihead_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/paths.h"

namespace rondo::nn {
namespace {

using test::error_of;
using test::same_bits;

constexpr int64_t kWidth = 8, kHeads = 2;

struct RecordedCase {
  std::string name;
  MultiheadAttentionOptions options = {};
  bool is_causal = false;
};
const RecordedCase kCases[] = {{"self"},
                               {"causal", {.batch_first = true}, true},
                               {"padded", {.batch_first = true}},
                               {"pairs", {.bias = false}},
                               {"widths", {.kdim = 6, .vdim = 3, .batch_first = true}},
                               {"heads", {.kdim = 6}},
                               {"added"}};

TEST(MultiheadAttention, IsPyTorchs) {
  const io::TensorMap file =
      io::load_safetensors(std::string(tests::kReferenceDir) + "/multihead_attention.safetensors").tensors;
  for (const RecordedCase& recorded : kCases)
    for (const DType dtype : {kF64, kF32}) {
      SCOPED_TRACE(recorded.name + " " + std::string(name_of(dtype)));
      const auto find = [&](const std::string& name) {
        const auto at = file.find(recorded.name + "." + name);
        return at == file.end() ? Tensor() : at->second;
      };
      MultiheadAttention attn(kWidth, kHeads, recorded.options);
      attn.to(dtype);
      StateDict state;
      const std::string prefix = recorded.name + ".param.";
      for (const auto& [name, tensor] : file)
        if (name.starts_with(prefix)) state[name.substr(prefix.size())] = tensor;
      attn.load_state_dict(state);
      const auto input = [&](const char* name) {
        const Tensor value = find(std::string("in.") + name);
        if (!value.defined() || value.dtype() == kBool) return value;
        return value.to(dtype).detach().requires_grad_();
      };
      std::map<std::string, Tensor> in;
      for (const char* name : {"query", "key", "value", "key_padding_mask", "attn_mask"}) in[name] = input(name);
      const Tensor &query = in["query"], &key = in["key"].defined() ? in["key"] : query,
                   &value = in["value"].defined() ? in["value"] : key;
      const Tensor y = attn(query, key, value,
                            AttentionMasks{.key_padding_mask = in["key_padding_mask"],
                                           .attn_mask = in["attn_mask"],
                                           .is_causal = recorded.is_causal});
      y.backward(find("grad_out").to(dtype));
      const double tolerance = dtype == kF64 ? 1e-12 : 1e-5;
      const auto expect_close = [&](const Tensor& got, const std::string& name) {
        EXPECT_TRUE(test::is_close(got.to(kF64), find(name), test::of_largest_above_1(tolerance))) << name;
      };
      expect_close(y, "out");
      for (const auto& [name, tensor] : in)
        if (find("grad." + name).defined()) expect_close(tensor.grad(), "grad." + name);
      for (const auto& [name, p] : attn.named_parameters()) expect_close(p.grad(), "grad." + name);
    }
}

TEST(MultiheadAttention, NamesAndStartingWeights) {
  MultiheadAttention plain(32, 4), apart(32, 4, {.kdim = 48, .vdim = 16});
  const auto names = [](const ModuleBase& module) {
    std::string all;
    for (const auto& [name, tensor] : module.state_dict()) all += name + " " + to_string(tensor.sizes()) + "\n";
    return all;
  };
  EXPECT_EQ(names(plain), "in_proj_bias [96]\nin_proj_weight [96, 32]\nout_proj.bias [32]\nout_proj.weight [32, 32]\n");
  EXPECT_EQ(names(apart),
            "in_proj_bias [96]\nk_proj_weight [32, 48]\nout_proj.bias [32]\nout_proj.weight [32, 32]\n"
            "q_proj_weight [32, 32]\nv_proj_weight [32, 16]\n");
  EXPECT_EQ(names(MultiheadAttention(32, 4, {.bias = false})), "in_proj_weight [96, 32]\nout_proj.weight [32, 32]\n");
  const auto expect_bound = [](const Tensor& t, double bound) {
    const double most = test::largest(t);
    EXPECT_LE(most, bound);
    EXPECT_GE(most, bound * 0.95);
  };
  expect_bound(plain.in_proj_weight, std::sqrt(6.0 / 128));
  expect_bound(plain.out_proj.weight, 1 / std::sqrt(32.0));
  expect_bound(apart.k_proj_weight, std::sqrt(6.0 / 80));
  for (const Tensor& bias : {plain.in_proj_bias, plain.out_proj.bias}) EXPECT_EQ(test::largest(bias), 0);
}

// Central differences of a weighted sum of the result, with masks of every kind.
TEST(MultiheadAttention, FiniteDifferences) {
  MultiheadAttention attn(4, 2, {.kdim = 3, .batch_first = true});
  attn.to(kF64);
  const auto normal = [](const Dims& sizes) { return Tensor::randn(sizes).to(kF64).requires_grad_(); };
  Tensor query = normal({2, 3, 4}), key = normal({2, 4, 3}), value = normal({2, 4, 4}), bias = normal({4, 3, 4});
  const Tensor weights = Tensor::randn({2, 3, 4}).to(kF64);
  const AttentionMasks masks = {
      .key_padding_mask = Tensor::from<int64_t>({0, 0, 0, 1, 0, 1, 0, 0}, {2, 4}).to(kBool).to(default_device()),
      .attn_mask = bias};
  const auto loss = [&] { return (attn(query, key, value, masks) * weights).sum(); };
  loss().backward();
  std::vector<Tensor> leaves = {query, key, value, bias};
  for (const Tensor& p : attn.parameters()) leaves.push_back(p);
  for (Tensor& leaf : leaves) {
    const std::vector<double> gradient = leaf.grad().to_vector<double>();
    const NoGrad off;
    const Tensor flat = leaf.view({leaf.numel()});
    for (int64_t i = 0; i < leaf.numel(); ++i) {
      constexpr double kStep = 1e-5;
      Tensor element = flat.slice(0, {i, i + 1});
      element.add_(kStep);
      const double above = loss().item();
      element.add_(-2 * kStep);
      const double below = loss().item();
      element.add_(kStep);
      EXPECT_NEAR(gradient[static_cast<size_t>(i)], (above - below) / (2 * kStep), 1e-8);
    }
  }
}

// All keys of an example are padding, or a mask of floats is -inf everywhere: zeros, which the output layer makes its
// bias of. PyTorch gives NaN.
TEST(MultiheadAttention, NothingToAttendTo) {
  MultiheadAttention attn(kWidth, kHeads, {.batch_first = true});
  const Tensor x = Tensor::randn({2, 3, kWidth});
  const Tensor padding = Tensor::from<int64_t>({0, 0, 1, 1, 1, 1}, {2, 3}).to(kBool).to(default_device());
  const double infinite = -std::numeric_limits<double>::infinity();
  no_grad([&] { return attn.out_proj.bias.fill_(0.5); });
  for (const Tensor& mask : {padding, ops::where(padding, infinite, 0.0).to(kF32)}) {
    attn.zero_grad();
    const Tensor input = x.detach().requires_grad_();
    const Tensor y = attn(input, input, input, AttentionMasks{.key_padding_mask = mask});
    EXPECT_TRUE(test::same_bits(y[1], Tensor::full({3, kWidth}, 0.5)));
    EXPECT_GT(test::difference(y[0], Tensor::full({3, kWidth}, 0.5)), 0.01);
    y.backward(Tensor::ones(y.sizes()));
    EXPECT_TRUE(test::same_bits(input.grad()[1], Tensor::zeros({3, kWidth})));
    for (const Tensor& p : attn.parameters()) EXPECT_TRUE(std::isfinite(test::largest(p.grad().to(kF64))));
  }
}

TEST(MultiheadAttention, DropsInTrainingOnly) {
  MultiheadAttention attn(kWidth, kHeads, {.dropout = 0.5});
  const Tensor x = Tensor::randn({6, 2, kWidth});
  const auto run = [&] {
    manual_seed(3);
    return attn(x, x, x);
  };
  const Tensor dropped = run();
  EXPECT_TRUE(test::same_bits(run(), dropped));
  attn.eval();
  const Tensor whole = attn(x, x, x);
  EXPECT_GT(test::difference(dropped, whole), 0.01);
  EXPECT_TRUE(test::same_bits(attn(x, x, x), whole));
  EXPECT_NE(error_of([] { MultiheadAttention(kWidth, kHeads, {.dropout = 1.5}); }).find("p must be in [0, 1]"),
            std::string::npos);
}

// Attention drops its weights by itself, with the probability of what stands in for its Dropout.
TEST(MultiheadAttention, AReplacedDropoutCounts) {
  const Tensor x = Tensor::randn({2, 6, 8});
  nn::MultiheadAttention m(8, 2, {.dropout = 0.5, .batch_first = true});
  m.replace("dropout", std::make_unique<nn::Dropout>(0.0));
  EXPECT_TRUE(same_bits(m(x, x, x), m(x, x, x)));
  m.replace("dropout", std::make_unique<nn::Dropout>(0.9));
  EXPECT_FALSE(same_bits(m(x, x, x), m(x, x, x)));
  m.eval();
  EXPECT_TRUE(same_bits(m(x, x, x), m(x, x, x)));
  nn::GPT2 model({.vocab_size = 7, .block_size = 8, .n_layer = 1, .n_head = 2, .n_embd = 8, .dropout = 0.5}, 1);
  model.to(default_device());
  model.h[0].attn.replace("attn_dropout", std::make_unique<nn::Dropout>(0.3));
  model.eval();
  const Tensor idx = Tensor::randint(0, 7, {1, 8});
  EXPECT_TRUE(same_bits(model(idx), model(idx)));
  m.replace("dropout", std::make_unique<nn::GELU>());
  EXPECT_NE(error_of([&] { m(x, x, x); }).find("dropout: this Dropout was replaced by a GELU"), std::string::npos);
}

TEST(MultiheadAttention, Errors) {
  EXPECT_NE(error_of([] { MultiheadAttention(8, 3); }).find("num_heads must divide embed_dim, got 3 and 8"),
            std::string::npos);
  EXPECT_NE(error_of([] { MultiheadAttention(8, 2, {.kdim = 0}); }).find("sizes must be positive, got 8 and 0"),
            std::string::npos);
  MultiheadAttention attn(8, 2, {.kdim = 6, .batch_first = true});
  const Tensor query = Tensor::zeros({2, 3, 8}), key = Tensor::zeros({2, 4, 6}), value = Tensor::zeros({2, 4, 8});
  EXPECT_EQ(to_string(attn(query, key, value).sizes()), "[2, 3, 8]");
  EXPECT_NE(error_of([&] { attn(query, value, value); }).find("got [2, 3, 8], [2, 4, 8] and [2, 4, 8]"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              attn(query, key, value.slice(1, {0, 3}));
            }).find("with E = 8, kdim = 6, vdim = 8"),
            std::string::npos);
  const auto masked = [&](const AttentionMasks& masks) { return error_of([&] { attn(query, key, value, masks); }); };
  EXPECT_NE(
      masked({.key_padding_mask = Tensor::zeros({4, 2}, {kBool})})
          .find("key_padding_mask must be bool or floating (B, S) with B = 2, H = 2, L = 3, S = 4, got bool[4, 2]"),
      std::string::npos);
  EXPECT_NE(masked({.attn_mask = Tensor::zeros({3, 4}, {kI64})}).find("attn_mask must be bool or floating (L, S) or"),
            std::string::npos);
  EXPECT_EQ(masked({.attn_mask = Tensor::zeros({4, 3, 4})}), "");
}

// A decoder's block, whose attention is of both kinds.
struct Block : Module<Block> {
  LayerNorm norm1 = child("norm1", 16);
  MultiheadAttention self_attn = child("self_attn", 16, 4,
                                       MultiheadAttentionOptions{.dropout = 0.2, .batch_first = true});
  LayerNorm norm2 = child("norm2", 16);
  MultiheadAttention attn = child("attn", 16, 4,
                                  MultiheadAttentionOptions{.kdim = 12, .vdim = 12, .batch_first = true});
  Tensor forward(const Tensor& x_, const Tensor& memory, const Tensor& padding) {
    const Tensor normed = norm1(x_);
    const Tensor x = x_ + self_attn(normed, normed, normed, AttentionMasks{.is_causal = true});
    return x + attn(norm2(x), memory, memory, AttentionMasks{.key_padding_mask = padding});
  }
};
struct Blocks : Module<Blocks> {
  Linear first = child("first", 16, 16);
  ModuleList<Block> layers = child("layers", 3);
  Tensor forward(const Tensor& x_, const Tensor& memory, const Tensor& padding) {
    Tensor x = first(x_);
    for (Block& block : layers) x = block(x, memory, padding);
    return x;
  }
};

// One region for three blocks: every bit of results and gradients is eager's. In 16 bits and under autocast, too.
TEST(MultiheadAttention, CompiledEqualsEager) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  struct Kind {
    DType dtype;
    bool autocast;
  };
  for (const Kind kind : {Kind{kF32, false}, Kind{kF32, true}, Kind{kBF16, false}, Kind{kF64, false}}) {
    SCOPED_TRACE(std::string(name_of(kind.dtype)) + (kind.autocast ? " under autocast" : ""));
    Blocks model;
    model.to(kind.dtype);
    const Tensor x = Tensor::randn({2, 6, 16}).to(kind.dtype), memory = Tensor::randn({2, 5, 12}).to(kind.dtype);
    const Tensor padding = Tensor::from<int64_t>({0, 0, 0, 1, 1, 0, 0, 0, 0, 1}, {2, 5}).to(kBool).to(default_device());
    const auto run = [&] {
      manual_seed(5);
      const Tensor input = x.detach().requires_grad_(), source = memory.detach().requires_grad_();
      const Tensor y = [&] {
        const amp::Autocast lower(kind.autocast ? std::optional(kBF16) : std::nullopt);
        return model(input, source, padding);
      }();
      model.zero_grad();
      y.backward(Tensor::ones(y.sizes(), {y.dtype()}));
      std::vector<Tensor> results = {y, input.grad(), source.grad()};
      for (const Tensor& p : model.parameters()) results.push_back(p.grad().clone());
      return results;
    };
    const std::vector<Tensor> eager = run();
    const compile::Regions regions = compile::compile_regions(model, {.exact = true});
    const test::MustRunCompiled here;
    const std::vector<Tensor> compiled = run();
    for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(test::same_bits(eager[i], compiled[i])) << i;
    const auto report = regions.report();
    ASSERT_EQ(report.size(), 1u);
    EXPECT_EQ(report[0].layers, 3);
    EXPECT_EQ(report[0].entries, 1);
    EXPECT_GT(report[0].kernels, 0);
    EXPECT_EQ(report[0].eager_runs, 0);
    EXPECT_EQ(report[0].graph_breaks, 0) << report[0].last_break;
  }
}

}  // namespace
}  // namespace rondo::nn
