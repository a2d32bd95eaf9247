// Out of memory in training: whichever allocation fails, the error is typed and says what is held, the step has changed
// nothing, and the next attempt has the bits of a run in which nothing failed.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "rondo/compile/compile.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adafactor.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/clip.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/foreach_map.h"
#include "rondo/optim/grad_scaler.h"
#include "rondo/optim/lamb.h"
#include "rondo/optim/muon.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/optim/make_optimizer.h"

namespace rondo {
namespace {

using test::FakeCuda;

// No more memory from the n-th allocation on.
constexpr int64_t kAll = 1'000'000;

// Says what was asked for, by whom, and what is held.
void expect_complete(const std::string& message) {
  EXPECT_EQ(message.find(test::on_real_cuda() ? "out of memory on cuda:0 (" : "out of memory on cuda:0 (fake GPU, "),
            0u)
      << message;
  EXPECT_TRUE(message.find("cannot allocate ") != message.npos || message.find("cannot page-lock ") != message.npos ||
              message.find("cannot load the code of a kernel") != message.npos ||
              message.find("cannot make a handle of cuBLASLt") != message.npos)
      << message;
  EXPECT_EQ(message.find("outside of any op"), std::string::npos) << message;
  for (const char* part : {"In use: ", "parameters ", "gradients ", "optimizer states ", "activations ",
                           "Held by other libraries and programs: ", "Use a smaller batch"})
    EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
}

// Forward, backward with dropout, clipping and the step.
class Loop {
 public:
  Loop(Device device, bool compiled)
      : device_(device),
        model_({.vocab_size = 13, .block_size = 4, .n_layer = 1, .n_head = 2, .n_embd = 8, .dropout = 0.1}, 3) {
    model_.to(device);
    optimizer_.emplace(model_.parameters(), optim::AdamWOptions{.lr = 1e-2});
    if (!compiled) return;
    regions_.emplace(compile::compile_regions(model_, {.exact = true}));
    optim::compile(*optimizer_);
  }
  // One attempt at step `i`; may be made again after an error. Its loss is read by loss().
  void step(int i) {
    manual_seed(static_cast<uint64_t>(i));
    optimizer_->zero_grad();
    const Tensor batch = Tensor::arange(i % 5, i % 5 + 8).view({2, 4}).to(device_);
    loss_ = model_.loss(batch, batch);
    loss_.backward();
    optimizer_->step({.max_norm = 0.7});
  }
  double loss() const { return loss_.item(); }
  const compile::Regions* regions() const { return regions_ ? &*regions_ : nullptr; }
  // The parameters and states.
  std::vector<std::string> bits() const {
    std::vector<std::string> all;
    for (const Tensor& p : model_.parameters()) all.push_back(test::bytes_of(p));
    for (const auto& [key, tensor] : optimizer_->state_dict()) all.push_back(test::bytes_of(tensor));
    return all;
  }

 private:
  Device device_;
  nn::GPT2 model_;
  std::optional<optim::AdamW> optimizer_;
  std::optional<compile::Regions> regions_;
  Tensor loss_;
};

class OutOfMemory : public testing::TestWithParam<bool> {
 protected:
  const bool compiled_ = GetParam();

