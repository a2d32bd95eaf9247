// Every order of the streams' work gives the same bits; and what the fake driver catches, by name.
#include <gtest/gtest.h>

#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/cuda/module.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/random/random.h"
#include "rondo/runtime/tensor/tensor.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/cuda/kernels.h"

namespace rondo {
namespace {

using test::FakeCuda;

// Copies in every step, memory that is used again, two devices that exchange values, work on the copy stream joined by
// events: the bits.
std::string run(const fake_cuda::Options& options) {
  FakeCuda cuda(options);
  manual_seed(1);
  const BackendTable& table = backend_of(cuda.device());
  const cuda::Kernel kernels[] = {cuda.kernel("axpy", test::axpy(), 0), cuda.kernel("axpy", test::axpy(), 1)};
  Tensor sums[] = {Tensor::zeros({500}).to(cuda.device(0)), Tensor::zeros({500}).to(cuda.device(1))};
  for (int step = 0; step < 12; ++step)
    for (int d = 0; d < 2; ++d) {
      const Tensor x = Tensor::randn({500}).to(cuda.device(d));
      test::launch_axpy(kernels[d], sums[d], x, 0.5f);
      const Tensor exchanged = sums[1 - d].to(cuda.device(d));
      test::launch_axpy(kernels[d], sums[d], exchanged, 0.25f);
      // A copy of the sum through the copy stream.
      const Storage copy = Storage::allocate(2000, cuda.device(d));
      const EventHandle before = table.record(d, Stream::kCompute);
      table.wait(d, Stream::kCopy, before);
      cuda::DeviceState& state = cuda::device_state(d);
      {
        const cuda::ContextScope scope(state);
        state.check(state.driver().copy_on_device(reinterpret_cast<cuda::DevicePtr>(copy.data()),
                                                  reinterpret_cast<cuda::DevicePtr>(sums[d].storage().data()), 2000,
                                                  state.stream(Stream::kCopy)),
                    "cuMemcpyDtoDAsync");
      }
      const EventHandle after = table.record(d, Stream::kCopy);
      table.wait(d, Stream::kCompute, after);
      table.release(d, before);
      table.release(d, after);
      test::launch_axpy(d, kernels[d], reinterpret_cast<float*>(sums[d].storage().data()),
                        reinterpret_cast<const float*>(copy.data()), 500, 0.125f);
    }
  return test::bytes_of(sums[0].to(kCPU)) + test::bytes_of(sums[1].to(kCPU));
}

TEST(CudaOrders, EveryOrderGivesTheSameBits) {
  const std::string expected = run({.devices = 2});
  for (uint64_t seed = 1; seed <= 20; ++seed) EXPECT_EQ(run({.seed = seed, .devices = 2}), expected) << seed;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_EQ(run({.seed = seed, .devices = 2, .early = 0}), expected);
    EXPECT_EQ(run({.seed = seed, .devices = 2, .early = 1}), expected);
    EXPECT_EQ(run({.seed = seed, .devices = 2, .peers = false}), expected);
    const test::Setting setting("RONDO_CUDA_CACHE", "0");
    EXPECT_EQ(run({.seed = seed, .devices = 2}), expected);
  }
}

// ---- Planted mistakes. Each ends the process, with its name.

// The calls that a broken backend would make: calls of the driver on a device.
struct Broken {
  FakeCuda cuda;
  cuda::Kernel axpy;
  cuda::DeviceState& state;
  cuda::ContextScope scope;
  explicit Broken(fake_cuda::Options options = {})
      : cuda(options), axpy(cuda.kernel("axpy", test::axpy())), state(cuda::device_state(0)), scope(state) {}

