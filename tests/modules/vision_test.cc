// ResNet-18, ResNet-50 and SegFormer-B0 at their published size against torchvision and transformers
// (tests/reference/record_vision.py): logits, ten losses, running statistics; the same bits compiled; torchvision's
// files.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/modules/vision/resnet.h"
#include "rondo/modules/vision/segformer.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/modules/vision_models.h"
#include "rondo/tests/paths.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::nn {
namespace {

using test::error_of;
using test::same_bits;

io::TensorMap recorded(const std::string& name) {
  return io::load_safetensors(std::string(tests::kReferenceDir) + "/" + name).tensors;
}
std::string resnet_file(const std::string& name) {
  return std::string(tests::kReferenceDir) + "/resnets/" + name + ".safetensors";
}

void expect_close(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  EXPECT_TRUE(test::is_close(got.to(kF64), want.to(kF64), {.of_largest = tolerance})) << what;
}

// Classes of squares of 8 pixels; those of the last square do not count.
Tensor recorded_masks(int64_t n) {
  const std::vector<double> u = formula_uniform("masks", 2 * 64);
  std::vector<int64_t> classes(2 * 64 * 64);
  for (size_t i = 0; i < classes.size(); ++i) {
    const size_t b = i / 4096, y = i / 64 % 64, x = i % 64, square = b * 64 + y / 8 * 8 + x / 8;
    classes[i] = square == 127 ? kIgnoredClass : static_cast<int64_t>((u[square] * 0.5 + 0.5) * static_cast<double>(n));
  }
  return Tensor::from(classes, {2, 64, 64});
}

struct Subject {
  std::unique_ptr<ModuleBase> model;
  std::function<Tensor(const Tensor&)> logits, loss;
  int64_t parameters;
  double lr;
};
template <class M> Subject subject(std::unique_ptr<M> model, const Tensor& targets, int64_t parameters, double lr) {
  M& m = *model;
  return {std::move(model), [&m](const Tensor& x) { return m(x); },
          [&m, targets](const Tensor& x) { return m.loss(x, targets); }, parameters, lr};
}
Subject make(const std::string& name) {
  const SkipInit skip;
  const Tensor classes = Tensor::from(std::vector<int64_t>{3, 7}, {2});
  if (name == "resnet18") return subject(std::make_unique<ResNet>(resnet18()), classes, 11689512, 1e-4);
  if (name == "resnet50") return subject(std::make_unique<ResNet>(resnet50()), classes, 25557032, 1e-5);
  const SegformerConfig config = {.num_classes = 19, .classifier_dropout = 0, .drop_path = 0};
  return subject(std::make_unique<SegformerForSemanticSegmentation>(config), recorded_masks(19), 3719027, 1e-3);
}

// The losses before each step.
std::vector<double> train(Subject& s, const Tensor& x, int64_t steps) {
  s.model->train();
  optim::SGD optimizer(s.model->parameters(), {.lr = s.lr, .momentum = 0.9});
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    const Tensor loss = s.loss(x);
    losses.push_back(loss.item());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  return losses;
}

void expect_statistics(const StateDict& state, const io::TensorMap& want, const std::string& name, double tolerance) {
  int compared = 0;
  for (const auto& [key, value] : want) {
    if (!key.starts_with(name + ".stats.")) continue;
    expect_close(state.at(key.substr(name.size() + 7)), value, tolerance, key);
    ++compared;
  }
  EXPECT_GE(compared, 2);
}

// Note [Discontinuous gradients]. A ResNet in float32 is compared with float64 at the same parameters, step by step,
// not along a path of its own. Where a ReLU's input rounds to the other side of 0, its gradient appears or vanishes,
// and the paths part by more than any rounding: two images give the last norms 8 values each, so one element counts.
// Measured for ResNet-18 on a processor with AVX2, over six steps of a path in float32: losses are off by at most 2e-6,
// and gradients by 3e-5 of the largest, but for the second step. There the gradient of layer1 is off by 6.8e-2. The
// gradient in float64 changes by the same 6.8e-2 if the weights change by 5e-6 of themselves (at the other steps by
// 3e-4 to 3e-1), so rounding explains it. The losses of the two paths are then off by up to 7e-3.
//
// ResNet-50's gradients in float32 are further off at every step (record_vision.py).
void expect_follows_f64(const std::string& name, const io::TensorMap& want, double tolerance) {
  const Tensor recorded_losses = want.at(name + ".losses");
  const int64_t steps = recorded_losses.size(0);
  Subject wide = make(name), narrow = make(name);
  fill_by_formula(*wide.model);
  wide.model->to(kF64);
  narrow.model->to(kF32);
  wide.model->train();
  narrow.model->train();
  const Tensor x = formula_images(2, 64).to(kF64);
  optim::SGD optimizer(wide.model->parameters(), {.lr = wide.lr, .momentum = 0.9});
  std::vector<double> losses;
  int64_t with_close_gradients = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const StateDict state = wide.model->state_dict();
    for (auto& [key, tensor] : narrow.model->state_dict()) Tensor(tensor).copy_(state.at(key));
    const Tensor loss = narrow.loss(x.to(kF32)), loss64 = wide.loss(x);
    losses.push_back(loss.item());
    narrow.model->zero_grad();
    optimizer.zero_grad();
    loss.backward();
    loss64.backward();
    const std::vector<Tensor> a = narrow.model->parameters(), b = wide.model->parameters();
    bool close = true;
    for (size_t i = 0; i < a.size(); ++i)
      close = close && test::is_close(a[i].grad().to(kF64), b[i].grad(), {.of_largest = tolerance});
    with_close_gradients += close;
    optimizer.step();
  }
  expect_close(Tensor::from(losses, {steps}), recorded_losses, tolerance, "losses");
  if (name == "resnet18") {
    EXPECT_GT(2 * with_close_gradients, steps);
  }
  expect_statistics(narrow.model->state_dict(), want, name, tolerance);
}

