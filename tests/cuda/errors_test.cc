// Errors of a CUDA device, and the runtime's messages for them: on the fake driver.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/targets.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/cuda/backend.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/cuda/module.h"
#include "rondo/runtime/cuda/status.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/tensor/tensor.h"
#include "rondo/tests/cuda/kernels.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/paths.h"

namespace rondo {
namespace {

using test::error_of;
using test::FakeCuda;

#define EXPECT_PART(text, part) EXPECT_NE((text).find(part), std::string::npos) << text

// A kernel that kills its context, as an access to an illegal address does.
fake_cuda::Kernel fault(cuda::Result result) {
  return {{8}, [result](const fake_cuda::Launch&) { throw fake_cuda::DeviceFault{static_cast<int>(result)}; }, {}};
}
void launch_on(const cuda::Kernel& kernel, const Tensor& x) {
  std::byte* data = x.storage().data();
  void* args[] = {&data};
  cuda::launch(x.device().index, kernel, {1}, {32}, 0, args);
}

TEST(CudaErrors, ASickContextIsLost) {
  FakeCuda cuda({.devices = 2, .early = 0});
  cuda.expect_lost();
  const cuda::Kernel bad = cuda.kernel("bad_gather", fault(cuda::Result::kIllegalAddress));
  Tensor x = Tensor::ones({4}).to(cuda.device());
  const Tensor other = Tensor::ones({4}).to(cuda.device(1));
  launch_on(bad, x);  // nothing is known yet
  std::string message;
  try {
    x.to_vector<float>();
  } catch (const DeviceError& error) {
    message = error.what();
    EXPECT_TRUE(error.lost());
  }
  EXPECT_PART(message, "cuda:0 is lost: CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_PART(message, "start the program again, from a checkpoint");
  EXPECT_PART(message, "RONDO_CUDA_SYNC=1 names the work that failed");
  EXPECT_EQ(error_of<DeviceError>([&] { x.to_vector<float>(); }), message) << "every later call says the same";
  EXPECT_EQ(error_of<DeviceError>([&] { Tensor::ones({2}).to(cuda.device()); }), message);
  EXPECT_EQ(error_of<DeviceError>([&] { launch_on(bad, x); }), message);
  EXPECT_TRUE(backend_of(cuda.device()).failed(0));
  x = Tensor();  // does nothing
  EXPECT_EQ(other.to_vector<float>()[3], 1.0f) << "the other device works";
}

TEST(CudaErrors, SyncNamesTheLaunch) {
  const test::Setting sync("RONDO_CUDA_SYNC", "1");
  FakeCuda cuda({.early = 0});
  cuda.expect_lost();
  const cuda::Kernel bad = cuda.kernel("bad_gather", fault(cuda::Result::kMisalignedAddress));
  const cuda::Kernel axpy = cuda.kernel("axpy", test::axpy());
  const Tensor x = Tensor::ones({4}).to(cuda.device());
  test::launch_axpy(axpy, x, x, 1.0f);
  EXPECT_EQ(cuda->queued(), 0);
  const std::string message = error_of<DeviceError>([&] { launch_on(bad, x); });
  EXPECT_PART(message, "CUDA_ERROR_MISALIGNED_ADDRESS");
  EXPECT_PART(message, "the wait for bad_gather (RONDO_CUDA_SYNC=1)");
}

TEST(CudaErrors, ALaunchThatIsRefused) {
  FakeCuda cuda({.aborts = false});
  const cuda::Kernel axpy = cuda.kernel("axpy", test::axpy());
  const Tensor x = Tensor::ones({4}).to(cuda.device());
  std::byte* data = x.storage().data();
  int64_t n = 4;
  float a = 1;
  void* args[] = {&data, &data, &n, &a};
  const std::string message = error_of<DeviceError>([&] { cuda::launch(0, axpy, {1}, {2048}, 0, args); });
  EXPECT_PART(message, "cuda:0: the launch of axpy with a grid of [1, 1, 1], blocks of [2048, 1, 1]");
  EXPECT_PART(message, "CUDA_ERROR_INVALID_VALUE");
  EXPECT_NO_THROW(cuda::launch(0, axpy, {0}, {32}, 0, args)) << "a grid without blocks is no launch";
  EXPECT_NO_THROW(cuda::launch(0, axpy, {1}, {32}, 0, args));
  EXPECT_EQ(x.to_vector<float>()[0], 2.0f) << "the device goes on";
}

TEST(CudaErrors, Modules) {
  FakeCuda cuda;
  EXPECT_PART(error_of<DeviceError>([] { cuda::Module::load(0, "no image"); }), "CUDA_ERROR_INVALID_IMAGE");
  cuda->register_kernel("axpy", test::axpy());
  const auto module = cuda::Module::load(0, cuda->image({"axpy"}));
  EXPECT_PART(error_of<DeviceError>([&] { module->kernel("axpz"); }),
              "cuModuleGetFunction(axpz): CUDA_ERROR_NOT_FOUND");
  EXPECT_PART(error_of<DeviceError>([&] { module->kernel("axpy", 300 << 10); }), "307200 bytes of shared memory");
  EXPECT_NO_THROW(module->kernel("axpy", 200 << 10));
  const std::string image = cuda->image({"axpy"});
  cuda->fail_allocations(1, 1);
  EXPECT_NO_THROW(cuda::Module::load(0, image)) << "the cache is emptied, and the second try succeeds";
  cuda->fail_allocations(1, 2);
  EXPECT_THROW(cuda::Module::load(0, image), OutOfMemoryError);
}

// Images of another kind, for executors of generated kernels.
TEST(CudaErrors, ALoaderOfImages) {
  FakeCuda cuda;
  cuda->set_loader([](const std::string& image) {
    std::vector<std::pair<std::string, fake_cuda::Kernel>> kernels;
    if (image == "source of axpy") kernels.emplace_back("axpy", test::axpy());
    return kernels;
  });
  EXPECT_THROW(cuda::Module::load(0, "source of nothing"), DeviceError);
  const auto module = cuda::Module::load(0, "source of axpy");
  const Tensor x = Tensor::ones({4}).to(cuda.device());
  test::launch_axpy(module->kernel("axpy"), x, x, 2.0f);
  EXPECT_EQ(x.to_vector<float>()[0], 3.0f);
}

// The text that generated kernels get compiles.
TEST(CudaErrors, TheTextForKernelsCompiles) {
  cuda::forget_libraries();
  std::string why_not;
  const cuda::Nvrtc* nvrtc = cuda::find_nvrtc(&why_not);
  if (nvrtc == nullptr) GTEST_SKIP() << why_not;
  const std::string source = std::string(cuda::kDeviceStatusLayout) + cuda::kDeviceStatusFunctions +
                             "extern \"C\" __global__ void f(DeviceStatus* s, const long long* i, unsigned call) {"
                             " if (!rondo_failed(s) && i[threadIdx.x] > 4) rondo_report(s, call, i[threadIdx.x], 1); }";
  cuda::ProgramPtr program = nullptr;
  ASSERT_EQ(nvrtc->create(&program, source.c_str(), "f.cu", 0, nullptr, nullptr), cuda::NvrtcResult::kSuccess);
  const char* options[] = {"--gpu-architecture=sm_80"};
  const cuda::NvrtcResult result = nvrtc->compile(program, 1, options);
  size_t bytes = 0;
  nvrtc->log_size(program, &bytes);
  std::string log(bytes, ' ');
  nvrtc->log(program, log.data());
  EXPECT_EQ(result, cuda::NvrtcResult::kSuccess) << log;
  EXPECT_EQ(nvrtc->cubin_size(program, &bytes), cuda::NvrtcResult::kSuccess);
  EXPECT_GT(bytes, 100u);
  nvrtc->destroy(&program);
  cuda::forget_libraries();
}

// ---- Late errors

// A gather that reports bad indices as generated kernels do; the host's atomics stand for the device's.
fake_cuda::Kernel gather(bool backwards) {
  return {{8, 8, 8, 8, 8, 4},
          [backwards](const fake_cuda::Launch& launch) {
            auto* out = test::argument<float*>(launch, 0);
            const auto* table = test::argument<const float*>(launch, 1);
            const auto* index = test::argument<const int64_t*>(launch, 2);
            const auto n = test::argument<int64_t>(launch, 3);
            auto* status = test::argument<cuda::DeviceStatus*>(launch, 4);
            const auto call = test::argument<uint32_t>(launch, 5);
            for (int64_t k = 0; k < n; ++k) {
              const int64_t i = backwards ? n - 1 - k : k;
              if (index[i] >= 0 && index[i] < 4) {
                out[i] = table[index[i]];
                continue;
              }
              if (status->call == 0) status->call = call;
              if (status->call != call) continue;
              const auto at = static_cast<unsigned long long>(i) << 32;
              const auto bits = static_cast<unsigned long long>(index[i]);
              status->high = std::min(status->high, at | bits >> 32);
              status->low = std::min(status->low, at | (bits & 0xFFFFFFFFull));
            }
          },
          {}};
}

void run_gather(
    const cuda::Kernel& kernel, const Tensor& out, const Tensor& table, const Tensor& index,
    const std::function<void()>& between = [] {}) {
  cuda::DeviceState& state = cuda::device_state(out.device().index);
  uint32_t call = state.calls().note("embedding", CallSite(std::source_location::current()), 4);
  between();
  std::byte *to = out.storage().data(), *from = table.storage().data(), *at = index.storage().data();
  int64_t n = index.numel();
  cuda::DevicePtr status = state.status();
  void* args[] = {&to, &from, &at, &n, &status, &call};
  cuda::launch(out.device().index, kernel, {1}, {32}, 0, args);
}

TEST(CudaErrors, ABadIndexIsReportedByTheNextWait) {
  for (const bool backwards : {false, true}) {
    FakeCuda cuda({.early = 0});
    const cuda::Kernel kernel = cuda.kernel("gather", gather(backwards));
    const Device device = cuda.device();
    const Tensor table = Tensor::randn({4}).to(device), out = test::empty(device, 3);
    const Tensor good = Tensor::from<int64_t>({0, 1, 2}, {3}).to(device);
    const Tensor bad = Tensor::from<int64_t>({0, -7'000'000'000, 9}, {3}).to(device);
    run_gather(kernel, out, table, good);
    EXPECT_NO_THROW(synchronize(device));
    run_gather(kernel, out, table, bad);
    run_gather(kernel, out, table, Tensor::from<int64_t>({77, 77, 77}, {3}).to(device));  // the first call wins
    const std::string message = error_of([&] { out.to_vector<float>(); });
    EXPECT_PART(message, "embedding: index -7000000000 is out of range for size 4");
    EXPECT_PART(message, "errors_test.cc");
    EXPECT_NO_THROW(synchronize(device)) << "once is enough";
    run_gather(kernel, out, table, good);
    EXPECT_EQ(out.to_vector<float>()[2], table.to_vector<float>()[2]) << "the device goes on";
  }
}

// Another thread waits for the device after this one has noted its call, and before it launches.
TEST(CudaErrors, ABadIndexOfACallThatIsLaunchedLate) {
  FakeCuda cuda({.early = 0});
  const cuda::Kernel kernel = cuda.kernel("gather", gather(false));
  const Device device = cuda.device();
  const Tensor table = Tensor::randn({4}).to(device), out = test::empty(device, 1);
  run_gather(kernel, out, table, Tensor::from<int64_t>({7}, {1}).to(device), [&] { synchronize(device); });
  EXPECT_PART(error_of([&] { synchronize(device); }), "embedding: index 7 is out of range for size 4");
}

TEST(CudaErrors, TheTextForKernelsIsTheHostsLayout) {
  const std::string text = cuda::kDeviceStatusLayout;
  for (const char* part : {"struct DeviceStatus", "unsigned call", "unsigned long long high", "unsigned long long low"})
    EXPECT_PART(text, part);
}

TEST(CudaErrors, ACallbackThatThrows) {
  FakeCuda cuda({.early = 0});
  const Device device = cuda.device();
  const Tensor held = Tensor::ones({8}).to(device);
  enqueue(device, [held] { throw Error("the first"); });  // holds memory of the device
  enqueue(device, [] { throw Error("the second"); });
  const std::string message = error_of([&] { synchronize(device); });
  EXPECT_TRUE(message.starts_with("the first. Found late: cuda:0 runs behind the program")) << message;
  EXPECT_NO_THROW(synchronize(device));
  enqueue(device, [] { throw OutOfMemoryError("of its own kind"); });
  EXPECT_EQ(error_of<OutOfMemoryError>([&] { synchronize(device); }), "of its own kind");
}

// An error of the data is told by another call than the one that made it: the message says so. A program that goes on
// after any error synchronizes, and then no later call has to do with it.
TEST(CudaErrors, ALateErrorSaysSoAndSynchronizeClearsIt) {
  for (const uint64_t seed : {0, 1, 2}) {
    FakeCuda cuda({.seed = seed, .devices = 2, .early = 0});
    const Device device = cuda.device(1);
    const Tensor table = Tensor::ones({4, 2}).to(device), index = Tensor::from<int64_t>({1, 9}, {2}).to(device);
    const unsigned line = __LINE__ + 1;
    Tensor picked = ops::index_select(table, 0, index);
    const std::string told = error_of([&] { (table + 1.0).to_vector<float>(); });
    EXPECT_PART(told, "index_select: index 9 at position 1 is out of range for size 4 (");
    EXPECT_PART(told, absl::StrCat("errors_test.cc:", line));
    EXPECT_PART(told, "Found late: cuda:1 runs behind the program, and this call is the first that waited for it");
    EXPECT_EQ(picked.to_vector<float>().size(), 4u) << "it is told once";
    // A call that fails on the host, and leaves the error of another kind behind it on the device.
    const auto step = [&] {
      picked = ops::index_select(table, 0, index);
      enqueue(device, [] { throw Error("of a callback"); });
      picked + Tensor::ones({3, 3}).to(device);
    };
    EXPECT_THROW(step(), Error);
    EXPECT_PART(error_of([&] { synchronize(device); }), "index 9");
    EXPECT_FALSE(backend_of(device).failed(device.index));
    EXPECT_EQ((table + 1.0).to_vector<float>()[7], 2.0f);
    EXPECT_NO_THROW(synchronize(device));
  }
}

// The driver may wait for callbacks when it unloads code, and a callback takes the device's lock when it has run.
TEST(CudaErrorsDeathTest, CodeIsUnloadedWhileCallbacksWait) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        alarm(20);  // a process that waits for itself ends here
        FakeCuda cuda({.early = 0});
        cuda->register_kernel("axpy", test::axpy());
        auto module = cuda::Module::load(0, cuda->image({"axpy"}));
        const Tensor x = Tensor::ones({4}).to(cuda.device());
        test::launch_axpy(module->kernel("axpy"), x, x, 2.0f);
        bool ran = false;
        enqueue(cuda.device(), [&] { ran = true; });
        module = nullptr;
        synchronize(cuda.device());
        _exit(ran && x.to_vector<float>()[0] == 3.0f ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// Which code a device takes is asked of the driver: a process that compares devices makes no context on any of them.
TEST(CudaErrors, ToCompareDevicesOpensNone) {
  FakeCuda cuda({.devices = 3, .capability = 86});
  EXPECT_EQ(cuda::capability_of(2), 86);
  EXPECT_EQ(compile::device_of(compile::target_named("cuda sm_80")), cuda.device(0));
  EXPECT_EQ(compile::device_of(compile::target_named("cuda sm_90")), std::nullopt);
  EXPECT_EQ(cuda->counts().contexts, 0);
  EXPECT_PART(error_of([] { cuda::capability_of(3); }), "no device cuda:3: cuda has 3 devices");
  EXPECT_EQ(cuda::device_state(2).capability(), 86) << "an open device says the same";
}

// A lost device runs nothing any more. What its last callbacks hold goes when it is closed.
TEST(CudaErrors, CallbacksOfALostDevice) {
  const auto held = std::make_shared<int>(1);
  {
    FakeCuda cuda({.early = 0});
    cuda.expect_lost();
    const cuda::Kernel bad = cuda.kernel("bad_gather", fault(cuda::Result::kIllegalAddress));
    const Tensor x = Tensor::ones({4}).to(cuda.device());
    launch_on(bad, x);
    bool ran = false;
    enqueue(cuda.device(), [held, x, &ran] { ran = true; });
    EXPECT_THROW(synchronize(cuda.device()), DeviceError);
    EXPECT_THROW(enqueue(cuda.device(), [held] {}), DeviceError);
    EXPECT_FALSE(ran);
    EXPECT_EQ(held.use_count(), 2);
  }
  EXPECT_EQ(held.use_count(), 1);
}

// A handle of cuBLASLt finds no memory, the cache is emptied for it, and the wait for that finds the device dead.
TEST(CudaErrors, ADeviceThatIsLostWhileAHandleIsMade) {
  FakeCuda cuda({.early = 0});
  cuda.expect_lost();
  const cuda::Kernel bad = cuda.kernel("bad_gather", fault(cuda::Result::kIllegalAddress));
  const Tensor x = Tensor::ones({4}).to(cuda.device());
  launch_on(bad, x);
  cuda->fail_allocations(1, 1);
  EXPECT_PART(error_of<DeviceError>([] { cuda::device_state(0).lt_handle(); }),
              "cuda:0 is lost: CUDA_ERROR_ILLEGAL_ADDRESS");
}

// ---- Processes

// The exit status of a child that was made by fork(). 0: as the test expects.
int in_child(const std::function<int()>& run) {
  const pid_t child = fork();
  if (child == 0) _exit(run());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

TEST(CudaErrors, AForkedChildIsRefused) {
  FakeCuda cuda;
  Tensor x = Tensor::ones({4}).to(cuda.device());
  EXPECT_EQ(in_child([&] {
              try {
                x.to_vector<float>();
                return 1;
              } catch (const DeviceError& error) {
                if (std::string(error.what()).find("made by fork()") == std::string::npos) return 2;
              }
              x = Tensor();  // does nothing
              const int64_t blocks = cuda->counts().blocks;
              cuda::close();  // calls nothing of the driver
              if (cuda->counts().blocks != blocks) return 4;
              return Tensor::ones({2}).to_vector<float>()[1] == 1.0f ? 0 : 3;  // the CPU works
            }),
            0);
  EXPECT_EQ(x.to_vector<float>()[0], 1.0f) << "the parent goes on";
}

// In programs of their own: CUDA is as new there.
class CudaProcessDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(CudaProcessDeathTest, AForkBeforeTheFirstUse) {
  EXPECT_EXIT(
      {
        FakeCuda cuda;
        const auto use = [&] { return Tensor::ones({4}).to(cuda.device()).to_vector<float>()[0] == 1.0f ? 0 : 1; };
        const int in_a_child = in_child(use);
        _exit(in_a_child + 2 * use());
      },
      testing::ExitedWithCode(0), "");
}

// Tensors of static lifetime are freed after main().
TEST_F(CudaProcessDeathTest, TensorsThatOutliveMain) {
  EXPECT_EXIT(
      {
        static auto* const cuda = new FakeCuda;  // never closed
        static const Tensor cached = Tensor::ones({4}).to(cuda->device());
        exit(0);
      },
      testing::ExitedWithCode(0), "");
  // Without a cache each is given back to the driver, which is still there.
  EXPECT_EXIT(
      {
        setenv("RONDO_CUDA_CACHE", "0", 1);
        static auto* const cuda = new FakeCuda;
        static const Tensor freed_late = Tensor::ones({4}).to(cuda->device());
        exit(0);
      },
      testing::ExitedWithCode(0), "");
  // And with a driver that is gone before them.
  EXPECT_EXIT(
      {
        setenv("RONDO_CUDA_CACHE", "0", 1);
        static auto* const cuda = new FakeCuda;
        static const Tensor freed_late = Tensor::ones({4}).to(cuda->device());
        (*cuda)->shut_down();
        exit(0);
      },
      testing::ExitedWithCode(0), "");
}

// As a program that knows nothing of the fake.
TEST_F(CudaProcessDeathTest, AWholeProgram) {
  EXPECT_EXIT(
      {
        setenv("RONDO_CUDA_PATH", test::fake_cuda_folder().c_str(), 1);
        setenv("RONDO_FAKE_CUDA", "7:3:64", 1);
        const Device device = parse_device("cuda:2");
        const bool good = device_count(Backend::kCUDA) == 3 && Tensor::ones({4}).to(device).to_vector<float>()[3] == 1;
        exit(good ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(CudaProcessDeathTest, RangesForProfilers) {
  EXPECT_EXIT(
      {
        setenv("RONDO_CUDA_NVTX", "1", 1);
        FakeCuda cuda;
        const cuda::Kernel axpy = cuda.kernel("axpy", test::axpy());
        const Tensor x = Tensor::ones({4}).to(cuda.device());
        test::launch_axpy(axpy, x, x, 1.0f);
        _exit(x.to_vector<float>()[0] == 2.0f ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(CudaErrors, ADriverThatIsGone) {
  FakeCuda cuda;
  cuda.expect_lost();
  Tensor x = Tensor::ones({4}).to(cuda.device());
  cuda->shut_down();
  EXPECT_PART(error_of<DeviceError>([&] { x.to_vector<float>(); }), "CUDA error 4");
  x = Tensor();
}

}  // namespace
}  // namespace rondo
