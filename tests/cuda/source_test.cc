// CUDA source that runs on the fake driver: compiled by the fake NVRTC, loaded, launched.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/backend.h"
#include "rondo/runtime/cuda/driver.h"
#include "rondo/runtime/cuda/module.h"
#include "rondo/runtime/cuda/nvrtc.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/tensor/tensor.h"
#include "rondo/tests/cuda/kernels.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using cuda::NvrtcResult;
using test::FakeCuda;

// The code that NVRTC of this process makes of a source, or its log.
cuda::NvrtcOutput compile(const std::string& source, cuda::Architecture architecture = 90,
                          std::vector<const char*> flags = {}) {
  std::string why_not;
  const cuda::Nvrtc* nvrtc = cuda::find_nvrtc(&why_not);
  if (nvrtc == nullptr) throw Error(why_not);
  return cuda::compile_source(*nvrtc, source, "test.cu", architecture, flags);
}

TEST(CudaSource, AKernelRuns) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    FakeCuda cuda({.seed = seed});
    const cuda::NvrtcOutput compiled = compile(test::kAxpyText);
    ASSERT_EQ(compiled.result, NvrtcResult::kSuccess) << compiled.log;
    const auto module = cuda::Module::load(0, compiled.cubin);
    const Tensor y = Tensor::ones({1000}).to(cuda.device()), x = Tensor::ones({1000}).to(cuda.device());
    test::launch_axpy(module->kernel("axpy"), y, x, 0.5f);
    test::launch_axpy(module->kernel("axpy"), y, x, 2.0f);
    EXPECT_EQ(y.to(kCPU).to_vector<float>(), std::vector<float>(1000, 3.5f));
  }
}

TEST(CudaSource, BarriersShufflesAndSharedMemory) {
  std::vector<float> values;
  for (int i = 0; i < 1280; ++i) values.push_back(static_cast<float>(i % 97));
  for (uint64_t seed = 0; seed < 5; ++seed) {
    FakeCuda cuda({.seed = seed});
    const auto module = cuda::Module::load(0, compile(absl::StrCat(test::kBlockSumText, test::kWarpSumText)).cubin);
    const Tensor x = Tensor::from(values, {1280}).to(cuda.device()), sums = test::empty(cuda.device(), 10);
    const void *in = x.storage().data(), *out = sums.storage().data();
    void* args[] = {&in, &out};
    cuda::launch(0, module->kernel("block_sum"), {10}, {128}, 0, args);
    void* first[] = {&in};
    cuda::launch(0, module->kernel("warp_sum"), {1}, {32}, 0, first);
    std::vector<float> expected(10);
    for (size_t i = 0; i < 1280; ++i) expected[i / 128] += values[i];
    EXPECT_EQ(sums.to(kCPU).to_vector<float>(), expected);
    float warp = 0;
    for (size_t i = 0; i < 32; ++i) warp += values[i];
    EXPECT_EQ(x.to(kCPU).to_vector<float>()[0], warp);
  }
}

constexpr cuda::Source kOf90{"only_90", R"(
extern "C" __global__ void three(float* x) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;");
#endif
  x[threadIdx.x] = 3;
}
)",
                             90};

// Instructions of one architecture alone: code for sm_90a, on devices of 9.0.
TEST(CudaSource, CodeForOneCapability) {
  EXPECT_EQ(cuda::Architecture(90).name(), "sm_90");
  EXPECT_EQ(cuda::Architecture(90, 'a').name(), "sm_90a");
  EXPECT_NE(cuda::key_of_code({90, 'a'}, "x").text(), cuda::key_of_code(90, "x").text());
  cuda::Source everywhere = kOf90;
  everywhere.only_for = 0;
  EXPECT_NE(cuda::whole_text(kOf90, {}), cuda::whole_text(everywhere, {})) << "caches tell them apart";
  for (const int capability : {90, 80, 100}) {
    FakeCuda cuda({.capability = capability});
    const Tensor x = test::empty(cuda.device(), 32);
    const auto run = [&](const cuda::Source& source) {
      cuda::launch_blocks(0, cuda::kernel_of(0, source, "three"), 1, 32, x.storage().data());
      return x.to_vector<float>()[31];
    };
    EXPECT_EQ(run(everywhere), 3.0f);
    if (capability == 90) EXPECT_EQ(run(kOf90), 3.0f);
    else
      EXPECT_NE(test::error_of<InternalError>([&] { run(kOf90); }).find("for sm_90a only, and cuda:0"),
                std::string::npos);
    const std::string cubin = compile(test::kAxpyText, {90, 'a'}).cubin;
    if (capability == 90) EXPECT_NO_THROW(cuda::Module::load(0, cubin));
    else EXPECT_THROW(cuda::Module::load(0, cubin), DeviceError);
  }
}

// The real one takes wgmma for sm_90a, and for sm_90 it does not.
TEST(CudaSource, TheRealNvrtcKnowsSm90a) {
  const test::Setting path("RONDO_CUDA_PATH", nullptr);
  cuda::close();
  cuda::forget_libraries();
  std::string why_not;
  if (cuda::find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  constexpr const char* kText = "extern \"C\" __global__ void f() { asm volatile(\"wgmma.fence.sync.aligned;\"); }";
  EXPECT_TRUE(cuda::compile_image(kText, "f", {90, 'a'})
                  .cubin.starts_with("\x7f"
                                     "ELF"));
  EXPECT_EQ(cuda::compile_image(kText, "f", {90, 'a'}).ptx, "") << "it is for no other device";
  EXPECT_THROW(cuda::compile_image(kText, "f", 90), InternalError);
  EXPECT_FALSE(cuda::compile_image(cuda::whole_text(kOf90, {}), "f", {90, 'a'}).cubin.empty());
  cuda::forget_libraries();
}

TEST(CudaSource, WhatNvrtcRefuses) {
  FakeCuda cuda;
  EXPECT_EQ(compile(test::kAxpyText, 35).result, NvrtcResult::kInvalidOption);
  EXPECT_EQ(compile(test::kAxpyText, 80, {"--use_fast_math"}).result, NvrtcResult::kInvalidOption);
  const cuda::NvrtcOutput refused = compile("\n#error no such thing\n");
  EXPECT_EQ(refused.result, NvrtcResult::kCompilation);
  EXPECT_NE(refused.log.find("test.cu(2): error"), std::string::npos) << refused.log;
}

// A cubin runs on its major revision, from its minor one on.
TEST(CudaSource, ACubinOfAnotherArchitecture) {
  FakeCuda cuda({.capability = 86});
  EXPECT_NO_THROW(cuda::Module::load(0, compile(test::kAxpyText, 80).cubin));
  EXPECT_THROW(cuda::Module::load(0, compile(test::kAxpyText, 89).cubin), DeviceError);
  EXPECT_THROW(cuda::Module::load(0, compile(test::kAxpyText, 90).cubin), DeviceError);
}

TEST(CudaSourceDeathTest, ABarrierThatSomeThreadsDoNotReach) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        FakeCuda cuda;
        const auto module = cuda::Module::load(0, R"(
extern "C" __global__ void half(float* x) {
  if (threadIdx.x < 32) __syncthreads();
  x[threadIdx.x] = 1;
})");
        const Tensor x = test::empty(cuda.device(), 64);
        void* out = x.storage().data();
        void* args[] = {&out};
        cuda::launch(0, module->kernel("half"), {1}, {64}, 0, args);
        x.to(kCPU);
      },
      "__syncthreads in line 3 that only 32 of 64 threads reach");
}

}  // namespace
}  // namespace rondo
