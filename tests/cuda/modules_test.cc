// Every module on a CUDA device, forward and backward, beside the CPU; compiled beside eager; text from a cache. The
// fake driver runs their kernels and products. test_modules itself runs on the fake too (CTest's cuda_modules).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/modules/generation/generation.h"
#include "rondo/modules/layers/attention.h"
#include "rondo/modules/layers/multihead_attention.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/transformers/bert_tasks.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/modules/transformers/vision_encoder_decoder.h"
#include "rondo/modules/transformers/vit.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/cuda/near.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo::nn {
namespace {

using test::FakeCuda;
using test::largest;
using test::Named;
using test::same_bits;

using Results = std::vector<Named>;

// The result of `call`, and the gradients of all parameters for a random gradient of it.
template <class Model, class Call> Results forward_and_backward(Model& model, Device device, const Call& call) {
  model.to(device);
  manual_seed(11);  // of dropout
  const Tensor y = call(model, device);
  manual_seed(12);
  y.backward(Tensor::randn(y.sizes(), {kF32, kCPU}).to(device));
  Results results = {{"the result", y.detach().to(kCPU)}};
  for (const NamedTensor& p : model.named_parameters())
    if (p.tensor.requires_grad() && p.tensor.grad().defined()) results.push_back({p.name, p.tensor.grad().to(kCPU)});
  return results;
}

// Sums add up in another order, and some gradients are zero but for rounding: differences are measured by the largest
// value of the tensor, but at least a hundredth of the largest value of all.
void expect_near(const Results& got, const Results& expected) {
  ASSERT_EQ(got.size(), expected.size());
  double most = 0;
  for (const Named& e : expected) most = std::max(most, largest(e.value));
  ASSERT_GT(most, 0);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].value.sizes(), expected[i].value.sizes()) << got[i].name;
    const double scale = std::max(largest(expected[i].value), most / 100);
    EXPECT_LE(largest(got[i].value - expected[i].value), 1e-5 * scale) << got[i].name;
  }
}

std::set<std::string> seen;  // types of modules that were compared

// `make` makes the same module every time.
template <class Make, class Call> void compare(const char* what, const Make& make, const Call& call) {
  SCOPED_TRACE(what);
  FakeCuda cuda({.seed = 7});
  manual_seed(3);
  const auto here = make();
  manual_seed(3);
  const auto there = make();
  for (const auto& [path, module] : here->named_modules()) seen.insert(module.type_name());
  expect_near(forward_and_backward(*there, cuda.device(), call), forward_and_backward(*here, kCPU, call));
}
// A module of one tensor (2, 7, 24).
template <class Make> void compare_block(const char* what, const Make& make) {
  compare(what, make, [](auto& module, Device device) {
    manual_seed(5);
    return module(Tensor::randn({2, 7, 24}, {kF32, kCPU}).to(device));
  });
}

Tensor tokens(Device device) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 14; ++i) ids.push_back((i * i + 3 * i) % 31);
  return Tensor::from(ids, {2, 7}, device);
}
Tensor real_tokens(Device device) {
  std::vector<int64_t> real(14, 1);
  real[12] = real[13] = 0;
  return Tensor::from(real, {2, 7}, device).to(kBool);
}

const GPT2Config kGpt2 = {.vocab_size = 31, .block_size = 12, .n_layer = 2, .n_head = 2, .n_embd = 24, .dropout = 0.1};
const LlamaConfig kLlama = {.vocab_size = 31,
                            .block_size = 16,
                            .n_layer = 2,
                            .n_head = 4,
                            .n_kv_head = 2,
                            .n_embd = 24,
                            .n_hidden = 40,
                            .qk_norm = true,
                            .sliding_window = 5};
const BertConfig kBert = {.vocab_size = 31,
                          .block_size = 12,
                          .n_layer = 2,
                          .n_head = 2,
                          .n_embd = 24,
                          .n_hidden = 48,
                          .num_classes = 3,
                          .dropout = 0.1};
BertConfig roberta() {
  BertConfig config = kBert;
  config.padding_idx = 1;
  config.roberta = true;
  return config;
}
const ViTConfig kVit = {.image_size = 8, .patch_size = 4, .n_layer = 2, .n_head = 2, .n_embd = 24, .num_classes = 5};

