// Modules, launches and arithmetic: what the fake driver and the executor behind it (tests/cuda_on_host/) take for
// given.
#include <bit>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "rondo/tests/cuda/kernel_text.h"
#include "rondo/tests/gpu/conformance.h"

namespace rondo::test {
namespace {

using cuda::FunctionAttribute;
using cuda::NvrtcResult;

// Runs on all bit patterns; the host computes the same from them.
constexpr const char* kArithmetic = R"(
extern "C" __global__ void arithmetic(const float* x, const float* y, const double* v, const double* w, unsigned* out,
                                      unsigned long long* wide, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float a = x[i], b = y[i];
  const double c = v[i], d = w[i];
  unsigned* o = out + 8 * i;
  o[0] = __float_as_uint(a * b + a);
  o[1] = __float_as_uint(a / b);
  o[2] = __float_as_uint(__fsqrt_rn(a < 0 ? -a : a));
  o[3] = __float_as_uint(__fmaf_rn(a, b, b));
  o[4] = __float_as_uint(a - b);
  o[5] = __float_as_uint(static_cast<float>(static_cast<int>(__float_as_uint(b))));
  o[6] = __umulhi(__float_as_uint(a), __float_as_uint(b));
  o[7] = __popc(__float_as_uint(a)) + 100 * __clz(static_cast<int>(__float_as_uint(a) >> 3)) +
         10000 * __ffs(static_cast<int>(__float_as_uint(b)));
  unsigned long long* p = wide + 5 * i;
  p[0] = static_cast<unsigned long long>(__double_as_longlong(c * d + c));
  p[1] = static_cast<unsigned long long>(__double_as_longlong(c / d));
  p[2] = static_cast<unsigned long long>(__double_as_longlong(__dsqrt_rn(c < 0 ? -c : c)));
  p[3] = static_cast<unsigned long long>(__double_as_longlong(__fma_rn(c, d, d)));
  p[4] = __float_as_uint(static_cast<float>(c));
}
)";

class ConformanceKernels : public Conformance {};

// The architectures that NVRTC compiles for, in ascending order.
std::vector<int> known_architectures(const cuda::Nvrtc& nvrtc) {
  int n = 0;
  EXPECT_EQ(nvrtc.n_architectures(&n), NvrtcResult::kSuccess);
  std::vector<int> known(static_cast<size_t>(n));
  EXPECT_EQ(nvrtc.architectures(known.data()), NvrtcResult::kSuccess);
  return known;
}

TEST_F(ConformanceKernels, ArgumentsAreCopiedByTheLaunch) {  // cuLaunchKernel
  const FunctionPtr axpy = gpu.kernel(kAxpyText, "axpy");
  const size_t n = 1000;
  DevicePtr y = gpu.upload(std::vector<float>(n, 1)), x = gpu.upload(std::vector<float>(n, 1));
  const DevicePtr kept = y;
  int64_t count = n;
  float a = 0.5f;
  void* args[] = {&y, &x, &count, &a};
  for (int i = 0; i < 50; ++i) {
    ASSERT_OK(cu.launch(axpy, 4, 1, 1, 256, 1, 1, 0, gpu.stream, args, nullptr));
    a += 0.5f;
  }
  a = -1, count = 0, x = 0, y = 0;
  EXPECT_EQ(gpu.download<float>(kept, n), std::vector<float>(n, 1 + 0.25f * 50 * 51));
}

TEST_F(ConformanceKernels, BarriersShufflesAndSharedMemory) {
  const FunctionPtr block_sum = gpu.kernel(kBlockSumText, "block_sum"), warp_sum = gpu.kernel(kWarpSumText, "warp_sum");
  std::vector<float> values(128 * 33);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 128);
  const DevicePtr x = gpu.upload(values), sums = gpu.block(33 * 4);
  ASSERT_OK(gpu.launch(block_sum, 33, 128, x, sums));
  EXPECT_EQ(gpu.download<float>(sums, 33), std::vector<float>(33, 127 * 64));
  ASSERT_OK(gpu.launch(warp_sum, 1, 32, x));
  EXPECT_EQ(gpu.download<float>(x, 1).front(), 31 * 16);
}