class Vision : public testing::TestWithParam<std::tuple<std::string, DType>> {};

TEST_P(Vision, LogitsTenLossesAndStatistics) {
  const auto& [name, dtype] = GetParam();
  const double tolerance = dtype == kF64 ? 1e-9 : 1e-4;
  const std::string end = dtype == kF64 ? "" : "_f32";
  const io::TensorMap want = recorded("vision.safetensors");
  Subject s = make(name);
  EXPECT_EQ(s.model->num_parameters(), s.parameters);
  fill_by_formula(*s.model);
  s.model->to(dtype);
  const Tensor x = formula_images(2, 64).to(dtype);
  s.model->eval();
  expect_close(no_grad([&] { return s.logits(x); }), want.at(name + ".logits" + end), tolerance, "logits");
  if (dtype == kF32 && name.starts_with("resnet")) return expect_follows_f64(name, want, tolerance);
  const Tensor losses = want.at(name + ".losses" + end);
  expect_close(Tensor::from(train(s, x, losses.size(0)), losses.sizes()), losses, tolerance, "losses");
  expect_statistics(s.model->state_dict(), want, name, tolerance);
}

INSTANTIATE_TEST_SUITE_P(Models, Vision,
                         testing::Combine(testing::Values("resnet18", "resnet50", "segformer_b0"),
                                          testing::Values(kF64, kF32)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::string(name_of(std::get<1>(info.param)));
                         });

class VisionRegions : public testing::TestWithParam<std::string> {};

// The blocks of all stages are found; no graph break; parameters and running statistics keep every bit.
TEST_P(VisionRegions, TrainTheSame) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  std::vector<std::vector<double>> losses;
  std::vector<StateDict> states;
  for (const bool compiled : {false, true}) {
    Subject s = make(GetParam());
    fill_by_formula(*s.model);
    std::unique_ptr<compile::Regions> regions;
    if (compiled) regions = std::make_unique<compile::Regions>(compile::compile_regions(*s.model, {.exact = true}));
    losses.push_back(train(s, formula_images(2, 64).to(kF32), 2));
    states.push_back(s.model->state_dict());
    if (!compiled) continue;
    int layers = 0;
    for (const compile::RegionReport& r : regions->report()) {
      EXPECT_EQ(r.graph_breaks, 0) << r.name << ": " << r.last_break;
      if (r.name != "BasicBlock" && r.name != "Bottleneck" && r.name != "SegformerLayer") continue;
      EXPECT_GT(r.kernels, 0) << r.name;
      EXPECT_EQ(r.eager_runs, 0) << r.name;
      layers += r.layers;
    }
    EXPECT_EQ(layers, GetParam() == "resnet50" ? 16 : 8);
  }
  EXPECT_EQ(losses[0], losses[1]);
  for (const auto& [key, tensor] : states[0]) EXPECT_TRUE(same_bits(tensor, states[1].at(key))) << key;
}

