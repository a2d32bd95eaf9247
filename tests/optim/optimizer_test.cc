// Rules for all optimizers. Muon, clipping and schedules against values recorded from PyTorch
// (tests/reference/README.md), LAMB against its paper. The other optimizers: optimizer_cases_test.cc.
#include "rondo/optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "rondo/compile/jit/executable.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/optim/adafactor.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/clip.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/lamb.h"
#include "rondo/optim/muon.h"
#include "rondo/optim/schedule.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/optim/recorded_run.h"

namespace rondo::optim {
namespace {

// The recorded run of Muon (tests/reference/record.py).
std::vector<Tensor> run_muon(DType dtype, MuonOptions options, bool compiled) {
  const Tensor w = reference().at("param.w").to(dtype), grads = reference().at("grads.w").to(dtype);
  std::vector<Tensor> params = {w.clone().requires_grad_(), w.t().contiguous().clone().requires_grad_()};
  Muon optimizer(params, options);
  if (compiled) compile(optimizer);
  for (int step = 0; step < 10; ++step) {
    params[0].set_grad(grads[step].clone());
    params[1].set_grad(grads[step].t().contiguous() * static_cast<double>(step + 1));
    optimizer.step();
  }
  return params;
}

TEST(Muon, MatchesTheRecordedValues) {
  const std::map<std::string, MuonOptions> runs = {
      {"muon", {.lr = 0.02}},
      {"muon_plain", {.lr = 0.02, .weight_decay = 0, .momentum = 0.9, .ns_steps = 3}},
      {"muon_adjusted", {.lr = 0.02, .nesterov = false, .adjust_lr = MuonOptions::kMatchRmsAdamW}}};
  for (const auto& [name, options] : runs) {
    for (DType dtype : {kF64, kF32}) {
      const std::vector<Tensor> params = run_muon(dtype, options, false);
      const double tolerance = dtype == kF64 ? 1e-13 : 1e-6;
      expect_close(params[0], reference().at(name + ".w"), tolerance, "w");
      expect_close(params[1], reference().at(name + ".tall"), tolerance, "tall");
    }
    const std::vector<Tensor> eager = run_muon(kF32, options, false), compiled = run_muon(kF32, options, true);
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(eager[i].to_vector<float>(), compiled[i].to_vector<float>());
  }
}

TEST(Muon, RefusesWhatIsNoMatrix) {
  EXPECT_NE(test::error_of([] { Muon({Tensor::zeros({3}).requires_grad_()}); }).find("must be matrices"),
            std::string::npos);
}

// PyTorch has none: against the algorithm of the paper, written out.
TEST(LAMB, IsThePapersAlgorithm) {
  std::vector<Tensor> params = start();
  std::vector<double> p = params[0].to_vector<double>(), m(p.size(), 0.0), v(p.size(), 0.0), r(p.size());
  LAMB optimizer(params, {.lr = 0.01, .betas = {0.9, 0.95}, .weight_decay = 0.1});
  train(optimizer, params, 0, 10);
  for (int step = 1; step <= 10; ++step) {
    const std::vector<double> g = reference().at("grads.w")[step - 1].to_vector<double>();
    double weight = 0, update = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      m[i] = 0.9 * m[i] + 0.1 * g[i];
      v[i] = 0.95 * v[i] + 0.05 * g[i] * g[i];
      r[i] = m[i] / (1 - std::pow(0.9, step)) / (std::sqrt(v[i] / (1 - std::pow(0.95, step))) + 1e-6) + 0.1 * p[i];
      weight += p[i] * p[i];
      update += r[i] * r[i];
    }
    for (size_t i = 0; i < p.size(); ++i) p[i] -= 0.01 * std::sqrt(weight / update) * r[i];
  }
  expect_close(params[0], Tensor::from(p, {3, 4}), 1e-13, "w");
  // A tensor of zeros moves all the same.
  Tensor zero = Tensor::zeros({3}).requires_grad_();
  zero.set_grad(Tensor::ones({3}));
  LAMB({zero}, {.lr = 0.5}).step();
  EXPECT_NEAR(zero.to_vector<float>()[0], -0.5, 1e-5);
}

TEST(Optimizer, StateIsMadeAtTheFirstGradient) {
  std::vector<Tensor> params = start(kF32);
  AdamW optimizer(params, {.amsgrad = true});
  EXPECT_EQ(optimizer.state_dict().size(), 9u);  // the group's
  train(optimizer, params, 0, 1);
  const nn::StateDict state = optimizer.state_dict();
  for (const char* name : {"state.0.exp_avg", "state.1.exp_avg_sq", "state.1.max_exp_avg_sq", "state.0.step",
                           "group.0.lr", "group.0.beta1", "group.0.weight_decay"})
    EXPECT_TRUE(state.contains(name)) << name;
  EXPECT_EQ(state.at("state.0.exp_avg").sizes(), (Dims{3, 4}));
  EXPECT_EQ(state.size(), 2 * 4 + 9u);
}

TEST(Optimizer, GroupsHaveTheirOwnOptions) {
  std::vector<Tensor> params = start();
  AdamW optimizer({{{params[0]}, {.lr = 0.01, .betas = {0.9, 0.95}, .weight_decay = 0.1}},
                   {{params[1]}, {.lr = 0.01, .betas = {0.9, 0.95}, .weight_decay = 0.1, .amsgrad = true}}});
  EXPECT_EQ(optimizer.n_groups(), 2);
  optimizer.set_lr(1, 0.5);
  EXPECT_EQ(optimizer.lr(0), 0.01);
  EXPECT_EQ(optimizer.lr(1), 0.5);
  optimizer.set_lr(0.01);
  train(optimizer, params, 0, 10);
  expect_close(params[0], reference().at("adamw.w"), 1e-10, "w");
  expect_close(params[1], reference().at("adamw_amsgrad.b"), 1e-10, "b");
  EXPECT_THROW(optimizer.lr(2), Error);
}

TEST(Optimizer, AParameterWithoutAGradientStandsStill) {
  std::vector<Tensor> params = start();
  AdamW optimizer(params, {.lr = 0.01, .betas = {0.9, 0.95}, .weight_decay = 0.1});
  const std::vector<double> before = params[0].to_vector<double>();
  set_grads(params, 0);
  params[0].zero_grad();
  optimizer.step();
  EXPECT_EQ(params[0].to_vector<double>(), before);
  EXPECT_FALSE(optimizer.state_dict().contains("state.0.step"));
  EXPECT_EQ(optimizer.state_dict().at("state.1.step").item(), 1);
  // Its first step is then a first step.
  std::vector<Tensor> others = start();
  AdamW fresh(others, {.lr = 0.01, .betas = {0.9, 0.95}, .weight_decay = 0.1});
  train(optimizer, params, 0, 1);
  train(fresh, others, 0, 1);
  EXPECT_EQ(params[0].to_vector<double>(), others[0].to_vector<double>());
}

TEST(Optimizer, BadGradientsAreRefusedBeforeAnythingChanges) {
  nn::Linear linear(3, 2);
  AdamW optimizer(linear.parameters());
  ops::sum(linear(Tensor::randn({4, 3}))).backward();
  EXPECT_NE(test::error_of([&] { linear.bias.set_grad(Tensor::zeros({2}, {kF64})); }).find("the gradient is f64"),
            std::string::npos);
  EXPECT_EQ(linear.bias.grad().dtype(), kF32);
  optimizer.step();
  linear.to(kF64);
  const std::vector<double> before = linear.weight.to_vector<double>();
  EXPECT_NE(test::error_of([&] { optimizer.step(); }).find("convert the model before"), std::string::npos);
  EXPECT_EQ(linear.weight.to_vector<double>(), before);
  EXPECT_EQ(optimizer.state_dict().at("state.0.step").item(), 1);
}

TEST(Optimizer, BadParametersAreRefused) {
  const Tensor x = Tensor::zeros({2, 3}).requires_grad_();
  EXPECT_NE(test::error_of([&] { SGD({x, x}); }).find("given twice"), std::string::npos);
  EXPECT_NE(test::error_of([&] { SGD({x * 2.0}); }).find("not a leaf"), std::string::npos);
  EXPECT_NE(test::error_of([&] { SGD({Tensor::zeros({2}, {kI64})}); }).find("not floating"), std::string::npos);
  EXPECT_NE(test::error_of([&] { SGD({x.detach().t()}); }).find("not contiguous"), std::string::npos);
  EXPECT_THROW(SGD({x}, {.nesterov = true}), Error);
  EXPECT_THROW(AdamW({x}, {.betas = {0.9, 1.0}}), Error);
}

TEST(Optimizer, AStateOfAnotherModelIsRefused) {
  std::vector<Tensor> params = start();
  AdamW optimizer(params), amsgrad(params, {.amsgrad = true});
  train(optimizer, params, 0, 1);
  train(amsgrad, params, 0, 1);
  EXPECT_THROW(optimizer.load_state_dict(amsgrad.state_dict()), nn::StateDictError);
  EXPECT_THROW(amsgrad.load_state_dict(optimizer.state_dict()), nn::StateDictError);
}

TEST(Optimizer, MissingParametersAndGradientsAreErrors) {
  EXPECT_NE(
      test::error_of([] { AdamW optimizer(std::vector<Tensor>{}); }).find("AdamW: there is no parameter to update"),
      std::string::npos);
  EXPECT_NE(test::error_of([] {
              SGD optimizer(std::vector<ParamGroup<SGDOptions>>{{}, {}});
            }).find("SGD: there is no"),
            std::string::npos);
  std::vector<Tensor> params = start();
  EXPECT_EQ(test::error_of([&] { AdamW optimizer(params, {.lr = -1}); }), "AdamW: lr must not be negative, got -1");
  EXPECT_EQ(test::error_of([&] { AdamW optimizer(params, {.weight_decay = std::nan("")}); }),
            "AdamW: weight_decay must not be negative, got nan");
  EXPECT_EQ(test::error_of([&] { SGD optimizer(params, {.lr = std::numeric_limits<double>::infinity()}); }),
            "SGD: lr must be finite, got inf");
  const SGD one_group_is_enough({ParamGroup<SGDOptions>{params}, ParamGroup<SGDOptions>{}});
  AdamW optimizer(params);
  EXPECT_NE(test::error_of([&] { optimizer.step(); }).find("AdamW: none of the 2 parameters has a gradient"),
            std::string::npos);
  optimizer.step({.allow_no_gradients = true});
  EXPECT_EQ(optimizer.state_dict().size(), 9u);
  for (Tensor& param : params) param.requires_grad_(false);
  EXPECT_NE(test::error_of([&] { optimizer.step(); }).find("none of the 2 parameters requires a gradient"),
            std::string::npos);
}

// Frozen parameters have no state. One that is unfrozen later starts as a fresh one, in compiled code that is there.
TEST(Optimizer, FrozenParametersHaveNoState) {
  for (const bool compiled : {false, true}) {
    for (const StateFormat format : {StateFormat::kFull, StateFormat::k8Bit}) {
      const auto make_params = [] {
        Generator generator(3);
        std::vector<Tensor> params;
        for (int i = 0; i < 3; ++i) params.push_back(Tensor::randn({70, 70}, {}, &generator).requires_grad_(i > 0));
        return params;
      };
      const auto set = [](std::vector<Tensor>& params, uint64_t step) {
        Generator generator(step);
        for (Tensor& p : params)
          if (p.requires_grad()) p.set_grad(Tensor::randn(p.sizes(), {}, &generator));
      };
      const auto make = [&](const std::vector<Tensor>& params) {
        auto optimizer = std::make_unique<AdamW>(params, AdamWOptions{.lr = 0.01, .state = format});
        optimizer->track_average({.decay = 0.5});
        if (compiled) compile(*optimizer);
        return optimizer;
      };
      std::vector<Tensor> params = make_params();
      const auto whole = make(params);
      for (uint64_t step = 0; step < 3; ++step) set(params, step), whole->step();
      EXPECT_FALSE(whole->state_dict().contains("state.0.step"));
      EXPECT_FALSE(whole->state_dict().contains("state.0.average"));
      EXPECT_EQ(whole->averages()[0].to_vector<float>(), params[0].to_vector<float>());
      nn::StateDict saved;
      for (const auto& [name, tensor] : whole->state_dict()) saved[name] = tensor.clone();
      // Saved with partial state; loaded into a fresh optimizer and into one that has more state.
      for (const bool used : {false, true}) {
        std::vector<Tensor> copies;
        for (const Tensor& p : params) copies.push_back(p.detach().clone().requires_grad_(used || p.requires_grad()));
        const auto resumed = make(copies);
        if (used) {
          set(copies, 77);
          resumed->step();
          no_grad([&] {
            for (size_t i = 0; i < 3; ++i) copies[i].copy_(params[i].detach());
          });
        }
        resumed->load_state_dict(saved);
        EXPECT_FALSE(resumed->state_dict().contains("state.0.step"));
        std::vector<Tensor> originals;
        for (const Tensor& p : params) originals.push_back(p.detach().clone().requires_grad_(p.requires_grad()));
        const auto reference = make(originals);
        reference->load_state_dict(saved);
        for (std::vector<Tensor>* list : {&copies, &originals}) (*list)[0].requires_grad_();
        for (uint64_t step = 3; step < 6; ++step) {
          set(copies, step), resumed->step();
          set(originals, step), reference->step();
        }
        EXPECT_EQ(resumed->state_dict().at("state.0.step").item(), 3);
        EXPECT_EQ(resumed->state_dict().at("state.1.step").item(), 6);
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_TRUE(test::same_bits(copies[i], originals[i])) << i;
          EXPECT_TRUE(test::same_bits(resumed->averages()[i], reference->averages()[i])) << i;
        }
      }
      // Unfrozen: no kernel is late, and its first step is a first step.
      params[0].requires_grad_();
      std::vector<Tensor> fresh = {params[0].detach().clone().requires_grad_()};
      const auto first = make(fresh);
      set(params, 9);
      fresh[0].set_grad(params[0].grad().clone());
      whole->step();
      first->step();
      EXPECT_TRUE(test::same_bits(params[0], fresh[0]));
      EXPECT_TRUE(test::same_bits(whole->averages()[0], first->averages()[0]));
      EXPECT_EQ(whole->kernels().late, 0);
    }
  }
}

