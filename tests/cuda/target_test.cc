// CUDA's targets: plans and code without a device, what their objects hold, which device gets which.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include <dlfcn.h>

#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/jit/cuda/kernel_code.h"
#include "rondo/compile/jit/cuda/target.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/jit/kernel_table.h"
#include "rondo/compile/jit/targets.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/backend.h"
#include "rondo/runtime/cuda/driver.h"
#include "rondo/runtime/io/host_key.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/cuda_on_host/hand_built.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo::compile::cuda {
namespace {

using test::FakeCuda;
using test::Setting;

const Target* const kTargets[] = {&kSm80, &kSm90, &kSm100};

LoopKernel scheduled(LoopKernel kernel) {
  kSm80.schedule(kernel);
  return kernel;
}

TEST(CudaTargets, AreFoundByName) {
  for (const Target* target : kTargets) EXPECT_EQ(&target_named(target->name()), target);
  EXPECT_EQ(kSm90.name(), "cuda sm_90");
  EXPECT_NE(test::error_of([] { target_named("cuda sm_70"); }).find("cuda sm_80, cuda sm_90, cuda sm_100"),
            std::string::npos);
  FakeCuda cuda;
  EXPECT_TRUE(kSm80.key().complete());
  EXPECT_NE(kSm80.key().text(), kSm90.key().text());
  for (const char* part : {"cuda sm_80", "nvrtc", "-fmad=false"})
    EXPECT_NE(kSm80.key().text().find(part), std::string::npos) << part;
}

TEST(CudaTargets, ADeviceGetsTheOneOfItsArchitecture) {
  const std::pair<int, const Target*> expected[] = {{80, &kSm80},   {86, &kSm80},   {89, &kSm80},  {90, &kSm90},
                                                    {100, &kSm100}, {103, &kSm100}, {120, &kSm100}};
  for (const auto& [capability, target] : expected) {
    FakeCuda cuda({.capability = capability});
    EXPECT_EQ(&target_of(cuda.device()), target) << capability;
  }
  FakeCuda old({.capability = 75});
  EXPECT_NE(test::error_of([&] { target_of(old.device()); }).find("no code generator for cuda:0"), std::string::npos);
}

// An object of each target, loaded on a device of it; one newer than all gets PTX.
TEST(CudaTargets, CodeLoadsWhereItsTargetSays) {
  for (const int capability : {80, 89, 90, 100, 103, 120}) {
    FakeCuda cuda({.capability = capability});
    const Target& target = target_of(cuda.device());
    const auto code = target.place(target.compile(scheduled(softmax(kF32, 8, 100)), {}));
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_NE(KernelCode::of((*code)->handle()).function(0).function, nullptr) << capability;
  }
}

TEST(CudaTargets, ObjectsSayWhatLaunchesNeed) {
  FakeCuda cuda;
  for (LoopKernel kernel : {scheduled(softmax(kF32, 64, 768)), scheduled(norm_backward(kBF16, 640, 300)),
                            scheduled(transposed(kF32, 64, 64)), momentum()}) {
    kernel.per_item = kernel.name == "momentum";
    const CudaObject expected = describe(kernel, schedule(kernel));
    const absl::StatusOr<CudaObject> object = unpack_object(kSm90.compile(kernel, {}));
    ASSERT_TRUE(object.ok()) << object.status();
    EXPECT_EQ(object->name, "rondo_" + kernel.name);
    EXPECT_EQ(object->schedule, expected.schedule);
    EXPECT_EQ(object->sums, expected.sums);
    EXPECT_EQ(object->per_item, kernel.per_item);
    EXPECT_EQ(object->image.cubin.find("__global__") != std::string::npos, true);
    EXPECT_EQ(object->image.cubin.find(kCombineName) != std::string::npos, !expected.sums.empty());
  }
}

TEST(CudaTargets, DamagedObjectsAreRefused) {
  FakeCuda cuda;
  const std::string good = kSm80.compile(scheduled(norm_backward(kF32, 64, 48)), {});
  EXPECT_TRUE(kSm80.check(good).ok());
  for (size_t size = 0; size < good.size(); size += 1 + size / 8)
    EXPECT_EQ(kSm80.check(good.substr(0, size)).code(), absl::StatusCode::kInvalidArgument) << size;
  for (size_t at = 0; at < good.size(); at += 1 + at / 16) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    EXPECT_EQ(kSm80.place(bad).status().code(), absl::StatusCode::kInvalidArgument) << at;
  }
  // Facts that do not fit together, with a checksum that does.
  CudaObject object = *unpack_object(good);
  object.schedule.threads = 4096;
  EXPECT_EQ(kSm80.check(pack(object)).code(), absl::StatusCode::kInvalidArgument);
  object.schedule.threads = 128;
  object.sums.clear();
  EXPECT_EQ(kSm80.check(pack(object)).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CudaTargets, WhatNvrtcRefuses) {
  FakeCuda cuda;
  const LoopKernel kernel = scheduled(softmax(kF32, 8, 8));
  const std::string error = test::error_of<InternalError>([&] { make_object(kernel, schedule(kernel), 35); });
  for (const char* part :
       {"refuses softmax for sm_35", "NVRTC_ERROR_INVALID_OPTION", "invalid value for --gpu-architecture"})
    EXPECT_NE(error.find(part), std::string::npos) << error;
}

// NVRTC is missing: a file of its name is there, and is another library.
class NoNvrtc {
 public:
  NoNvrtc() : path_("RONDO_CUDA_PATH", folder_path().c_str()) {
    rondo::cuda::close();
    rondo::cuda::forget_libraries();
  }

