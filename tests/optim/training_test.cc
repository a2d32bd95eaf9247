// Steps as training makes them: schedules, clipping, loss scales, averages, gradients that are missing or not finite.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "rondo/compile/compile.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/optim/adafactor.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/clip.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/foreach_map.h"
#include "rondo/optim/muon.h"
#include "rondo/optim/schedule.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/lowered.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/errors.h"

namespace rondo::optim {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Net : nn::Module<Net> {
  nn::Linear first = child("first", 12, 400);
  nn::Linear second = child("second", 400, 5);
  Tensor forward(const Tensor& x) { return second(ops::gelu(first(x))); }
};

// How the work of one step is done.
enum class How { kApart, kJoined, kCompiled };

struct Result {
  std::vector<std::vector<float>> params, averages;
  std::vector<double> norms;
  int64_t skipped = 0;
  KernelReport kernels;
};

// 200 steps: warm-up and cosine, two groups, 4 micro-batches a step, a loss scale, clipping, an average; the gradient
// of step 50 overflows.
Result train(How how, StateFormat format) {
  constexpr double kScale = 8;
  manual_seed(5);
  // The number of threads changes no bit.
  set_num_threads(how == How::kCompiled && format == StateFormat::kFull ? 2 : 1);
  Net net;
  compile::Regions regions({});
  if (how == How::kCompiled) regions = compile::compile_module(net, {.exact = true});
  std::vector<Tensor> matrices, vectors;
  for (const Tensor& p : net.parameters()) (p.rank() > 1 ? matrices : vectors).push_back(p);
  AdamW optimizer({{matrices, {.betas = {0.9, 0.95}, .weight_decay = 0.1, .state = format}},
                   {vectors, {.betas = {0.9, 0.95}, .weight_decay = 0.0, .state = format}}});
  const std::vector<Tensor> params = net.parameters();
  std::vector<Tensor> averages;  // by hand, in the optimizer's order
  std::vector<Tensor> ordered = matrices;
  ordered.insert(ordered.end(), vectors.begin(), vectors.end());
  for (const Tensor& p : ordered) averages.push_back(p.detach().clone());
  if (how != How::kApart) optimizer.track_average({.decay = 0.99});
  if (how == How::kCompiled) compile(optimizer);

  Result result;
  Generator data(11);
  const CosineWithWarmup schedule{.lr = 1e-2, .min_lr = 1e-3, .warmup_steps = 20, .decay_steps = 180};
  int compilations = 0;
  for (int64_t step = 0; step < 200; ++step) {
    optimizer.set_lr(schedule(step));
    if (how == How::kApart) optimizer.zero_grad();
    for (int micro = 0; micro < 4; ++micro) {
      const Tensor x = Tensor::randn({6, 12}, {}, &data), y = Tensor::randn({6, 5}, {}, &data);
      const Tensor error = net(x) - y;
      (ops::mean(error * error) * (kScale / 4)).backward();
    }
    if (step == 50) {
      Tensor grad = params[1].grad();
      grad.flatten()[3].fill_(kInf);
    }
    if (how == How::kApart) {
      foreach_map([](auto& g, auto factor) { g = g * factor; },
                  std::vector<Tensor>{params[0].grad(), params[1].grad(), params[2].grad(), params[3].grad()},
                  1 / kScale);
      const double norm = clip_grad_norm_(ordered, 0.5).item();
      result.norms.push_back(norm);
      if (!std::isfinite(norm)) {
        ++result.skipped;
        continue;
      }
      optimizer.step();
      foreach_map([](auto& average, auto p, auto weight) { average = scalar::fma(weight, p - average, average); },
                  averages, ordered, 1 - 0.99);
    } else {
      const StepReport report = optimizer.step({.grad_scale = kScale, .max_norm = 0.5, .zero_grad = true});
      EXPECT_EQ(report.skipped(), step == 50);
      result.norms.push_back(report.grad_norm());
    }
    if (how != How::kCompiled) continue;
    if (step == 0) compilations = regions.report()[0].compilations;
    EXPECT_EQ(regions.report()[0].compilations, compilations);
    EXPECT_EQ(optimizer.kernels().late, 0);
  }
  if (how != How::kApart) {
    averages = optimizer.averages();
    result.skipped = optimizer.skipped_steps();
  }
  result.kernels = optimizer.kernels();
  for (const Tensor& p : ordered) result.params.push_back(p.to_vector<float>());
  for (const Tensor& a : averages) result.averages.push_back(a.to_vector<float>());
  set_num_threads(2);
  return result;
}

TEST(Training, TwoHundredStepsAreTheSameApartJoinedAndCompiled) {
  const Result apart = train(How::kApart, StateFormat::kFull), joined = train(How::kJoined, StateFormat::kFull),
               compiled = train(How::kCompiled, StateFormat::kFull);
  for (const Result* other : {&joined, &compiled}) {
    EXPECT_EQ(apart.params, other->params);
    EXPECT_EQ(apart.averages, other->averages);
    EXPECT_EQ(other->skipped, 1);
    for (size_t step = 0; step < 200; ++step)
      EXPECT_TRUE(step == 50 || apart.norms[step] == other->norms[step]) << step;
  }
  EXPECT_FALSE(joined.kernels.compiled);
  EXPECT_EQ(compiled.kernels.kernels, 1);  // one signature for both groups
  EXPECT_EQ(compiled.kernels.late, 0);
}

TEST(Training, ShortStatesTrainAlike) {
  const Result full = train(How::kJoined, StateFormat::kFull);
  for (StateFormat format : {StateFormat::kBF16, StateFormat::k8Bit}) {
    const Result eager = train(How::kJoined, format), compiled = train(How::kCompiled, format);
    EXPECT_EQ(eager.params, compiled.params);
    EXPECT_EQ(eager.averages, compiled.averages);
    EXPECT_EQ(compiled.kernels.late, 0);
    double difference = 0, size = 0;
    for (size_t i = 0; i < full.params.size(); ++i)
      for (size_t k = 0; k < full.params[i].size(); ++k) {
        difference += std::pow(full.params[i][k] - eager.params[i][k], 2);
        size += std::pow(full.params[i][k], 2);
      }
    EXPECT_LT(std::sqrt(difference / size), 0.15) << static_cast<int>(format);
  }
}

// Whatever is not finite, wherever it stands: nothing changes but the count.
TEST(Training, ANonFiniteGradientSkipsTheStep) {
  for (bool compiled : {false, true}) {
    for (float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
      Tensor a = Tensor::ones({3000}).requires_grad_(), b = Tensor::ones({5}, {kBF16}).requires_grad_();
      AdamW optimizer({a, b}, {.lr = 0.1});
      optimizer.track_average();
      if (compiled) compile(optimizer);
      const auto set = [&](float value) {
        a.set_grad(Tensor::ones({3000}));
        a.grad().detach()[2999].fill_(value);
        b.set_grad(Tensor::ones({5}, {kBF16}));
      };
      set(1);
      EXPECT_FALSE(optimizer.step({.check_finite = true}).skipped());
      nn::StateDict before;
      for (const auto& [name, tensor] : optimizer.state_dict()) before[name] = tensor.clone();
      const std::vector<float> param = a.to_vector<float>();
      for (const StepOptions& options :
           {StepOptions{.check_finite = true}, StepOptions{.max_norm = 1}, StepOptions{.grad_scale = 4},
            StepOptions{.check_finite = true, .zero_grad = true}}) {
        set(bad);
        const StepReport report = optimizer.step(options);
        EXPECT_TRUE(report.skipped());
        EXPECT_FALSE(std::isfinite(report.grad_norm()));
        EXPECT_EQ(a.grad().to_vector<float>()[0], options.zero_grad ? 0.0f : 1.0f);
      }
      EXPECT_EQ(optimizer.skipped_steps(), 4);
      EXPECT_EQ(a.to_vector<float>(), param);
      for (const auto& [name, tensor] : optimizer.state_dict())
        EXPECT_EQ(tensor.to_vector<double>(), before.at(name).to_vector<double>()) << name;
      // An f32 whose square overflows f32 is finite all the same.
      set(1e30f);
      EXPECT_FALSE(optimizer.step({.check_finite = true}).skipped());
      EXPECT_EQ(optimizer.skipped_steps(), 4);
    }
  }
}

TEST(Training, EdgesAreDefined) {
  for (bool compiled : {false, true}) {
    // No parameter with a gradient, or empty ones.
    Tensor idle = Tensor::ones({3}).requires_grad_(), empty = Tensor::zeros({0, 4}).requires_grad_();
    Adafactor without({idle, empty});
    if (compiled) compile(without);
    EXPECT_EQ(without.step({.max_norm = 1, .allow_no_gradients = true}).grad_norm(), 0);
    EXPECT_TRUE(std::isnan(without.step({.allow_no_gradients = true}).grad_norm()));
    empty.set_grad(Tensor::zeros({0, 4}));
    without.step({.zero_grad = true});
    EXPECT_FALSE(without.state_dict().contains("state.0.step"));
    EXPECT_EQ(without.state_dict().at("state.1.step").item(), 1);
    EXPECT_EQ(idle.to_vector<float>(), std::vector<float>(3, 1.0f));
    // lr 0 moves the states only.
    Tensor p = Tensor::ones({3}).requires_grad_();
    AdamW adamw({p}, {.lr = 0, .weight_decay = 0.1});
    if (compiled) compile(adamw);
    p.set_grad(Tensor::ones({3}));
    adamw.step();
    EXPECT_EQ(p.to_vector<float>(), std::vector<float>(3, 1.0f));
    EXPECT_GT(adamw.state_dict().at("state.0.exp_avg").to_vector<float>()[0], 0.05f);
    // max_norm 0 stops the gradient, not the decay.
    SGD sgd({p}, {.lr = 1, .weight_decay = 0.5});
    if (compiled) compile(sgd);
    EXPECT_NEAR(sgd.step({.max_norm = 0}).grad_norm(), std::sqrt(3.0), 1e-12);
    EXPECT_EQ(p.to_vector<float>(), std::vector<float>(3, 0.5f));
  }
  Tensor p = Tensor::ones({3}).requires_grad_();
  SGD sgd({p});
  EXPECT_THROW(sgd.step({.grad_scale = 0}), Error);
  EXPECT_THROW(sgd.step({.grad_scale = kInf}), Error);
  EXPECT_THROW(sgd.step({.max_norm = -1}), Error);
  EXPECT_THROW(sgd.track_average({.decay = 2}), Error);
  EXPECT_THROW(sgd.keep_copies(kF32), Error);
  EXPECT_NE(test::error_of([&] {
              AdamW({Tensor::ones({3}, {kF64}).requires_grad_()}, {.state = StateFormat::k8Bit});
            }).find("is f64"),
            std::string::npos);
}

TEST(Training, StridedGradientsAreZeroedToo) {
  for (bool compiled : {false, true}) {
    Tensor p = Tensor::ones({3, 2}).requires_grad_();
    const Tensor base = Tensor::ones({2, 3});
    p.set_grad(base.t());
    SGD sgd({p}, {.lr = 0.5});
    if (compiled) compile(sgd);
    sgd.step({.zero_grad = true});
    EXPECT_EQ(p.to_vector<float>(), std::vector<float>(6, 0.5f));
    EXPECT_EQ(p.grad().to_vector<float>(), std::vector<float>(6, 0.0f));
  }
}

// Saved after three steps, loaded into a new optimizer: the next three steps are the same, to the bit.
TEST(Training, StateDictsOfEveryFormatGoOnBitExactly) {
  for (StateFormat format : {StateFormat::kFull, StateFormat::kBF16, StateFormat::k8Bit}) {
    for (bool compiled : {false, true}) {
      const auto step = [](Optimizer& optimizer, std::vector<Tensor>& params, uint64_t first, uint64_t last) {
        for (uint64_t s = first; s < last; ++s) {
          Generator generator(s);
          for (Tensor& p : params) p.set_grad(Tensor::randn(p.sizes(), {}, &generator));
          optimizer.step();
        }
      };
      Generator generator(1);
      std::vector<Tensor> params = {Tensor::randn({70, 130}, {}, &generator).requires_grad_(),
                                    Tensor::randn({9}, {}, &generator).requires_grad_()};
      const auto make = [&](const std::vector<Tensor>& over) {
        auto optimizer = std::make_unique<Adam>(over, AdamOptions{.lr = 0.01, .amsgrad = true, .state = format});
        optimizer->track_average();
        if (compiled) compile(*optimizer);
        return optimizer;
      };
      const auto whole = make(params);
      step(*whole, params, 0, 3);
      nn::StateDict saved;
      for (const auto& [name, tensor] : whole->state_dict()) saved[name] = tensor.clone();
      EXPECT_EQ(saved.contains("state.0.exp_avg.scale"), format == StateFormat::k8Bit);
      EXPECT_FALSE(saved.contains("state.1.exp_avg.scale"));  // small ones stay whole
      std::vector<Tensor> copies;
      for (const Tensor& p : params) copies.push_back(p.detach().clone().requires_grad_());
      step(*whole, params, 3, 6);
      const auto resumed = make(copies);
      resumed->load_state_dict(saved);
      step(*resumed, copies, 3, 6);
      for (size_t i = 0; i < params.size(); ++i) EXPECT_EQ(params[i].to_vector<float>(), copies[i].to_vector<float>());
      for (const auto& [name, tensor] : whole->state_dict())
        EXPECT_EQ(tensor.to_vector<double>(), resumed->state_dict().at(name).to_vector<double>()) << name;
    }
  }
  // A state of another format is refused.
  Tensor p = Tensor::ones({4096}).requires_grad_();
  AdamW full({p}), coded({p}, {.state = StateFormat::k8Bit});
  p.set_grad(Tensor::ones({4096}));
  full.step();
  coded.step();
  EXPECT_THROW(full.load_state_dict(coded.state_dict()), nn::StateDictError);
  EXPECT_THROW(coded.load_state_dict(full.state_dict()), nn::StateDictError);
}

TEST(Training, CopiesAreTheRoundedParameters) {
  for (bool compiled : {false, true}) {
    Tensor p = Tensor::full({100}, 1.001).requires_grad_();
    SGD sgd({p}, {.lr = 0.1});
    sgd.keep_copies(kBF16);
    if (compiled) compile(sgd);
    p.set_grad(Tensor::ones({100}));
    sgd.step();
    EXPECT_EQ(sgd.copies()[0].to_vector<float>(), p.to(kBF16).to_vector<float>());
  }
}

// A tape may read what a step writes: the user's own forward, or autocast, which takes the copies that are kept.
TEST(Training, ATapeSeesThatAStepWroteWhatItReads) {
  for (const bool autocast : {false, true}) {
    Tensor p = Tensor::full({3, 4}, 0.5).requires_grad_(), x = Tensor::ones({2, 4}).requires_grad_();
    SGD sgd({p}, {.lr = 0.1});
    sgd.keep_copies(kBF16);
    sgd.track_average();
    const auto step = [&] {
      p.set_grad(Tensor::ones({3, 4}));
      sgd.step();
    };
    step();
    const amp::Autocast lower(autocast ? std::optional(kBF16) : std::nullopt);
    const Tensor y = autocast ? ops::linear(x, p, Tensor()) : ops::linear(x.to(kBF16), sgd.copies()[0], Tensor());
    const Tensor z = ops::sum(x * sgd.averages()[0].slice(0, {0, 2}));
    step();
    EXPECT_THROW(ops::sum(y.to(kF32)).backward(), StaleTensorError) << autocast;
    EXPECT_THROW(z.backward(), StaleTensorError);
  }
}

// Copies and averages follow the parameters, also when something else than the optimizer writes these.
TEST(Training, LoadedParametersReachCopiesAndAverages) {
  for (bool compiled : {false, true}) {
    nn::Linear model(4, 3), other(4, 3);
    SGD optimizer(model.parameters(), {.lr = 0.5, .momentum = 0.9});
    for (Tensor p : model.parameters()) p.set_grad(Tensor::ones(p.sizes()));
    optimizer.step();  // averages may begin later
    optimizer.track_average({.decay = 0.5});
    optimizer.keep_copies(kBF16);
    if (compiled) compile(optimizer);
    const std::vector<Tensor> held = optimizer.copies();
    const auto expect_followed = [&] {
      const std::vector<Tensor> copies = optimizer.copies();
      for (size_t i = 0; i < copies.size(); ++i) {
        EXPECT_EQ(copies[i].to_vector<float>(), model.parameters()[i].to(kBF16).to_vector<float>()) << i;
        EXPECT_TRUE(copies[i].is_same(held[i])) << i;
      }
    };
    // A model loaded before the first step: the average starts there, and the first step moves it from there.
    model.load_state_dict(other.state_dict());
    expect_followed();
    EXPECT_EQ(optimizer.averages()[0].to_vector<float>(), other.weight.to_vector<float>());
    no_grad([&] { model.weight.mul_(3.0); });
    const std::vector<float> start = model.weight.to_vector<float>();
    for (Tensor p : model.parameters()) p.set_grad(Tensor::ones(p.sizes()));
    optimizer.step();
    expect_followed();
    const std::vector<float> moved = model.weight.to_vector<float>(),
                             average = optimizer.averages()[0].to_vector<float>();
    for (size_t i = 0; i < start.size(); ++i) EXPECT_NEAR(average[i], (start[i] + moved[i]) / 2, 1e-6) << i;
    // A checkpoint: averages come from the state, copies from the parameters, in either order of loading.
    nn::StateDict state, parameters;
    for (const auto& [name, tensor] : optimizer.state_dict()) state[name] = tensor.clone();
    for (const auto& [name, tensor] : model.state_dict()) parameters[name] = tensor.clone();
    for (bool model_first : {false, true}) {
      optimizer.step();
      if (model_first) model.load_state_dict(parameters);
      optimizer.load_state_dict(state);
      if (!model_first) model.load_state_dict(parameters);
      expect_followed();
      EXPECT_EQ(optimizer.averages()[0].to_vector<float>(), average);
    }
    // Also in an optimizer that has made no step, whose model is loaded last.
    nn::Linear third(4, 3);
    SGD resumed(third.parameters(), {.lr = 0.5, .momentum = 0.9});
    resumed.track_average({.decay = 0.5});
    if (compiled) compile(resumed);
    resumed.load_state_dict(state);
    third.load_state_dict(parameters);
    EXPECT_EQ(resumed.averages()[0].to_vector<float>(), average);
    for (Tensor p : third.parameters()) p.set_grad(Tensor::ones(p.sizes()));
    resumed.step();
    optimizer.step();
    EXPECT_EQ(resumed.averages()[0].to_vector<float>(), optimizer.averages()[0].to_vector<float>());
    // A parameter that stands still has a copy all the same.
    model.zero_grad();
    no_grad([&] { model.bias.fill_(7); });
    optimizer.step({.allow_no_gradients = true});
    expect_followed();
  }
}

// An embedding's gradient is dense: zeros outside of the rows in use.
TEST(Training, RowsOfAnEmbedding) {
  for (bool compiled : {false, true}) {
    nn::Embedding embedding(6, 4), twin(6, 4);
    twin.load_state_dict(embedding.state_dict());
    SGD sgd(embedding.parameters(), {.lr = 0.5});
    AdamW adamw(twin.parameters(), {.lr = 0.5, .weight_decay = 0});
    if (compiled) compile(sgd), compile(adamw);
    const std::vector<float> before = embedding.weight.to_vector<float>();
    const auto backward = [](nn::Embedding& e, std::vector<int64_t> ids) {
      e.zero_grad();
      const auto n = static_cast<int64_t>(ids.size());
      ops::sum(e(Tensor::from(ids, {n}))).backward();
    };
    backward(embedding, {1, 3, 3});
    sgd.step({.max_norm = 1e9});
    const std::vector<float> after = embedding.weight.to_vector<float>();
    const float uses[] = {0, 1, 0, 2, 0, 0};
    for (size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i], before[i] - 0.5f * uses[i / 4]) << i;
    // A row that was used once goes on by its momentum; one that never was stays.
    backward(twin, {1});
    adamw.step();
    backward(twin, {2});
    adamw.step();
    const std::vector<float> moved = twin.weight.to_vector<float>();
    for (size_t i = 0; i < moved.size(); ++i) {
      if (i / 4 == 1) EXPECT_LT(moved[i], before[i] - 0.5f - 0.1f) << i;
      else if (i / 4 == 2) EXPECT_LT(moved[i], before[i]) << i;
      else EXPECT_EQ(moved[i], before[i]) << i;
    }
    EXPECT_EQ(adamw.state_dict().at("state.0.step").item(), 2);
  }
}