// A plan with a state that exists during a step only: a step without updates has none to drop.
TEST(Optimizer, AStepWithoutGradientsAfterOneWithTransientStates) {
  std::vector<Tensor> params = {start(kF32)[0]};
  Adafactor optimizer(params);
  params[0].set_grad(Tensor::ones({3, 4}));
  optimizer.step();
  const std::vector<float> before = params[0].to_vector<float>();
  optimizer.zero_grad();
  optimizer.step({.allow_no_gradients = true});
  EXPECT_EQ(params[0].to_vector<float>(), before);
  EXPECT_EQ(optimizer.state_dict().at("state.0.step").item(), 1);
}

TEST(Optimizer, AStateOfAnotherNumberOfParametersIsRefused) {
  std::vector<Tensor> params = start();
  SGD two(params), one(std::vector<Tensor>{params[0]});
  EXPECT_NE(test::error_of<nn::StateDictError>([&] {
              two.load_state_dict(one.state_dict());
            }).find("group.0.params: 2 wanted, 1 given"),
            std::string::npos);
}

TEST(Optimizer, ClippingScalesASharedGradientOnce) {
  Tensor a = Tensor::ones({2}).requires_grad_(), b = Tensor::ones({2}).requires_grad_();
  const Tensor shared = Tensor::full({2}, 3.0);
  a.set_grad(shared);
  b.set_grad(shared);
  const Tensor params[] = {a, b};
  EXPECT_DOUBLE_EQ(clip_grad_norm_(params, 3.0).item(), 6.0);
  for (const Tensor& param : params)
    for (const float value : param.grad().to_vector<float>()) EXPECT_NEAR(value, 1.5, 1e-6);
}

