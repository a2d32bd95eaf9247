// Tensors on a device that is not the host: moving, mixing, refusing, and what the fake device catches.
#include <gtest/gtest.h>

#include <thread>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_device/fake_device.h"
#include "rondo/tests/fake_device/test_device.h"

namespace rondo {
namespace {

using test::FakeDevice;
using test::same_bits;

// `call` throws an Error whose message has `part`.
#define EXPECT_ERROR(call, part)                                                                  \
  do {                                                                                            \
    const std::string message_ = test::error_of([&] { static_cast<void>(call); });                \
    EXPECT_NE(message_.find(part), std::string::npos) << "the message is \"" << message_ << "\""; \
  } while (false)

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test::test_device() != kCPU) GTEST_SKIP() << "makes fake devices of its own";
  }
};

TEST_F(DeviceTest, NamesOfDevices) {
  EXPECT_EQ(to_string(kCPU), "cpu");
  EXPECT_EQ(to_string(Device{Backend::kCUDA, 1}), "cuda:1");
  EXPECT_EQ(parse_device("cpu"), kCPU);
  EXPECT_EQ(parse_device("cuda"), (Device{Backend::kCUDA, 0}));
  EXPECT_EQ(parse_device("cuda:17"), (Device{Backend::kCUDA, 17}));
  for (const char* wrong :
       {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "cuda: 1", "cuda:128", "cpu:0", "cudas"})
    EXPECT_ERROR(parse_device(wrong), "write cpu, cuda or cuda:1");
}

TEST_F(DeviceTest, ABackendThatIsNotThereIsAnError) {
  setenv("RONDO_CUDA", "off", 1);  // also on a machine with a GPU
  const Device cuda{Backend::kCUDA, 0};
  EXPECT_ERROR(Tensor::zeros({2}, {kF32, cuda}), "no device cuda:0");
  EXPECT_ERROR(Tensor::ones({2}).to(cuda), "no device cuda:0");
  EXPECT_ERROR(DeviceScope{cuda}, "no device cuda:0: no CUDA device: RONDO_CUDA=off");
  std::string why_not;
  EXPECT_EQ(device_count(Backend::kCUDA, &why_not), 0);
  EXPECT_EQ(why_not, "no CUDA device: RONDO_CUDA=off");
  EXPECT_EQ(device_count(Backend::kFake), 0);
  FakeDevice fake;
  // An index that the backend does not have.
  const std::string message = "no device fake:3: fake has 1 device";
  EXPECT_ERROR(DeviceScope{fake.device(3)}, message);
  EXPECT_ERROR(Tensor::ones({2}).to(fake.device(3)), message);
  EXPECT_ERROR(Tensor::zeros({0}, fake.device(3)), message);
  EXPECT_ERROR(Tensor::from<float>({1}, {1}, fake.device(3)), message);
  EXPECT_ERROR(synchronize(fake.device(3)), message);
  EXPECT_ERROR(Tensor::ones({2}, fake.device(-1)), "no device fake:-1");
  EXPECT_ERROR(Tensor::ones({2}).to(Device{Backend::kCPU, 1}), "no device cpu:1: cpu has 1 device");
}

TEST_F(DeviceTest, AGradientOnAnotherDeviceIsAnError) {
  FakeDevice fake({.devices = 2});
  const Device device = fake.device();
  Tensor w = Tensor::ones({3}, device).requires_grad_();
  const Tensor here = Tensor::ones({3}), roots[] = {w * 2.0}, leaves[] = {w}, grads[] = {here};
  EXPECT_ERROR(w.set_grad(here), "set_grad: the gradient is on cpu, the tensor on fake:0; move it with .to(Device)");
  EXPECT_ERROR(roots[0].backward(here), "backward: the gradient is on cpu, the tensor on fake:0");
  EXPECT_ERROR(autograd::grad(roots, leaves, grads), "the gradient is on cpu, the tensor on fake:0");
  EXPECT_FALSE(w.grad().defined());
  // Hooks, of a leaf and of a value.
  const int64_t id = w.register_hook([&](const Tensor& g) { return g.to(fake.device(1)); });
  EXPECT_ERROR((w * 2.0).sum().backward(), "a hook replaced a gradient on fake:0 by one on fake:1");
  w.remove_hook(id);
  Tensor h = w * 2.0;
  h.register_hook([](const Tensor& g) { return g.to(kCPU); });
  EXPECT_ERROR((h * h).sum().backward(), "a hook replaced a gradient on fake:0 by one on cpu");
  EXPECT_FALSE(w.grad().defined());
}