TEST(ForeachMap, EagerAndCompiledAgree) {
  const auto update = [](auto& slow, auto& fast, auto alpha) {
    slow = scalar::fma(alpha, fast - slow, slow);
    fast = scalar::tanh(slow);
  };
  auto compiled = compile_map(update);
  for (DType dtype : {kF32, kBF16, kF64}) {
    std::vector<Tensor> a[2], b[2];
    for (int how = 0; how < 2; ++how) {
      Generator generator(2);
      for (int64_t n : {5, 0, 3000, 40000}) {
        a[how].push_back(Tensor::randn({n}, {}, &generator).to(dtype));
        b[how].push_back(Tensor::randn({n}, {}, &generator));
      }
    }
    for (double alpha : {0.5, 0.25}) {
      foreach_map(update, a[0], b[0], alpha);
      compiled(a[1], b[1], alpha);
    }
    for (size_t i = 0; i < a[0].size(); ++i) {
      EXPECT_EQ(a[0][i].to_vector<double>(), a[1][i].to_vector<double>());
      EXPECT_EQ(b[0][i].to_vector<double>(), b[1][i].to_vector<double>());
    }
  }
  EXPECT_EQ(compiled.kernels(), 3);
}

TEST(ForeachMap, NumbersAndListsComeInAnyOrderAndOnlyAssignedListsChange) {
  const std::vector<Tensor> x = {Tensor::ones({3}), Tensor::ones({2})},
                            y = {Tensor::full({3}, 2.0), Tensor::full({2}, 3.0)};
  const uint32_t version = x[0].version();
  foreach_map(
      [](auto factor, auto from, auto& to, auto offset) {
        from = from * factor;
        to = to + from + offset;
      },
      10, x, y, 0.5f);
  EXPECT_EQ(y[0].to_vector<float>(), std::vector<float>(3, 12.5f));
  EXPECT_EQ(y[1].to_vector<float>(), std::vector<float>(2, 13.5f));
  EXPECT_EQ(x[0].to_vector<float>(), std::vector<float>(3, 1.0f));
  EXPECT_EQ(x[0].version(), version);
  EXPECT_NE(y[0].version(), 0u);
}

