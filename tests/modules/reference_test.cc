// GPT-2, BERT, ViT and Llama against values recorded from PyTorch (tests/reference/README.md): logits, loss, every
// gradient and ten steps of AdamW, in f64 and f32, eager and compiled.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/transformers/bert.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/modules/transformers/vit.h"
#include "rondo/optim/adam.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/tests/close.h"
#include "rondo/tests/paths.h"

namespace rondo::nn {
namespace {

struct Subject {
  std::unique_ptr<ModuleBase> model;
  std::function<Tensor()> logits, loss;
};
using Inputs = std::function<Tensor(const std::string&)>;  // "ids" -> the recorded input
struct Model {
  const char* name;
  Subject (*make)(Inputs in);
  friend std::ostream& operator<<(std::ostream& out, const Model& model) { return out << model.name; }
};

template <class M, class Logits, class Loss> Subject subject(std::unique_ptr<M> model, Logits logits, Loss loss) {
  M& m = *model;
  return {std::move(model), [&m, logits] { return logits(m); }, [&m, loss] { return loss(m); }};
}

Subject make_gpt2(Inputs in) {
  return subject(
      std::make_unique<GPT2>(GPT2Config{.vocab_size = 65, .block_size = 16, .n_layer = 2, .n_head = 2, .n_embd = 32}),
      [in](GPT2& m) { return m(in("ids")); }, [in](GPT2& m) { return m.loss(in("ids"), in("targets")); });
}
Subject make_bert(Inputs in) {
  const BertConfig config = {.vocab_size = 50,
                             .block_size = 16,
                             .n_layer = 1,
                             .n_head = 4,
                             .n_embd = 32,
                             .n_hidden = 64,
                             .num_classes = 3,
                             .padding_idx = std::nullopt};  // the recorded gradients are of all rows
  return subject(
      std::make_unique<Bert>(config), [in](Bert& m) { return m(in("ids"), in("mask"), in("segments")); },
      [in](Bert& m) { return m.loss(in("ids"), in("mask"), in("segments"), in("targets")); });
}
Subject make_vit(Inputs in) {
  const ViTConfig config = {
      .image_size = 16, .patch_size = 4, .n_layer = 2, .n_head = 4, .n_embd = 32, .num_classes = 10};
  return subject(
      std::make_unique<ViT>(config), [in](ViT& m) { return m(in("images")); },
      [in](ViT& m) { return m.loss(in("images"), in("targets")); });
}
Subject make_llama(Inputs in) {
  const LlamaConfig config = {
      .vocab_size = 50, .block_size = 16, .n_layer = 2, .n_head = 4, .n_kv_head = 2, .n_embd = 32, .n_hidden = 48};
  return subject(
      std::make_unique<Llama>(config), [in](Llama& m) { return m(in("ids")); },
      [in](Llama& m) { return m.loss(in("ids"), in("targets")); });
}

using Parameters = std::tuple<Model, DType, bool>;
class ModelReference : public testing::TestWithParam<Parameters> {
 protected:
  void SetUp() override {
    const auto& [model, dtype, compiled] = GetParam();
    if (compiled && !compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    tolerance = dtype == kF64 ? 1e-10 : 1e-4;
    file = io::load_safetensors(std::string(tests::kReferenceDir) + "/" + model.name + ".safetensors").tensors;
    subject = model.make([this](const std::string& name) {
      const Tensor input = file.at("input." + name);
      return is_floating(input.dtype()) ? input.to(std::get<DType>(GetParam())) : input;
    });
    subject.model->to(dtype);
    StateDict state;
    for (const auto& [name, tensor] : file)
      if (name.starts_with("param.")) state[name.substr(6)] = tensor;
    subject.model->load_state_dict(state);
    if (compiled) {
      regions = std::make_unique<compile::Regions>(compile::compile_regions(*subject.model, {.exact = true}));
      ASSERT_EQ(regions->report().size(), 1u);
    }
  }
  void TearDown() override {
    if (!regions || IsSkipped()) return;
    const compile::RegionReport report = regions->report()[0];
    EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
    EXPECT_GT(report.kernels, 0);
  }
  // Within the tolerance of the largest recorded value of this kind.
  void expect_close(const Tensor& got, const Tensor& want, double scale, const std::string& what) {
    ASSERT_TRUE(got.defined()) << what;
    EXPECT_TRUE(test::is_close(got.to(kF64), want.to(kF64), {.absolute = tolerance * scale})) << what;
  }
  double largest(std::string_view prefix) {
    double most = 0;
    for (const auto& [name, tensor] : file)
      if (name.starts_with(prefix))
        for (double v : tensor.to_vector<double>()) most = std::max(most, std::abs(v));
    return most;
  }

  io::TensorMap file;
  Subject subject;
  std::unique_ptr<compile::Regions> regions;
  double tolerance = 0;
};

TEST_P(ModelReference, LogitsLossAndEveryGradient) {
  expect_close(subject.logits(), file["logits"], largest("logits"), "logits");
  const Tensor loss = subject.loss();
  expect_close(loss, file["loss"], largest("loss"), "loss");
  loss.backward();
  const double scale = largest("grad.");
  for (const auto& [name, parameter] : subject.model->named_parameters())
    expect_close(parameter.grad(), file.at("grad." + name), scale, name);
}

TEST_P(ModelReference, TenAdamWSteps) {
  std::vector<Tensor> matrices, vectors;
  for (const Tensor& p : subject.model->parameters()) (p.rank() >= 2 ? matrices : vectors).push_back(p);
  const optim::AdamWOptions options = {.lr = 1e-3, .betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = 0.1};
  optim::AdamWOptions no_decay = options;
  no_decay.weight_decay = 0;
  optim::AdamW optimizer({{matrices, options}, {vectors, no_decay}});
  std::vector<double> losses;
  for (int step = 0; step < 10; ++step) {
    const Tensor loss = subject.loss();
    losses.push_back(loss.item());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  const bool wide = std::get<DType>(GetParam()) == kF64;
  expect_close(Tensor::from(losses, {10}), file[wide ? "losses" : "losses_f32"], largest("losses"), "losses");
}

// Mixed precision follows the losses of full precision, step by step.
TEST_P(ModelReference, TrainsUnderAutocast) {
  if (std::get<DType>(GetParam()) != kF32) GTEST_SKIP() << "autocast leaves f64 alone";
  const StateDict start = subject.model->state_dict();
  StateDict copies;
  for (const auto& [name, tensor] : start) copies[name] = tensor.clone();
  for (const DType dtype : {kBF16, kF16}) {
    SCOPED_TRACE(name_of(dtype));
    no_grad([&] { subject.model->load_state_dict(copies); });
    optim::AdamW optimizer(subject.model->parameters(), {.lr = 1e-3, .betas = {0.9, 0.95}, .weight_decay = 0.1});
    std::vector<double> losses;
    for (int step = 0; step < 10; ++step) {
      const Tensor loss = [&] {
        const amp::Autocast lower(dtype);
        return subject.loss();
      }();
      EXPECT_EQ(loss.dtype(), kF32);
      losses.push_back(loss.item());
      optimizer.zero_grad();
      loss.backward();
      for (const auto& [name, parameter] : subject.model->named_parameters()) {
        ASSERT_TRUE(parameter.grad().defined()) << name;
        EXPECT_EQ(parameter.grad().dtype(), kF32) << name;
      }
      optimizer.step();
    }
    EXPECT_LT(losses.back(), losses.front());
    tolerance = 0.02;
    expect_close(Tensor::from(losses, {10}), file["losses_f32"], largest("losses"), "losses");
  }
}

constexpr Model kModels[] = {{"gpt2", &make_gpt2}, {"bert", &make_bert}, {"vit", &make_vit}, {"llama", &make_llama}};
INSTANTIATE_TEST_SUITE_P(Models, ModelReference,
                         testing::Combine(testing::ValuesIn(kModels), testing::Values(kF64, kF32), testing::Bool()),
                         [](const testing::TestParamInfo<Parameters>& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  std::string(name_of(std::get<1>(info.param))) +
                                  (std::get<2>(info.param) ? "_regions" : "_eager");
                         });

}  // namespace
}  // namespace rondo::nn
