#include "rondo/tests/fake_cuda/fake_cuda.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/backend.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/cuda/driver.h"
#include "rondo/runtime/cuda/nvrtc.h"
#include "rondo/tests/paths.h"

namespace rondo::test {
namespace {

fake_cuda::Control* control_of_library() {
  return library_function<decltype(&fake_cuda_control)>("fake_cuda_control")();
}

void note_skip(const std::string& why) { GTEST_SKIP() << why; }
// Ends the test as skipped, from below its body. Google Test takes the exception for reported.
[[noreturn]] void skip(const std::string& why) {
  note_skip(why);
  throw testing::AssertionException(testing::TestPartResult(testing::TestPartResult::kSkip, __FILE__, __LINE__, ""));
}

// Skips where a test wants what a real device has not, or need not have. Whether two devices are peers is up to them.
void require_real_device(const fake_cuda::Options& wanted) {
  const fake_cuda::Options usual;
  if (wanted.bytes != usual.bytes || !wanted.executes || wanted.init_result != 0 ||
      wanted.capability != usual.capability || wanted.driver_version != usual.driver_version || wanted.devices == 0)
    skip("a device of chosen properties: on the fake only");
  std::string why_not;
  const int devices = cuda::open_devices(&why_not);
  if (devices == 0) skip(why_not);
  if (devices < wanted.devices)
    skip(std::to_string(wanted.devices) + " devices are needed, and " + std::to_string(devices) + " is here");
  // To make a context takes some tenths of a second, and each test would make its own.
  static const bool kept = [] {
    cuda::Context context = nullptr;
    return cuda::find_driver(nullptr)->primary_retain(&context, 0) == cuda::Result::kSuccess;
  }();
  static_cast<void>(kept);
}

}  // namespace

bool on_real_cuda() {
  const char* value = std::getenv("RONDO_TEST_CUDA");
  if (value != nullptr && std::string(value) != "real")
    throw Error(std::string("RONDO_TEST_CUDA: real or unset, not ") + value);
  return value != nullptr;
}

std::string fake_cuda_folder() {
  const char* const other = std::getenv("RONDO_TEST_FAKE_CUDA");
  return other == nullptr ? tests::kFakeCudaDir : other;
}

void* library_symbol(const char* name) {
  if (on_real_cuda()) skip("a function of the fake's library");
  const std::string path = fake_cuda_folder() + "/libcuda.so.1";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = library == nullptr ? nullptr : dlsym(library, name);
  if (symbol == nullptr) throw Error(std::string("FakeCuda: ") + dlerror());
  return symbol;
}

FakeCuda::FakeCuda(fake_cuda::Options options) {
  cuda::close();
  cuda::forget_libraries();
  if (on_real_cuda()) {
    require_real_device(options);
    return;
  }
  control_ = control_of_library();
  control_->reset(options);
  setenv("RONDO_CUDA_PATH", fake_cuda_folder().c_str(), 1);
}

FakeCuda::~FakeCuda() {
  modules_.clear();
  if (on_real_cuda() && !lost_ && cuda::devices_in_use() && cuda::device_state_if_usable(0) == nullptr) {
    try {
      cuda::device_state(0);
    } catch (const DeviceError& error) {
      ADD_FAILURE() << error.what();
    }
  }
  cuda::close();
  cuda::forget_libraries();
  if (control_ == nullptr) return;
  unsetenv("RONDO_CUDA_PATH");
  const fake_cuda::Counts left = control_->counts();
  if (lost_) return;
  EXPECT_EQ(left.contexts, 0) << "contexts are left";
  EXPECT_EQ(left.blocks, 0) << "device memory is left";
  EXPECT_EQ(left.pinned, 0) << "page-locked memory is left";
  EXPECT_EQ(left.streams, 0) << "streams are left";
  EXPECT_EQ(left.events, 0) << "events are left";
  EXPECT_EQ(left.modules, 0) << "modules are left";
  EXPECT_EQ(left.lt_handles, 0) << "handles of cuBLASLt are left";
  EXPECT_EQ(left.dnn_handles, 0) << "handles of cuDNN are left";
  EXPECT_EQ(left.communicators, 0) << "communicators of NCCL are left";
}

fake_cuda::Control& FakeCuda::control() const {
  if (control_ == nullptr) skip("from here on the test needs the fake's Control");
  return *control_;
}

cuda::Kernel FakeCuda::kernel(const std::string& name, fake_cuda::Kernel kernel, int device) {
  if (control_ == nullptr && !kernel.source.empty()) {
    if (cuda::find_nvrtc(nullptr) == nullptr) skip("no NVRTC");
    const int capability = cuda::device_state(device).capability();
    const int architecture = cuda::architecture_of(capability);
    const cuda::Image image = cuda::compile_image(kernel.source, name + ".cu", architecture);
    modules_.push_back(cuda::Module::load(device, image.for_device(capability, architecture)));
    return modules_.back()->kernel(name);
  }
  control().register_kernel(name, std::move(kernel));
  modules_.push_back(cuda::Module::load(device, control().image({name})));
  return modules_.back()->kernel(name);
}

Setting::Setting(const char* name, const char* value) : name_(name), had_(std::getenv(name) != nullptr) {
  if (had_) before_ = std::getenv(name);
  if (value != nullptr) setenv(name, value, 1);
  else unsetenv(name);
}
Setting::~Setting() {
  if (had_) setenv(name_, before_.c_str(), 1);
  else unsetenv(name_);
}

}  // namespace rondo::test