TEST_F(DeviceTest, MovesThereAndBack) {
  FakeDevice fake({.devices = 2});
  for (const DType dtype : {kF32, kBF16, kI64, kBool}) {
    const Tensor x = Tensor::randn({5, 7}).to(dtype);
    const Tensor there = x.to(fake.device());
    EXPECT_EQ(there.device(), fake.device());
    EXPECT_EQ(there.dtype(), dtype);
    EXPECT_TRUE(same_bits(there.to(kCPU), x));
    EXPECT_TRUE(same_bits(there.to(fake.device(1)).to(kCPU), x));  // from device to device
    EXPECT_TRUE(same_bits(x.t().to(fake.device()).to(kCPU), x.t()));
    EXPECT_TRUE(same_bits(there.t().to(kCPU), x.t()));
    EXPECT_TRUE(there.to(fake.device()).is_same(there));
  }
  EXPECT_EQ(Tensor::zeros({0, 3}, {kF32, fake.device()}).to(kCPU).numel(), 0);
}

TEST_F(DeviceTest, TrimReachesEveryDevice) {
  FakeDevice fake({.devices = 2});
  memory::trim();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(fake.counts(i).trims, 1) << i;
}

TEST_F(DeviceTest, CopyIntoATensorElsewhere) {
  FakeDevice fake;
  const Tensor x = Tensor::randn({4, 6});
  Tensor there = Tensor::zeros({4, 6}, {kF32, fake.device()}), back = Tensor::zeros({4, 6});
  there.copy_(x);
  back.copy_(there);
  EXPECT_TRUE(same_bits(back, x));
  there.t().copy_(Tensor::ones({6, 4}));
  EXPECT_TRUE(same_bits(there.to(kCPU), Tensor::ones({4, 6})));
  Tensor wide = Tensor::zeros({4, 6}, {kF64, fake.device()});
  wide.copy_(x);  // and converts
  EXPECT_TRUE(same_bits(wide.to(kCPU), x.to(kF64)));
}

TEST_F(DeviceTest, FactoriesMakeTheSameNumbers) {
  FakeDevice fake;
  const auto all = [](TensorOptions options) {
    manual_seed(3);
    std::vector<Tensor> made{Tensor::zeros({3}, options), Tensor::full({2, 2}, 1.5, options),
                             Tensor::randn({33}, options), Tensor::rand({4, 5}, options),
                             Tensor::arange(0.5, 3, options)};
    options.dtype = kI64;
    made.push_back(Tensor::randint(-5, 9, {20}, options));
    made.push_back(Tensor::arange(9, -3, -2, options));
    made.push_back(Tensor::full({2}, (int64_t{1} << 60) + 1, options));
    return made;
  };
  const std::vector<Tensor> here = all(kF32), there = all({kF32, fake.device()});
  for (size_t i = 0; i < here.size(); ++i) EXPECT_TRUE(same_bits(here[i], there[i].to(kCPU))) << i;
  const DeviceScope scope(fake.device());
  EXPECT_EQ(Tensor::zeros({2}).device(), fake.device());
  EXPECT_EQ(Tensor::from({1.0f, 2.0f}, {2}).device(), fake.device());
  EXPECT_EQ(Tensor::from({1.0f, 2.0f}, {2}).to_vector<float>(), (std::vector<float>{1, 2}));
  {
    const DeviceScope inner(kCPU);
    EXPECT_EQ(Tensor::zeros({2}).device(), kCPU);
  }
  EXPECT_EQ(default_device(), fake.device());
  std::thread([] { EXPECT_EQ(default_device(), kCPU); }).join();
}

