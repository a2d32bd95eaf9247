// The optimizer in backward: the bits of a step after backward, and what it does where the two could differ.
#include "rondo/optim/update_at_seams.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adafactor.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/clip.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/grad_scaler.h"
#include "rondo/optim/lamb.h"
#include "rondo/optim/muon.h"
#include "rondo/optim/schedule.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/runs.h"

namespace rondo::optim {
namespace {

using test::error_of;
using test::Runs;
using test::same_bits;

const nn::GPT2Config kConfig{
    .vocab_size = 31, .block_size = 8, .n_layer = 3, .n_head = 2, .n_embd = 16, .dropout = 0.1};

Tensor loss_of(nn::GPT2& model, int64_t step) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < 16; ++i) tokens.push_back((i * i + 7 * i + 3 * step) % 31);
  const Tensor batch = Tensor::from(tokens, {2, 8});
  return model.loss(batch, batch);
}

double step_count(const Optimizer& optimizer, size_t slot) {
  const nn::StateDict state = optimizer.state_dict();
  const auto step = state.find("state." + std::to_string(slot) + ".step");
  return step == state.end() ? 0 : step->second.item();
}

using Make = std::function<std::vector<std::unique_ptr<Optimizer>>(const nn::GPT2&)>;
template <class O, class Options> Make make(Options options) {
  return [options](const nn::GPT2& model) {
    std::vector<std::unique_ptr<Optimizer>> list;
    list.push_back(std::make_unique<O>(model.parameters(), options));
    return list;
  };
}

const std::map<std::string, Make>& cases() {
  static const std::map<std::string, Make> all = {
      {"adamw", make<AdamW>(AdamWOptions{.lr = 1e-2, .weight_decay = 0.1})},
      {"adamw_8bit", make<AdamW>(AdamWOptions{.lr = 1e-2, .state = StateFormat::k8Bit})},
      {"sgd", make<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true})},
      {"lamb", make<LAMB>(LAMBOptions{.lr = 1e-2})},
      {"adafactor", make<Adafactor>(AdafactorOptions{.lr = 1e-2})},
      {"two_groups",
       [](const nn::GPT2& model) {
         std::vector<std::unique_ptr<Optimizer>> list;
         list.push_back(
             std::make_unique<AdamW>(decay_groups(model.parameters(), AdamWOptions{.lr = 1e-2, .weight_decay = 0.1})));
         return list;
       }},
      {"muon_and_adamw",
       [](const nn::GPT2& model) {
         std::vector<Tensor> matrices, rest;
         for (const nn::NamedTensor& p : model.named_parameters())
           (p.tensor.rank() == 2 && p.name.starts_with("h.") ? matrices : rest).push_back(p.tensor);
         std::vector<std::unique_ptr<Optimizer>> list;
         list.push_back(std::make_unique<Muon>(matrices, MuonOptions{.lr = 1e-2}));
         list.push_back(std::make_unique<AdamW>(rest, AdamWOptions{.lr = 1e-2}));
         return list;
       }},
  };
  return all;
}

struct How {
  bool compiled = false;
  compile::Recompute recompute = compile::Recompute::kAuto;
  bool joined = false;  // with averages and copies
  int micro_batches = 1;
  bool whole = false;     // the model is one region
  bool autocast = false;  // to bf16
  DType weights = kF32;
};

struct Trained {
  std::vector<Tensor> parameters;
  std::vector<std::unique_ptr<Optimizer>> optimizers;
};

