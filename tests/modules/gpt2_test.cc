// GPT-2's own promises; its values against PyTorch's are in reference_test.cc.
#include "rondo/modules/transformers/gpt2.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "rondo/modules/transformers/llama.h"
#include "rondo/optim/adam.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/errors.h"

namespace rondo::nn {
namespace {

constexpr GPT2Config kTiny = {.vocab_size = 65, .block_size = 16, .n_layer = 2, .n_head = 2, .n_embd = 32};

TEST(GPT2, SizeOfTheSmallestPublishedModel) {
  GPT2 model({});
  EXPECT_EQ(model.num_parameters(), 124439808);
}

TEST(GPT2, InitialisationFollowsTheSeed) {
  set_num_threads(2);
  GPT2 a(kTiny, 1), b(kTiny, 1), c(kTiny, 2);
  EXPECT_EQ(a.h[1].attn.c_attn.weight.to_vector<float>(), b.h[1].attn.c_attn.weight.to_vector<float>());
  EXPECT_NE(a.h[1].attn.c_attn.weight.to_vector<float>(), c.h[1].attn.c_attn.weight.to_vector<float>());
  const auto deviation = [](const Tensor& t) {
    double sum = 0;
    for (double v : t.to_vector<double>()) sum += v * v;
    return std::sqrt(sum / static_cast<double>(t.numel()));
  };
  EXPECT_NEAR(deviation(a.h[0].mlp.c_fc.weight), 0.02, 0.001);
  EXPECT_NEAR(deviation(a.h[0].mlp.c_proj.weight), 0.01, 0.0005);
  EXPECT_EQ(deviation(a.h[0].mlp.c_proj.bias), 0);
  EXPECT_EQ(deviation(a.ln_f.weight), 1);
  GPT2Config no_bias = kTiny;
  no_bias.bias = false;
  EXPECT_EQ(GPT2(no_bias).parameters().size(), 2 + 2 * 6 + 1);
}

// Logits above GPT2Config::whole_logits are computed in chunks: the same loss and gradients, and so is evaluation.
template <class Model, class Config> void expect_the_same_loss_in_chunks(Config config) {
  const Tensor idx = Tensor::randint(0, 65, {3, 16}), targets = Tensor::randint(0, 65, {3, 16});
  Model whole(config, 7);
  config.whole_logits = 100;
  Model chunked(config, 7);
  const Tensor a = whole.loss(idx, targets), b = chunked.loss(idx, targets);
  EXPECT_NEAR(a.item(), b.item(), 1e-6 * a.item());
  EXPECT_NEAR(no_grad([&] { return chunked.loss(idx, targets).item(); }), a.item(), 1e-6 * a.item());
  a.backward();
  b.backward();
  const auto expected = whole.named_parameters(), got = chunked.named_parameters();
  for (size_t i = 0; i < got.size(); ++i) {
    const std::vector<double> x = expected[i].tensor.grad().template to_vector<double>();
    const std::vector<double> y = got[i].tensor.grad().template to_vector<double>();
    for (size_t k = 0; k < x.size(); ++k) ASSERT_NEAR(x[k], y[k], 1e-6) << got[i].name << " " << k;
  }
  const std::string error = test::error_of([&] { chunked.loss(idx, Tensor::zeros({3, 4}, {kI64})); });
  EXPECT_NE(error.find("::loss: targets must have idx's shape [3, 16], got [3, 4]"), std::string::npos) << error;
}

TEST(GPT2, LossInChunks) {
  expect_the_same_loss_in_chunks<GPT2>(kTiny);
  expect_the_same_loss_in_chunks<Llama>(LlamaConfig{
      .vocab_size = 65, .block_size = 16, .n_layer = 2, .n_head = 4, .n_kv_head = 2, .n_embd = 32, .n_hidden = 48});
}

struct CountCalls : CallHook {
  int calls = 0;
  void around(const ModuleCall&, absl::FunctionRef<void()> forward) override {
    ++calls;
    forward();
  }
};

// A compiler of the whole model finds its forward called, however large the logits.
TEST(GPT2, LossCallsAHookedForward) {
  GPT2Config config = kTiny;
  config.whole_logits = 1;
  GPT2 model(config);
  const auto hook = std::make_shared<CountCalls>();
  model.call_hook = hook;
  model.loss(Tensor::zeros({1, 4}, {kI64}), Tensor::zeros({1, 4}, {kI64}));
  EXPECT_EQ(hook->calls, 1);
}

// So does one of any part of it, the output layer too.
TEST(Llama, LossCallsAHookedOutputLayer) {
  LlamaConfig config = {
      .vocab_size = 13, .block_size = 8, .n_layer = 1, .n_head = 2, .n_kv_head = 1, .n_embd = 8, .n_hidden = 16};
  config.whole_logits = 1;
  Llama model(config);
  const auto hook = std::make_shared<CountCalls>();
  model.lm_head.call_hook = hook;
  model.loss(Tensor::zeros({1, 4}, {kI64}), Tensor::zeros({1, 4}, {kI64}));
  EXPECT_EQ(hook->calls, 1);
}

TEST(GPT2, GenerateIsCausalAndRepeats) {
  GPT2 model(kTiny, 3);
  const Tensor prompt = Tensor::from<int64_t>({1, 2, 3, 4, 5, 6}, {2, 3});
  Generator first(9), second(9), third(10);
  const std::vector<int64_t> a = model.generate(prompt, 20, 0.8, 10, &first).to_vector<int64_t>();
  EXPECT_EQ(a, model.generate(prompt, 20, 0.8, 10, &second).to_vector<int64_t>());
  EXPECT_NE(a, model.generate(prompt, 20, 0.8, 10, &third).to_vector<int64_t>());
  EXPECT_EQ(a.size(), 46u);  // past block_size
  EXPECT_EQ(a[0], 1);
  EXPECT_EQ(a[23], 4);
  EXPECT_TRUE(model.is_training());
  // Greedy: each token is the most likely one given what stands before it.
  const Tensor greedy = model.generate(prompt, 1, 0);
  const std::vector<float> logits = model(prompt).select(1, 2).to_vector<float>();
  EXPECT_EQ(greedy.to_vector<int64_t>()[3], std::max_element(logits.begin(), logits.begin() + 65) - logits.begin());
  // top_k = 1 is greedy, at any temperature.
  EXPECT_EQ(model.generate(prompt, 5, 3.0, 1, &first).to_vector<int64_t>(),
            model.generate(prompt, 5, 0).to_vector<int64_t>());
}

// A part that its owner has frozen in evaluation mode stays so.
TEST(GPT2, GenerateLeavesEveryModuleInItsMode) {
  GPT2 model(kTiny, 3);
  const auto modes = [&] {
    std::vector<bool> on;
    for (const NamedModule& m : model.named_modules()) on.push_back(m.module.is_training());
    return on;
  };
  model.named_modules()[2].module.eval();
  const std::vector<bool> before = modes();
  model.generate(Tensor::zeros({1, 2}, kI64), 1);
  EXPECT_EQ(modes(), before);
  // In the other direction, too: one module trains inside a model that does not.
  model.eval();
  model.named_modules().back().module.train();
  const std::vector<bool> mixed = modes();
  model.generate(Tensor::zeros({1, 2}, kI64), 1);
  EXPECT_EQ(modes(), mixed);
}

TEST(GPT2, RefusesWhatDoesNotFit) {
  GPT2 model(kTiny);
  EXPECT_THROW(model(Tensor::zeros({1, 17}, {kI64})), Error);
  EXPECT_THROW(model(Tensor::zeros({1, 4})), Error);
  EXPECT_THROW(model(Tensor::full({1, 4}, 65, {kI64})).to_vector<float>(), Error);
  EXPECT_THROW(model.loss(Tensor::zeros({1, 4}, {kI64}), Tensor::zeros({1, 5}, {kI64})), Error);
  EXPECT_THROW(GPT2({.n_head = 5, .n_embd = 768}), Error);
}

TEST(GPT2, TrainsWithDropout) {
  GPT2Config config = kTiny;
  config.dropout = 0.1;
  GPT2 model(config, 1);
  const Tensor idx = Tensor::randint(0, 65, {2, 8});
  manual_seed(5);
  const double a = model.loss(idx, idx).item(), b = model.loss(idx, idx).item();
  manual_seed(5);
  const Tensor again = model.loss(idx, idx);
  EXPECT_EQ(a, again.item());
  EXPECT_NE(a, b);
  again.backward();
  for (const auto& [name, parameter] : model.named_parameters()) EXPECT_TRUE(parameter.grad().defined()) << name;
}

}  // namespace
}  // namespace rondo::nn