// The assumptions of exactness: no contraction, subnormal numbers, rounding to nearest even in every operation.
TEST_F(ConformanceKernels, ArithmeticIsTheHosts) {  // Guide, "Floating-Point Standard"; NVRTC: -fmad=false, -ftz=false
  constexpr int kN = 20000;
  std::mt19937_64 random(7);
  std::vector<float> x(kN), y(kN);
  std::vector<double> v(kN), w(kN);
  const auto narrow = [&](int i) {  // all bit patterns of numbers, subnormal ones often
    const auto bits = static_cast<uint32_t>(random());
    const float value = std::bit_cast<float>(i % 4 == 0 ? bits & 0x80FFFFFFu : bits);
    return std::isnan(value) ? 1.5f : value;
  };
  const auto broad = [&](int i) {
    const uint64_t bits = random();
    const double value = std::bit_cast<double>(i % 4 == 0 ? bits & 0x801FFFFFFFFFFFFFu : bits);
    return std::isnan(value) ? 1.5
           : i % 3 == 0      ? static_cast<double>(std::bit_cast<float>(0x00700000u + i)) * 1.37
                             : value;
  };
  for (int i = 0; i < kN; ++i) x[i] = narrow(i), y[i] = narrow(i + 1), v[i] = broad(i), w[i] = broad(i + 1);
  const FunctionPtr kernel = gpu.kernel(kArithmetic, "arithmetic");
  const DevicePtr out = gpu.block(kN * 8 * 4), wide = gpu.block(kN * 5 * 8);
  ASSERT_OK(gpu.launch(kernel, (kN + 255) / 256, 256, gpu.upload(x), gpu.upload(y), gpu.upload(v), gpu.upload(w), out,
                       wide, static_cast<int>(kN)));
  const std::vector<uint32_t> got = gpu.download<uint32_t>(out, kN * 8);
  const std::vector<uint64_t> got_wide = gpu.download<uint64_t>(wide, kN * 5);
  int wrong = 0;
  const auto expect = [&](int i, int which, auto value, auto bits) {
    const bool nan = value != value;
    const auto theirs = std::bit_cast<decltype(value)>(bits);
    if (nan ? theirs == theirs : std::bit_cast<decltype(bits)>(value) != bits)
      if (++wrong < 10)
        ADD_FAILURE() << "operation " << which << " of sample " << i << ": " << theirs << ", not " << value;
  };
  for (int i = 0; i < kN; ++i) {
    const float a = x[i], b = y[i];
    const double c = v[i], d = w[i];
    volatile float product = a * b;
    volatile double wide_product = c * d;
    const auto a_bits = std::bit_cast<uint32_t>(a), b_bits = std::bit_cast<uint32_t>(b);
    expect(i, 0, product + a, got[8 * i]);
    expect(i, 1, a / b, got[8 * i + 1]);
    expect(i, 2, std::sqrt(a < 0 ? -a : a), got[8 * i + 2]);
    expect(i, 3, std::fma(a, b, b), got[8 * i + 3]);
    expect(i, 4, a - b, got[8 * i + 4]);
    expect(i, 5, static_cast<float>(static_cast<int32_t>(b_bits)), got[8 * i + 5]);
    EXPECT_EQ(got[8 * i + 6], static_cast<uint32_t>(uint64_t{a_bits} * b_bits >> 32));
    EXPECT_EQ(got[8 * i + 7], static_cast<uint32_t>(std::popcount(a_bits) + 100 * std::countl_zero(a_bits >> 3) +
                                                    10000 * (b_bits == 0 ? 0 : std::countr_zero(b_bits) + 1)));
    expect(i, 10, wide_product + c, got_wide[5 * i]);
    expect(i, 11, c / d, got_wide[5 * i + 1]);
    expect(i, 12, std::sqrt(c < 0 ? -c : c), got_wide[5 * i + 2]);
    expect(i, 13, std::fma(c, d, d), got_wide[5 * i + 3]);
    expect(i, 14, static_cast<float>(c), static_cast<uint32_t>(got_wide[5 * i + 4]));
  }
  EXPECT_EQ(wrong, 0);
}

