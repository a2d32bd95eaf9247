// Seams of a plan (plan/seams.h): where they stand, what a run gives away there, and who may write to what.
#include "rondo/compile/plan/seams.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/compile/exec/program.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/jit/targets.h"
#include "rondo/compile/plan/bounds.h"
#include "rondo/compile/plan/make_plan.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compile/graph_fixture.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_device/test_device.h"

namespace rondo::compile {
namespace {

using test::error_of;
using test::same_bits;

// Three steps of one chain; each makes a result, and the last reads the first one's operand again.
Graph chain(const Tensor& x, const Tensor& w) {
  return record([&] {
    const Tensor a = ops::matmul(x, w), b = ops::matmul(a, x), c = ops::matmul(b, w);
    return std::vector<Tensor>{a, b, c};
  });
}

class SeamsOfPlans : public testing::Test {
 protected:
  void SetUp() override {
    if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  }
  const Tensor x = Tensor::randn({8, 8}), w = Tensor::randn({8, 8});
};

TEST_F(SeamsOfPlans, StandBehindTheLastTouch) {
  const Target& target = target_of(default_device());
  const auto launches = [&](std::vector<PlannedSeam> seams) {
    std::vector<int32_t> at;
    for (const Plan::Seam& seam : make_plan(chain(x, w), target, {.exact = true, .seams = std::move(seams)}).seams)
      at.push_back(seam.launch);
    return at;
  };
  // The first result is read by the second launch, the second by the third; the third is final at the end.
  EXPECT_EQ(launches({{.part = 0, .outputs = {0}, .overwritten = {}}}), (std::vector<int32_t>{2}));
  EXPECT_EQ(launches({{.part = 0, .outputs = {0, 1}, .overwritten = {}}}), (std::vector<int32_t>{3}));
  // Whoever gets it may write to w, which the last launch reads.
  const auto w_at = static_cast<int32_t>(1);
  EXPECT_EQ(launches({{.part = 0, .outputs = {0}, .overwritten = {w_at}}}), (std::vector<int32_t>{3}));
  EXPECT_EQ(launches({}), std::vector<int32_t>());
}

TEST_F(SeamsOfPlans, AreInThePlansText) {
  const Plan plan = make_plan(chain(x, w), target_of(default_device()),
                              {.exact = true, .seams = {{.part = 4, .outputs = {0}, .overwritten = {}}}});
  std::string text = to_string(plan);
  const std::string line = "seam 2 part=4 results 0\n";
  const size_t at = text.find(line);
  ASSERT_NE(at, text.npos) << text;
  const Plan parsed = parse_plan(text);
  EXPECT_EQ(to_string(parsed), text);
  EXPECT_EQ(parsed.last_launch, plan.last_launch);
  // The second launch would read memory that its owner has changed.
  text.replace(at, line.size(), "seam 1 part=4 results 0\n");
  EXPECT_NE(error_of([&] { parse_plan(text); }).find("touches result 0, which was handed over"), std::string::npos);
}

TEST_F(SeamsOfPlans, ARunLetsGoOfWhatItHandsOver) {
  const Tensor on_device = x.to(default_device()), other = w.to(default_device());
  const Graph graph = chain(on_device, other);
  const auto program = Program::compile(
      graph, {.plan = {.exact = true, .seams = {{.part = 0, .outputs = {0, 1}, .overwritten = {}}}},
              .device = default_device()});
  const std::vector<Tensor> inputs = {on_device, other};
  const std::vector<Tensor> expected = program->run(inputs, program->floats());
  std::vector<Tensor> taken;
  const std::vector<Tensor> rest = program->run(inputs, program->floats(), nullptr, {},
                                                [&](const Plan::Seam& seam, std::vector<Tensor> results) {
                                                  EXPECT_EQ(seam.outputs, (std::vector<int32_t>{0, 1}));
                                                  for (const Tensor& result : results)
                                                    EXPECT_TRUE(autograd::is_only_holder(result));
                                                  taken = std::move(results);
                                                });
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_TRUE(same_bits(taken[0].to(kCPU), expected[0].to(kCPU)));
  EXPECT_TRUE(same_bits(taken[1].to(kCPU), expected[1].to(kCPU)));
  EXPECT_FALSE(rest[0].defined());
  EXPECT_FALSE(rest[1].defined());
  EXPECT_TRUE(same_bits(rest[2].to(kCPU), expected[2].to(kCPU)));
}

// Blocks of one layer, whose weight the caller of the model may change.
struct Layers : nn::Module<Layers> {
  nn::ModuleList<nn::Linear> h = child("h", 3, 8, 8);
  nn::Linear head = child("head", 8, 2);
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (nn::Linear& layer : h) y = ops::tanh(layer(y));
    return ops::mean(head(y) * head(y));
  }
};

class SeamsOfRegions : public testing::Test {
 protected:
  void SetUp() override {
    if (!jit_available()) GTEST_SKIP() << "built without LLVM";
    model.to(default_device());
    regions.emplace(compile_module(model, {.exact = true}));
  }
  Tensor loss() { return model(Tensor::ones({4, 8}).to(default_device())); }
  std::vector<std::string> seams() const {
    std::vector<std::string> parts;
    const Explanation e = explain(*regions);
    for (const ProgramExplanation& program : e.regions[0].entries[0].programs)
      for (const SeamExplanation& seam : program.seams)  // outside of the blocks: one for each parameter
        if (parts.empty() || parts.back() != seam.part) parts.push_back(seam.part);
    return parts;
  }
  Layers model;
  std::optional<Regions> regions;
};

TEST_F(SeamsOfRegions, AreThereIfSomebodyWaits) {
  loss().backward();
  EXPECT_EQ(seams(), std::vector<std::string>());
  std::vector<Tensor> expected;
  for (const Tensor& p : model.parameters()) expected.push_back(p.grad().clone());
  model.zero_grad();
  std::vector<std::string> order;
  std::vector<std::pair<Tensor, int64_t>> callbacks;
  for (const nn::NamedTensor& p : model.named_parameters())
    callbacks.emplace_back(p.tensor, autograd::on_accumulated(p.tensor, [&order, name = p.name] {
                             const std::string block = name.substr(0, name.rfind('.'));
                             if (order.empty() || order.back() != block) order.push_back(block);
                           }));
  loss().backward();
  EXPECT_EQ(order, (std::vector<std::string>{"head", "h.2", "h.1", "h.0"}));
  EXPECT_EQ(seams(), (std::vector<std::string>{"", "h.2", "h.1", "h.0"}));
  EXPECT_NE(to_text(explain(*regions)).find("seam of h.1: 2 gradients leave"), std::string::npos);
  EXPECT_NE(to_html(explain(*regions)).find("seam of h.1: 2 gradients leave"), std::string::npos);
  EXPECT_EQ(regions->report()[0].other_backwards, 1);
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(same_bits(model.parameters()[i].grad().to(kCPU), expected[i].to(kCPU))) << i;
  // grad() returns gradients, so nothing leaves before.
  order.clear();
  const std::vector<Tensor> parameters = model.parameters();
  const std::vector<Tensor> grads = autograd::grad({{loss()}}, parameters);
  EXPECT_TRUE(order.empty());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(grads[i].to(kCPU), expected[i].to(kCPU))) << i;
  for (const auto& [p, id] : callbacks) autograd::remove_on_accumulated(p, id);
  model.zero_grad();
  loss().backward();
  EXPECT_EQ(regions->report()[0].other_backwards, 1);
}

