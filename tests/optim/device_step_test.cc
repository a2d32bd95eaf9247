// Optimizer steps on a device that runs its work late: the CPU's bits, and nothing read back.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adafactor.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/clip.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/foreach_map.h"
#include "rondo/optim/grad_scaler.h"
#include "rondo/optim/host_code.h"
#include "rondo/optim/lamb.h"
#include "rondo/optim/muon.h"
#include "rondo/optim/sgd.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_device/fake_device.h"
#include "rondo/tests/optim/make_optimizer.h"

namespace rondo::optim {
namespace {

using test::bytes_of;
using test::error_of;
using test::FakeDevice;

constexpr double kInf = std::numeric_limits<double>::infinity();
const nn::GPT2Config kConfig{.vocab_size = 31, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 16};

const std::map<std::string, Make>& cases() {
  static const std::map<std::string, Make> all = {
      {"sgd", make<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.2})},
      {"adamw", make<AdamW>(AdamWOptions{.lr = 0.01, .weight_decay = 0.1})},
      {"adafactor", make<Adafactor>(AdafactorOptions{.lr = 0.1, .weight_decay = 0.1})},
      {"lamb", make<LAMB>(LAMBOptions{.lr = 0.01, .weight_decay = 0.1})},
      {"muon", make<Muon>(MuonOptions{.lr = 0.02})},
  };
  return all;
}

// Host values, and the same on the device.
Tensor random(const Dims& sizes, DType dtype, Device device, Generator& generator) {
  return Tensor::randn(sizes, {kF32, kCPU}, &generator).to(dtype).to(device);
}

// Nine steps of all kinds: unscaled, clipped, with zeroed gradients, skipped, without a gradient for one parameter,
// saved and loaded into a new optimizer, which replaces the first while that one's work waits.
std::vector<std::string> nine_steps(const std::string& name, DType dtype, StateFormat format, bool compiled,
                                    Device device) {
  const DeviceScope scope(device);
  Generator generator(7);
  std::vector<Tensor> params;
  for (const Dims& sizes : name == "muon" ? std::vector<Dims>{{5, 3}, {24, 30}, {40, 20}}
                                          : std::vector<Dims>{{1}, {0}, {1000}, {70, 60}, {3, 40, 37}, {17}})
    params.push_back(random(sizes, dtype, device, generator).requires_grad_());
  const auto made = [&] {
    auto optimizer = cases().at(name)(params, format);
    if (compiled) compile(*optimizer);
    optimizer->track_average({.decay = 0.9});
    optimizer->keep_copies(kBF16);
    return optimizer;
  };
  std::unique_ptr<Optimizer> optimizer = made();
  amp::GradScaler scaler({.init_scale = 64, .growth_interval = 2});
  std::vector<StepReport> reports;
  std::vector<Tensor> norms;
  for (int64_t step = 0; step < 9; ++step) {
    for (size_t i = 0; i < params.size(); ++i)
      params[i].set_grad(step % 3 == 2 && i == 2 ? Tensor() : random(params[i].sizes(), dtype, device, generator));
    if (step == 4) params.back().grad().detach().flatten()[0].fill_(kInf);
    if (step % 4 == 0) {
      reports.push_back(scaler.step(*optimizer, {.max_norm = 3}));
      scaler.update();
    } else if (step % 4 == 1) {
      reports.push_back(optimizer->step({.max_norm = 3, .zero_grad = true}));
    } else {
      if (step == 2) norms.push_back(clip_grad_norm_(params, 0.7));
      optimizer->step();
    }
    optimizer->set_lr(optimizer->lr() * 0.9);  // after the step: its work must not see it
    if (step != 6) continue;
    // Checkpoints hold host tensors.
    nn::StateDict saved;
    for (const auto& [key, tensor] : optimizer->state_dict()) saved[key] = tensor.clone().to(kCPU);
    optimizer->step();
    optimizer->load_state_dict(saved);
    optimizer->step();
    auto other = made();
    other->load_state_dict(optimizer->state_dict());
    optimizer = std::move(other);
  }
  std::vector<std::string> bits;
  for (const Tensor& p : params) {
    bits.push_back(bytes_of(p));
    if (p.grad().defined()) bits.push_back(bytes_of(p.grad()));
  }
  for (const auto& [key, tensor] : optimizer->state_dict()) bits.push_back(key + bytes_of(tensor));
  for (const Tensor& copy : optimizer->copies()) bits.push_back(bytes_of(copy));
  for (const auto& [key, tensor] : scaler.state_dict()) bits.push_back(key + bytes_of(tensor));
  for (const Tensor& norm : norms) bits.push_back(bytes_of(norm));
  for (const StepReport& report : reports)
    bits.push_back(std::to_string(report.skipped()) + " " + std::to_string(report.grad_norm()));
  EXPECT_TRUE(reports[2].skipped());  // of step 4
  EXPECT_FALSE(reports[1].skipped());
  return bits;
}