INSTANTIATE_TEST_SUITE_P(Models, VisionRegions, testing::Values("resnet18", "resnet50", "segformer_b0"),
                         [](const auto& info) { return info.param; });

TEST(ResNetFile, TorchvisionsTensors) {
  for (const char* name : {"basic", "grouped"}) {
    SCOPED_TRACE(name);
    const io::TensorMap want = recorded(std::string("resnets/") + name + "_expected.safetensors");
    for (const bool wide : {false, true}) {
      const auto model = ResNet::from_pretrained(resnet_file(name), {.dtype = wide ? kF64 : kF32});
      EXPECT_FALSE(model->is_training());
      EXPECT_EQ(model->bn1.num_batches_tracked.dtype(), kI64);
      const Tensor got = no_grad([&] { return (*model)(formula_images(2, 64).to(wide ? kF64 : kF32)); });
      expect_close(got, want.at(wide ? "output" : "output_f32"), wide ? 1e-9 : 1e-4, "output");
    }
  }
  const auto grouped = ResNet::from_pretrained(resnet_file("grouped"));
  EXPECT_EQ(grouped->config.groups, 2);
  EXPECT_EQ(grouped->config.width_per_group, 32);
  EXPECT_EQ(grouped->config.layers, (std::vector<int64_t>{1, 2, 1, 1}));
}

// Into a folder and back; a new head; files of before PyTorch 0.4.1, which have no counters.
TEST(ResNetFile, FoldersHeadsAndOldFiles) {
  const TempFolder folder;
  io::TensorMap tensors = io::load_safetensors(resnet_file("basic")).tensors;
  for (auto it = tensors.begin(); it != tensors.end();)
    it = it->first.ends_with("num_batches_tracked") ? tensors.erase(it) : std::next(it);
  io::save_safetensors(folder / "model.safetensors", tensors, {});
  const auto whole = ResNet::from_pretrained(resnet_file("basic")), old = ResNet::from_pretrained(folder.path());
  const Tensor x = formula_images(2, 64).to(kF32);
  EXPECT_TRUE(same_bits(no_grad([&] { return (*whole)(x); }), no_grad([&] { return (*old)(x); })));
  EXPECT_EQ(old->bn1.num_batches_tracked.item<int64_t>(), 0);
  const auto head = ResNet::from_pretrained(folder.path(), {.num_labels = 2, .fresh = {"fc."}});
  EXPECT_EQ(no_grad([&] { return (*head)(x); }).size(1), 2);
  // A file without a head gets one, if it is asked for.
  std::erase_if(tensors, [](const auto& item) { return item.first.starts_with("fc."); });
  io::save_safetensors(folder / "model.safetensors", tensors, {});
  const auto fresh = ResNet::from_pretrained(folder.path(), {.num_labels = 5, .fresh = {"fc."}, .seed = 4});
  EXPECT_EQ(no_grad([&] { return (*fresh)(x); }).size(1), 5);
  EXPECT_TRUE(same_bits(fresh->layer4[0].parameters()[0].detach(), whole->layer4[0].parameters()[0].detach()));
  EXPECT_GT(fresh->fc.weight.detach().abs().max().item(), 0);
  const auto named = ResNet::from_pretrained(folder.path(), {.label_names = {"cat", "dog"}, .fresh = {"fc."}});
  EXPECT_EQ(named->config.num_classes, 2);
  EXPECT_NE(error_of([&] {
              ResNet::from_pretrained(folder.path(), {.num_labels = 3, .label_names = {"cat"}, .fresh = {"fc."}});
            }).find("num_labels is 3, but there are 1 label_names"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              ResNet::from_pretrained(folder.path(), {.num_labels = int64_t{1} << 40, .fresh = {"fc."}});
            }).find("num_labels must be from 1 to"),
            std::string::npos);
  for (const PretrainedOptions& options : {PretrainedOptions{}, {.num_labels = 5}, {.fresh = {"fc."}}})
    EXPECT_NE(error_of([&] { ResNet::from_pretrained(folder.path(), options); }).find("has no fc.weight"),
              std::string::npos);
}