TEST_F(SeamsOfRegions, AHookChangesTheGradientAtTheSeam) {
  loss().backward();
  std::vector<Tensor> expected;
  for (const Tensor& p : model.parameters()) expected.push_back(p.grad().clone());
  model.zero_grad();
  const Tensor watched = model.h[1].weight;
  bool is_first_block_done = false;
  const int64_t id = autograd::on_accumulated(model.h[0].weight, [&] { is_first_block_done = true; });
  const int64_t hook = model.h[1].weight.register_hook([&](const Tensor& grad) {
    EXPECT_FALSE(is_first_block_done);
    return grad * 2.0;
  });
  loss().backward();
  for (size_t i = 0; i < expected.size(); ++i) {
    const Tensor p = model.parameters()[i];
    const Tensor want = p.is_same(watched) ? expected[i] * 2.0 : expected[i];
    EXPECT_TRUE(same_bits(p.grad().to(kCPU), want.to(kCPU))) << i;
  }
  EXPECT_TRUE(is_first_block_done);
  model.h[1].weight.remove_hook(hook);
  autograd::remove_on_accumulated(model.h[0].weight, id);
}

// Block by block, too, this is StaleTensorError.
TEST_F(SeamsOfRegions, AParameterThatIsStillReadMustNotBeWritten) {
  const int64_t id = autograd::on_accumulated(model.h[2].weight, [&] {
    const NoGrad off;
    model.h[1].weight.mul_(2.0);
  });
  const Tensor result = loss();
  EXPECT_NE(error_of<StaleTensorError>([&] { result.backward(); }).find("was overwritten in place"), std::string::npos);
  // What had left before is there, and the rest is not.
  EXPECT_TRUE(model.h[2].weight.grad().defined());
  EXPECT_FALSE(model.h[0].weight.grad().defined());
  autograd::remove_on_accumulated(model.h[2].weight, id);
  model.zero_grad();
  loss().backward();
  EXPECT_TRUE(model.h[0].weight.grad().defined());
}

TEST_F(SeamsOfRegions, AnExceptionAtASeamEndsTheBackward) {
  const int64_t id = autograd::on_accumulated(model.h[1].weight, [] { throw Error("stop here"); });
  EXPECT_EQ(error_of([&] { loss().backward(); }), "stop here");
  EXPECT_TRUE(model.h[2].weight.grad().defined());
  EXPECT_FALSE(model.h[0].weight.grad().defined());
  autograd::remove_on_accumulated(model.h[1].weight, id);
}

// Twice through one graph, and once more on top of gradients that are there.
TEST_F(SeamsOfRegions, AccumulateAsAtTheEnd) {
  const auto gradients = [&](bool waits) {
    std::optional<int64_t> id;
    if (waits) id = autograd::on_accumulated(model.h[1].weight, [] {});
    model.zero_grad();
    const Tensor result = loss();
    result.backward({}, /*retain_graph=*/true);
    result.backward();
    loss().backward();
    std::vector<Tensor> grads;
    for (const Tensor& p : model.parameters()) grads.push_back(p.grad().to(kCPU).clone());
    if (id) autograd::remove_on_accumulated(model.h[1].weight, *id);
    return grads;
  };
  const std::vector<Tensor> at_end = gradients(false), at_seams = gradients(true);
  for (size_t i = 0; i < at_end.size(); ++i) EXPECT_TRUE(same_bits(at_seams[i], at_end[i])) << i;
}

}  // namespace
}  // namespace rondo::compile