class DeviceStep : public testing::TestWithParam<uint64_t> {
 protected:
  FakeDevice fake_{{.seed = GetParam(), .devices = 2}};
  const Device device_ = fake_.device();
};

TEST_P(DeviceStep, HasTheBitsOfTheCPU) {
  for (const auto& [name, make] : cases())
    for (DType dtype : {kF32, kBF16, kF64})
      for (StateFormat format : {StateFormat::kFull, StateFormat::kBF16, StateFormat::k8Bit})
        for (bool compiled : {false, true}) {
          if (dtype == kF64 && format != StateFormat::kFull) continue;
          SCOPED_TRACE(name + " " + std::string(name_of(dtype)) + " " + std::to_string(static_cast<int>(format)) +
                       (compiled ? " compiled" : ""));
          const std::vector<std::string> want = nine_steps(name, dtype, format, compiled, kCPU),
                                         got = nine_steps(name, dtype, format, compiled, device_);
          ASSERT_EQ(want.size(), got.size());
          for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(want[i] == got[i]) << i << " of " << want.size();
        }
}

struct Trained {
  explicit Trained(Device device, bool compiled, bool at_seams = false)
      : scope(device), model((manual_seed(3), kConfig), 1), optimizer(model.parameters(), {.lr = 1e-2}) {
    if (compiled) compile::compile_regions(model), compile(optimizer);
    if (at_seams) updates.emplace(model, optimizer);
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < 16; ++i) tokens.push_back((i * i + 7 * i) % 31);
    batch = Tensor::from(tokens, {2, 8});
  }
  Tensor loss() { return model.loss(batch, batch); }
  DeviceScope scope;
  nn::GPT2 model;
  AdamW optimizer;
  std::optional<UpdateAtSeams> updates;
  Tensor batch;
};

// Forward, loss, backward, clipping and the step: the user's item() is the only wait.
TEST_P(DeviceStep, AWholeTrainingStepReadsTheLossOnly) {
  for (const bool compiled : {false, true}) {
    Trained run(device_, compiled), on_cpu(kCPU, compiled);
    for (int step = 0; step < 4; ++step) {
      // The first steps of compiled code may be timed (tuned) on the device.
      const int64_t before = fake_.counts().host_waits;
      for (Trained* r : {&run, &on_cpu}) {
        const DeviceScope scope(r->optimizer.device());
        const Tensor loss = r->loss();
        loss.backward();
        if (step % 2 == 0) {
          clip_grad_norm_(r->model.parameters(), 0.5);
          r->optimizer.step();
        } else {
          r->optimizer.step({.max_norm = 0.5});
        }
        r->optimizer.zero_grad();
        loss.item();
      }
      EXPECT_EQ(fake_.counts().host_waits - before, 1) << step << (compiled ? " compiled" : " eager");
    }
    for (size_t i = 0; i < run.model.parameters().size(); ++i)
      EXPECT_EQ(bytes_of(run.model.parameters()[i]), bytes_of(on_cpu.model.parameters()[i])) << i;
  }
}