// Files from before the count of a group's parameters was saved.
TEST(Optimizer, AStateWithoutTheNumberOfParametersLoads) {
  std::vector<Tensor> params = start();
  Adam from(params), into(params);
  nn::StateDict state = from.state_dict();
  EXPECT_EQ(state.erase("group.0.params"), 1u);
  state["group.0.lr"] = Tensor::scalar(0.25, kF64);
  into.load_state_dict(state);
  EXPECT_EQ(into.lr(), 0.25);
}

TEST(Optimizer, NumbersThatWouldWriteNaNAreRefused) {
  Tensor p = Tensor::ones({2}).requires_grad_();
  p.set_grad(Tensor::ones({2}));
  Adam adam({p});
  adam.step();
  const std::pair<const char*, Tensor> bad[] = {{"state.0.step", Tensor::scalar<int64_t>(-1)},
                                                {"group.0.lr", Tensor::scalar<double>(NAN)},
                                                {"group.0.eps", Tensor::scalar<double>(INFINITY)}};
  for (const auto& [key, value] : bad) {
    nn::StateDict state = adam.state_dict();
    ASSERT_TRUE(state.contains(key));
    state[key] = value;
    EXPECT_NE(test::error_of<nn::StateDictError>([&] { adam.load_state_dict(state); }).find(key), std::string::npos);
  }
  for (const double lr : {-1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)})
    EXPECT_NE(test::error_of<Error>([&] { adam.set_lr(lr); }).find("lr must be finite"), std::string::npos);
  EXPECT_EQ(adam.lr(), 1e-3);
}

