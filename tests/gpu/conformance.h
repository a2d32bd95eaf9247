// The common part of conformance tests: a device and the bare functions of its driver, with nothing of the runtime
// between.
//
// The same program runs on the fake (CTest does) and, with RONDO_TEST_CUDA=real, on the machine's own driver: where the
// two answer differently, the fake is wrong. assumptions_test.cc lists what is tested, and what is not, and why.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/device_math.h"
#include "rondo/runtime/cuda/nvrtc.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo::cuda {

inline void PrintTo(Result result, std::ostream* out) { *out << "CUresult " << static_cast<int>(result); }
inline void PrintTo(LtStatus status, std::ostream* out) { *out << "cublasStatus_t " << static_cast<int>(status); }

}  // namespace rondo::cuda

namespace rondo::test {

using cuda::DevicePtr;
using cuda::Driver;
using cuda::EventPtr;
using cuda::FunctionPtr;
using cuda::ModulePtr;
using cuda::Result;
using cuda::StreamPtr;

#define EXPECT_OK(call) EXPECT_EQ(call, ::rondo::cuda::Result::kSuccess)
#define ASSERT_OK(call) ASSERT_EQ(call, ::rondo::cuda::Result::kSuccess)

inline const Driver& find_driver() {
  std::string why_not;
  const Driver* driver = cuda::find_driver(&why_not);
  if (driver == nullptr) throw Error(why_not);
  return *driver;
}

// NVRTC's answer. `architecture`: 90 is sm_90, {90, 'a'} sm_90a.
inline cuda::NvrtcOutput nvrtc_compile(const std::string& source, cuda::Architecture architecture,
                                       std::vector<const char*> flags = {std::begin(cuda::kExactFlags),
                                                                         std::end(cuda::kExactFlags)}) {
  std::string why_not;
  const cuda::Nvrtc* nvrtc = cuda::find_nvrtc(&why_not);
  if (nvrtc == nullptr) throw Error(why_not);
  return cuda::compile_source(*nvrtc, source, "conformance.cu", architecture, flags);
}

// The calling thread's context is the device's while this lives; two streams. The work that is left is waited for.
class Gpu {
 public:
  explicit Gpu(int device = 0) : cu(find_driver()), device_(device) {
    check(cu.init(0));
    check(cu.primary_retain(&context, device));
    check(cu.context_push(context));
    for (StreamPtr* made : {&stream, &other}) check(cu.stream_create(made, cuda::kStreamNonBlocking, 0));
  }
  ~Gpu() {
    static_cast<void>(cu.context_synchronize());
    for (const ModulePtr module : modules_) static_cast<void>(cu.module_unload(module));
    for (const DevicePtr block : blocks_) static_cast<void>(cu.memory_free(block));
    for (void* block : pinned_) static_cast<void>(cu.host_free(block));
    for (const EventPtr event : events_) static_cast<void>(cu.event_destroy(event));
    for (const StreamPtr made : {stream, other}) static_cast<void>(cu.stream_destroy(made));
    cuda::Context popped = nullptr;
    static_cast<void>(cu.context_pop(&popped));
    static_cast<void>(cu.primary_release(device_));
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  DevicePtr block(size_t bytes) {
    DevicePtr address = 0;
    check(cu.memory_allocate(&address, bytes));
    return blocks_.emplace_back(address);
  }
  template <class T> T* pinned(size_t n) {
    void* data = nullptr;
    check(cu.host_allocate(&data, n * sizeof(T), cuda::kHostAllocPortable));
    pinned_.push_back(data);
    return static_cast<T*>(data);
  }
  EventPtr event(unsigned flags = 0) {
    EventPtr event = nullptr;
    check(cu.event_create(&event, flags));
    return events_.emplace_back(event);
  }
  template <class T> DevicePtr upload(const std::vector<T>& values) {
    const DevicePtr address = block(values.size() * sizeof(T));
    T* staged = pinned<T>(values.size());
    std::memcpy(staged, values.data(), values.size() * sizeof(T));
    check(cu.copy_to_device(address, staged, values.size() * sizeof(T), stream));
    check(cu.stream_synchronize(stream));
    return address;
  }
  // The contents of the memory that `stream` has written so far.
  template <class T> std::vector<T> download(DevicePtr address, size_t n) {
    T* staged = pinned<T>(n);
    check(cu.copy_to_host(staged, address, n * sizeof(T), stream));
    check(cu.stream_synchronize(stream));
    return {staged, staged + n};
  }
  int capability() const {
    return attribute(cuda::DeviceAttribute::kCapabilityMajor) * 10 + attribute(cuda::DeviceAttribute::kCapabilityMinor);
  }
  int attribute(cuda::DeviceAttribute which) const {
    int value = 0;
    check(cu.device_attribute(&value, which, device_));
    return value;
  }
  ModulePtr load(const std::string& image) {
    ModulePtr module = nullptr;
    check(cu.module_load(&module, image.c_str()));
    return modules_.emplace_back(module);
  }
  // A kernel of a source, compiled for this device.
  FunctionPtr kernel(const std::string& source, const char* name) {
    const cuda::NvrtcOutput output = nvrtc_compile(source, capability());
    if (output.result != cuda::NvrtcResult::kSuccess) throw Error(output.log);
    FunctionPtr function = nullptr;
    check(cu.module_function(&function, load(output.cubin), name));
    return function;
  }
  template <class... Args> Result launch(FunctionPtr function, unsigned grid, unsigned block, Args... values) {
    void* args[] = {&values..., nullptr};
    return cu.launch(function, grid, 1, 1, block, 1, 1, 0, stream, args, nullptr);
  }
  static void check(Result result) {
    if (result != Result::kSuccess) throw Error("CUresult " + std::to_string(static_cast<int>(result)));
  }

  const Driver& cu;
  cuda::Context context = nullptr;
  StreamPtr stream = nullptr, other = nullptr;

 private:
  const int device_;
  std::vector<DevicePtr> blocks_;
  std::vector<void*> pinned_;
  std::vector<EventPtr> events_;
  std::vector<ModulePtr> modules_;
};

// The fake answers misuse with the error that it takes for the driver's, and does nothing early.
inline constexpr fake_cuda::Options kAnswering{.early = 0, .aborts = false};

class Conformance : public ::testing::Test {
 protected:
  FakeCuda cuda{kAnswering};
  Gpu gpu;
  const Driver& cu = gpu.cu;
};

// The fake runs work of all streams on one thread, whether it stands for a real driver (run.sh --fake) or not.
inline bool streams_run_together() { return on_real_cuda() && std::getenv("RONDO_FAKE_CUDA") == nullptr; }

// Runs `body` in a process of its own, in which nothing has called the driver. The test fails if an expectation does.
template <class Body> void in_a_fresh_process(Body body, int devices = 1) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // Skips here if there are no such devices. The new process runs these lines, too.
  if (on_real_cuda() && !::testing::internal::InDeathTestChild()) FakeCuda({.devices = devices});
  EXPECT_EXIT(
      {
        body();
        std::fflush(nullptr);
        std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace rondo::test