TEST_P(DeviceStep, AScaledStepUnderAutocastReadsTheLossOnly) {
  Trained run(device_, false);
  amp::GradScaler scaler;
  for (int step = 0; step < 3; ++step) {
    const int64_t before = fake_.counts().host_waits;
    Tensor loss;
    {
      const amp::Autocast lower(kF16);
      loss = run.loss();
    }
    scaler.scale(loss).backward();
    scaler.step(run.optimizer, {.max_norm = 1, .zero_grad = true});
    scaler.update();
    loss.item();
    EXPECT_EQ(fake_.counts().host_waits - before, 1) << step;
  }
  EXPECT_EQ(scaler.skipped(), 0);
}

TEST_P(DeviceStep, AnOverflowIsSkippedWithoutARead) {
  for (const bool compiled : {false, true}) {
    Trained run(device_, compiled);
    amp::GradScaler scaler({.init_scale = 8});
    scaler.scale(run.loss()).backward();
    scaler.step(run.optimizer);
    scaler.update();
    std::vector<std::string> before;
    for (const Tensor& p : run.model.parameters()) before.push_back(bytes_of(p));
    const std::string momentum = bytes_of(run.optimizer.state_dict().at("state.3.exp_avg"));
    run.optimizer.zero_grad();
    const int64_t waits = fake_.counts().host_waits;
    (scaler.scale(run.loss()) * kInf).backward();
    const StepReport report = scaler.step(run.optimizer, {.zero_grad = true});
    scaler.update();
    EXPECT_EQ(fake_.counts().host_waits, waits);
    EXPECT_TRUE(report.skipped());
    EXPECT_EQ(scaler.get_scale(), 4);
    EXPECT_EQ(scaler.skipped(), 1);
    EXPECT_EQ(run.optimizer.skipped_steps(), 1);
    EXPECT_EQ(bytes_of(run.optimizer.state_dict().at("state.3.exp_avg")), momentum);
    EXPECT_EQ(run.optimizer.state_dict().at("state.3.step").item(), 1);
    for (size_t i = 0; i < before.size(); ++i) {
      const Tensor p = run.model.parameters()[i];
      EXPECT_EQ(bytes_of(p), before[i]) << i;
      EXPECT_EQ(bytes_of(p.grad()), std::string(before[i].size(), '\0')) << i;
    }
    // The report of an earlier step keeps its values.
    run.loss().backward();
    const StepReport good = scaler.step(run.optimizer);
    EXPECT_TRUE(StepReport(report).skipped());
    EXPECT_FALSE(good.skipped());
    EXPECT_TRUE(std::isfinite(good.grad_norm()));
  }
}

// A copy that a skipped step was to write holds the parameter all the same, though its memory is new.
TEST_P(DeviceStep, ASkippedStepWritesCopies) {
  const DeviceScope scope(device_);
  Tensor p = Tensor::full({3, 4}, 1.001).requires_grad_();
  AdamW optimizer({p});
  Tensor loss;
  {
    const amp::Autocast lower(kBF16);
    loss = ops::sum(ops::linear(Tensor::ones({2, 4}).requires_grad_(), p, Tensor()));  // the tape holds the copy
  }
  p.set_grad(Tensor::full({3, 4}, kInf));
  EXPECT_TRUE(optimizer.step({.check_finite = true}).skipped());
  const amp::Autocast lower(kBF16);
  EXPECT_EQ(ops::linear(Tensor::ones({1, 4}), p, Tensor()).to_vector<float>(), std::vector<float>(3, 4.0f));
}

// A bad index that the host does not know of yet: nothing is updated until it is told.
TEST_P(DeviceStep, AfterALateErrorNothingChanges) {
  for (const bool compiled : {false, true}) {
    Trained run(device_, compiled);
    amp::GradScaler scaler({.init_scale = 8, .growth_interval = 1});
    run.loss().backward();
    run.optimizer.step({.zero_grad = true});
    std::vector<std::string> before;
    for (const Tensor& p : run.model.parameters()) before.push_back(bytes_of(p));
    const int64_t waits = fake_.counts().host_waits;
    run.loss().backward();
    ops::embedding(Tensor::zeros({5, 2}), Tensor::from<int64_t>({7}, {1}));
    clip_grad_norm_(run.model.parameters(), 0.1);
    run.optimizer.step();
    scaler.step(run.optimizer);
    scaler.update();
    const std::vector<Tensor> lists[] = {run.model.parameters()};
    foreach_map([](auto& p, auto by) { p = p * by; }, lists[0], 2.0);
    EXPECT_EQ(fake_.counts().host_waits, waits);
    EXPECT_NE(error_of([&] { synchronize(device_); }).find("embedding: index 7"), std::string::npos);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(bytes_of(run.model.parameters()[i]), before[i]) << i;
    EXPECT_EQ(run.optimizer.state_dict().at("state.0.step").item(), 1);
    EXPECT_EQ(run.optimizer.skipped_steps(), 0);
    EXPECT_EQ(scaler.get_scale(), 8);
    run.optimizer.step();
    EXPECT_EQ(run.optimizer.state_dict().at("state.0.step").item(), 2);
  }
}

