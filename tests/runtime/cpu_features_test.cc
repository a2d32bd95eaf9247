// The check at start: kernels for another processor are an error that names what is missing, not SIGILL.
#include "rondo/runtime/base/cpu_features.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/onednn/product_library.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo {
namespace {

TEST(CpuFeatures, TheKernelsOfThisBuildRunHere) {
  EXPECT_EQ(names_of(kKernelCpuFeatures & ~host_cpu_features()), "");
  EXPECT_NO_THROW(check_cpu());
}

TEST(CpuFeatures, NamesWhatIsMissing) {
#if defined(__aarch64__)
  constexpr CpuFeature kThere = CpuFeature::kFp16, kUnneeded = CpuFeature::kBf16;
  const CpuFeatureSet needed = bit(kThere) | bit(CpuFeature::kSve) | bit(CpuFeature::kLse);
  const std::string lacks = "lacks lse sve,";
#else
  constexpr CpuFeature kThere = CpuFeature::kAvx2, kUnneeded = CpuFeature::kApx;
  const CpuFeatureSet needed = bit(kThere) | bit(CpuFeature::kAvx512f) | bit(CpuFeature::kFma);
  const std::string lacks = "lacks fma avx512f,";
#endif
  EXPECT_NO_THROW(require_cpu_features(needed, needed | bit(kUnneeded)));
  try {
    require_cpu_features(needed, bit(kThere));
    FAIL();
  } catch (const UnsupportedCpuError& error) {
    EXPECT_NE(std::string(error.what()).find(lacks), std::string::npos) << error.what();
  }
}

// A processor without the instructions, as far as the check can tell: nothing of a kernel may run there.
TEST(CpuFeaturesDeathTest, TheFirstTensorChecks) {
  if (kKernelCpuFeatures == 0) GTEST_SKIP() << "kernels for the oldest processor there is";
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fresh process: the check runs once
  std::string lacks = names_of(kKernelCpuFeatures);
  if (const size_t space = lacks.rfind(' '); space != std::string::npos) lacks.erase(0, space + 1);
  const auto first_tensor = [&] {
    for (int attempt = 0; attempt < 2; ++attempt) {  // a second one is refused, too
      try {
        Tensor::randn({4, 4});
        std::exit(1);
      } catch (const UnsupportedCpuError& error) {
        std::fputs(error.what(), stderr);
      }
    }
    float memory[4] = {};
    try {
      Storage::borrow(memory, sizeof(memory), nullptr);
    } catch (const UnsupportedCpuError&) {
      std::exit(3);
    }
    std::exit(1);
  };
  setenv("RONDO_CPU_LACKS", lacks.c_str(), 1);
  EXPECT_EXIT(first_tensor(), testing::ExitedWithCode(3), "lacks " + lacks);
  unsetenv("RONDO_CPU_LACKS");
}

// oneDNN chooses its kernels when the process begins: what we ask it then is what it does, not what the processor
// could.
TEST(CpuFeaturesDeathTest, TheLibraryMayBeLimited) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "the variable names instructions of x86-64";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fresh process: the library reads the variable once
  const auto answer = [] { std::exit(library_has_avx512() ? 3 : 4); };
  const char* const given = std::getenv("ONEDNN_MAX_CPU_ISA");
  const std::string before = given == nullptr ? "" : given;
  const CpuFeatureSet needed = bit(CpuFeature::kAvx512f) | bit(CpuFeature::kAvx512bw) | bit(CpuFeature::kAvx512dq) |
                               bit(CpuFeature::kAvx512vl);
  setenv("ONEDNN_MAX_CPU_ISA", "ALL", 1);
  EXPECT_EXIT(answer(), testing::ExitedWithCode((host_cpu_features() & needed) == needed ? 3 : 4), "");
  setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
  EXPECT_EXIT(answer(), testing::ExitedWithCode(4), "");
  // What a tuned choice is kept for (compile/jit/tuner.h).
  const auto name = [] {
    std::fputs(product_library().c_str(), stderr);
    std::exit(0);
  };
  setenv("ONEDNN_MAX_CPU_ISA", "SSE41", 1);
  EXPECT_EXIT(name(), testing::ExitedWithCode(0), "^oneDNN [23]\\.[0-9.]+, instructions 1$");
  if (given == nullptr) unsetenv("ONEDNN_MAX_CPU_ISA");
  else setenv("ONEDNN_MAX_CPU_ISA", before.c_str(), 1);
}

}  // namespace
}  // namespace rondo
