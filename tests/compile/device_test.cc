// Regions on a device that runs late (tests/fake_device/): the bits of the CPU, and errors that arrive when somebody
// waits.
#include <gtest/gtest.h>

#include <optional>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_device/fake_device.h"

namespace rondo {
namespace {

struct Block : nn::Module<Block> {
  nn::LayerNorm norm = child("norm", 12);
  nn::Linear in = child("in", 12, 48), out = child("out", 48, 12);
  double factor = 1;
  Tensor forward(const Tensor& x) { return x + out(ops::gelu(in(norm(x)) * factor)) * factor; }
};

class Devices : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    if (default_device() != kCPU) GTEST_SKIP() << "the tests run on a device already";
  }

  // Three steps of four layers that share a region, with a factor that changes.
  static std::vector<Tensor> train(Device device, const compile::CompileOptions& options) {
    manual_seed(5);
    nn::ModuleList<Block> layers(4);
    const Tensor x = Tensor::randn({20, 12});
    layers.to(device);
    const compile::Regions regions = compile::compile_regions(layers, options);
    std::vector<Tensor> results;
    for (int step = 0; step < 3; ++step) {
      layers.zero_grad();
      Tensor y = x.to(device);
      for (Block& layer : layers) {
        layer.factor = 1.0 - 0.125 * step;
        y = layer(y);
      }
      ops::mean(y * y).backward();
      results.push_back(y.detach());
      for (Tensor& p : layers.parameters()) {
        NoGrad off;
        p.sub_(p.grad() * 0.25);
        results.push_back(p.grad());
      }
    }
    EXPECT_EQ(regions.report()[0].entries, 2) << regions.summary();  // the first layer sends no gradient on
    EXPECT_EQ(regions.report()[0].eager_runs, 0) << regions.summary();
    std::vector<Tensor> there;
    for (const Tensor& t : results) there.push_back(t.to(kCPU));
    return there;
  }
};

TEST_F(Devices, RegionsHaveTheBitsOfTheCPU) {
  for (compile::Mode mode : {compile::Mode::kDefault, compile::Mode::kReduceOverhead, compile::Mode::kMaxAutotune}) {
    const compile::CompileOptions options{.exact = true, .mode = mode};
    const std::vector<Tensor> expected = train(kCPU, options);
    for (uint64_t seed : {1, 2, 3}) {
      const test::FakeDevice fake({.seed = seed});
      const std::vector<Tensor> actual = train(fake.device(), options);
      ASSERT_EQ(expected.size(), actual.size());
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(test::same_bits(expected[i], actual[i])) << "result " << i << ", seed " << seed;
    }
  }
}

// A replay for a second derivative, where an input was overwritten and its result is taken from what the region kept.
TEST_F(Devices, SecondDerivativesReadWhatIsKept) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "gradients with a history");
  const auto run = [](Device device) {
    manual_seed(9);
    const Tensor start = Tensor::randn({6, 5});
    auto f = compile::compile([](const Tensor& x) { return ops::exp(ops::tanh(x) * 0.5) * 2.0; }, {.exact = true});
    std::vector<Tensor> results;
    for (bool overwrite : {false, true}) {
      const Tensor x = start.clone().to(device).requires_grad_();
      Tensor h = x * 1.0;
      const Tensor y = f(h);
      if (overwrite) {
        NoGrad off;
        h.mul_(3.0);
      }
      const Tensor roots[] = {ops::sum(y)}, leaves[] = {x};
      const std::string error = test::error_of([&] {
        const Tensor g = autograd::grad(roots, leaves, {}, true, true)[0];
        ops::sum(g * g).backward();
        results.push_back(x.grad().to(kCPU));
      });
      EXPECT_EQ(error, "");
    }
    return results;
  };
  const std::vector<Tensor> expected = run(kCPU);
  const test::FakeDevice fake;
  const std::vector<Tensor> actual = run(fake.device());
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(test::same_bits(expected[i], actual[i])) << i;
}