  const cuda::Driver& driver() { return state.driver(); }
  cuda::StreamPtr copy_stream() { return state.stream(Stream::kCopy); }
  void check(cuda::Result result) { state.check(result, "a call"); }
  float* block(size_t bytes = 400) {
    cuda::DevicePtr address = 0;
    check(driver().memory_allocate(&address, bytes));
    return reinterpret_cast<float*>(address);
  }
  float* pinned() {
    void* data = nullptr;
    check(driver().host_allocate(&data, 400, cuda::kHostAllocPortable));
    return static_cast<float*>(data);
  }
  void run(float* y, const float* x, int device = 0) { test::launch_axpy(device, axpy, y, x, 100, 1.0f); }
  void copy_to(float* to, const float* from, cuda::StreamPtr stream) {
    check(driver().copy_to_device(address(to), from, 400, stream));
  }
  static cuda::DevicePtr address(const float* data) { return reinterpret_cast<cuda::DevicePtr>(data); }
};

class CudaDeathTest : public ::testing::Test {
 protected:
  // A child that was forked may not use CUDA: each death test runs in a program of its own.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// `mistake` on new devices ends the process with this message.
template <class F> void expect_caught(const char* message, F mistake, fake_cuda::Options options = {}) {
  EXPECT_DEATH(
      {
        Broken b(options);
        mistake(b);
      },
      message);
}

TEST_F(CudaDeathTest, ACopyThatComputeDoesNotWaitFor) {
  expect_caught("race: kernel axpy .* writes bytes that cuMemcpyHtoDAsync .* writes, and no event", [](Broken& b) {
    float* x = b.block();
    b.copy_to(x, b.pinned(), b.copy_stream());
    b.run(x, x);
  });
}
TEST_F(CudaDeathTest, ACopyThatDoesNotWaitForCompute) {
  expect_caught("race: cuMemcpyHtoDAsync .* writes bytes that kernel axpy .* reads, and no event", [](Broken& b) {
    float *x = b.block(), *y = b.block();
    b.run(y, x);
    b.copy_to(x, b.pinned(), b.copy_stream());
  });
}
TEST_F(CudaDeathTest, FreedWhileInUse) {
  expect_caught("cuMemFree_v2: freed while .*axpy.* may still use it", [](Broken& b) {
    float* x = b.block();
    b.run(x, x);
    b.check(b.driver().memory_free(Broken::address(x)));
  });
}
TEST_F(CudaDeathTest, FreedOnAnotherStream) {
  expect_caught("cuMemFreeAsync: freed while axpy may still use it", [](Broken& b) {
    cuda::DevicePtr x = 0;
    b.check(b.driver().memory_allocate_async(&x, 400, b.state.compute()));
    b.run(reinterpret_cast<float*>(x), reinterpret_cast<float*>(x));
    b.check(b.driver().memory_free_async(x, b.copy_stream()));
  });
}
TEST_F(CudaDeathTest, UsedBeforeItIsAllocated) {
  expect_caught("race: kernel axpy .* writes bytes that cuMemAllocAsync", [](Broken& b) {
    cuda::DevicePtr x = 0;
    b.check(b.driver().memory_allocate_async(&x, 400, b.copy_stream()));
    b.run(reinterpret_cast<float*>(x), reinterpret_cast<float*>(x));
  });
}
TEST_F(CudaDeathTest, UsedAfterItWasFreed) {
  expect_caught("cuLaunchKernel: kernel axpy: argument 0 is used after it was freed", [](Broken& b) {
    float* x = b.block();
    b.check(b.driver().memory_free(Broken::address(x)));
    b.run(x, x);
  });
}
TEST_F(CudaDeathTest, FreedTwice) {
  expect_caught("freed twice", [](Broken& b) {
    float* x = b.block();
    b.check(b.driver().memory_free(Broken::address(x)));
    b.check(b.driver().memory_free(Broken::address(x)));
  });
}
TEST_F(CudaDeathTest, AnAsynchronousCopyFromPageableMemory) {
  expect_caught("cuMemcpyHtoDAsync_v2: an asynchronous copy from pageable memory", [](Broken& b) {
    std::vector<float> values(100);
    b.copy_to(b.block(), values.data(), b.state.compute());
  });
}
TEST_F(CudaDeathTest, PageLockedMemoryThatIsUsedAgainTooEarly) {
  expect_caught("page-locked memory was changed before the copy has read it",
                [](Broken& b) {
                  float* staging = b.pinned();
                  b.copy_to(b.block(), staging, b.state.compute());
                  staging[7] = 3;
                  b.state.wait_all();
                },
                {.early = 0});
}
TEST_F(CudaDeathTest, PageLockedMemoryThatIsFreedTooEarly) {
  expect_caught("cuMemFreeHost: freed while cuMemcpyHtoDAsync .* may still use it", [](Broken& b) {
    float* staging = b.pinned();
    b.copy_to(b.block(), staging, b.state.compute());
    b.check(b.driver().host_free(staging));
  });
}
TEST_F(CudaDeathTest, MemoryOfAnotherDevice) {
  expect_caught("kernel axpy: argument 0 is memory of device 1, and the work runs on device 0",
                [](Broken& b) {
                  const Tensor there = Tensor::ones({100}).to(b.cuda.device(1));
                  float* x = reinterpret_cast<float*>(there.storage().data());
                  b.run(x, x);
                },
                {.devices = 2});
}
TEST_F(CudaDeathTest, AKernelOfAnotherDevice) {
  expect_caught("kernel axpy was loaded on device 0, and the stream is of device 1",
                [](Broken& b) {
                  const Tensor there = Tensor::ones({100}).to(b.cuda.device(1));
                  float* x = reinterpret_cast<float*>(there.storage().data());
                  b.run(x, x, 1);
                },
                {.devices = 2});
}
TEST_F(CudaDeathTest, AnEventOfAnotherDevice) {
  expect_caught("cuEventRecord: the event is of device 1, and the stream of device 0",
                [](Broken& b) {
                  const cuda::Event event = cuda::device_state(1).take_event(false);
                  b.check(b.driver().event_record(event.event, b.state.compute()));
                },
                {.devices = 2});
}
TEST_F(CudaDeathTest, AStreamOfAnotherDevice) {
  expect_caught("the stream is of device 1, and the current context of device 0",
                [](Broken& b) { b.check(b.driver().stream_synchronize(cuda::device_state(1).compute())); },
                {.devices = 2});
}
TEST_F(CudaDeathTest, AnEventThatWasNeverRecorded) {
  expect_caught("the event was never recorded", [](Broken& b) {
    const cuda::Event event = b.state.take_event(false);
    b.check(b.driver().stream_wait_event(b.state.compute(), event.event, 0));
  });
}
TEST_F(CudaDeathTest, AnEventThatWasDestroyed) {
  expect_caught("the event was destroyed", [](Broken& b) {
    const cuda::Event event = b.state.take_event(false);
    b.check(b.driver().event_destroy(event.event));
    b.check(b.driver().event_record(event.event, b.state.compute()));
  });
}
TEST_F(CudaDeathTest, ALaunchThatIsTooLarge) {
  expect_caught("oversized or empty launch: grid \\[1, 70000, 1\\]", [](Broken& b) {
    float* x = b.block();
    int64_t n = 100;
    float a = 1;
    void* args[] = {&x, &x, &n, &a};
    cuda::launch(0, b.axpy, {1, 70'000}, {32}, 0, args);
  });
}
TEST_F(CudaDeathTest, MoreSharedMemoryThanAskedFor) {
  expect_caught("100000 bytes of shared memory, and the function may have 49152", [](Broken& b) {
    float* x = b.block();
    int64_t n = 100;
    float a = 1;
    void* args[] = {&x, &x, &n, &a};
    cuda::launch(0, b.axpy, {1}, {32}, 100'000, args);
  });
}
TEST_F(CudaDeathTest, ACopyBeyondABlock) {
  expect_caught("the target of 404 bytes goes beyond its block of 400", [](Broken& b) {
    b.check(b.driver().fill_bytes(Broken::address(b.block()), 0, 404, b.state.compute()));
  });
}
TEST_F(CudaDeathTest, AKernelThatWritesBehindItsBlock) {
  expect_caught("something wrote behind the block", [](Broken& b) {
    fake_cuda::Kernel beyond = test::axpy();
    beyond.accesses = nullptr;
    const cuda::Kernel kernel = b.cuda.kernel("beyond", beyond);
    float* x = b.block();
    test::launch_axpy(0, kernel, x, x, 101, 1.0f);
    b.state.wait_all();
    b.check(b.driver().memory_free(Broken::address(x)));
  });
}
TEST_F(CudaDeathTest, AKernelThatReadsFarBehindItsBlock) {
  expect_caught("kernel beyond touched memory of device 0 that is no block", [](Broken& b) {
    fake_cuda::Kernel beyond = test::axpy();
    beyond.accesses = nullptr;
    const cuda::Kernel kernel = b.cuda.kernel("beyond", beyond);
    float* x = b.block();
    test::launch_axpy(0, kernel, x, x, 4000, 1.0f);
    b.state.wait_all();
  });
}
TEST_F(CudaDeathTest, HostCodeThatTouchesDeviceMemory) {
  expect_caught("host code touched memory of device 0",
                [](Broken& b) { static_cast<volatile float*>(b.block())[0] = 1; });
}
TEST_F(CudaDeathTest, ACallbackThatTouchesDeviceMemory) {
  expect_caught("a callback of the host touched closed memory", [](Broken& b) {
    volatile float* x = b.block();
    enqueue(b.cuda.device(), [x] { x[0] = 1; });
    b.state.wait_all();
  });
}
TEST_F(CudaDeathTest, ACallbackThatCallsTheDriver) {
  expect_caught("a callback of the host calls the driver", [](Broken& b) {
    enqueue(b.cuda.device(), [&] { synchronize(b.cuda.device()); });
    b.state.wait_all();
  });
}
TEST_F(CudaDeathTest, NoContextIsCurrent) {
  expect_caught("cuMemAlloc_v2: no context is current", [](Broken& b) {
    cuda::Context context = nullptr;
    b.check(b.driver().context_pop(&context));
    static_cast<void>(b.block());
  });
}
TEST_F(CudaDeathTest, ContextsThatAreNotPopped) {
  expect_caught("no context was pushed", [](Broken& b) {
    cuda::Context context = nullptr;
    b.check(b.driver().context_pop(&context));
    b.check(b.driver().context_pop(&context));
  });
}
TEST_F(CudaDeathTest, UnknownCalls) {
  expect_caught("unknown call: cuGraphLaunch", [](Broken&) {
    using GetProcAddress = int (*)(const char*, void**, int, uint64_t, void*);
    void* address = nullptr;
    test::library_function<GetProcAddress>("cuGetProcAddress_v2")("cuGraphLaunch", &address, 12000, 0, nullptr);
  });
}

}  // namespace
}  // namespace rondo