 private:
  const std::string& folder_path() {
    Dl_info library{};
    dladdr(reinterpret_cast<void*>(static_cast<double (*)(double)>(&std::cos)), &library);
    std::filesystem::create_symlink(library.dli_fname, folder_ / "libnvrtc.so.13");
    std::filesystem::create_symlink(std::string(std::getenv("RONDO_CUDA_PATH")) + "/libcuda.so.1",
                                    folder_ / "libcuda.so.1");
    return path_text_ = folder_ / "";
  }
  test::TempFolder folder_;
  std::string path_text_;
  Setting path_;
};

TEST(CudaTargets, WithoutNvrtc) {
  FakeCuda cuda;
  const NoNvrtc missing;
  EXPECT_FALSE(kSm80.can_compile());
  EXPECT_THROW(kSm80.load_compiler(), NoCodeGenerator);
  const std::string error = test::error_of<NoCodeGenerator>([] { kSm80.compile(scheduled(softmax(kF32, 8, 8)), {}); });
  EXPECT_NE(error.find("no kernels for CUDA: "), std::string::npos) << error;
  EXPECT_NE(error.find("nvidia-cuda-nvrtc"), std::string::npos) << error;
}

// ---- The real NVRTC, where it is installed: it makes machine code of the same sources.

TEST(CudaTargets, TheRealNvrtc) {
  const Setting path("RONDO_CUDA_PATH", nullptr);
  rondo::cuda::close();
  rondo::cuda::forget_libraries();
  std::string why_not;
  if (rondo::cuda::find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  LoopKernel table = momentum();
  table.per_item = true;
  LoopKernel dynamic = scheduled(softmax(kBF16, 64, 768));
  for (int64_t extent : extents(dynamic)) dynamic.varying.push_back(may_vary(extent));
  for (const Target* target : kTargets)
    for (const LoopKernel& kernel : {scheduled(softmax(kF32, 64, 768)), scheduled(norm_backward(kF32, 640, 300)),
                                     scheduled(bias_backward(kF64, 640, 300)), dynamic, table}) {
      const absl::StatusOr<CudaObject> object = unpack_object(target->compile(kernel, {}));
      ASSERT_TRUE(object.ok()) << object.status();
      EXPECT_TRUE(
          object->image.cubin.starts_with("\x7f"
                                          "ELF"))
          << target->name();
      EXPECT_NE(object->image.cubin.find("rondo_" + kernel.name), std::string::npos);
      EXPECT_EQ(object->image.ptx.find(".visible .entry") != std::string::npos, target == &kSm100) << target->name();
    }
  rondo::cuda::forget_libraries();
}

}  // namespace
}  // namespace rondo::compile::cuda