// Such a step still does what the host counts on: copies of parameters are written, gradients are zeroed.
TEST_P(DeviceStep, AfterALateErrorCopiesAreWrittenAndGradientsZeroed) {
  const DeviceScope scope(device_);
  for (const bool compiled : {false, true}) {
    Tensor p = Tensor::full({3, 4}, 1.001).requires_grad_();
    AdamW optimizer({p});
    if (compiled) compile(optimizer);
    Tensor loss;
    {
      const amp::Autocast lower(kBF16);
      loss = ops::sum(ops::linear(Tensor::ones({2, 4}).requires_grad_(), p, Tensor()));  // the tape holds the copy
    }
    p.set_grad(Tensor::ones({3, 4}));
    ops::embedding(Tensor::zeros({5, 2}), Tensor::from<int64_t>({7}, {1}));
    optimizer.step({.zero_grad = true});
    EXPECT_NE(error_of([&] { synchronize(device_); }).find("embedding: index 7"), std::string::npos);
    EXPECT_EQ(p.grad().sum().item(), 0);
    EXPECT_EQ(p.detach().to_vector<float>(), std::vector<float>(12, 1.001f));
    const amp::Autocast lower(kBF16);
    EXPECT_EQ(ops::linear(Tensor::ones({1, 4}), p, Tensor()).to_vector<float>(), std::vector<float>(3, 4.0f));
  }
}

TEST_P(DeviceStep, UpdatesAtSeamsHaveTheBitsOfStepsAfterBackward) {
  for (const bool compiled : {false, true}) {
    Trained after(device_, compiled), seams(device_, compiled, true);
    for (int step = 0; step < 3; ++step) {
      after.loss().backward();
      after.optimizer.step();
      after.optimizer.zero_grad();
      const int64_t waits = fake_.counts().host_waits;
      seams.loss().backward();
      seams.updates->finish();
      if (step > 0) {
        EXPECT_EQ(fake_.counts().host_waits, waits);
      }
    }
    for (size_t i = 0; i < after.model.parameters().size(); ++i)
      EXPECT_EQ(bytes_of(after.model.parameters()[i]), bytes_of(seams.model.parameters()[i])) << i;
  }
}

// Memory that work needs lives until the work has run, even if its owners are gone.
TEST_P(DeviceStep, WorkOutlivesItsOptimizer) {
  const DeviceScope scope(device_);
  for (const bool compiled : {false, true}) {
    Tensor p = Tensor::ones({100}).requires_grad_();
    {
      const std::vector<Tensor> params = {p};
      SGD optimizer(params, {.lr = 0.5});
      if (compiled) compile(optimizer);
      p.set_grad(Tensor::ones({100}));
      optimizer.step();
      p.set_grad(Tensor());
      double factor = 4;
      const auto times = [](auto& values, auto by) { values = values * by; };
      if (compiled) compile_map(times)(params, factor);
      else foreach_map(times, params, factor);
      factor = 0;
    }
    EXPECT_EQ(p.to_vector<float>(), std::vector<float>(100, 2.0f));
  }
}