// 20 steps, updated at the seams or after backward.
Trained train(const Make& make, const How& how, bool at_seams, UpdateAtSeamsOptions options = {}) {
  manual_seed(3);
  nn::GPT2 model(kConfig, 1);
  model.to(how.weights);
  if (how.compiled && how.whole) compile::compile_module(model, {.recompute = how.recompute});
  else if (how.compiled) compile::compile_regions(model, {.recompute = how.recompute});
  Trained run{model.parameters(), make(model)};
  std::vector<std::unique_ptr<UpdateAtSeams>> updates;
  for (const auto& optimizer : run.optimizers) {
    if (how.joined) optimizer->track_average({.decay = 0.9});
    if (how.joined) optimizer->keep_copies(kBF16);
    if (how.compiled) compile(*optimizer);
    if (at_seams) updates.push_back(std::make_unique<UpdateAtSeams>(model, *optimizer, options));
  }
  const CosineWithWarmup schedule{.lr = 1e-2, .min_lr = 1e-3, .warmup_steps = 5, .decay_steps = 20};
  for (int64_t step = 0; step < 20; ++step) {
    for (const auto& optimizer : run.optimizers) optimizer->set_lr(schedule(step));
    for (int k = 0; k < how.micro_batches; ++k) {
      std::vector<std::unique_ptr<UpdateAtSeams::NoUpdate>> held;
      if (k + 1 < how.micro_batches)
        for (const auto& u : updates) held.push_back(std::make_unique<UpdateAtSeams::NoUpdate>(*u));
      Tensor loss;
      {
        const amp::Autocast lower(how.autocast ? std::optional(kBF16) : std::nullopt);
        loss = loss_of(model, step * how.micro_batches + k);
      }
      loss.backward();
    }
    if (at_seams) {
      for (size_t i = 0; i < updates.size(); ++i) {
        const UpdateReport report = updates[i]->finish();
        EXPECT_EQ(report.at_end, 0);
        EXPECT_EQ(report.without_gradient, 0);
        if (updates.size() == 1) {
          EXPECT_EQ(report.at_seams, static_cast<int64_t>(run.parameters.size()));
        }
      }
      if (options.drop_grads && !options.step.zero_grad) {
        for (const Tensor& p : run.parameters) EXPECT_FALSE(p.grad().defined());
        continue;
      }
    } else {
      for (const auto& optimizer : run.optimizers) optimizer->step(options.step);
    }
    if (!options.step.zero_grad) model.zero_grad();
  }
  return run;
}

void expect_same(const Trained& a, const Trained& b) {
  for (size_t i = 0; i < a.parameters.size(); ++i) EXPECT_TRUE(same_bits(a.parameters[i], b.parameters[i])) << i;
  for (size_t o = 0; o < a.optimizers.size(); ++o) {
    const nn::StateDict x = a.optimizers[o]->state_dict(), y = b.optimizers[o]->state_dict();
    ASSERT_EQ(x.size(), y.size());
    for (const auto& [name, tensor] : x) EXPECT_TRUE(same_bits(tensor, y.at(name))) << name;
    const std::vector<Tensor> copies = a.optimizers[o]->copies(), others = b.optimizers[o]->copies();
    for (size_t i = 0; i < copies.size(); ++i) EXPECT_TRUE(same_bits(copies[i], others[i])) << "copy " << i;
    const KernelReport kernels = a.optimizers[o]->kernels(), same = b.optimizers[o]->kernels();
    EXPECT_EQ(kernels.kernels, same.kernels);
    EXPECT_EQ(same.late, 0);
  }
}