  // Losses, and the bits at the end, of a run in which nothing fails.
  std::pair<std::vector<double>, std::vector<std::string>> undisturbed(int steps) const {
    FakeCuda cuda;
    Loop loop(cuda.device(), compiled_);
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) loop.step(i), losses.push_back(loop.loss());
    return {losses, loop.bits()};
  }
  void expect_compiled(const Loop& loop) const {
    if (loop.regions() == nullptr) return;
    for (const compile::RegionReport& report : loop.regions()->report()) {
      EXPECT_EQ(report.failed_compilations, 0) << report.last_failed_compilation;
      EXPECT_EQ(report.eager_runs, 0);
    }
  }
};

// Every block is an allocation of the driver, so that each may fail.
TEST_P(OutOfMemory, AtEachAllocationOfASteadyLoop) {
  const test::Setting uncached("RONDO_CUDA_CACHE", "0");
  constexpr int kWarm = 2, kMost = 200;
  FakeCuda cuda({.seed = 5});
  std::optional<Loop> undisturbed(std::in_place, cuda.device(), compiled_),
      loop(std::in_place, cuda.device(), compiled_);
  std::vector<double> expected;  // losses
  const auto expect_until = [&](int step) {
    while (std::ssize(expected) <= step) {
      undisturbed->step(static_cast<int>(expected.size()));
      expected.push_back(undisturbed->loss());
    }
  };
  for (int i = 0; i < kWarm; ++i) loop->step(i);
  expect_until(kWarm);
  const int64_t before = cuda->counts().allocations;
  expect_until(kWarm + 1);
  const int64_t of_a_step = cuda->counts().allocations - before;
  int step = kWarm;
  // The first 200, and then the rest of a step, if there is more, in strides.
  for (int64_t n = 1; n <= std::max<int64_t>(kMost, of_a_step); n += n < kMost ? 1 : 7) {
    std::string message;
    int attempts = 0;
    expect_until(step + 5);
    cuda->fail_allocations(n, kAll);
    while (message.empty() && ++attempts < 5) {
      try {
        loop->step(step);
      } catch (const OutOfMemoryError& error) {
        message = error.what();
      }
      if (message.empty()) ++step;
    }
    cuda->fail_allocations(0, 0);
    ASSERT_FALSE(message.empty()) << n;
    expect_complete(message);
    loop->step(step);
    ASSERT_EQ(loop->loss(), expected[static_cast<size_t>(step)]) << "after allocation " << n << ": " << message;
    ++step;
  }
  for (; step < std::ssize(expected); ++step) loop->step(step);
  EXPECT_TRUE(loop->bits() == undisturbed->bits());
  expect_compiled(*loop);
  if (testing::Test::HasFailure()) return;
  // All of it was in vain, and nothing is kept of it.
  loop.reset();
  undisturbed.reset();
  synchronize(cuda.device());
  EXPECT_EQ(memory::stats(cuda.device()).bytes_in_use, 0);
}

// From the start of the program on: the model's way to the device, compiling, loading code, making states.
TEST_P(OutOfMemory, AtEachAllocationOfTheFirstSteps) {
  constexpr int kSteps = 2;
  const auto [losses, bits] = undisturbed(kSteps);
  int failures = 0;
  for (int64_t n = 1; n <= 200; ++n) {
    // A cache hides most allocations of the device's memory; the others are those of code and of page-locked memory.
    const test::Setting caching("RONDO_CUDA_CACHE", n % 4 != 0 ? "1" : "0");
    FakeCuda cuda({.seed = static_cast<uint64_t>(n)});
    synchronize(cuda.device());
    cuda->fail_allocations(n, kAll);
    const auto attempt = [&](auto what) {
      try {
        what();
      } catch (const OutOfMemoryError& error) {
        cuda->fail_allocations(0, 0);
        ++failures;
        expect_complete(error.what());
        what();
      }
    };
    std::optional<Loop> loop;
    attempt([&] { loop.emplace(cuda.device(), compiled_); });
    std::vector<double> seen;
    for (int i = 0; i < kSteps; ++i) {
      attempt([&] { loop->step(i); });
      attempt([&] { seen.push_back(loop->loss()); });
    }
    cuda->fail_allocations(0, 0);
    ASSERT_TRUE(seen == losses) << n;
    ASSERT_TRUE(loop->bits() == bits) << n;
    expect_compiled(*loop);
  }
  EXPECT_GT(failures, 80);
}

INSTANTIATE_TEST_SUITE_P(Modes, OutOfMemory, testing::Bool(),
                         [](const auto& info) { return info.param ? "compiled" : "eager"; });

// One failure only: the caches are emptied, and the next try succeeds. Nobody notices.
TEST(OutOfMemoryOnce, IsHidden) {
  FakeCuda cuda({.seed = 2});
  Loop expected(cuda.device(), false), loop(cuda.device(), false);
  for (int i = 0; i < 12; ++i) {
    memory::trim();
    expected.step(i);
    memory::trim();
    cuda->fail_allocations(1 + i / 2, 1, fake_cuda::kDeviceMemory);
    loop.step(i);
    EXPECT_EQ(loop.loss(), expected.loss()) << i;
  }
}

// A batch that does not fit, and the program goes on with a smaller one.
TEST(OutOfMemoryOfABatch, ASmallerOneFits) {
  fake_cuda::Options small;
  if (!test::on_real_cuda()) small.bytes = size_t{40} << 20;
  FakeCuda cuda(small);
  const Device device = cuda.device();
  // A real device is larger, so that the program sets itself a limit there.
  if (test::on_real_cuda()) memory::set_limit(int64_t{40} << 20, device);
  nn::Linear layer(256, 1024);
  layer.to(device);
  optim::SGD optimizer(layer.parameters(), {.lr = 0.1, .momentum = 0.9});
  const auto step = [&](int64_t rows) {
    optimizer.zero_grad();
    const Tensor x = Tensor::ones({rows, 256}).to(device), y = ops::gelu(layer(x));
    ops::mean(y * y).backward();
    optimizer.step();
    return ops::mean(y).item();
  };
  const double first = step(100);
  std::string message;
  try {
    step(6000);
  } catch (const OutOfMemoryError& error) {
    message = error.what();
  }
  expect_complete(message);
  EXPECT_NE(message.find("parameters 1.1 MB"), std::string::npos) << message;
  EXPECT_NE(message.find("optimizer states 1.1 MB"), std::string::npos) << message;
  EXPECT_NE(message.find("out_of_memory_test.cc"), std::string::npos) << message;
  EXPECT_NE(step(100), first);
  EXPECT_TRUE(std::isfinite(step(1000)));
}

// ---- Each kind of memory

std::string message_of(const FakeCuda& cuda, fake_cuda::Memories kind, const std::function<void()>& work) {
  cuda->fail_allocations(1, kAll, kind);
  const std::string message = test::error_of<OutOfMemoryError>(work);
  cuda->fail_allocations(0, 0);
  return message;
}

TEST(OutOfMemoryKinds, PageLockedMemory) {
  FakeCuda cuda;
  const Device device = cuda.device();
  const Tensor host = Tensor::randn({3000}), there = host.to(device);
  synchronize(device);
  memory::trim();  // the staging buffers go
  for (const auto& work : std::vector<std::function<void()>>{[&] { static_cast<void>(host.to(device)); },
                                                             [&] { there.to_vector<float>(); },
                                                             [&] { static_cast<void>(ops::sum(there).item()); }}) {
    const std::string message = message_of(cuda, fake_cuda::kPinnedMemory, work);
    EXPECT_NE(message.find("cannot page-lock 65536 bytes of host memory (copies hold 0 bytes of it)"), message.npos)
        << message;
    work();
    synchronize(device);
    memory::trim();
  }
  EXPECT_TRUE(test::same_bits(there.to(kCPU), host));
}

TEST(OutOfMemoryKinds, PeersWithoutDirectAccess) {
  FakeCuda cuda({.devices = 2, .peers = false});
  const Tensor host = Tensor::randn({3000}), here = host.to(cuda.device(0));
  synchronize(cuda.device(0)), synchronize(cuda.device(1));
  memory::trim();
  const std::string message = message_of(cuda, fake_cuda::kPinnedMemory,
                                         [&] { static_cast<void>(here.to(cuda.device(1))); });
  EXPECT_NE(message.find("cannot page-lock"), message.npos) << message;
  EXPECT_TRUE(test::same_bits(here.to(cuda.device(1)).to(kCPU), host));
}

TEST(OutOfMemoryKinds, Code) {
  FakeCuda cuda;
  const Tensor x = Tensor::randn({5, 7}), there = x.to(cuda.device());
  const auto work = [&] { static_cast<void>(ops::softmax(there, -1)); };
  const std::string message = message_of(cuda, fake_cuda::kCodeMemory, work);
  EXPECT_NE(message.find("cannot load the code of a kernel for softmax ("), message.npos) << message;
  EXPECT_NE(message.find("out_of_memory_test.cc"), message.npos) << message;
  expect_complete(message);
  EXPECT_EQ(ops::softmax(there, -1).sizes(), x.sizes());
}

// ---- Steps change nothing before they are ready

// Optimizers whose step is several launches: several dtypes, several sweeps, work of its own for each matrix.
const std::map<std::string, optim::Make>& optimizers() {
  using namespace optim;
  static const std::map<std::string, Make> all = {
      {"adamw", make<AdamW>(AdamWOptions{.lr = 0.01, .weight_decay = 0.1})},
      {"adafactor", make<Adafactor>(AdafactorOptions{.lr = 0.1, .weight_decay = 0.1})},
      {"lamb", make<LAMB>(LAMBOptions{.lr = 0.01, .weight_decay = 0.1})},
      {"muon", make<Muon>(MuonOptions{.lr = 0.02})},
  };
  return all;
}

// Parameters, gradients, states, averages, copies and the scaler after a step in which the n-th allocation fails; and
// after the same step once more.
struct Outcome {
  bool failed = false;
  std::vector<std::string> after_error, at_end;
};

Outcome three_steps(const FakeCuda& cuda, const std::string& name, optim::StateFormat format, int64_t failing) {
  const Device device = cuda.device();
  Generator generator(4);
  const auto random = [&](const Dims& sizes, DType dtype) {
    return Tensor::randn(sizes, {kF32, kCPU}, &generator).to(dtype).to(device);
  };
  std::vector<Tensor> params;
  const DType other = name == "muon" ? kF32 : kBF16;
  for (const auto& [sizes, dtype] :
       std::vector<std::pair<Dims, DType>>{{{12, 20}, kF32}, {{70, 60}, other}, {{30, 8}, kF32}})
    params.push_back(random(sizes, dtype).requires_grad_());
  if (name != "muon") params.push_back(random({33}, kF32).requires_grad_());
  const auto optimizer = optimizers().at(name)(params, format);
  optimizer->track_average({.decay = 0.9});
  optimizer->keep_copies(kBF16);
  amp::GradScaler scaler({.init_scale = 4, .growth_interval = 2});
  const auto bits = [&](bool states) {
    std::vector<std::string> all;
    for (const Tensor& p : params) {
      all.push_back(test::bytes_of(p));
      if (p.grad().defined()) all.push_back(test::bytes_of(p.grad()));
    }
    // States that were made in vain are as new ones.
    if (states)
      for (const auto& [key, tensor] : optimizer->state_dict()) all.push_back(key + test::bytes_of(tensor));
    for (const Tensor& copy : optimizer->copies()) all.push_back(test::bytes_of(copy));
    for (const auto& [key, tensor] : scaler.state_dict()) all.push_back(key + test::bytes_of(tensor));
    return all;
  };
  Outcome outcome;
  for (int step = 0; step < 3; ++step) {
    for (const Tensor& p : params) Tensor(p).set_grad(random(p.sizes(), p.dtype()));
    params[0].set_grad(random({20, 12}, kF32).t());  // not contiguous
    const auto make_step = [&] {
      if (step == 2) optimizer->step({.max_norm = 1});
      else scaler.step(*optimizer, {.max_norm = 3, .zero_grad = step == 1});
    };
    const auto guarded = [&](auto work, bool states) {
      const std::vector<std::string> before = bits(states);
      cuda->fail_allocations(failing, kAll);
      try {
        work();
      } catch (const OutOfMemoryError& error) {
        expect_complete(error.what());
        outcome.failed = true;
      }
      cuda->fail_allocations(0, 0);
      if (!outcome.failed) return;
      EXPECT_TRUE(bits(states) == before) << "step " << step << ", allocation " << failing;
      work();
    };
    if (step == 1 && failing > 0) {
      guarded(make_step, true);
      if (!outcome.failed) guarded([&] { scaler.update(); }, true);
      else scaler.update();
    } else {
      make_step();
      if (step != 2) scaler.update();
    }
  }
  outcome.at_end = bits(true);
  return outcome;
}

TEST(OutOfMemorySteps, ChangeNothing) {
  const test::Setting uncached("RONDO_CUDA_CACHE", "0");
  FakeCuda cuda({.seed = 9});
  for (const auto& [name, make] : optimizers())
    for (const optim::StateFormat format : {optim::StateFormat::kFull, optim::StateFormat::k8Bit}) {
      if (format != optim::StateFormat::kFull && name != "muon" && name != "adamw") continue;
      const std::vector<std::string> expected = three_steps(cuda, name, format, 0).at_end;
      int64_t failing = 0;
      Outcome outcome;
      do {
        outcome = three_steps(cuda, name, format, ++failing);
        ASSERT_TRUE(outcome.at_end == expected) << name << ", allocation " << failing;
      } while (outcome.failed && failing < 1000);
      EXPECT_GT(failing, 10) << name;
      EXPECT_FALSE(outcome.failed);
    }
}

TEST(OutOfMemorySteps, ClippingAndMapsChangeNothing) {
  const test::Setting uncached("RONDO_CUDA_CACHE", "0");
  FakeCuda cuda({.seed = 3});
  const Device device = cuda.device();
  std::vector<Tensor> params;
  for (const DType dtype : {kF32, kBF16, kF64})
    params.push_back(Tensor::ones({50}).to(dtype).to(device).requires_grad_());
  const auto bits = [&] {
    std::string all;
    for (const Tensor& p : params) all += test::bytes_of(p) + test::bytes_of(p.grad());
    return all;
  };
  for (const Tensor& p : params) Tensor(p).set_grad(Tensor::full({50}, 3.0).to(p.dtype()).to(device));
  const std::string before = bits();
  const auto clip = [&] { optim::clip_grad_norm_(params, 0.5); };
  const auto map = [&] {
    optim::foreach_map([](auto& p, auto by) { p = p * by; }, std::span<const Tensor>(params), 2.0);
  };
  for (const auto& work : std::vector<std::function<void()>>{clip, map}) {
    for (int64_t n = 1;; ++n) {
      ASSERT_LT(n, 200);
      const std::string earlier = bits();
      cuda->fail_allocations(n, kAll);
      const std::string message = test::error_of<OutOfMemoryError>(work);
      cuda->fail_allocations(0, 0);
      if (message.empty()) break;
      expect_complete(message);
      ASSERT_EQ(bits(), earlier) << n;
    }
    EXPECT_NE(bits(), before);
  }
}

}  // namespace
}  // namespace rondo