// Whichever allocation of a step fails: the step has changed nothing, and the next one is it.
void fail_every_allocation(FakeDevice& fake) {
  const Device device = fake.device();
  const DeviceScope scope(device);
  const auto run = [&](int64_t failing, bool& failed) {
    Generator generator(5);
    std::vector<Tensor> params = {random({40, 30}, kF32, device, generator).requires_grad_(),
                                  random({7, 5}, kF32, device, generator).requires_grad_()};
    AdamW optimizer(params, {.lr = 0.1});
    optimizer.track_average();
    optimizer.keep_copies(kBF16);
    for (int step = 0; step < 3; ++step) {
      params[0].set_grad(random({40, 30}, kF32, device, generator));
      params[1].set_grad(random({5, 7}, kF32, device, generator).t());
      if (step == 0) params[1].set_grad(Tensor());  // it starts later, and has a count of its own
      const auto make_step = [&] { optimizer.step({.max_norm = 1}); };
      if (step == 1) {
        fake.fail_allocation(failing);
        try {
          make_step();
          failed = false;
        } catch (const OutOfMemoryError&) {
          failed = true;
        }
        fake.fail_allocation(0);
        if (!failed) continue;
      }
      make_step();
    }
    std::vector<std::string> bits;
    for (const Tensor& p : params) bits.push_back(bytes_of(p));
    for (const auto& [key, tensor] : optimizer.state_dict()) bits.push_back(key + bytes_of(tensor));
    for (const Tensor& copy : optimizer.copies()) bits.push_back(bytes_of(copy));
    return bits;
  };
  bool failed = false;
  const std::vector<std::string> want = run(0, failed);
  int64_t failing = 0;
  do {
    const std::vector<std::string> got = run(++failing, failed);
    EXPECT_TRUE(got == want) << "allocation " << failing;
  } while (failed && failing < 50);
  EXPECT_GT(failing, 5);
  EXPECT_FALSE(failed);
}

TEST_P(DeviceStep, OutOfMemoryChangesNothing) { fail_every_allocation(fake_); }

TEST_P(DeviceStep, OneDeviceForAllParameters) {
  const Device other = fake_.device(1);
  Tensor a = Tensor::ones({2}, {kF32, device_}).requires_grad_(), b = Tensor::ones({2}).requires_grad_(),
         c = Tensor::ones({2}, {kF32, other}).requires_grad_();
  EXPECT_EQ(error_of([&] {
              SGD({a, b});
            }),
            "SGD: parameter 1 is on cpu and parameter 0 on fake:0; make one optimizer for each device");
  for (Tensor* p : {&a, &b, &c}) p->set_grad(Tensor::ones({2}, {kF32, p->device()}));
  EXPECT_NE(error_of([&] {
              clip_grad_norm_(std::vector<Tensor>{a, c}, 1);
            }).find("on fake:0 and on fake:1"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              foreach_map([](auto& x, auto y) { x = y; }, std::vector<Tensor>{a}, std::vector<Tensor>{c});
            }).find("is on fake:1, others on fake:0"),
            std::string::npos);
  SGD optimizer({a});
  EXPECT_NE(
      error_of([&] { optimizer.step({.device_scale = Tensor::scalar(2.0, kF64)}); }).find("must be one f64 on fake:0"),
      std::string::npos);
  // A loss scale goes to the device of the first loss, and stays there.
  amp::GradScaler scaler({.init_scale = 2});
  EXPECT_EQ(scaler.scale(Tensor::ones({}, {kF32, device_})).item(), 2);
  EXPECT_NE(error_of([&] { scaler.scale(Tensor::ones({}, {kF32, other})); }).find("fake:0"), std::string::npos);
  // Wherever it was made: a scope of another device does not decide, and the host counts like any other device.
  for (const Device first : {kCPU, device_}) {
    const DeviceScope scope(first == kCPU ? device_ : kCPU);
    amp::GradScaler made({.init_scale = 2});
    EXPECT_EQ(made.scale(Tensor::ones({}, {kF32, first})).item(), 2);
    EXPECT_NE(error_of([&] {
                made.scale(Tensor::ones({}, {kF32, other}));
              }).find("make a GradScaler for each device"),
              std::string::npos);
    Tensor p = Tensor::ones({2}, {kF32, other}).requires_grad_();
    p.set_grad(Tensor::ones({2}, {kF32, other}));
    SGD elsewhere({p});
    EXPECT_NE(error_of([&] { made.step(elsewhere); }), "");
    EXPECT_NE(error_of([&] { made.update(); }).find("no step()"), std::string::npos);
  }
  // The norm of no gradients is on the parameters' device, too.
  const Tensor none[] = {Tensor::ones({2}, {kF32, device_}).requires_grad_()};
  EXPECT_EQ(clip_grad_norm_(none, 1.0).device(), device_);
  // Before the first step the model may move. Afterwards its state would be left behind.
  nn::Linear layer(2, 2);
  AdamW moved(layer.parameters());
  layer.to(device_);
  const auto set_grads = [&] {
    for (Tensor p : layer.parameters()) p.set_grad(Tensor::ones(p.sizes(), {kF32, p.device()}));
  };
  set_grads();
  moved.step({.max_norm = 1});
  EXPECT_EQ(moved.state_dict().at("state.0.step").item(), 1);
  layer.to(kCPU);
  set_grads();
  EXPECT_NE(error_of([&] { moved.step(); }).find("is now on cpu, its state on fake:0"), std::string::npos);
}