TEST(Optimizer, AnExpandedGradientIsZeroedToo) {
  for (const bool bad : {false, true}) {
    Tensor p = Tensor::ones({3, 2}).requires_grad_();
    p.set_grad(Tensor::full({1}, bad ? INFINITY : 1.0).expand({3, 2}));
    SGD sgd({p}, {.lr = 0.5});
    EXPECT_EQ(sgd.step({.check_finite = true, .zero_grad = true}).skipped(), bad);
    EXPECT_EQ(p.to_vector<float>(), std::vector<float>(6, bad ? 1.0f : 0.5f));
    EXPECT_EQ(p.grad().to_vector<float>(), std::vector<float>(6, 0.0f));
  }
}

TEST(Optimizer, StepMakesSavedTensorsStale) {
  nn::Linear linear(3, 2);
  SGD optimizer(linear.parameters());
  const Tensor x = Tensor::randn({4, 3}).requires_grad_();
  const Tensor loss = ops::sum(linear(x));
  loss.backward({}, /*retain_graph=*/true);
  optimizer.step();
  EXPECT_THROW(loss.backward(), StaleTensorError);
}

TEST(Optimizer, StridedGradientsAndLowPrecision) {
  Tensor a = Tensor::ones({3, 2}).requires_grad_(), b = Tensor::ones({3, 2}, {kBF16}).requires_grad_();
  const Tensor grad = Tensor::arange(6).to(kF32).view({2, 3});
  a.set_grad(grad.t());
  b.set_grad(grad.t().to(kBF16));
  SGD optimizer({a, b}, {.lr = 0.5});
  optimizer.step();
  EXPECT_EQ(a.to_vector<float>(), (std::vector<float>{1, -0.5, 0.5, -1, 0, -1.5}));
  EXPECT_EQ(b.to_vector<float>(), a.to_vector<float>());
  AdamW adam({b});
  adam.step();
  EXPECT_EQ(adam.state_dict().at("state.0.exp_avg").dtype(), kF32);
}