TEST(ResNetFile, WhatIsNone) {
  const TempFolder folder;
  io::TensorMap tensors = io::load_safetensors(resnet_file("basic")).tensors;
  const auto error = [&](const io::TensorMap& changed) {
    io::save_safetensors(folder / "model.safetensors", changed, {});
    return error_of([&] { ResNet::from_pretrained(folder / "model.safetensors"); });
  };
  io::TensorMap no_stage = tensors, wrong = tensors, counter = tensors;
  std::erase_if(no_stage, [](const auto& item) { return item.first.starts_with("layer3."); });
  EXPECT_NE(error(no_stage).find("no layer3.0"), std::string::npos);
  wrong.at("layer1.0.bn1.running_mean") = Tensor::zeros({7});
  EXPECT_NE(error(wrong).find("layer1.0.bn1.running_mean: a float[4] wanted, f32[7] given"), std::string::npos)
      << error(wrong);
  counter.at("bn1.num_batches_tracked") = Tensor::zeros({});
  EXPECT_NE(error(counter).find("bn1.num_batches_tracked: a i64[] wanted, f32[] given"), std::string::npos)
      << error(counter);
  EXPECT_NE(error({{"fc.weight", Tensor::zeros({3})}}).find("fc.weight is [3]"), std::string::npos);
  EXPECT_NE(error({}).find("no fc.weight"), std::string::npos);
  EXPECT_THROW(ResNet::from_pretrained(folder / "nothing"), FileError);
}

TEST(SegmentationLoss, OneClassAndBadTargets) {
  // transformers' loss of one class: ignored and negative pixels count as 0 in the mean over all pixels.
  const Tensor logits = Tensor::from(std::vector<double>{0.5, -1, 2, 0}, {1, 1, 2, 2}).to(kF64);
  const Tensor targets = Tensor::from(std::vector<int64_t>{1, 0, 255, -1}, {1, 2, 2});
  const double want = (std::log1p(std::exp(-0.5)) + std::log1p(std::exp(-1.0))) / 4;
  EXPECT_NEAR(segmentation_loss(logits, targets).item(), want, 1e-15);
  EXPECT_NE(error_of([&] { segmentation_loss(logits, targets.to(kF32)); }).find("targets must be i64 or i32, got f32"),
            std::string::npos);
  EXPECT_NE(error_of([&] { segmentation_loss(logits, targets.select(0, 0)); }).find("targets must be (B, H, W), got"),
            std::string::npos);
}

TEST(SegformerConfigs, BadSizesAreErrors) {
  const auto error = [](const SegformerConfig& config) {
    return error_of([&] { SegformerForSemanticSegmentation{config}; });
  };
  EXPECT_NE(error({.depths = {1, 1}}).find("hidden_sizes needs an entry for each of the 2 stages of depths, got 4"),
            std::string::npos);
  EXPECT_NE(error({.n_head = {1, 3, 5, 8}}).find("n_head must divide hidden_sizes, got 3 and 64 in stage 1"),
            std::string::npos);
  EXPECT_NE(error({.strides = {4, 0, 2, 2}}).find("strides must be positive, got 0"), std::string::npos);
  EXPECT_NE(error_of([] {
              ResNet(ResNetConfig{.layers = {1, 1}});
            }).find("blocks of 4 stages, got 2"),
            std::string::npos);
}

}  // namespace
}  // namespace rondo::nn
