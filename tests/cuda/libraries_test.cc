// Finding CUDA's libraries, and saying why there is no device.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "rondo/runtime/cuda/backend.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/cuda/driver.h"
#include "rondo/runtime/cuda/nvrtc.h"
#include "rondo/runtime/tensor/tensor.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/paths.h"

namespace rondo {
namespace {

using test::FakeCuda;
using test::Setting;

std::string why_none() {
  std::string why_not;
  EXPECT_EQ(device_count(Backend::kCUDA, &why_not), 0);
  EXPECT_EQ(why_not.find('\n'), std::string::npos) << "one line: " << why_not;
  EXPECT_NE(test::error_of([] {
              Tensor::zeros({2}).to({Backend::kCUDA, 0});
            }).find("no device cuda:0: " + why_not),
            std::string::npos);
  return why_not;
}

// A folder that is gone when the test ends.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/rondo_cuda_XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(CudaLibraries, Off) {
  const Setting off("RONDO_CUDA", "off");
  cuda::close();
  cuda::forget_libraries();
  EXPECT_EQ(why_none(), "no CUDA device: RONDO_CUDA=off");
  std::string why_not;
  EXPECT_EQ(cuda::find_nvrtc(&why_not), nullptr);
  EXPECT_EQ(cuda::find_cublas_lt(&why_not), nullptr);
  cuda::forget_libraries();
}

// A folder that was named and is the wrong one: the message does not say to name one.
TEST(CudaLibraries, AFolderWithoutThem) {
  const Folder folder;
  const Setting path("RONDO_CUDA_PATH", folder.path().c_str());
  cuda::forget_libraries();
  std::string why_not;
  if (cuda::find_driver(&why_not) != nullptr) GTEST_SKIP() << "this machine has a driver, which is found next";
  EXPECT_EQ(why_not,
            "libcuda.so.1 is not found, neither in RONDO_CUDA_PATH=" + folder.path() + " nor where the system looks");
  cuda::forget_libraries();
}

TEST(CudaLibraries, AFileThatIsNoLibrary) {
  const Folder folder;
  std::ofstream(folder.path() + "/libcuda.so.1") << "not a library";
  const Setting path("RONDO_CUDA_PATH", folder.path().c_str());
  cuda::forget_libraries();
  std::string why_not;
  if (cuda::find_driver(&why_not) != nullptr) GTEST_SKIP() << "this machine has a driver, which is found next";
  EXPECT_NE(why_not.find("libcuda.so does not load: " + folder.path()), std::string::npos) << why_not;
  EXPECT_NE(why_none().find(why_not), std::string::npos);
  cuda::forget_libraries();
}

// The toolkit has a stub of the driver's library: a machine with the libraries and without a driver.
TEST(CudaLibraries, TheToolkitsStub) {
  const char* stubs = "/usr/local/cuda/lib64/stubs";
  if (access((std::string(stubs) + "/libcuda.so").c_str(), R_OK) != 0) GTEST_SKIP() << "no toolkit here";
  const Folder folder;
  std::error_code ignored;
  std::filesystem::create_symlink(std::string(stubs) + "/libcuda.so", folder.path() + "/libcuda.so.1", ignored);
  const Setting path("RONDO_CUDA_PATH", folder.path().c_str());
  cuda::close();
  cuda::forget_libraries();
  EXPECT_EQ(why_none(), "no CUDA device: libcuda.so.1 is the toolkit's stub, not a driver; install the NVIDIA driver");
  cuda::forget_libraries();
}

TEST(CudaLibraries, WhatTheDriverSays) {
  {
    FakeCuda none({.devices = 0});
    EXPECT_EQ(why_none(), "no CUDA device: the driver is there and finds no GPU");
  }
  {
    FakeCuda mismatch({.init_result = 803});
    EXPECT_EQ(why_none(), "no CUDA device: cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (as the fake driver says)");
  }
  {
    FakeCuda old({.driver_version = 11080});
    EXPECT_EQ(why_none(), "no CUDA device: the driver is too old: it supports CUDA 11.8, and Rondo needs 12.0");
  }
  {
    FakeCuda oldest({.driver_version = 12000});
    EXPECT_EQ(device_count(Backend::kCUDA), 1);
  }
  FakeCuda good({.devices = 3});
  EXPECT_EQ(device_count(Backend::kCUDA), 3);
}

// Libraries of CUDA 13 do not work with a driver of CUDA 12, so those of 12 come first there.
TEST(CudaLibraries, TheVersionFitsTheDriver) {
  const Folder folder;
  for (const char* name :
       {"libcuda.so.1", "libnvrtc.so.12", "libnvrtc.so.13", "libcublasLt.so.12", "libcublasLt.so.13"})
    std::filesystem::create_symlink(test::fake_cuda_folder() + "/libcuda.so.1", folder.path() + "/" + name);
  for (const auto& [version, major] : {std::pair{12080, "12"}, std::pair{13000, "13"}}) {
    FakeCuda fake({.driver_version = version});
    const Setting path("RONDO_CUDA_PATH", folder.path().c_str());
    const cuda::Nvrtc* nvrtc = cuda::find_nvrtc(nullptr);
    ASSERT_NE(nvrtc, nullptr);
    EXPECT_EQ(nvrtc->path, folder.path() + "/libnvrtc.so." + major);
    EXPECT_NE(cuda::find_cublas_lt(nullptr), nullptr);
  }
}

// NVRTC's answer to a source, in a process that has loaded none yet.
[[noreturn]] void compile_there(const std::string& folder, cuda::NvrtcResult expected, const std::string& part) {
  const Setting path("RONDO_CUDA_PATH", folder.c_str());
  const cuda::Nvrtc* nvrtc = cuda::find_nvrtc(nullptr);
  if (nvrtc == nullptr) _exit(2);
  const auto output = cuda::compile_source(*nvrtc, "extern \"C\" __global__ void f() {}", "f.cu", 90, {});
  std::fprintf(stderr, "%s\n", output.log.c_str());
  _exit(output.result == expected && output.log.find(part) != output.log.npos ? 0 : 1);
}

// NVRTC asks the loader for its builtins by their name. They lie beside it, in a folder that the loader does not know.
TEST(CudaLibrariesDeathTest, NvrtcsBuiltinsAreThoseBesideIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Folder folder;
  const std::string library = test::fake_cuda_folder() + "/libcuda.so.1", name = "/libnvrtc-builtins.so.13.999";
  // A copy: a link would be followed to the folder where both are.
  std::filesystem::copy_file(library, folder.path() + "/libnvrtc.so.13");
  EXPECT_EXIT(compile_there(folder.path(), cuda::NvrtcResult::kBuiltins, "failed to open libnvrtc-builtins.so.13.999"),
              testing::ExitedWithCode(0), "");
  std::filesystem::copy_file(test::fake_cuda_folder() + name, folder.path() + name);
  EXPECT_EXIT(compile_there(folder.path(), cuda::NvrtcResult::kSuccess, ""), testing::ExitedWithCode(0), "");
  // And where a folder has a link to NVRTC alone.
  const Folder links;
  std::filesystem::create_symlink(folder.path() + "/libnvrtc.so.13", links.path() + "/libnvrtc.so.13");
  EXPECT_EXIT(compile_there(links.path(), cuda::NvrtcResult::kSuccess, ""), testing::ExitedWithCode(0), "");
}

// A device that is open keeps the functions that it has.
TEST(CudaLibraries, AreForgottenWhileADeviceIsOpen) {
  FakeCuda fake;
  const Tensor x = Tensor::ones({3}).to(fake.device());
  const cuda::Driver* driver = cuda::find_driver(nullptr);
  ASSERT_NE(driver, nullptr);
  cuda::forget_libraries();
  EXPECT_NE(cuda::find_driver(nullptr), driver);
  int version = 0;
  EXPECT_EQ(driver->driver_version(&version), cuda::Result::kSuccess);
  EXPECT_EQ((x + x).to(kCPU).to_vector<float>()[2], 2.0f);
}

// Folders that RONDO_CUDA_PATH may name: a Python prefix, its site-packages, a toolkit.
TEST(CudaLibraries, Wheels) {
  for (const char* below :
       {"", "/lib64", "/lib", "/nvidia/cuda_driver/lib", "/lib/python3.11/site-packages/nvidia/cuda_driver/lib"}) {
    FakeCuda fake;
    const Folder folder;
    std::error_code ignored;
    std::filesystem::create_directories(folder.path() + below, ignored);
    std::filesystem::create_symlink(test::fake_cuda_folder() + "/libcuda.so.1", folder.path() + below + "/libcuda.so.1",
                                    ignored);
    const Setting path("RONDO_CUDA_PATH", ("/nowhere:" + folder.path()).c_str());
    EXPECT_EQ(device_count(Backend::kCUDA), 1) << below;
  }
}

TEST(CudaLibraries, NvrtcAndCublasLt) {
  const Setting on("RONDO_CUDA", nullptr);
  cuda::forget_libraries();
  std::string why_not;
  const cuda::Nvrtc* nvrtc = cuda::find_nvrtc(&why_not);
  if (nvrtc == nullptr) {
    EXPECT_NE(why_not.find("libnvrtc.so"), std::string::npos);
    GTEST_SKIP() << why_not;
  }
  int major = 0, minor = 0;
  EXPECT_EQ(nvrtc->version(&major, &minor), cuda::NvrtcResult::kSuccess);
  EXPECT_GE(major, 12);
  const cuda::CublasLt* lt = cuda::find_cublas_lt(&why_not);
  ASSERT_NE(lt, nullptr) << why_not;
  EXPECT_GE(lt->version(), 120000u);
  cuda::forget_libraries();
}

// A program that never asks for CUDA opens nothing.
TEST(CudaLibraries, NothingIsOpenedUnlessAsked) {
  FakeCuda fake;
  const Tensor x = Tensor::ones({3});
  EXPECT_EQ(x.to(kCPU).to_vector<float>()[0], 1.0f);
  EXPECT_EQ(fake->counts().contexts, 0);
}

}  // namespace
}  // namespace rondo
