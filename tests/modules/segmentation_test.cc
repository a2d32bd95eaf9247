// STDC, PP-LiteSeg, DDRNet and RegSeg: published sizes, shapes, training, the same bits compiled.
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/vision/ddrnet.h"
#include "rondo/modules/vision/pp_liteseg.h"
#include "rondo/modules/vision/regseg.h"
#include "rondo/modules/vision/stdc.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/modules/vision_models.h"

namespace rondo::nn {
namespace {

using test::error_of;
using test::same_bits;

struct Subject {
  std::unique_ptr<ModuleBase> model;
  std::function<Tensor(const Tensor&)> logits, loss;
};
// Left and right halves have different classes, and a corner does not count.
Tensor halves() {
  Tensor targets = Tensor::zeros({2, 64, 64}, kI64);
  targets.slice(2, {32, 64}).fill_(3);
  targets.slice(1, {0, 8}).slice(2, {0, 8}).fill_(kIgnoredClass);
  return targets;
}
template <class M> Subject subject(std::unique_ptr<M> model) {
  M& m = *model;
  return {std::move(model), [&m](const Tensor& x) { return m(x); },
          [&m](const Tensor& x) { return m.loss(x, halves()); }};
}
Subject make(const std::string& name) {
  if (name == "stdc") return subject(std::make_unique<STDCSeg>(STDCSegConfig{.num_classes = 5}, 1));
  if (name == "ddrnet") return subject(std::make_unique<DDRNet>(ddrnet23_slim(5), 1));
  if (name == "regseg") return subject(std::make_unique<RegSeg>(RegSegConfig{.num_classes = 5}, 1));
  return subject(std::make_unique<PPLiteSeg>(pp_liteseg_t(5), 1));
}

class SegmentationModel : public testing::TestWithParam<std::string> {};

TEST_P(SegmentationModel, TrainsTheSameCompiled) {
  std::vector<std::vector<double>> losses;
  std::vector<StateDict> states;
  const Tensor x = formula_images(2, 64).to(kF32);
  for (const bool compiled : {false, true}) {
    if (compiled && !compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    Subject s = make(GetParam());
    std::unique_ptr<compile::Regions> regions;
    if (compiled) regions = std::make_unique<compile::Regions>(compile::compile_regions(*s.model, {.exact = true}));
    optim::SGD optimizer(s.model->parameters(), {.lr = 0.02, .momentum = 0.9});
    losses.emplace_back();
    for (int step = 0; step < 4; ++step) {
      const Tensor loss = s.loss(x);
      losses.back().push_back(loss.item());
      optimizer.zero_grad();
      loss.backward();
      if (step == 0) {
        for (const auto& [key, p] : s.model->named_parameters()) EXPECT_TRUE(p.grad().defined()) << key;
      }
      optimizer.step();
    }
    states.push_back(s.model->state_dict());
    EXPECT_LT(losses.back().back(), losses.back().front());
    s.model->eval();
    const Tensor logits = no_grad([&] { return s.logits(x); });
    EXPECT_EQ(to_string(logits.sizes()), GetParam() == "regseg" ? "[2, 5, 16, 16]" : "[2, 5, 8, 8]");
    if (!compiled) continue;
    int ran = 0;
    for (const compile::RegionReport& r : regions->report()) {
      EXPECT_EQ(r.graph_breaks, 0) << r.name << ": " << r.last_break;
      ran += r.kernels > 0;
    }
    EXPECT_GE(ran, 3);
  }
  EXPECT_EQ(losses[0], losses[1]);
  for (const auto& [key, tensor] : states[0]) EXPECT_TRUE(same_bits(tensor, states[1].at(key))) << key;
}

INSTANTIATE_TEST_SUITE_P(Models, SegmentationModel, testing::Values("stdc", "pp_liteseg", "ddrnet", "regseg"),
                         [](const auto& info) { return info.param; });

// A model as one region: the loss is a call of it, too.
TEST_P(SegmentationModel, LossRunsCompiledAsOneModule) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  const auto make_small = [] {
    const STDCConfig encoder{.layers = {1, 1, 1}, .width = 16};
    if (GetParam() == "stdc") return subject(std::make_unique<STDCSeg>(STDCSegConfig{encoder, 5}, 1));
    if (GetParam() == "ddrnet")
      return subject(std::make_unique<DDRNet>(DDRNetConfig{.width = 8, .pyramid = 8, .head = 8, .num_classes = 5}, 1));
    if (GetParam() == "regseg")
      return subject(std::make_unique<RegSeg>(RegSegConfig{.dilations = {{1}, {1, 2}}, .num_classes = 5}, 1));
    return subject(std::make_unique<PPLiteSeg>(
        PPLiteSegConfig{.encoder = encoder, .decoder = {8, 8, 8}, .pyramid = 8, .head = 8, .num_classes = 5}, 1));
  };
  const Tensor x = formula_images(2, 64).to(kF32);
  Subject eager = make_small(), compiled = make_small();
  const compile::Regions regions = compile::compile_module(*compiled.model, {.exact = true});
  for (int step = 0; step < 2; ++step) {
    const Tensor expected = eager.loss(x), loss = compiled.loss(x);
    EXPECT_EQ(loss.item(), expected.item());
    expected.backward();
    loss.backward();
  }
  const std::vector<NamedTensor> want = eager.model->named_parameters(), got = compiled.model->named_parameters();
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_TRUE(same_bits(got[i].tensor.grad(), want[i].tensor.grad())) << want[i].name;
  const compile::RegionReport report = regions.report()[0];
  EXPECT_EQ(report.calls, 2);
  EXPECT_EQ(report.entries, 1);
  EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
  EXPECT_EQ(report.used_without_call, "");
}

// The papers' sizes, in millions.
TEST(SegmentationSizes, ThoseOfThePapers) {
  const SkipInit skip(SkipInit::Memory::kNone);
  EXPECT_EQ(STDCForClassification(stdc1()).num_parameters(), 8443552);   // 8.44
  EXPECT_EQ(STDCForClassification(stdc2()).num_parameters(), 12474016);  // 12.47
  DDRNetConfig slim = ddrnet23_slim(19), wide = ddrnet23(19);
  slim.extra_head = wide.extra_head = false;
  EXPECT_EQ(DDRNet(slim).num_parameters(), 5695923);   // 5.7
  EXPECT_EQ(DDRNet(wide).num_parameters(), 20148819);  // 20.1
  EXPECT_EQ(RegSeg().num_parameters(), 3334951);       // 3.34
  EXPECT_EQ(PPLiteSeg(pp_liteseg_t(19)).num_parameters(), 8150976);
  EXPECT_EQ(PPLiteSeg(pp_liteseg_b(19)).num_parameters(), 12365952);
}

TEST(Detail, TargetsAreBoundaries) {
  Tensor targets = Tensor::zeros({1, 8, 8}, kI32);
  targets.slice(2, {4, 8}).fill_(1);
  const std::vector<float> edges = detail_targets(targets).to_vector<float>();
  // The side of the larger class, as the Laplacian is positive there; at the image's border, zeros lie outside.
  for (int y = 2; y < 6; ++y) {
    EXPECT_EQ(edges[static_cast<size_t>(y * 8 + 4)], 1) << y;
    EXPECT_EQ(edges[static_cast<size_t>(y * 8 + 1)], 0) << y;
  }
}

TEST(SegmentationErrors, NameTheNumbers) {
  PPLiteSeg model({.encoder = {.layers = {1, 1, 1}, .width = 8}, .num_classes = 3});
  EXPECT_NE(error_of([&] {
              model(Tensor::zeros({2, 3, 40, 64}));
            }).find("multiples of 32, got [2, 3, 40, 64]"),
            std::string::npos);
  EXPECT_NE(error_of([&] { model(Tensor::zeros({2, 4, 64, 64})); }).find("(B, 3, H, W)"), std::string::npos);
  EXPECT_NE(error_of([] {
              STDCSeg({.encoder = {.layers = {1, 1}}});
            }).find("blocks of 3 stages, got 2"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              RegSeg({.dilations = {{1, 2, 4}}});
            }).find("320 channels cannot be split into 3 parts with groups of 16"),
            std::string::npos);
  EXPECT_NE(error_of([] { DDRNet({.width = 0}); }).find("must be positive, got 0"), std::string::npos);
  EXPECT_NE(error_of([] { PPLiteSeg({.bins = {1, 0}}); }).find("bins must be positive, got 0"), std::string::npos);
}

}  // namespace
}  // namespace rondo::nn
