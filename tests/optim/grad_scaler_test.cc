#include "rondo/optim/grad_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "rondo/modules/layers/layers.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"

namespace rondo::amp {
namespace {

using test::error_of;
using test::same_bits;

constexpr float kInf = std::numeric_limits<float>::infinity();

// One parameter whose gradient is what the test says.
struct OneParameter {
  Tensor weight = Tensor::ones({4}).requires_grad_();
  optim::SGD optimizer{std::vector<Tensor>{weight}, {.lr = 1}};
  void set_grad(float value) { weight.set_grad(Tensor::full({4}, value)); }
  float value() const { return weight.to_vector<float>()[0]; }
};

TEST(GradScaler, TheStepIsThatOfTheLossItself) {
  for (const bool compiled : {false, true}) {
    OneParameter scaled, plain;
    if (compiled) optim::compile(scaled.optimizer);
    GradScaler scaler({.init_scale = 1024});
    const auto loss_of = [](const Tensor& w) { return ops::sum(w * w) * 0.125; };
    for (int i = 0; i < 3; ++i) {
      scaled.optimizer.zero_grad();
      plain.optimizer.zero_grad();
      scaler.scale(loss_of(scaled.weight)).backward();
      EXPECT_EQ(scaled.weight.grad().to_vector<float>()[0], 1024 * 0.25f * scaled.value());
      const optim::StepReport report = scaler.step(scaled.optimizer, {.max_norm = 100});
      EXPECT_FALSE(report.skipped());
      EXPECT_NEAR(report.grad_norm(), 2 * 0.25 * plain.value(), 1e-6);
      scaler.update();
      loss_of(plain.weight).backward();
      plain.optimizer.step();
      EXPECT_TRUE(same_bits(scaled.weight, plain.weight));
    }
  }
}

TEST(GradScaler, FallsAfterAnOverflowAndRisesAfterManyGoodSteps) {
  OneParameter p;
  GradScaler scaler({.init_scale = 8, .growth_factor = 4, .backoff_factor = 0.5, .growth_interval = 3});
  const auto iterate = [&](float grad) {
    p.set_grad(grad);
    const bool skipped = scaler.step(p.optimizer).skipped();
    scaler.update();
    return skipped;
  };
  EXPECT_TRUE(iterate(kInf));
  EXPECT_EQ(scaler.get_scale(), 4);
  EXPECT_EQ(p.value(), 1);
  EXPECT_TRUE(iterate(std::nanf("")));
  EXPECT_EQ(scaler.get_scale(), 2);
  EXPECT_FALSE(iterate(0));
  EXPECT_FALSE(iterate(0));
  EXPECT_TRUE(iterate(-kInf));  // counting starts again
  EXPECT_EQ(scaler.get_scale(), 1);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(iterate(0));
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_FALSE(iterate(0));
  EXPECT_EQ(scaler.get_scale(), 4);
  EXPECT_EQ(scaler.skipped(), 3);
  EXPECT_EQ(p.optimizer.skipped_steps(), 3);
}

TEST(GradScaler, NeverReachesZeroOrInfinity) {
  OneParameter p;
  GradScaler scaler({.init_scale = 1e-37, .backoff_factor = 1e-6});
  for (int i = 0; i < 3; ++i) {
    p.set_grad(kInf);
    scaler.step(p.optimizer);
    scaler.update();
  }
  EXPECT_GT(scaler.get_scale(), 0);
  GradScaler large({.init_scale = 1e38, .growth_factor = 1e6, .growth_interval = 1});
  p.set_grad(0);
  large.step(p.optimizer);
  large.update();
  EXPECT_EQ(large.get_scale(), 1e38);
}

TEST(GradScaler, OneOverflowOfSeveralOptimizersLowersTheScaleOnce) {
  OneParameter good, bad;
  GradScaler scaler({.init_scale = 8});
  good.set_grad(8);
  bad.set_grad(kInf);
  EXPECT_FALSE(scaler.step(good.optimizer).skipped());
  EXPECT_TRUE(scaler.step(bad.optimizer).skipped());
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 4);
  EXPECT_EQ(scaler.skipped(), 1);
  EXPECT_EQ(good.value(), 0);
  EXPECT_EQ(bad.value(), 1);
}

TEST(GradScaler, SwitchedOffItDoesNothing) {
  OneParameter p;
  GradScaler scaler({.enabled = false});
  EXPECT_EQ(scaler.get_scale(), 1);
  p.set_grad(0.5);
  EXPECT_EQ(scaler.scale(Tensor::scalar(3.0f)).item(), 3);
  scaler.step(p.optimizer);
  scaler.update();
  EXPECT_EQ(p.value(), 0.5f);
}

// f16 gradients of this loss are below the smallest f16 number; scaled, they are not.
TEST(GradScaler, F16TrainingOverflowsAndRecovers) {
  manual_seed(3);
  nn::Linear layer(16, 16);
  optim::SGD optimizer(layer.parameters(), {.lr = 0.1});
  GradScaler scaler({.init_scale = 1e9, .growth_interval = 1000});  // too much at first
  const Tensor x = Tensor::randn({8, 16});
  int skipped = 0, moved = 0;
  for (int i = 0; i < 30; ++i) {
    const Tensor before = layer.weight.detach().clone();
    optimizer.zero_grad();
    Tensor y;
    {
      const Autocast lower(kF16);
      y = layer(x);
    }
    EXPECT_EQ(y.dtype(), kF16);
    scaler.scale(ops::sum((y * y).to(kF32)) * 1e-3).backward();
    if (scaler.step(optimizer).skipped()) {
      ++skipped;
      EXPECT_TRUE(same_bits(layer.weight, before));
    } else {
      ++moved;
    }
    scaler.update();
    for (const Tensor& p : layer.parameters())
      for (float value : p.to_vector<float>()) ASSERT_TRUE(std::isfinite(value));
  }
  EXPECT_GT(skipped, 3);
  EXPECT_GT(moved, 10);
}

TEST(GradScaler, StateTravels) {
  OneParameter p;
  GradScaler first({.init_scale = 64, .growth_interval = 3});
  p.set_grad(kInf);
  first.step(p.optimizer);
  first.update();
  p.set_grad(0);
  first.step(p.optimizer);
  first.update();
  GradScaler second({.growth_interval = 3});
  second.load_state_dict(first.state_dict());
  EXPECT_EQ(second.get_scale(), 32);
  EXPECT_EQ(second.skipped(), 1);
  for (GradScaler* scaler : {&first, &second})
    for (int i = 0; i < 2; ++i) {
      scaler->step(p.optimizer);
      scaler->update();
    }
  EXPECT_EQ(first.get_scale(), 64);
  EXPECT_EQ(second.get_scale(), 64);

  nn::StateDict bad = first.state_dict();
  bad["scale"] = Tensor::scalar(-1.0, kF64);
  EXPECT_THROW(second.load_state_dict(bad), nn::StateDictError);
  bad.erase("scale");
  EXPECT_NE(error_of<nn::StateDictError>([&] { second.load_state_dict(bad); }).find("scale"), std::string::npos);
  EXPECT_EQ(second.get_scale(), 64);
}

// As PyTorch's.
TEST(GradScaler, OptionsTravel) {
  OneParameter p;
  p.set_grad(0);
  GradScaler first({.init_scale = 64, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 3}), second;
  second.load_state_dict(first.state_dict());
  for (GradScaler* scaler : {&first, &second}) {
    for (int i = 0; i < 3; ++i) {
      scaler->step(p.optimizer);
      scaler->update();
    }
    EXPECT_EQ(scaler->get_scale(), 256);
  }
  p.set_grad(kInf);
  second.step(p.optimizer);
  second.update();
  EXPECT_EQ(second.get_scale(), 64);
  for (const char* name : {"growth_factor", "backoff_factor", "growth_interval"}) {
    nn::StateDict bad = first.state_dict();
    bad[name] = Tensor::full({}, std::string(name) == "growth_interval" ? Scalar(0) : Scalar(1.0),
                             {std::string(name) == "growth_interval" ? kI64 : kF64, kCPU});
    EXPECT_NE(error_of<nn::StateDictError>([&] { second.load_state_dict(bad); }).find(name), std::string::npos);
    bad[name] = Tensor();
    EXPECT_THROW(second.load_state_dict(bad), nn::StateDictError);
  }
  EXPECT_EQ(second.get_scale(), 64);
  // Files of earlier versions: its own stay.
  nn::StateDict old = first.state_dict();
  for (const char* name : {"growth_factor", "backoff_factor", "growth_interval"}) old.erase(name);
  GradScaler third({.growth_factor = 8, .growth_interval = 1});
  third.load_state_dict(old);
  EXPECT_EQ(third.state_dict().at("growth_factor").item(), 8);
}

TEST(GradScaler, Misuse) {
  EXPECT_THROW(GradScaler({.init_scale = 0}), Error);
  EXPECT_THROW(GradScaler({.init_scale = kInf}), Error);
  EXPECT_THROW(GradScaler({.growth_factor = 1}), Error);
  EXPECT_THROW(GradScaler({.backoff_factor = 1}), Error);
  EXPECT_THROW(GradScaler({.growth_interval = 0}), Error);
  GradScaler scaler;
  EXPECT_NE(error_of<Error>([&] { scaler.update(); }).find("step()"), std::string::npos);
}

}  // namespace
}  // namespace rondo::amp