// A device whose kernels are generated: no host code works on its memory (host_code.h throws).
class GeneratedDeviceStep : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "needs LLVM";
  }
  FakeDevice fake_{{.seed = GetParam(), .generates = true}};
  const Device device_ = fake_.device();
};

TEST_P(GeneratedDeviceStep, HasTheBitsOfTheCPU) {
  for (const auto& [name, make] : cases())
    for (DType dtype : {kF32, kBF16, kF64})
      for (StateFormat format : {StateFormat::kFull, StateFormat::kBF16, StateFormat::k8Bit}) {
        if (dtype == kF64 && format != StateFormat::kFull) continue;
        SCOPED_TRACE(name + " " + std::string(name_of(dtype)) + " " + std::to_string(static_cast<int>(format)));
        const std::vector<std::string> want = nine_steps(name, dtype, format, false, kCPU),
                                       got = nine_steps(name, dtype, format, false, device_);
        ASSERT_EQ(want.size(), got.size());
        for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(want[i] == got[i]) << i << " of " << want.size();
      }
}

// GPT-2 124M has 148 parameters: so has this one.
TEST_P(GeneratedDeviceStep, AStepIsAFewLaunches) {
  const DeviceScope scope(device_);
  const nn::GPT2 model({.vocab_size = 31, .block_size = 8, .n_layer = 12, .n_head = 2, .n_embd = 8}, 1);
  std::vector<Tensor> params = model.parameters();
  ASSERT_EQ(params.size(), 148u);
  std::vector<Tensor> matrices, vectors;
  for (const Tensor& p : params) (p.rank() > 1 ? matrices : vectors).push_back(p);
  AdamW optimizer({{.params = matrices, .options = {.weight_decay = 0.1}}, {.params = vectors}});
  amp::GradScaler scaler;
  // Launches and fills of one step.
  const auto launches = [&](auto step) {
    Generator generator(3);
    int64_t result = 0;
    for (int i = 0; i < 2; ++i) {  // the first one makes states and code
      for (Tensor& p : params) p.set_grad(random(p.sizes(), p.dtype(), device_, generator));
      const test::FakeDeviceCounts before = fake_.counts();
      step();
      result = fake_.counts().launches - before.launches;
      EXPECT_EQ(fake_.counts().host_waits, before.host_waits);
    }
    return result;
  };
  // A fill and a launch for the decision, the counts, the scalars, all parameters.
  EXPECT_EQ(launches([&] { optimizer.step(); }), 5);
  // With the sums of squares of rows, and the sum of those.
  EXPECT_EQ(launches([&] { optimizer.step({.max_norm = 1}); }), 7);
  // Zeroes gradients if the step is skipped.
  EXPECT_EQ(launches([&] { optimizer.step({.max_norm = 1, .zero_grad = true}); }), 8);
  optimizer.track_average();
  EXPECT_EQ(launches([&] { optimizer.step({.max_norm = 1}); }), 7);
  optimizer.keep_copies(kBF16);
  EXPECT_EQ(launches([&] { optimizer.step({.max_norm = 1, .zero_grad = true}); }), 8);
  // Notes the overflow, and updates the scale.
  EXPECT_EQ(launches([&] {
              scaler.step(optimizer, {.max_norm = 1});
              scaler.update();
            }),
            10);
  // Two for the norm, one for the factor, one that scales.
  EXPECT_EQ(launches([&] { clip_grad_norm_(params, 1.0); }), 4);
  // Through f32 weights: as many.
  std::vector<Tensor> halves;
  for (const Tensor& p : params) halves.push_back(p.detach().to(kBF16).requires_grad_());
  params.swap(halves);
  AdamW through_masters(params);
  EXPECT_EQ(launches([&] { through_masters.step(); }), 5);
  EXPECT_EQ(launches([&] { through_masters.step({.max_norm = 1}); }), 7);
  EXPECT_EQ(launches([&] { through_masters.step({.max_norm = 1, .zero_grad = true}); }), 8);
  params.swap(halves);
  LAMB lamb(params);
  // Another pass over all parameters; before it the sums over rows, and the trust ratios.
  EXPECT_EQ(launches([&] { lamb.step(); }), 8);
}