TEST_F(ConformanceKernels, StreamsAreOrderedByEvents) {  // cuStreamWaitEvent
  const FunctionPtr axpy = gpu.kernel(kAxpyText, "axpy");
  const int64_t n = 1 << 14;
  const DevicePtr a = gpu.upload(std::vector<float>(n, 1)), b = gpu.upload(std::vector<float>(n, 1));
  const EventPtr here = gpu.event(cuda::kEventDisableTiming), there = gpu.event(cuda::kEventDisableTiming);
  const auto add = [&](StreamPtr stream, DevicePtr y, DevicePtr x) {
    int64_t count = n;
    float one = 1;
    void* args[] = {&y, &x, &count, &one};
    return cu.launch(axpy, n / 256, 1, 1, 256, 1, 1, 0, stream, args, nullptr);
  };
  float first = 1, second = 1;
  for (int i = 0; i < 30; ++i) {
    ASSERT_OK(add(gpu.stream, a, b));
    ASSERT_OK(cu.event_record(here, gpu.stream));
    ASSERT_OK(cu.stream_wait_event(gpu.other, here, 0));
    ASSERT_OK(add(gpu.other, b, a));
    ASSERT_OK(cu.event_record(there, gpu.other));
    ASSERT_OK(cu.stream_wait_event(gpu.stream, there, 0));
    first += second, second += first;
  }
  EXPECT_EQ(gpu.download<float>(a, n), std::vector<float>(n, first));
  EXPECT_EQ(gpu.download<float>(b, n), std::vector<float>(n, second));
}

// ---- Refusals of launches. Guide, "Technical Specifications per Compute Capability"; cuLaunchKernel

TEST_F(ConformanceKernels, LaunchesThatAreTooLarge) {
  const FunctionPtr warp_sum = gpu.kernel(kWarpSumText, "warp_sum"), axpy = gpu.kernel(kAxpyText, "axpy");
  DevicePtr x = gpu.upload(std::vector<float>(1024));
  void* args[] = {&x};
  const auto launch = [&](unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz) {
    return cu.launch(warp_sum, gx, gy, gz, bx, by, bz, 0, gpu.stream, args, nullptr);
  };
  EXPECT_EQ(launch(0, 1, 1, 32, 1, 1), Result::kInvalidValue);
  EXPECT_EQ(launch(1, 1, 1, 0, 1, 1), Result::kInvalidValue);
  EXPECT_EQ(launch(0x80000000u, 1, 1, 32, 1, 1), Result::kInvalidValue);
  EXPECT_EQ(launch(1, 65536, 1, 32, 1, 1), Result::kInvalidValue);
  EXPECT_EQ(launch(1, 1, 65536, 32, 1, 1), Result::kInvalidValue);
  EXPECT_EQ(launch(1, 1, 1, 1025, 1, 1), Result::kInvalidValue);
  EXPECT_EQ(launch(1, 1, 1, 1, 1, 65), Result::kInvalidValue);
  // More threads than __launch_bounds__ says: refused, with one word or another.
  int64_t n = 0;
  float a = 0;
  void* more[] = {&x, &x, &n, &a};
  EXPECT_NE(cu.launch(axpy, 1, 1, 1, 512, 1, 1, 0, gpu.stream, more, nullptr), Result::kSuccess);
  EXPECT_OK(launch(1, 1, 1, 32, 1, 1));  // a refusal leaves the context as it was
  EXPECT_OK(cu.stream_synchronize(gpu.stream));
}

TEST_F(ConformanceKernels, SharedMemory) {  // cuFuncSetAttribute, MAX_DYNAMIC_SHARED_SIZE_BYTES
  const FunctionPtr kernel = gpu.kernel(kWarpSumText, "warp_sum"), fixed = gpu.kernel(kBlockSumText, "block_sum");
  int value = 0;
  ASSERT_OK(cu.function_attribute(&value, FunctionAttribute::kMaxDynamicShared, kernel));
  EXPECT_EQ(value, 48 << 10);
  DevicePtr x = gpu.upload(std::vector<float>(32));
  void* args[] = {&x};
  EXPECT_EQ(cu.launch(kernel, 1, 1, 1, 32, 1, 1, (48 << 10) + 1, gpu.stream, args, nullptr), Result::kInvalidValue);
  const int most = gpu.attribute(cuda::DeviceAttribute::kMaxSharedPerBlock);
  EXPECT_OK(cu.function_set_attribute(kernel, FunctionAttribute::kMaxDynamicShared, most));
  ASSERT_OK(cu.function_attribute(&value, FunctionAttribute::kMaxDynamicShared, kernel));
  EXPECT_EQ(value, most);
  EXPECT_EQ(cu.function_set_attribute(kernel, FunctionAttribute::kMaxDynamicShared, most + 1), Result::kInvalidValue);
  EXPECT_EQ(cu.function_set_attribute(kernel, FunctionAttribute::kMaxDynamicShared, -1), Result::kInvalidValue);
  // With what the kernel has by itself.
  EXPECT_EQ(cu.function_set_attribute(fixed, FunctionAttribute::kMaxDynamicShared, most), Result::kInvalidValue);
}

