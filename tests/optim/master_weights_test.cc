// bf16 and f16 parameters are updated through f32 weights: what a step adds is not lost.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <string>

#include "rondo/compile/jit/executable.h"
#include "rondo/compile/log.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/optim/average_scope.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/grad_scaler.h"
#include "rondo/optim/optimizers.h"
#include "rondo/rondo_c.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/optim/make_optimizer.h"
#include "rondo/tests/paths.h"

namespace rondo::optim {
namespace {

using test::same_bits;

const std::map<std::string, Make>& all_optimizers() {
  static const std::map<std::string, Make> all = {
      {"sgd", make<SGD>(SGDOptions{.lr = 6e-4, .momentum = 0.5, .nesterov = true})},
      {"adam", make<Adam>(AdamOptions{.lr = 6e-4, .amsgrad = true})},
      {"adamw", make<AdamW>(AdamWOptions{.lr = 6e-4, .weight_decay = 0.1})},
      {"rmsprop", make<RMSprop>(RMSpropOptions{.lr = 6e-4, .momentum = 0.1, .centered = true})},
      {"adagrad", make<Adagrad>(AdagradOptions{.lr = 6e-4})},
      {"adafactor", make<Adafactor>(AdafactorOptions{.lr = 6e-4})},
      {"lamb", make<LAMB>(LAMBOptions{.lr = 6e-4})},
      {"lion", make<Lion>(LionOptions{.lr = 6e-4})},
      {"muon", make<Muon>(MuonOptions{.lr = 6e-4})},
  };
  return all;
}

// A gradient that 16 bits hold: so its f32 twin has the same values.
Tensor gradient(const Tensor& param, Generator& generator) {
  return (Tensor::randn(param.sizes(), {kF32, param.device()}, &generator) + 1.0).to(param.dtype());
}

Tensor master_of(const Optimizer& optimizer, size_t i) {
  const nn::StateDict state = optimizer.state_dict();
  const auto found = state.find("state." + std::to_string(i) + ".master");
  return found == state.end() ? Tensor() : found->second;
}

class MasterWeights : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
  std::unique_ptr<Optimizer> made(const Make& make, const std::vector<Tensor>& params,
                                  StateFormat format = StateFormat::kFull) const {
    auto optimizer = make(params, format);
    if (GetParam()) compile(*optimizer);
    return optimizer;
  }
};

// Nine optimizers, beside the same one on f32 parameters: its bits, rounded.
TEST_P(MasterWeights, AreTheParametersOfAnF32RunBitForBit) {
  for (const auto& [name, make] : all_optimizers())
    for (const DType dtype : {kBF16, kF16})
      for (const StateFormat format : {StateFormat::kFull, StateFormat::kBF16, StateFormat::k8Bit}) {
        if (dtype == kF16 && format != StateFormat::kFull) continue;
        SCOPED_TRACE(name + " " + std::string(name_of(dtype)) + " " + std::to_string(static_cast<int>(format)));
        Generator generator(3);
        std::vector<Tensor> half, full;
        for (const Dims& sizes : {Dims{64, 70}, Dims{3, 5}}) {
          half.push_back(Tensor::ones(sizes, {dtype}).requires_grad_());
          full.push_back(Tensor::ones(sizes).requires_grad_());
        }
        const auto optimizer = made(make, half, format), twin = made(make, full, format);
        for (Optimizer* o : {optimizer.get(), twin.get()}) o->track_average({.decay = 0.9});
        optimizer->keep_copies(kF16);
        for (int step = 0; step < 12; ++step) {
          for (size_t i = 0; i < half.size(); ++i) {
            half[i].set_grad(gradient(half[i], generator));
            full[i].set_grad(half[i].grad().to(kF32));
          }
          // Clipped, unscaled, skipped, and with zeroed gradients.
          if (step == 7) half[0].grad().detach()[2].fill_(std::numeric_limits<double>::infinity());
          if (step == 7) full[0].grad().detach()[2].fill_(std::numeric_limits<double>::infinity());
          const StepOptions options{.grad_scale = step == 5 ? 4.0 : 1.0,
                                    .max_norm = step % 2 == 1 ? 3.0 : std::numeric_limits<double>::infinity(),
                                    .zero_grad = step % 3 == 0};
          EXPECT_EQ(optimizer->step(options).skipped(), step == 7);
          twin->step(options);
        }
        for (size_t i = 0; i < half.size(); ++i) {
          EXPECT_TRUE(same_bits(master_of(*optimizer, i), full[i].detach())) << i;
          EXPECT_TRUE(same_bits(half[i].detach(), full[i].detach().to(dtype))) << i;
          EXPECT_TRUE(same_bits(optimizer->averages()[i], twin->averages()[i])) << i;
          EXPECT_TRUE(same_bits(optimizer->copies()[i], full[i].detach().to(kF16))) << i;
          EXPECT_FALSE(same_bits(full[i].detach(), Tensor::ones(full[i].sizes()))) << "the test moves nothing";
        }
      }
}

// The smallest example: 100 steps of 6e-4 from 1.
TEST_P(MasterWeights, AHundredSmallStepsAreNotLost) {
  for (const auto& [name, make] : all_optimizers()) {
    if (name != "sgd" && name != "adamw" && name != "lion") continue;
    Tensor p = Tensor::ones({8}, {kBF16}).requires_grad_();
    const auto optimizer = made(make, {p});
    for (int step = 0; step < 100; ++step) {
      p.set_grad(Tensor::ones({8}, {kBF16}));
      optimizer->step();
    }
    EXPECT_LT(p.to_vector<float>()[3], 0.95f) << name;
  }
}

// A step is one pass over all parameters: parameters are rounded in the pass that moves the weights.
TEST_P(MasterWeights, AddNoPass) {
  for (const DType dtype : {kF32, kBF16}) {
    std::vector<Tensor> params;
    for (int i = 0; i < 20; ++i) params.push_back(Tensor::ones({5 + i}, {dtype}).requires_grad_());
    AdamW optimizer(params);
    if (GetParam()) compile(optimizer);
    for (int step = 0; step < 2; ++step) {
      for (Tensor& p : params) p.set_grad(Tensor::ones(p.sizes(), {dtype}));
      optimizer.step({.max_norm = 1});
    }
    if (GetParam()) {
      EXPECT_EQ(optimizer.kernels().kernels, 1);
    }
    EXPECT_EQ(optimizer.kernels().late, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(EagerAndCompiled, MasterWeights, testing::Bool(),
                         [](const auto& info) { return info.param ? "compiled" : "eager"; });

struct Training {
  explicit Training(AdamWOptions options = {.lr = 6e-4}) : optimizer({p}, options) {}
  void steps(int first, int last) {
    for (int step = first; step < last; ++step) {
      p.set_grad((Tensor::arange(8, {kF32}) - 3.0 + static_cast<double>(step % 2)).to(kBF16));
      optimizer.step();
    }
  }
  Tensor p = Tensor::ones({8}, {kBF16}).requires_grad_();
  AdamW optimizer;
};

nn::StateDict copy_of(const nn::StateDict& state) {
  nn::StateDict copy;
  for (const auto& [name, tensor] : state) copy[name] = tensor.clone();
  return copy;
}

// What the sink hears while it exists.
struct Heard {
  Heard() {
    before = compile::log::set_log_sink([this](std::string_view message) { text += message; });
  }
  ~Heard() { compile::log::set_log_sink(std::move(before)); }
  size_t count(std::string_view what) const {
    size_t n = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
    return n;
  }
  std::string text;
  compile::log::Sink before;
};

// The optimizer is loaded first and the model after it, as the Trainer does; or the other way round.
TEST(MasterWeightsState, ResumesBitForBit) {
  for (const bool model_first : {false, true}) {
    Training whole;
    whole.steps(0, 30);
    const nn::StateDict saved = copy_of(whole.optimizer.state_dict());
    const Tensor weights = whole.p.detach().clone();
    whole.steps(30, 60);
    Training resumed;
    resumed.steps(0, 3);  // its weights are replaced
    const NoGrad off;
    if (model_first) resumed.p.copy_(weights);
    resumed.optimizer.load_state_dict(saved);
    if (!model_first) resumed.p.copy_(weights);
    EXPECT_TRUE(same_bits(master_of(resumed.optimizer, 0), saved.at("state.0.master")));
    resumed.steps(30, 60);
    EXPECT_TRUE(same_bits(resumed.p, whole.p));
    EXPECT_TRUE(same_bits(master_of(resumed.optimizer, 0), master_of(whole.optimizer, 0)));
  }
}

TEST(MasterWeightsState, AnOlderStateLoadsAndThatIsSaidOnce) {
  const Heard heard;
  Training whole;
  whole.steps(0, 30);
  nn::StateDict old = copy_of(whole.optimizer.state_dict());
  old.erase("state.0.master");
  for (int i = 0; i < 2; ++i) {
    Training resumed;
    resumed.optimizer.load_state_dict(old);
    const NoGrad off;
    resumed.p.copy_(whole.p);
    EXPECT_FALSE(master_of(resumed.optimizer, 0).defined());  // of the model, which may come later
    const Tensor start = resumed.p.detach().to(kF32);
    resumed.optimizer.set_lr(0);
    resumed.steps(30, 31);
    EXPECT_TRUE(same_bits(master_of(resumed.optimizer, 0), start));
  }
  EXPECT_EQ(heard.count("has no f32 weights of 16-bit parameters"), 1u) << heard.text;
}

TEST(MasterWeightsState, CanBeLeftOutWhichIsSaidOnce) {
  const Heard heard;
  Training with;
  with.steps(0, 30);
  for (int i = 0; i < 2; ++i) {
    Training without({.lr = 6e-4, .masters = false});
    for (int step = 0; step < 100; ++step) {
      without.p.set_grad(Tensor::ones({8}, {kBF16}));
      without.optimizer.step();
    }
    EXPECT_TRUE(same_bits(without.p.detach(), Tensor::ones({8}, {kBF16})));
    EXPECT_FALSE(master_of(without.optimizer, 0).defined());
    without.optimizer.load_state_dict(with.optimizer.state_dict());  // its weights are ignored
    EXPECT_FALSE(master_of(without.optimizer, 0).defined());
  }
  EXPECT_EQ(heard.count("AdamW updates bf16 parameters without f32 weights"), 1u) << heard.text;
}

TEST(MasterWeightsState, OfAnotherShapeAreRefusedBeforeAnythingChanges) {
  Training run;
  run.steps(0, 3);
  nn::StateDict bad = copy_of(run.optimizer.state_dict());
  bad["state.0.master"] = Tensor::zeros({7});
  const Tensor before = master_of(run.optimizer, 0).clone();
  EXPECT_THROW(run.optimizer.load_state_dict(bad), nn::StateDictError);
  EXPECT_TRUE(same_bits(master_of(run.optimizer, 0), before));
}

// Elements that somebody else writes become the weights; the others keep theirs.
TEST(MasterWeightsState, FollowAWriteOfTheParameter) {
  Training run;
  run.steps(0, 30);
  const Tensor before = master_of(run.optimizer, 0).clone();
  EXPECT_FALSE(same_bits(before, before.to(kBF16).to(kF32)));
  {
    const NoGrad off;
    run.p.slice(0, {2, 4}).fill_(5);
  }
  run.optimizer.set_lr(0);
  run.steps(30, 31);
  Tensor expected = before.clone();
  expected.slice(0, {2, 4}).fill_(5);
  EXPECT_TRUE(same_bits(master_of(run.optimizer, 0), expected));
}

// An evaluation with the averages writes the parameters twice.
TEST(MasterWeightsState, OutliveAnAverageScope) {
  Training run, twin;
  for (Training* r : {&run, &twin}) r->optimizer.track_average({.decay = 0.5}), r->steps(0, 20);
  { const AverageScope scope(run.optimizer); }
  for (Training* r : {&run, &twin}) r->steps(20, 40);
  EXPECT_TRUE(same_bits(run.p, twin.p));
  EXPECT_TRUE(same_bits(master_of(run.optimizer, 0), master_of(twin.optimizer, 0)));
}

TEST(MasterWeightsState, AGradScalersSkippedStepLeavesThem) {
  Training run;
  amp::GradScaler scaler({.init_scale = 8});
  run.steps(0, 5);
  const Tensor before = master_of(run.optimizer, 0).clone(), param = run.p.detach().clone();
  run.p.set_grad(Tensor::full({8}, std::numeric_limits<double>::infinity(), {kBF16}));
  EXPECT_TRUE(scaler.step(run.optimizer).skipped());
  scaler.update();
  EXPECT_TRUE(same_bits(master_of(run.optimizer, 0), before));
  EXPECT_TRUE(same_bits(run.p.detach(), param));
}

// A model may be converted between steps. The parameters' values count.
TEST(MasterWeightsState, FollowTheDtypeOfTheParameters) {
  nn::Linear model(3, 2);
  model.to(kBF16);
  AdamW optimizer(model.parameters(), {.lr = 6e-4});
  const auto step = [&] {
    for (Tensor& p : model.parameters()) p.set_grad(Tensor::ones(p.sizes(), {p.dtype()}));
    optimizer.step();
  };
  step();
  EXPECT_TRUE(master_of(optimizer, 0).defined());
  model.to(kF32);
  step();
  EXPECT_FALSE(master_of(optimizer, 0).defined());
  model.to(kF16);
  const Tensor start = model.weight.detach().to(kF32);
  optimizer.set_lr(0);
  step();
  EXPECT_TRUE(same_bits(master_of(optimizer, 0), start));
}

// Weights of 16 bits: steps that they cannot hold add up, in f32 weights. Without these they are lost.
TEST(MasterWeightsCApi, SmallStepsAreNotLost) {
  const test::TempFolder saved;
  const auto folder_of = [&](int32_t no_masters) {
    return std::filesystem::path(saved.path()) / ("half" + std::to_string(no_masters));
  };
  for (const int32_t no_masters : {0, 1}) {
    rondo_model_options options{};
    options.size = sizeof options;
    options.dtype = "bfloat16";
    rondo_model* model = nullptr;
    const std::string folder = std::string(tests::kReferenceDir) + "/pretrained/llama2";
    ASSERT_EQ(rondo_model_create(folder.c_str(), &options, &model), RONDO_OK) << rondo_last_error();
    rondo_optimizer_options a{};
    a.size = sizeof a;
    a.lr = 1e-4;
    a.no_masters = no_masters;
    ASSERT_EQ(rondo_set_optimizer(model, &a), RONDO_OK);
    const int32_t rows[] = {5, 17, 40, 3, 9, 31, 7, 8, 60, 2, 1, 57};
    double loss = 0;
    for (int i = 0; i < 60; ++i)
      ASSERT_EQ(rondo_train_tokens(model, rows, nullptr, 2, 6, &loss), RONDO_OK) << rondo_last_error();
    ASSERT_EQ(rondo_save_model(model, folder_of(no_masters).c_str()), RONDO_OK);
    ASSERT_EQ(rondo_model_destroy(model), RONDO_OK);
  }
  // From 0.5 on, a bf16 number is 0.2% away from the next one: twenty of these steps.
  const auto weights = [](const std::filesystem::path& in) {
    return io::load_safetensors((in / "model.safetensors").string()).tensors;
  };
  const io::TensorMap start = weights(std::string(tests::kReferenceDir) + "/pretrained/llama2");
  const auto moved = [&](int32_t no_masters) {
    int64_t changed = 0;
    for (const auto& [name, tensor] : weights(folder_of(no_masters))) {
      const std::vector<float> before = start.at(name).to(kBF16).to(kF32).to_vector<float>(),
                               after = tensor.to(kF32).to_vector<float>();
      for (size_t i = 0; i < before.size(); ++i) changed += std::abs(before[i]) >= 0.5f && before[i] != after[i];
    }
    return changed;
  };
  EXPECT_EQ(moved(1), 0);
  EXPECT_GT(moved(0), 10);
}

}  // namespace
}  // namespace rondo::optim