// clip.h says what they become.
TEST_P(GeneratedDeviceStep, ClippingANormThatIsNotFiniteHasTheBitsOfTheCPU) {
  for (const double bad : {kInf, -kInf, std::numeric_limits<double>::quiet_NaN()})
    for (const double max_norm : {1.0, kInf}) {
      std::vector<std::string> bits;
      for (const Device device : {kCPU, device_}) {
        Tensor p = Tensor::zeros({3}, {kF32, device}).requires_grad_();
        p.set_grad(Tensor::from<float>({static_cast<float>(bad), 1, 2}, {3}, kCPU).to(device));
        clip_grad_norm_({&p, 1}, max_norm);
        std::string kinds;
        for (const float x : p.grad().to(kCPU).to_vector<float>())
          kinds += std::isnan(x) ? "NaN " : x == 0 ? "0 " : "? ";
        bits.push_back(kinds);
      }
      EXPECT_EQ(bits[0], std::isnan(bad) || max_norm == kInf ? "NaN NaN NaN " : "NaN 0 0 ");
      EXPECT_EQ(bits[1], bits[0]);
    }
}

TEST_P(GeneratedDeviceStep, HostCodeIsRefused) {
  const int64_t before = fake_.counts().launches;
  EXPECT_THROW(enqueue_host_code(device_, [] {}), InternalError);
  EXPECT_EQ(fake_.counts().launches, before);
}

TEST_P(GeneratedDeviceStep, OutOfMemoryChangesNothing) { fail_every_allocation(fake_); }

TEST_P(GeneratedDeviceStep, AfterALateErrorNothingChanges) {
  const DeviceScope scope(device_);
  Tensor p = Tensor::full({3, 4}, 1.001).requires_grad_();
  AdamW optimizer({p});
  optimizer.keep_copies(kBF16);
  p.set_grad(Tensor::ones({3, 4}));
  optimizer.step();
  const std::string before = bytes_of(p);
  ops::embedding(Tensor::zeros({5, 2}), Tensor::from<int64_t>({7}, {1}));
  clip_grad_norm_(std::vector<Tensor>{p}, 0.1);
  optimizer.step({.max_norm = 0.1, .zero_grad = true});
  EXPECT_NE(error_of([&] { synchronize(device_); }).find("embedding: index 7"), std::string::npos);
  EXPECT_EQ(bytes_of(p), before);
  EXPECT_EQ(p.grad().sum().item(), 0);
  EXPECT_EQ(bytes_of(optimizer.copies()[0]), bytes_of(p.detach().to(kBF16)));
  EXPECT_EQ(optimizer.state_dict().at("state.0.step").item(), 1);
  EXPECT_EQ(optimizer.skipped_steps(), 0);
}

INSTANTIATE_TEST_SUITE_P(Orders, GeneratedDeviceStep, testing::Values(1, 2, 3),
                         [](const auto& info) { return "seed" + std::to_string(info.param); });
INSTANTIATE_TEST_SUITE_P(Orders, DeviceStep, testing::Values(1, 2, 3),
                         [](const auto& info) { return "seed" + std::to_string(info.param); });

}  // namespace
}  // namespace rondo::optim