// Static memory comes off the 48 KiB that a launch may have without asking.
TEST_F(ConformanceKernels, SharedMemoryBesideStaticMemory) {  // cuda.h, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  // The launches below ask for kDynamic bytes; the kernel has 68 of its own, as rondo_head_rows.
  constexpr unsigned kDynamic = 48 << 10;
  const FunctionPtr kernel = gpu.kernel(absl::StrCat(std::string(cuda::device_math()), R"(
extern "C" __global__ void both(float* x) {
  __shared__ float fixed[17];
  RONDO_DYNAMIC_SHARED(float, more, 12288);
  if (threadIdx.x < 17) fixed[threadIdx.x] = x[threadIdx.x];
  for (int i = threadIdx.x; i < 12288; i += blockDim.x) more[i] = static_cast<float>(i);
  __syncthreads();
  x[threadIdx.x] = fixed[threadIdx.x % 17] + more[12288 - 32 + threadIdx.x];
}
)"),
                                        "both");
  int value = 0;
  int fixed = 0;
  ASSERT_OK(cu.function_attribute(&fixed, FunctionAttribute::kStaticShared, kernel));
  EXPECT_GE(fixed, 68);
  EXPECT_LT(fixed, 128);
  ASSERT_OK(cu.function_attribute(&value, FunctionAttribute::kMaxDynamicShared, kernel));
  EXPECT_EQ(value, (48 << 10) - fixed);
  DevicePtr x = gpu.upload(std::vector<float>(32, 0.5f));
  void* args[] = {&x};
  const auto launch = [&] { return cu.launch(kernel, 1, 1, 1, 32, 1, 1, kDynamic, gpu.stream, args, nullptr); };
  EXPECT_EQ(launch(), Result::kInvalidValue);
  EXPECT_OK(cu.function_set_attribute(kernel, FunctionAttribute::kMaxDynamicShared, kDynamic));
  EXPECT_OK(launch());
  EXPECT_EQ(gpu.download<float>(x, 32).front(), 0.5f + (12288 - 32));
}

TEST_F(ConformanceKernels, AttributesOfFunctions) {  // cuFuncGetAttribute, cuFuncSetAttribute
  const FunctionPtr axpy = gpu.kernel(kAxpyText, "axpy"), sums = gpu.kernel(kBlockSumText, "block_sum");
  int value = 0;
  ASSERT_OK(cu.function_attribute(&value, FunctionAttribute::kMaxThreadsPerBlock, axpy));
  EXPECT_EQ(value, 256);
  ASSERT_OK(cu.function_attribute(&value, FunctionAttribute::kStaticShared, sums));
  EXPECT_EQ(value, 512);
  ASSERT_OK(cu.function_attribute(&value, FunctionAttribute::kLocalBytes, axpy));
  EXPECT_EQ(value, 0);
  ASSERT_OK(cu.function_attribute(&value, FunctionAttribute::kRegisters, axpy));
  EXPECT_GT(value, 0);
  EXPECT_EQ(cu.function_set_attribute(axpy, FunctionAttribute::kRegisters, 16), Result::kInvalidValue);
}

// ---- Modules

TEST_F(ConformanceKernels, ImagesThatAreNone) {  // cuModuleLoadData; CUresult, INVALID_IMAGE
  std::string damaged(4096, '\0');
  damaged.replace(0, 4,
                  "\x7f"
                  "ELF");
  ModulePtr module = nullptr;
  EXPECT_EQ(cu.module_load(&module, damaged.c_str()), Result::kInvalidImage);
}

TEST_F(ConformanceKernels, FunctionsThatAreNotThere) {  // cuModuleGetFunction
  const cuda::NvrtcOutput output = nvrtc_compile(kAxpyText, gpu.capability());
  ASSERT_EQ(output.result, NvrtcResult::kSuccess) << output.log;
  FunctionPtr function = nullptr;
  const ModulePtr module = gpu.load(output.cubin);
  EXPECT_EQ(cu.module_function(&function, module, "axpby"), Result::kNotFound);
  EXPECT_OK(cu.module_function(&function, module, "axpy"));
}