// The launch is queued before anybody knows that its index is wrong.
TEST_F(Devices, ABadIndexIsThrownByWhoeverWaits) {
  const test::FakeDevice fake;
  const Tensor table = Tensor::randn({6, 4}).to(fake.device());
  auto look_up = compile::compile(
      [](const Tensor& t, const Tensor& index) { return ops::exp(ops::index_select(t, 0, index)) * 2.0; });
  const auto at = [&](int64_t i) { return look_up(table, Tensor::from<int64_t>({i}, {1}).to(fake.device())); };
  at(3);
  const std::string error = test::error_of([&] { at(77).to(kCPU); });
  EXPECT_NE(error.find("77"), std::string::npos) << error;
  EXPECT_EQ(look_up.regions().report()[0].eager_runs, 0);
  EXPECT_EQ(test::error_of([&] { at(2).to(kCPU); }), "");
}

// A replay takes arguments of the device that was recorded only. Otherwise the host's program reads device memory.
TEST_F(Devices, AReplayKeepsToItsDevice) {
  const test::FakeDevice fake({.devices = 2});
  Block eager, block;
  block.load_state_dict(eager.state_dict());
  const compile::Regions regions = compile::compile_module(block,
                                                           {.exact = true, .capture = compile::Capture::kReplay});
  const Tensor x = Tensor::randn({4, 12});
  const Tensor expected = eager(x).detach();
  for (const Device device : {kCPU, fake.device(0), fake.device(1), kCPU}) {
    block.to(device);
    for (int call = 0; call < 3; ++call)
      EXPECT_TRUE(test::same_bits(block(x.to(device)).detach().to(kCPU), expected)) << to_string(device);
  }
  EXPECT_GE(regions.report()[0].replays, 4) << regions.summary();
  // Arguments alone, and factories, which follow the default device.
  auto f = compile::compile([](const Tensor& a, const Tensor& b) { return a * b + Tensor::ones({3}); },
                            {.capture = compile::Capture::kReplay});
  for (const Device device : {kCPU, fake.device(0), kCPU, fake.device(1)}) {
    const DeviceScope scope(device);
    const Tensor a = Tensor::full({3}, 2.0);
    for (int call = 0; call < 2; ++call) {
      const Tensor y = f(a, a + 0.0);
      EXPECT_EQ(y.device(), device);
      EXPECT_EQ(y.to_vector<float>(), std::vector<float>(3, 5.0f));
    }
  }
}

// Ops of two devices in one call: each recording has one device.
TEST_F(Devices, OpsOfTwoDevicesInOneRegion) {
  const test::FakeDevice fake({.devices = 2});
  const Tensor kept = Tensor::full({4}, 2.0, fake.device(1));
  Tensor beside;
  auto f = compile::compile([&](const Tensor& x) {
    const Tensor here = Tensor::full({4}, 3.0, kCPU) * 2.0;
    const Tensor there = x * 3.0;
    beside = kept * 5.0 + 1.0;
    return (there + 1.0) * here.to(x.device());
  });
  for (const Device device : {kCPU, fake.device(0), fake.device(1)})
    for (int call = 0; call < 2; ++call) {
      const Tensor x = Tensor::full({4}, 1.0, device).requires_grad_();
      const Tensor y = f(x);
      EXPECT_EQ(y.device(), device);
      EXPECT_EQ(y.to_vector<float>(), std::vector<float>(4, 24.0f));
      EXPECT_EQ(beside.device(), fake.device(1));
      EXPECT_EQ(beside.to_vector<float>(), std::vector<float>(4, 11.0f));
      y.sum().backward();
      EXPECT_EQ(x.grad().to_vector<float>(), std::vector<float>(4, 18.0f));
    }
  EXPECT_NE(f.regions().report()[0].last_break, "");
  EXPECT_EQ(f.regions().report()[0].eager_runs, 0);
}

}  // namespace
}  // namespace rondo