class AtSeams : public testing::TestWithParam<Runs> {
 protected:
  void SetUp() override {
    if (GetParam() != Runs::kEagerly && !compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
  static How how() { return {.compiled = GetParam() != Runs::kEagerly, .whole = GetParam() == Runs::kWhole}; }
  void compile_if_wanted(nn::ModuleBase& model) const { test::compile_as(GetParam(), model); }
};

TEST_P(AtSeams, TwentyStepsHaveTheBitsOfStepsAfterBackward) {
  for (const auto& [name, make] : cases()) {
    SCOPED_TRACE(name);
    expect_same(train(make, how(), false), train(make, how(), true));
  }
}

TEST_P(AtSeams, WithAveragesCopiesAccumulationAndZeroedGradients) {
  for (int micro_batches : {1, 3}) {
    How how = AtSeams::how();
    how.joined = true;
    how.micro_batches = micro_batches;
    const Trained after = train(cases().at("two_groups"), how, false);
    expect_same(after, train(cases().at("two_groups"), how, true));
    expect_same(after, train(cases().at("two_groups"), how, true, {.drop_grads = false}));
    const UpdateAtSeamsOptions zeroed{.step = {.zero_grad = true}};
    expect_same(train(cases().at("two_groups"), how, false, zeroed),
                train(cases().at("two_groups"), how, true, zeroed));
  }
}

// Through f32 weights (Note [Master weights] of optimizer.h).
TEST_P(AtSeams, OfParametersOfSixteenBits) {
  for (const auto& [name, make] : cases()) {
    SCOPED_TRACE(name);
    How how = AtSeams::how();
    how.joined = true;
    how.weights = kBF16;
    const Trained after = train(make, how, false);
    EXPECT_TRUE(after.optimizers[0]->state_dict().contains("state.0.master"));
    expect_same(after, train(make, how, true));
  }
}

TEST_P(AtSeams, UnderAutocast) {
  How how = AtSeams::how();
  how.autocast = true;
  expect_same(train(cases().at("adamw"), how, false), train(cases().at("adamw"), how, true));
}

// Recomputation in backward reads the parameters of the forward pass.
TEST(AtSeamsRules, RecomputationReadsTheOldParameters) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  for (const bool whole : {false, true})
    for (const compile::Recompute recompute : {compile::Recompute::kFull, compile::Recompute::kNone}) {
      const How how{.compiled = true, .recompute = recompute, .whole = whole};
      expect_same(train(cases().at("adamw"), how, false), train(cases().at("adamw"), how, true));
    }
}

struct CheckpointedBlock : nn::Module<CheckpointedBlock> {
  nn::Linear up = child("up", 8, 32);
  nn::Linear down = child("down", 32, 8);
  Tensor forward(const Tensor& x) {
    const Tensor inputs[] = {x};
    return autograd::checkpoint(
        [this](std::span<const Tensor> in) { return std::vector<Tensor>{in[0] + down(ops::gelu(up(in[0])))}; },
        inputs)[0];
  }
};
struct Checkpointed : nn::Module<Checkpointed> {
  nn::Linear in = child("in", 4, 8);
  nn::ModuleList<CheckpointedBlock> h = child("h", 4);
  Tensor forward(const Tensor& x) {
    Tensor y = in(x);
    for (CheckpointedBlock& block : h) y = block(y);
    return y;
  }
};

TEST_P(AtSeams, CheckpointsRunAgainWithTheOldParameters) {
  std::vector<Trained> runs(2);
  for (int at_seams = 0; at_seams < 2; ++at_seams) {
    manual_seed(4);
    Checkpointed model;
    compile_if_wanted(model);
    Trained& run = runs[static_cast<size_t>(at_seams)];
    run.parameters = model.parameters();
    run.optimizers.push_back(std::make_unique<AdamW>(model.parameters(), AdamWOptions{.lr = 1e-2}));
    std::unique_ptr<UpdateAtSeams> updates;
    if (at_seams == 1) updates = std::make_unique<UpdateAtSeams>(model, *run.optimizers[0]);
    for (int step = 0; step < 20; ++step) {
      const Tensor y = model(Tensor::randn({6, 4}));
      ops::mean(y * y).backward();
      if (updates) updates->finish();
      else run.optimizers[0]->step(), model.zero_grad();
    }
  }
  expect_same(runs[0], runs[1]);
}

// The gradients of one block exist at a time.
TEST_P(AtSeams, GradientsOfOneBlockAtATime) {
  nn::GPT2 model(kConfig, 1);
  compile_if_wanted(model);
  AdamW optimizer(model.parameters());
  const auto count = [&] {
    int64_t n = 0;
    for (nn::TransformerBlock& block : model.h)
      for (const Tensor& p : block.parameters()) n += p.grad().defined();
    return n;
  };
  const auto most_during_a_backward = [&] {
    int64_t most = 0;
    std::vector<std::pair<Tensor, int64_t>> hooks;
    for (const Tensor& p : model.parameters())
      hooks.emplace_back(p, autograd::on_accumulated(p, [&] { most = std::max(most, count()); }));
    loss_of(model, 0).backward();
    for (const auto& [p, id] : hooks) autograd::remove_on_accumulated(p, id);
    return most;
  };
  EXPECT_EQ(most_during_a_backward(), 36);
  model.zero_grad();
  UpdateAtSeams updates(model, optimizer);
  EXPECT_LE(most_during_a_backward(), 12);
  EXPECT_EQ(count(), 0);
  updates.finish();
}

struct Tied : nn::Module<Tied> {
  nn::ModuleList<nn::Linear> h = child("h", 3, 6, 6);
  nn::Linear head = child("head", 6, 6);
  Tied() {
    h[2].weight = h[0].weight;  // of two blocks
    head.weight = h[1].weight;  // of a block and of the rest
  }
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (nn::Linear& linear : h) y = ops::tanh(linear(y));
    y = h[1](y);  // a block used twice
    return head(y);
  }
};