// set_grad() keeps the tensor that it is given, so two parameters may have one.
TEST(Optimizer, OneGradientOfTwoParameters) {
  for (const bool zero_grad : {false, true}) {
    Tensor a = Tensor::ones({3}).requires_grad_(), b = Tensor::ones({3}).requires_grad_();
    const Tensor grad = Tensor::ones({3});
    a.set_grad(grad);
    b.set_grad(grad);
    SGD optimizer({a, b}, {.lr = 0.5});
    optimizer.step({.zero_grad = zero_grad});
    for (const Tensor& p : {a, b}) EXPECT_EQ(p.to_vector<float>(), std::vector<float>(3, 0.5f)) << zero_grad;
    EXPECT_EQ(grad.to_vector<float>(), std::vector<float>(3, zero_grad ? 0.0f : 1.0f));
  }
}

// One pass over many tensors of odd sizes gives the bits of one tensor at a time, whatever the number of threads.
// Gradients that share memory, or are expanded: as of sum(a + b).backward() under create_graph, and of set_grad().
TEST(Optimizer, GradientsOfCreateGraphAndExpandedOnes) {
  for (const bool zero_grad : {false, true}) {
    Tensor a = Tensor::ones({3}).requires_grad_(), b = Tensor::ones({3}).requires_grad_();
    Tensor c = Tensor::ones({3}).requires_grad_();
    SGD optimizer({a, b, c}, {.lr = 0.5});
    ops::sum(a + b).backward({}, false, true);
    const Tensor one = Tensor::ones({1});
    c.set_grad(one.expand({3}));
    optimizer.step({.zero_grad = zero_grad});
    for (const Tensor& p : {a, b, c}) {
      EXPECT_EQ(p.to_vector<float>(), std::vector<float>(3, 0.5f));
      EXPECT_EQ(p.grad().to_vector<float>(), std::vector<float>(3, zero_grad ? 0.0f : 1.0f));
    }
    EXPECT_EQ(one.to_vector<float>(), std::vector<float>{1});
  }
}