TEST_F(DeviceTest, ReadsWaitAndPrintsName) {
  FakeDevice fake({.early = 0});
  const DeviceScope scope(fake.device());
  const Tensor x = Tensor::arange(4).to(kF32) + 1.0;
  EXPECT_GT(fake.queued(), 0);
  EXPECT_EQ(x.sum().item(), 10.0);
  EXPECT_EQ(x.to_vector<int64_t>(), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(x.to_string(), "tensor([1., 2., 3., 4.], device=fake:0)");
}

TEST_F(DeviceTest, HostPointersAreRefused) {
  FakeDevice fake;
  Tensor x = Tensor::zeros({2}, {kF32, fake.device()});
  EXPECT_ERROR(x.data<float>(), "the tensor is on fake:0");
  EXPECT_ERROR(x.mutable_data<float>(), "copy it with .to(kCPU)");
  EXPECT_ERROR(x.raw_data(), "the tensor is on fake:0");
}

TEST_F(DeviceTest, TwoDevicesInOneCall) {
  FakeDevice fake({.devices = 2});
  const Tensor here = Tensor::ones({2}), there = here.to(fake.device()), other = here.to(fake.device(1));
  EXPECT_ERROR(here + there, "operand 0 is on cpu and operand 1 on fake:0");
  EXPECT_ERROR(there + other, "operand 0 is on fake:0 and operand 1 on fake:1");
  EXPECT_ERROR(Tensor(there).add_(here), "move one with .to(Device)");
  EXPECT_ERROR(ops::cat({here, there}, 0), "cpu");
  EXPECT_EQ((other + other).to_vector<float>(), (std::vector<float>{2, 2}));
}

TEST_F(DeviceTest, GradientsGoBackToTheirDevice) {
  FakeDevice fake;
  Tensor w = Tensor::randn({3, 4}).requires_grad_();
  const Tensor x = Tensor::randn({5, 3});
  x.matmul(w).sum().backward();
  const Tensor expected = w.grad();
  w.zero_grad();
  x.to(fake.device()).matmul(w.to(fake.device())).sum().backward();
  EXPECT_EQ(w.grad().device(), kCPU);
  EXPECT_TRUE(same_bits(w.grad(), expected));
}

// ---- What a kernel finds

TEST_F(DeviceTest, ABadIndexIsReportedByTheNextCallThatWaits) {
  FakeDevice fake({.early = 0});
  const DeviceScope scope(fake.device());
  const Tensor table = Tensor::randn({4, 2});
  const Tensor rows = ops::embedding(table, Tensor::from<int64_t>({1, 9}, {2}));
  const Tensor after = rows + 1.0;  // nothing is thrown: the work is only queued
  std::string message;
  try {
    after.to_vector<float>();
  } catch (const Error& e) {
    message = e.what();
  }
  EXPECT_NE(message.find("embedding"), message.npos) << message;
  EXPECT_NE(message.find("9"), message.npos) << message;
  EXPECT_NE(message.find("device_test.cc"), message.npos) << "the user's line: " << message;
  // Once is enough; the device goes on.
  EXPECT_EQ((Tensor::ones({2}) + 1.0).to_vector<float>(), (std::vector<float>{2, 2}));
  // On the host, at once.
  EXPECT_ERROR(ops::embedding(table.to(kCPU), Tensor::from<int64_t>({9}, {1}).to(kCPU)), "embedding");
}

TEST_F(DeviceTest, SynchronizeThrowsWhatWorkFound) {
  FakeDevice fake({.early = 0});
  const Device device = fake.device();
  enqueue(device, [] { throw Error("the first"); });
  bool failed_then = false;
  enqueue(device, [&] { failed_then = backend_of(device).failed(device.index); });
  enqueue(device, [] { throw Error("the second"); });
  EXPECT_ERROR(synchronize(device), "the first");
  EXPECT_TRUE(failed_then);
  EXPECT_NO_THROW(synchronize(device));
  EXPECT_FALSE(backend_of(device).failed(device.index));
  EXPECT_NO_THROW(synchronize(kCPU));
}

TEST_F(DeviceTest, StopwatchCountsTheDevicesTime) {
  FakeDevice fake({.early = 0});
  for (const Device device : {kCPU, fake.device()}) {
    const Stopwatch watch(device);
    enqueue(device, [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
    EXPECT_GE(watch.seconds(), 0.02);
  }
}

TEST_F(DeviceTest, EveryAllocationMayFail) {
  FakeDevice fake;
  const DeviceScope scope(fake.device());
  const auto step = [] {
    Tensor w = Tensor::ones({8, 8}).requires_grad_();
    const Tensor x = Tensor::ones({4, 8});
    ops::gelu(x.matmul(w)).sum().backward();
    return w.grad().sum().item();
  };
  const double expected = step();
  const int64_t before = fake.counts().allocations;
  step();
  const int64_t allocations = fake.counts().allocations - before;
  ASSERT_GT(allocations, 8);
  const int64_t in_use = fake.counts().blocks_in_use;
  for (int64_t n = 1; n <= allocations; ++n) {
    fake.fail_allocation(n);
    EXPECT_THROW(step(), OutOfMemoryError) << n;
    EXPECT_EQ(fake.counts().blocks_in_use, in_use) << n;
    EXPECT_EQ(step(), expected) << n;
  }
}

TEST_F(DeviceTest, MemoryIsCounted) {
  FakeDevice fake;
  const BackendTable& table = backend_of(fake.device());
  table.reset_peak(0);
  const int64_t before = table.stats(0).bytes_in_use;
  {
    const Tensor x = Tensor::zeros({1000}, {kF32, fake.device()});
    EXPECT_GE(table.stats(0).bytes_in_use, before + 4000);
  }
  EXPECT_EQ(table.stats(0).bytes_in_use, before);
  EXPECT_GE(table.stats(0).peak_bytes, before + 4000);
}

// A tensor may outlive its device.
TEST_F(DeviceTest, FreedAfterTheDeviceIsGone) {
  Tensor x;
  {
    FakeDevice fake;
    x = Tensor::ones({3}, {kF32, fake.device()});
  }
  x = Tensor();
}

// ---- A device that a program installs

TEST_F(DeviceTest, ATableWithoutAFunctionIsNotInstalled) {
  FakeDevice fake;
  BackendTable table = backend_of(fake.device());
  table.name = "slate";
  table.fill = nullptr;
  EXPECT_ERROR(install_backend(Backend::kFake, &table), "the table of slate has no fill");
  table.kernels = Backend::kCUDA;
  EXPECT_ERROR(install_backend(Backend::kFake, &table), "the table of slate has no own_kernels");
  EXPECT_EQ(to_string(fake.device()), "fake:0");
}

TEST_F(DeviceTest, HasTheNameOfItsTable) {
  FakeDevice fake;
  const BackendTable* installed = &backend_of(fake.device());
  BackendTable table = *installed;
  table.name = "slate";
  install_backend(Backend::kFake, &table);
  EXPECT_EQ(to_string(fake.device()), "slate:0");
  EXPECT_ERROR(Tensor::ones({2}, fake.device()) + Tensor::ones({2}, kCPU), "slate:0");
  install_backend(Backend::kFake, installed);
}

// An in-order queue that runs on a thread of its own and knows nothing of work that calls back: backend.h, Note [Work].
TEST_F(DeviceTest, KernelsThatCallOpsRunWholeInOneWork) {
  FakeDevice fake({.early = 0});
  const DeviceScope scope(fake.device());
  const Tensor x = Tensor::arange(8).to(kF32).view({2, 4}).requires_grad_();
  const int64_t before = fake.counts().launches;
  // The kernels of cat and of the gradient of a slice call fill_() and copy_().
  const Tensor both = ops::cat({x.slice(1, {0, 2}), x.slice(1, {1, 3})}, 1);
  EXPECT_EQ(fake.counts().launches, before + 1);
  EXPECT_EQ(both.to_vector<float>(), (std::vector<float>{0, 1, 1, 2, 4, 5, 5, 6}));
  both.sum().backward();
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{1, 2, 1, 0, 1, 2, 1, 0}));
}

// ---- The fake catches

using DeviceDeathTest = DeviceTest;

TEST_F(DeviceDeathTest, AHostRead) {
  FakeDevice fake;
  const Tensor x = Tensor::ones({3}, {kF32, fake.device()});
  EXPECT_DEATH(
      {
        const volatile float* values = reinterpret_cast<const float*>(x.storage().data());
        static_cast<void>(values[0]);
      },
      "host code touched device memory");
}

TEST_F(DeviceDeathTest, WorkThatCallsTheDevice) {
  FakeDevice fake;
  const Device device = fake.device();
  EXPECT_DEATH(
      {
        enqueue(device, [device] { static_cast<void>(Tensor::ones({3}, device)); });
        synchronize(device);
      },
      "work that runs on the device called allocate");
}

TEST_F(DeviceDeathTest, AWriteBehindABlock) {
  FakeDevice fake;
  EXPECT_DEATH(
      {
        Tensor x = Tensor::ones({16}, {kF32, fake.device()});
        float* values = reinterpret_cast<float*>(x.storage().data());
        enqueue(fake.device(), [values] { values[16] = 0; });
        x = Tensor();
        synchronize(fake.device());
      },
      "wrote behind a block of 64 bytes");
}

// A little training, with copies to the device in every step and memory that is used again: its bits.
std::string train(test::FakeDeviceOptions options) {
  FakeDevice fake(options);
  const Device device = fake.device();
  manual_seed(1);
  Tensor w = Tensor::randn({16, 16}).to(device).requires_grad_();
  for (int step = 0; step < 12; ++step) {
    Tensor x = Tensor::randn({8, 16}).to(device);
    const Tensor loss = ops::tanh(x.matmul(w)).sum();
    x = Tensor();
    loss.backward();
    no_grad([&] { w.sub_(w.grad() * 0.01); });
    w.zero_grad();
  }
  return test::bytes_of(w.detach().to(kCPU));
}

TEST_F(DeviceTest, EveryOrderGivesTheSameBits) {
  const std::string expected = train({.seed = 0});
  for (uint64_t seed = 1; seed <= 20; ++seed) EXPECT_EQ(train({.seed = seed}), expected) << seed;
  EXPECT_EQ(train({.seed = 1, .early = 0}), expected);
  EXPECT_EQ(train({.seed = 1, .early = 1}), expected);
}

// A mistake in the backend changes the bits in some order.
int orders_that_differ(test::FakeDeviceOptions options) {
  const std::string expected = train({.seed = 0});
  int different = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    options.seed = seed;
    different += train(options) != expected;
  }
  return different;
}
TEST_F(DeviceTest, AMissingWaitBeforeACopyIsSeen) {
  EXPECT_GT(orders_that_differ({.copy_in_waits_for_compute = false}), 0);
}
TEST_F(DeviceTest, AMissingWaitAfterACopyIsSeen) {
  EXPECT_GT(orders_that_differ({.compute_waits_for_copy_in = false}), 0);
}
TEST_F(DeviceTest, MemoryThatIsFreedTooEarlyIsSeen) {
  EXPECT_GT(orders_that_differ({.frees_in_stream_order = false}), 0);
}

}  // namespace
}  // namespace rondo