TEST_F(ConformanceKernels, CodeOfAnotherArchitecture) {  // Guide, "Binary Compatibility", "PTX Compatibility"
  const int here = gpu.capability(), newest = known_architectures(*cuda::find_nvrtc(nullptr)).back();
  ModulePtr module = nullptr;
  const cuda::NvrtcOutput older = nvrtc_compile(kAxpyText, 80), newer = nvrtc_compile(kAxpyText, newest);
  ASSERT_EQ(older.result, NvrtcResult::kSuccess) << older.log;
  ASSERT_EQ(newer.result, NvrtcResult::kSuccess) << newer.log;
  if (here / 10 != 8) {
    EXPECT_EQ(cu.module_load(&module, older.cubin.c_str()), Result::kNoBinaryForGpu);
  }
  if (here < newest) {
    EXPECT_EQ(cu.module_load(&module, newer.cubin.c_str()), Result::kNoBinaryForGpu);
    EXPECT_NE(cu.module_load(&module, newer.ptx.c_str()), Result::kSuccess);
  }
  // PTX of an older one is compiled by the driver.
  FunctionPtr axpy = nullptr;
  ASSERT_OK(cu.module_function(&axpy, gpu.load(older.ptx), "axpy"));
  const DevicePtr y = gpu.upload(std::vector<float>(10, 1)), x = gpu.upload(std::vector<float>(10, 1));
  ASSERT_OK(gpu.launch(axpy, 1, 256, y, x, int64_t{10}, 2.0f));
  EXPECT_EQ(gpu.download<float>(y, 10), std::vector<float>(10, 3));
}

// Code for one capability alone runs there and nowhere else, as PTX, too.
TEST_F(ConformanceKernels, CodeOfOneCapability) {  // Guide, "Architecture-Specific Features"
  const int here = gpu.capability();
  for (const int capability : {90, 100}) {
    const cuda::NvrtcOutput output = nvrtc_compile(kAxpyText, {capability, 'a'});
    if (capability == 100 && output.result != NvrtcResult::kSuccess) continue;  // an NVRTC before 12.8 knows no sm_100a
    ASSERT_EQ(output.result, NvrtcResult::kSuccess) << output.log;
    ModulePtr module = nullptr;
    if (here == capability) {
      FunctionPtr axpy = nullptr;
      EXPECT_OK(cu.module_function(&axpy, gpu.load(output.cubin), "axpy"));
    } else {
      EXPECT_EQ(cu.module_load(&module, output.cubin.c_str()), Result::kNoBinaryForGpu);
      EXPECT_NE(cu.module_load(&module, output.ptx.c_str()), Result::kSuccess);
    }
  }
}

// ---- Errors that a context does not survive

TEST(ConformanceProcess,
     AnErrorThatStays) {  // CUresult, ILLEGAL_ADDRESS: "to continue, the process must be terminated"
  in_a_fresh_process([] {
    FakeCuda cuda(kAnswering);
    cuda.expect_lost();
    Gpu gpu;
    const Driver& cu = gpu.cu;
    const DevicePtr block = gpu.block(256);
    const EventPtr event = gpu.event();
    FunctionPtr kernel = nullptr;
    if (on_real_cuda()) {
      kernel = gpu.kernel("extern \"C\" __global__ void stray(int* p) { *p = 1; }", "stray");
    } else {
      cuda->register_kernel("stray", {{8}, [](const fake_cuda::Launch&) { throw fake_cuda::DeviceFault{700}; }, {}});
      ASSERT_OK(cu.module_function(&kernel, gpu.load(cuda->image({"stray"})), "stray"));
    }
    bool called = false;
    ASSERT_OK(gpu.launch(kernel, 1, 1, DevicePtr{64}));
    static_cast<void>(cu.launch_host(
        gpu.stream, [](void* flag) { *static_cast<bool*>(flag) = true; }, &called));
    EXPECT_EQ(cu.stream_synchronize(gpu.stream), Result::kIllegalAddress);
    EXPECT_FALSE(called) << "cuLaunchHostFunc: not called after an error";
    EXPECT_EQ(cu.stream_synchronize(gpu.other), Result::kIllegalAddress);
    EXPECT_EQ(cu.event_record(event, gpu.stream), Result::kIllegalAddress);
    EXPECT_EQ(cu.memory_free(block), Result::kIllegalAddress);
    DevicePtr more = 0;
    EXPECT_EQ(cu.memory_allocate(&more, 256), Result::kIllegalAddress);
    EXPECT_EQ(cu.context_synchronize(), Result::kIllegalAddress);
    // Devices can still be counted.
    int n = 0;
    EXPECT_OK(cu.device_count(&n));
  });
}