TEST_P(AtSeams, SharedParametersAreUpdatedByTheLastThatUsesThem) {
  std::vector<Trained> runs(2);
  for (int at_seams = 0; at_seams < 2; ++at_seams) {
    manual_seed(4);
    Tied model;
    compile_if_wanted(model);
    Trained& run = runs[static_cast<size_t>(at_seams)];
    run.parameters = model.parameters();
    EXPECT_EQ(run.parameters.size(), 6u);
    run.optimizers.push_back(std::make_unique<AdamW>(model.parameters(), AdamWOptions{.lr = 1e-2}));
    std::unique_ptr<UpdateAtSeams> updates;
    if (at_seams == 1) updates = std::make_unique<UpdateAtSeams>(model, *run.optimizers[0]);
    for (int step = 0; step < 10; ++step) {
      const Tensor y = model(Tensor::randn({5, 6}));
      ops::mean(y * y).backward();
      if (updates) {
        EXPECT_EQ(updates->finish().at_seams, 6);
        continue;
      }
      run.optimizers[0]->step();
      model.zero_grad();
    }
  }
  expect_same(runs[0], runs[1]);
}

TEST_P(AtSeams, WhatBackwardDoesNotReachIsUpdatedAtTheEndOrNotAtAll) {
  if (GetParam() == Runs::kWhole) GTEST_SKIP() << "calls a part of the model";
  nn::GPT2 model(kConfig, 1);
  compile_if_wanted(model);
  const Tensor stranger = Tensor::ones({3}).requires_grad_();  // not of the model
  std::vector<Tensor> parameters = model.parameters();
  parameters.push_back(stranger);
  model.h[0].requires_grad_(false);
  AdamW optimizer(parameters, {.lr = 1e-2});
  UpdateAtSeams updates(model, optimizer);
  Tensor(stranger).set_grad(Tensor::ones({3}));
  Tensor early = model.h[1].ln_1.weight;
  early.set_grad(Tensor::ones({16}));  // from before; the block is not reached below
  ops::sum(model.h[2](Tensor::randn({1, 4, 16}))).backward();
  EXPECT_TRUE(updates.is_updated(model.h[2].ln_1.weight));
  EXPECT_FALSE(updates.is_updated(early));
  const UpdateReport report = updates.finish();
  EXPECT_EQ(report.at_seams, 12);
  EXPECT_EQ(report.at_end, 2);
  EXPECT_EQ(report.without_gradient, static_cast<int64_t>(parameters.size()) - 14);
  for (size_t i = 0; i < parameters.size(); ++i) {
    bool of_last_block = false;
    for (const Tensor& p : model.h[2].parameters()) of_last_block = of_last_block || p.is_same(parameters[i]);
    EXPECT_EQ(step_count(optimizer, i),
              of_last_block || parameters[i].is_same(early) || parameters[i].is_same(stranger))
        << i;
  }
}