TEST(Optimizer, ThreadsAndNeighboursDoNotMatter) {
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    std::vector<Tensor> params;
    for (int64_t size : {1, 0, 70001, 3, 16385, 40000, 1})
      params.push_back((Tensor::arange(size).to(kF32) * 1e-3).detach().requires_grad_());
    for (Tensor& p : params) p.set_grad((p.detach() + 0.5).detach());
    std::vector<std::unique_ptr<AdamW>> single;
    if (threads == 1)
      for (const Tensor& p : params) single.push_back(std::make_unique<AdamW>(std::vector<Tensor>{p}));
    else single.push_back(std::make_unique<AdamW>(params));
    for (int step = 0; step < 3; ++step)
      for (auto& optimizer : single) optimizer->step();
    std::vector<float> all;
    for (const Tensor& p : params)
      for (float v : p.to_vector<float>()) all.push_back(v);
    results.push_back(std::move(all));
  }
  set_num_threads(2);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(ClipGradNorm, MatchesTheRecordedValues) {
  std::vector<Tensor> params = start();
  set_grads(params, 0);
  EXPECT_NEAR(clip_grad_norm_(params, 1.0).item(), reference().at("clip.norm").item(), 1e-12);
  expect_close(params[0].grad(), reference().at("clip.grad.w"), 1e-12, "w");
  expect_close(params[1].grad(), reference().at("clip.grad.b"), 1e-12, "b");
  const std::vector<double> small = params[0].grad().to_vector<double>();
  clip_grad_norm_(params, 100.0);
  EXPECT_EQ(params[0].grad().to_vector<double>(), small);
  EXPECT_EQ(clip_grad_norm_({}, 1.0).item(), 0.0);
}

TEST(ClipGradNorm, SameBitsForAnyNumberOfThreads) {
  std::vector<double> norms;
  for (int threads : {1, 2, 4}) {
    set_num_threads(threads);
    std::vector<Tensor> params = {Tensor::zeros({200003}).requires_grad_(), Tensor::zeros({17}).requires_grad_()};
    for (Tensor& p : params) p.set_grad(ops::rdiv(Tensor::arange(p.numel()).to(kF32) + 1.0, 1.0));
    norms.push_back(clip_grad_norm_(params, 1.0).item());
  }
  set_num_threads(2);
  EXPECT_EQ(norms[0], norms[1]);
  EXPECT_EQ(norms[0], norms[2]);
}

TEST(ClipGradNorm, NonFiniteGradients) {
  Tensor p = Tensor::zeros({2}).requires_grad_();
  p.set_grad(Tensor::from<float>({std::numeric_limits<float>::infinity(), 1}, {2}));
  EXPECT_THROW(clip_grad_norm_({&p, 1}, 1.0, {.error_if_nonfinite = true}), Error);
  EXPECT_EQ(p.grad().to_vector<float>()[1], 1);
  EXPECT_TRUE(std::isinf(clip_grad_norm_({&p, 1}, 1.0).item()));
  EXPECT_TRUE(std::isnan(p.grad().to_vector<float>()[0]));
}