TEST(CudaModules, ForwardAndBackwardAreTheCpus) {
  compare_block("Linear", [] { return std::make_unique<Linear>(24, 10); });
  compare_block("LayerNorm", [] { return std::make_unique<LayerNorm>(24); });
  compare_block("RMSNorm", [] { return std::make_unique<RMSNorm>(24); });
  compare_block("MLP", [] { return std::make_unique<MLP>(24, 40, MLPOptions{.dropout = 0.2}); });
  compare_block("SwiGLU", [] { return std::make_unique<SwiGLU>(24, 40); });
  compare_block("SelfAttention",
                [] { return std::make_unique<SelfAttention>(24, 3, SelfAttentionOptions{.dropout = 0.2}); });
  compare_block("GroupedQueryAttention", [] {
    return std::make_unique<GroupedQueryAttention>(24, 4, 2, GroupedQueryAttentionOptions{.window = 3});
  });
  compare_block("TransformerBlock", [] { return std::make_unique<TransformerBlock>(24, 3); });
  compare_block("LlamaBlock", [] { return std::make_unique<LlamaBlock>(24, 4, 2, 40); });
  compare_block("Sequential", [] {
    return std::make_unique<Sequential>(layer<Linear>(24, 16), layer<Tanh>(), layer<Linear>(16, 16), layer<ReLU>(),
                                        layer<GELU>(), layer<Dropout>(0.3), layer<Linear>(16, 4));
  });
  compare(
      "Embedding", [] { return std::make_unique<Embedding>(31, 24, EmbeddingOptions{.padding_idx = 0}); },
      [](Embedding& module, Device device) { return module(tokens(device)); });
  compare(
      "GPT2", [] { return std::make_unique<GPT2>(kGpt2, 3); },
      [](GPT2& model, Device device) { return model.loss(tokens(device), tokens(device)); });
  compare(
      "GPT2 with packed rows", [] { return std::make_unique<GPT2>(kGpt2, 3); },
      [](GPT2& model, Device device) {
        const Tensor positions = Tensor::from<int64_t>({0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1}, {2, 7}, device);
        return model.loss(tokens(device), tokens(device), positions);
      });
  compare(
      "GPT2 with LoRA",
      [] {
        auto model = std::make_unique<GPT2>(kGpt2, 3);
        add_lora(*model, {.rank = 2, .dropout = 0.1, .targets = {"c_attn", "c_proj", "wte"}});
        for (const NamedTensor& p : model->named_parameters())
          if (p.name.find("lora_B") != std::string::npos)
            p.tensor.detach().copy_(Tensor::randn(p.tensor.sizes()));  // zero at first
        return model;
      },
      [](GPT2& model, Device device) { return model.loss(tokens(device), tokens(device)); });
  compare(
      "Llama", [] { return std::make_unique<Llama>(kLlama, 3); },
      [](Llama& model, Device device) { return model.loss(tokens(device), tokens(device)); });
  compare(
      "Bert", [] { return std::make_unique<Bert>(kBert, 3); },
      [](Bert& model, Device device) { return model(tokens(device), real_tokens(device)); });
  compare(
      "BertForSequenceClassification", [] { return std::make_unique<BertForSequenceClassification>(kBert); },
      [](BertForSequenceClassification& model, Device device) {
        return model.loss(tokens(device), real_tokens(device), {}, Tensor::from<int64_t>({2, 0}, {2}, device));
      });
  compare(
      "RobertaForSequenceClassification", [] { return std::make_unique<RobertaForSequenceClassification>(roberta()); },
      [](RobertaForSequenceClassification& model, Device device) {
        return model(tokens(device), real_tokens(device));
      });
  compare(
      "BertForTokenClassification", [] { return std::make_unique<BertForTokenClassification>(kBert); },
      [](BertForTokenClassification& model, Device device) { return model(tokens(device), real_tokens(device)); });
  compare(
      "ViT", [] { return std::make_unique<ViT>(kVit, 3); },
      [](ViT& model, Device device) {
        manual_seed(5);
        return model.loss(Tensor::randn({2, 3, 8, 8}, {kF32, kCPU}).to(device),
                          Tensor::from<int64_t>({4, 1}, {2}, device));
      });
  compare(
      "MultiheadAttention",
      [] {
        return std::make_unique<MultiheadAttention>(24, 3,
                                                    MultiheadAttentionOptions{.dropout = 0.2, .batch_first = true});
      },
      [](MultiheadAttention& module, Device device) {
        manual_seed(5);
        const Tensor query = Tensor::randn({2, 4, 24}, {kF32, kCPU}).to(device),
                     key = Tensor::randn({2, 7, 24}, {kF32, kCPU}).to(device);
        return module(query, key, key,
                      AttentionMasks{.key_padding_mask = ops::bitwise_not(real_tokens(device)), .is_causal = true});
      });
  compare(
      "VisionEncoderDecoder",
      [] {
        VisionEncoderDecoderConfig config = {.encoder = kVit, .decoder = kGpt2};
        config.encoder.n_embd = 16;
        return std::make_unique<VisionEncoderDecoder>(config, 3);
      },
      [](VisionEncoderDecoder& model, Device device) {
        manual_seed(5);
        return model.loss(Tensor::randn({2, 3, 8, 8}, {kF32, kCPU}).to(device), tokens(device));
      });
  // A module that is missing here was added to modules/ since.
  EXPECT_GE(seen.size(), 41u);
  std::string all;
  for (const std::string& name : seen) all += name + " ";
  RecordProperty("modules", all);
}