TEST_P(AtSeams, ASecondBackwardIsLoud) {
  nn::GPT2 model(kConfig, 1);
  compile_if_wanted(model);
  AdamW optimizer(model.parameters());
  UpdateAtSeams updates(model, optimizer);
  // Through the same graph: its parameters are new ones.
  const Tensor loss = loss_of(model, 0);
  loss.backward({}, /*retain_graph=*/true);
  {
    std::optional<test::MeansToRun> by_op;
    if (GetParam() == Runs::kWhole)
      by_op.emplace(test::Eagerly::kBackward, "the op that reads what was updated says so");
    EXPECT_THROW(loss.backward(), StaleTensorError);
  }
  updates.finish();
  // Another graph, without finish(): what it adds would be lost, or counted twice.
  loss_of(model, 1).backward();
  const std::string error = error_of([&] { loss_of(model, 2).backward(); });
  EXPECT_NE(error.find("changed after its update"), std::string::npos) << error;
  EXPECT_NE(error.find("no_update()"), std::string::npos) << error;
  updates.abandon();
  loss_of(model, 3).backward();
  EXPECT_EQ(updates.finish().at_seams, 40);
}

TEST_P(AtSeams, AnExceptionLeavesWhatIsUpdated) {
  nn::GPT2 model(kConfig, 1);
  compile_if_wanted(model);
  AdamW optimizer(model.parameters(), {.lr = 1e-2});
  UpdateAtSeams updates(model, optimizer);
  const std::vector<nn::NamedTensor> names = model.named_parameters();
  std::vector<Tensor> before;
  for (const nn::NamedTensor& p : names) before.push_back(p.tensor.detach().clone());
  const int64_t hook = model.h[1].ln_1.weight.register_hook([](const Tensor&) -> Tensor { throw Error("stop here"); });
  EXPECT_NE(error_of([&] { loss_of(model, 0).backward(); }).find("stop here"), std::string::npos);
  // A step that is half made cannot be saved, or go on with another learning rate.
  EXPECT_NE(error_of([&] { optimizer.set_lr(0.5); }).find("a step is under way"), std::string::npos);
  EXPECT_THROW(optimizer.state_dict(), Error);
  EXPECT_THROW(optimizer.load_state_dict({}), Error);
  EXPECT_THROW(optimizer.set_average_decay(0.5), Error);
  EXPECT_THROW(optimizer.keep_copies(kBF16), Error);
  EXPECT_NE(error_of([&] { const auto more = updates.no_update(); }).find("updated already"), std::string::npos);
  EXPECT_TRUE(updates.is_updated(model.h[2].ln_1.weight));
  const UpdateReport report = updates.abandon();
  EXPECT_EQ(report.at_seams, 14);
  EXPECT_EQ(report.without_gradient, 26);
  for (size_t i = 0; i < names.size(); ++i) {
    const bool updated = names[i].name.starts_with("h.2.") || names[i].name.starts_with("ln_f.");
    EXPECT_EQ(!same_bits(names[i].tensor, before[i]), updated) << names[i].name;
    EXPECT_EQ(step_count(optimizer, i), updated) << names[i].name;
    EXPECT_FALSE(names[i].tensor.grad().defined()) << names[i].name;
  }
  model.h[1].ln_1.weight.remove_hook(hook);
  loss_of(model, 1).backward();
  EXPECT_EQ(updates.finish().at_seams, 40);
  EXPECT_EQ(step_count(optimizer, 0), 1);
}

INSTANTIATE_TEST_SUITE_P(EagerAndCompiled, AtSeams, testing::ValuesIn(test::kAllRuns), test::name_of_runs);