// PyTorch's formula, written out: grad * min(max_norm / (norm + 1e-6), 1), where NaN stays NaN.
TEST(ClipGradNorm, OfANormThatIsNotFinite) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {kF32, kF64, kBF16, kF16})
    for (const std::vector<double>& values : std::vector<std::vector<double>>{
             {kInf, 1, 2}, {-kInf, 0, -2}, {kNaN, 1, 2}, {kInf, kNaN, 2}, {kInf, -kInf}, {1, 2}})
      for (const double max_norm : {1.0, 0.0, kInf}) {
        std::vector<Tensor> params;  // a parameter for each value: the factor is one for all
        double square = 0;
        for (const double value : values) {
          params.push_back(Tensor::zeros({1}, {dtype}).requires_grad_());
          params.back().set_grad(Tensor::full({1}, value, {dtype}));
          square += value * value;
        }
        const double norm = std::sqrt(square), coefficient = max_norm / (norm + 1e-6);
        const double factor = coefficient > 1 ? 1 : coefficient;
        const double found = clip_grad_norm_(params, max_norm).item();
        EXPECT_TRUE(found == norm || (std::isnan(found) && std::isnan(norm))) << found << " " << norm;
        for (size_t i = 0; i < values.size(); ++i) {
          const double got = params[i].grad().to(kF64).item(), want = values[i] * factor;
          EXPECT_TRUE(std::isnan(want) ? std::isnan(got) : std::abs(got - want) <= 1e-2 * std::abs(want))
              << name_of(dtype) << " " << values[i] << " to " << max_norm << ": " << got << ", not " << want;
        }
      }
}

// A step that clips is skipped instead, eager and compiled: sharded_optimizer_test.cc has it in several processes.
TEST(ClipGradNorm, AStepOfANormThatIsNotFiniteIsSkipped) {
  for (const bool compiled : {false, true}) {
    if (compiled && !compile::jit_available()) continue;
    for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      Tensor p = Tensor::ones({3}).requires_grad_();
      SGD optimizer({p}, {.lr = 1, .momentum = 0.9});
      if (compiled) compile(optimizer);
      p.set_grad(Tensor::from<float>({static_cast<float>(bad), 1, 2}, {3}));
      EXPECT_TRUE(optimizer.step({.max_norm = 1}).skipped());
      EXPECT_EQ(p.to_vector<float>(), std::vector<float>(3, 1));
      EXPECT_EQ(optimizer.state_dict().at("state.0.momentum_buffer").to_vector<float>(), std::vector<float>(3, 0));
    }
  }
}

TEST(Schedule, MatchesTheRecordedValues) {
  const std::map<std::string, std::function<double(int64_t)>> schedules = {
      {"constant", Constant{1e-3}},
      {"linear_warmup", Linear{.lr = 1e-3, .start_factor = 0.1, .steps = 5}},
      {"cosine", Cosine{.lr = 1e-3, .min_lr = 1e-4, .steps = 19}},
      {"cosine_warmup", CosineWithWarmup{.lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 5, .decay_steps = 18}},
      {"onecycle", OneCycle{.max_lr = 1e-2, .total_steps = 20}},
      {"onecycle_linear", OneCycle{.max_lr = 1e-2, .total_steps = 20, .anneal = OneCycle::kLinear}},
      {"onecycle_three_phase", OneCycle{.max_lr = 1e-2,
                                        .total_steps = 20,
                                        .pct_start = 0.25,
                                        .div_factor = 10,
                                        .final_div_factor = 100,
                                        .three_phase = true}},
  };
  int recorded = 0;
  for (const auto& [name, values] : reference()) recorded += name.starts_with("lr.");
  EXPECT_EQ(recorded, static_cast<int>(schedules.size()));
  for (const auto& [name, schedule] : schedules) {
    const std::vector<double> want = reference().at("lr." + name).to_vector<double>();
    for (size_t step = 0; step < want.size(); ++step)
      EXPECT_NEAR(schedule(static_cast<int64_t>(step)), want[step], 1e-15) << name << " at " << step;
  }
}

}  // namespace
}  // namespace rondo::optim