// Compiled blocks in exact mode have eager's bits, in two orders of the device's work; embeddings and losses are eager.
template <class Model, class Loss>
void compile_and_compare(const char* what, const std::function<std::unique_ptr<Model>()>& make, const Loss& loss) {
  SCOPED_TRACE(what);
  Results eager;
  for (const uint64_t seed : {1, 2}) {
    FakeCuda cuda({.seed = seed});
    if (seed == 1) eager = forward_and_backward(*make(), cuda.device(), loss);
    const auto model = make();
    model->to(cuda.device());
    const compile::Regions regions = compile::compile_regions(*model, {.exact = true});
    const Results compiled = forward_and_backward(*model, cuda.device(), loss);
    EXPECT_EQ(regions.report()[0].failed_compilations, 0) << regions.report()[0].last_failed_compilation;
    EXPECT_EQ(regions.report()[0].eager_runs, 0);
    ASSERT_EQ(compiled.size(), eager.size());
    for (size_t i = 0; i < eager.size(); ++i)
      EXPECT_TRUE(same_bits(compiled[i].value, eager[i].value)) << eager[i].name << ", order " << seed;
  }
}

TEST(CudaModules, CompiledModelsHaveEagersBits) {
  const auto next_token = [](auto& model, Device device) { return model.loss(tokens(device), tokens(device)); };
  compile_and_compare<GPT2>(
      "GPT2", [] { return std::make_unique<GPT2>(kGpt2, 3); }, next_token);
  compile_and_compare<Llama>(
      "Llama", [] { return std::make_unique<Llama>(kLlama, 3); }, next_token);
  compile_and_compare<Bert>(
      "Bert", [] { return std::make_unique<Bert>(kBert, 3); },
      [](Bert& model, Device device) { return model(tokens(device), real_tokens(device)); });
  compile_and_compare<ViT>(
      "ViT", [] { return std::make_unique<ViT>(kVit, 3); },
      [](ViT& model, Device device) {
        manual_seed(5);
        return model(Tensor::randn({2, 3, 8, 8}, {kF32, kCPU}).to(device));
      });
}

// Prompts of two lengths, through a cache on the device: the CPU's tokens, greedy and sampled.
TEST(CudaModules, GenerationIsTheCpus) {
  const std::vector<std::vector<int64_t>> prompts = {{1, 2, 3, 4, 5}, {7}};
  const auto generated = [&](Device device, CausalLM& model, double temperature) {
    model.module().to(device);
    Generator generator(5);
    std::vector<int64_t> all;
    for (const Generation& made : generate(
             model, prompts, {.max_new_tokens = 6, .temperature = temperature, .top_k = 9, .generator = &generator}))
      all.insert(all.end(), made.tokens.begin(), made.tokens.end());
    return all;
  };
  FakeCuda cuda({.seed = 2});
  for (const double temperature : {0.0, 1.5}) {
    GPT2 gpt2(kGpt2, 3);
    Llama llama(kLlama, 3);
    for (CausalLM* model : {static_cast<CausalLM*>(&gpt2), static_cast<CausalLM*>(&llama)}) {
      const std::vector<int64_t> expected = generated(kCPU, *model, temperature);
      EXPECT_EQ(generated(cuda.device(), *model, temperature), expected) << temperature;
      EXPECT_EQ(expected.size(), 12u);
      const test::MeansToRun eagerly(test::Eagerly::kAll, "prompts run op by op");
      const compile::Regions regions = compile::compile_regions(model->module());  // each further token is a region
      EXPECT_EQ(generated(cuda.device(), *model, temperature), expected) << temperature;
      EXPECT_EQ(regions.report()[0].entries, 1);
      EXPECT_LE(regions.report()[0].compilations, 1);
      EXPECT_EQ(regions.report()[0].failed_compilations, 0) << regions.report()[0].last_failed_compilation;
      compile::disable(model->module());
    }
  }
}

TEST(CudaModules, ACacheOnAnotherDeviceIsRefusedByName) {
  FakeCuda cuda;
  GPT2 model({.vocab_size = 11, .block_size = 8, .n_layer = 1, .n_head = 2, .n_embd = 8});
  model.to(cuda.device());
  const NoGrad off;
  KVCache cache({.layers = 1, .kv_heads = 2, .max_length = 8, .head_dim = 4});
  EXPECT_NE(test::error_of([&] {
              model.next_logits(Tensor::zeros({1, 3}, {kI64, cuda.device()}), cache);
            }).find("GPT2: the cache is on cpu and the model on cuda:0; make it with .device = cuda:0"),
            std::string::npos);
}

}  // namespace
}  // namespace rondo::nn