TEST(AtSeamsRules, WhatNeedsAllGradientsIsRefused) {
  nn::GPT2 model(kConfig, 1);
  AdamW optimizer(model.parameters());
  const auto error = [&](StepOptions step) {
    return error_of([&] { UpdateAtSeams(model, optimizer, {.step = step}); });
  };
  EXPECT_NE(error({.max_norm = 1}).find("max_norm must see all gradients"), std::string::npos);
  EXPECT_NE(error({.grad_scale = 8}).find("grad_scale"), std::string::npos);
  EXPECT_NE(error({.check_finite = true}).find("check_finite"), std::string::npos);
  optimizer.step({.allow_no_gradients = true});  // a failed one leaves nothing behind

  UpdateAtSeams updates(model, optimizer);
  EXPECT_NE(error_of([&] { updates.finish(); }).find("none of the 40 parameters has a gradient"), std::string::npos);
  EXPECT_NE(error_of([&] { optimizer.step(); }).find("end the step with UpdateAtSeams::finish()"), std::string::npos);
  amp::GradScaler scaler;
  EXPECT_NE(error_of([&] { scaler.step(optimizer); }).find("UpdateAtSeams::finish()"), std::string::npos);
  EXPECT_NE(error_of([&] { clip_grad_norm_(model.parameters(), 1.0); }).find("UpdateAtSeams uses these gradients up"),
            std::string::npos);
}

TEST(AtSeamsRules, OneForEachOptimizerAndParameter) {
  nn::GPT2 model(kConfig, 1), other(kConfig, 1);
  AdamW optimizer(model.parameters()), twin(model.parameters()), elsewhere(other.parameters());
  {
    UpdateAtSeams updates(model, optimizer);
    EXPECT_NE(error_of([&] { UpdateAtSeams(model, optimizer); }).find("has one already"), std::string::npos);
    EXPECT_NE(error_of([&] { UpdateAtSeams(model, twin); }).find("already taken by UpdateAtSeams"), std::string::npos);
    EXPECT_NE(error_of([&] { UpdateAtSeams(model, elsewhere); }).find("no parameter of the model"), std::string::npos);
    const auto more = updates.no_update();
    EXPECT_NE(error_of([&] { const auto again = updates.no_update(); }).find("there is one already"),
              std::string::npos);
    EXPECT_NE(error_of([&] { updates.finish(); }).find("under no_update()"), std::string::npos);
  }
  // Gone, and nothing remembers it.
  UpdateAtSeams(model, twin);
  loss_of(model, 0).backward();
  EXPECT_TRUE(model.wte.weight.grad().defined());
  optimizer.step();
  EXPECT_EQ(step_count(optimizer, 0), 1);
}

// Two uses of one parameter, each in a checkpoint of its own: it is updated when both have run again.
TEST_P(AtSeams, AParameterOfTwoCheckpointsIsUpdatedOnce) {
  struct Model : nn::Module<Model> {
    nn::ModuleList<CheckpointedBlock> h = child("h", 2);
    Tensor forward(const Tensor& x) { return h[1](h[0](h[1](h[0](x)))); }
  };
  std::vector<Trained> runs(2);
  for (int at_seams = 0; at_seams < 2; ++at_seams) {
    manual_seed(4);
    Model model;
    compile_if_wanted(model);
    Trained& run = runs[static_cast<size_t>(at_seams)];
    run.parameters = model.parameters();
    run.optimizers.push_back(std::make_unique<AdamW>(model.parameters(), AdamWOptions{.lr = 1e-2}));
    std::unique_ptr<UpdateAtSeams> updates;
    if (at_seams == 1) updates = std::make_unique<UpdateAtSeams>(model, *run.optimizers[0]);
    for (int step = 0; step < 5; ++step) {
      const Tensor y = model(Tensor::randn({6, 8}).requires_grad_());
      ops::mean(y * y).backward();
      if (updates) EXPECT_EQ(updates->finish().at_seams, 8);
      else run.optimizers[0]->step(), model.zero_grad();
    }
  }
  expect_same(runs[0], runs[1]);
}

}  // namespace
}  // namespace rondo::optim