// ---- NVRTC. It needs no device: with RONDO_TEST_CUDA=real these run wherever the library is.

class ConformanceNvrtc : public ::testing::Test {
 protected:
  void SetUp() override {
    if (on_real_cuda()) cuda::forget_libraries();
    else cuda.emplace();
    std::string why_not;
    nvrtc = cuda::find_nvrtc(&why_not);
    if (nvrtc == nullptr) GTEST_SKIP() << why_not;
  }
  std::optional<FakeCuda> cuda;
  const cuda::Nvrtc* nvrtc = nullptr;
};

TEST_F(ConformanceNvrtc, ArchitecturesAndVersion) {  // nvrtcGetSupportedArchs, nvrtcVersion
  int major = 0, minor = 0;
  ASSERT_EQ(nvrtc->version(&major, &minor), NvrtcResult::kSuccess);
  EXPECT_GE(major, 12);
  const std::vector<int> known = known_architectures(*nvrtc);
  EXPECT_TRUE(std::is_sorted(known.begin(), known.end()));
  for (const int wanted : {80, 90, 100}) {
    if (wanted == 100 && 100 * major + minor < 1208) continue;  // 12.8 is the first that knows it
    EXPECT_EQ(std::count(known.begin(), known.end(), wanted), 1) << wanted;
  }
}

TEST_F(ConformanceNvrtc, TakesOurFlags) {  // NVRTC, "Supported Compile Options"
  const cuda::NvrtcOutput output = nvrtc_compile(kAxpyText, 90);
  ASSERT_EQ(output.result, NvrtcResult::kSuccess) << output.log;
  EXPECT_EQ(output.log, "");
  EXPECT_FALSE(output.cubin.empty());
  ASSERT_FALSE(output.ptx.empty());
  EXPECT_EQ(output.ptx.back(), '\0');  // nvrtcGetPTXSize counts the zero
}

TEST_F(ConformanceNvrtc, TakesArchitecturesWithASuffix) {  // nvcc, "GPU Feature List"
  const cuda::NvrtcOutput output = nvrtc_compile(kAxpyText, {90, 'a'});
  ASSERT_EQ(output.result, NvrtcResult::kSuccess) << output.log;
  EXPECT_NE(output.ptx.find("_90a"), std::string::npos);
  EXPECT_EQ(nvrtc_compile(kAxpyText, {80, 'a'}).result, NvrtcResult::kCompilation);
}

TEST_F(ConformanceNvrtc, RefusesUnknownOptions) {  // nvrtcCompileProgram, INVALID_OPTION
  const cuda::NvrtcOutput option = nvrtc_compile(kAxpyText, 90, {"--no-such-option"});
  EXPECT_EQ(option.result, NvrtcResult::kInvalidOption);
  const cuda::NvrtcOutput architecture = nvrtc_compile(kAxpyText, 35);
  EXPECT_EQ(architecture.result, NvrtcResult::kInvalidOption);
  EXPECT_NE(architecture.log.find("gpu-architecture"), std::string::npos) << architecture.log;
}

TEST_F(ConformanceNvrtc, SaysWhatIsWrongWithASource) {  // nvrtcCompileProgram, COMPILATION; nvrtcGetProgramLog
  const cuda::NvrtcOutput output = nvrtc_compile("\n#error no such device\n", 90);
  EXPECT_EQ(output.result, NvrtcResult::kCompilation);
  for (const char* part : {"conformance.cu(2): ", "error", "no such device"})
    EXPECT_NE(output.log.find(part), std::string::npos) << output.log;
  EXPECT_STRNE(nvrtc->error_string(NvrtcResult::kCompilation), "");
}

}  // namespace
}  // namespace rondo::test
