// The instruction sets that the processor has, and those that this build's kernels need. Kernels are compiled for one
// kind of processor (RONDO_CPU in CMake, by default that of the build machine). On another processor they could end
// the process with SIGILL, so creating the first tensor checks this. Thread safe.
#pragma once

#include <cstdint>
#include <string>

namespace rondo {

// Instruction sets that a compiler uses by itself if its target has them: first those of x86-64, then those of aarch64.
// A processor has features of its own architecture only. On other architectures nothing is detected and nothing is
// checked.
enum class CpuFeature : uint8_t {
  kSse3,
  kSsse3,
  kSse41,
  kSse42,
  kPopcnt,
  kMovbe,
  kAvx,
  kF16c,
  kFma,
  kBmi,
  kBmi2,
  kLzcnt,
  kAvx2,
  kAvxVnni,
  kAvx512f,
  kAvx512bw,
  kAvx512cd,
  kAvx512dq,
  kAvx512vl,
  kAvx512ifma,
  kAvx512vbmi,
  kAvx512vbmi2,
  kAvx512vnni,
  kAvx512bitalg,
  kAvx512vpopcntdq,
  kAvx512vp2intersect,
  kAvx512bf16,
  kAvx512fp16,
  kGfni,
  kAmxTile,
  kAvx10,
  kApx,
  kLse,
  kFp16,
  kRdm,
  kComplexNumbers,
  kRcpc,
  kSha3,
  kDotProduct,
  kFp16Fml,
  kSve,
  kSve2,
  kI8mm,
  kBf16,
};

using CpuFeatureSet = uint64_t;
constexpr CpuFeatureSet bit(CpuFeature feature) { return CpuFeatureSet{1} << static_cast<int>(feature); }

// Returns the features that the processor has and whose registers the system saves. For tests,
// RONDO_CPU_LACKS=avx512f,fma hides some of them.
CpuFeatureSet host_cpu_features();
// The features for which the kernels were compiled.
extern const CpuFeatureSet kKernelCpuFeatures;

// Returns LLVM's names of the features: "avx2 avx512f", "lse sve". GCC's options have the same names, except for a few
// features of aarch64.
std::string names_of(CpuFeatureSet features);

// Throws UnsupportedCpuError, which names what is missing, unless `host` has all that is needed.
void require_cpu_features(CpuFeatureSet needed, CpuFeatureSet host);

// Checks this build's kernels against this machine. After the first success a call costs one load.
inline void check_cpu() {
  static const bool passed = (require_cpu_features(kKernelCpuFeatures, host_cpu_features()), true);
  static_cast<void>(passed);
}

}  // namespace rondo