TEST(ForeachMap, MistakesAreNamed) {
  const auto add = [](auto& a, auto b) { a = a + b; };
  const std::vector<Tensor> one = {Tensor::ones({2, 3})}, two = {Tensor::ones({3}), Tensor::ones({3})},
                            other = {Tensor::ones({3})}, integers = {Tensor::zeros({2, 3}, {kI64})},
                            strided = {Tensor::ones({3, 2}).t()};
  const auto error = [&](const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
    return test::error_of([&] { foreach_map(add, a, b); });
  };
  EXPECT_NE(error(one, two).find("list 0 has 1 tensors, list 1 2"), std::string::npos);
  EXPECT_NE(error(one, other).find("tensor 0 of list 1 is [3], that of list 0 [2, 3]"), std::string::npos);
  EXPECT_NE(error(one, integers).find("is i64, not floating point"), std::string::npos);
  EXPECT_NE(error(strided, one).find("is written, and not contiguous"), std::string::npos);
  EXPECT_EQ(error(one, strided), "");
  EXPECT_EQ(one[0].to_vector<float>(), std::vector<float>(6, 2.0f));
}

// The weights that autocast multiplies with are written by the pass that updates the parameters.
TEST(Training, AStepWritesTheCopiesThatAutocastUses) {
  for (const bool compiled : {false, true}) {
    SCOPED_TRACE(compiled ? "compiled" : "eager");
    manual_seed(3);
    Net net;
    AdamW optimizer(net.parameters(), {.lr = 1e-2});
    if (compiled) compile(optimizer);
    std::vector<const void*> memory;
    for (int step = 0; step < 4; ++step) {
      {
        const amp::Autocast lower(kBF16);
        ops::mean(ops::square(net(Tensor::randn({6, 12})))).backward();
      }
      for (const Tensor& p : net.parameters()) EXPECT_EQ(amp::copy_in_use(p), kBF16);
      optimizer.step({.zero_grad = true});
      for (const Tensor& p : net.parameters()) {
        EXPECT_EQ(amp::copy_in_use(p), std::nullopt);
        const Tensor copy = amp::lowered(p, kBF16);
        EXPECT_EQ(copy.to_vector<float>(), ops::cast(p.detach(), kBF16).to_vector<float>());
        if (step == 0) memory.push_back(copy.address());
      }
      for (size_t i = 0; i < memory.size(); ++i)
        EXPECT_EQ(amp::lowered(net.parameters()[i], kBF16).address(), memory[i]);
      EXPECT_EQ(optimizer.kernels().late, 0);
    }
    // A copy that is no longer used is not updated, and does not come back with old values.
    optimizer.zero_grad();
    ops::mean(ops::square(net(Tensor::randn({6, 12})))).backward();
    optimizer.step();
    ops::mean(ops::square(net(Tensor::randn({6, 12})))).backward();
    optimizer.step();
    for (const Tensor& p : net.parameters())
      EXPECT_EQ(amp::lowered(p, kBF16).to_vector<float>(), ops::cast(p.detach(), kBF16).to_vector<float>());
  }
}

}  // namespace
}  // namespace rondo::optim
