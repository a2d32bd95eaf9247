// Code is generated for the processor that kernels are compiled for, whichever host compiles it: its instructions, its
// key, its bits.
#include <gtest/gtest.h>

#include <bit>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "rondo/compile/jit/cpu/host_key.h"
#include "rondo/compile/jit/cpu/target.h"
#include "rondo/compile/jit/cpu/toolchain.h"
#include "rondo/runtime/base/cpu_features.h"
#include "rondo/tests/compile/kernel_fixture.h"

namespace rondo::compile {
namespace {

constexpr CpuFeatureSet up_to(CpuFeature last) { return (bit(last) << 1) - 1; }  // in the order of CpuFeature
constexpr CpuFeatureSet kV2 = up_to(CpuFeature::kPopcnt);
constexpr CpuFeatureSet kV3 = up_to(CpuFeature::kAvx2);
constexpr CpuFeatureSet kV4 = kV3 | bit(CpuFeature::kAvx512f) | bit(CpuFeature::kAvx512bw) |
                              bit(CpuFeature::kAvx512cd) | bit(CpuFeature::kAvx512dq) | bit(CpuFeature::kAvx512vl);
constexpr CpuFeatureSet kZnver4 = kV4 | (up_to(CpuFeature::kAvx512bf16) & ~up_to(CpuFeature::kAvx512vl));

CodeCpu code_cpu(std::string name, CpuFeatureSet features) { return {std::move(name), names_of(features)}; }

// A kernel that profits from every feature: FMA, conversions of 16-bit floats, masks, whole vectors.
LoopKernel everything() {
  KernelBuilder b("everything", 9, 100);
  const int32_t x = b.dense(kF32), h = b.dense(kF16);
  const LoopValue vx = b.load(x, kF32), vh = b.load(h, kF32), sum = b.emit(LoopOp::kFma, kF32, vx, vh, vx);
  const LoopValue less = b.emit(LoopOp::kLt, kBool, vx, vh);
  for (DType to : {kF32, kBF16, kF16}) b.store(b.dense(to, true), b.emit(LoopOp::kSelect, kF32, less, sum, vh));
  return b.kernel;
}

// The widest registers of `cpu`'s code in bytes, negative without VEX encodings: -16, 16, 32 or 64.
int width_of_code(const CodeCpu& cpu) {
  const std::string text = compile_for_cpu(everything(), cpu, {.dump_asm = true}).assembly;
  EXPECT_NE(text.find("mm"), std::string::npos) << cpu.name << "\n" << text;
  if (text.find("%zmm") != std::string::npos) return 64;
  if (std::regex_search(text, std::regex("%k[0-7]"))) return 64;  // masks of AVX-512
  if (text.find("%ymm") != std::string::npos) return 32;
  return std::regex_search(text, std::regex("\n\tv[a-z]")) ? 16 : -16;
}

#if defined(__x86_64__)

TEST(CodeCpu, HasTheInstructionsOfItsFeatures) {
  if (!jit_available(kCPU)) GTEST_SKIP() << "built without LLVM";
  EXPECT_EQ(width_of_code(code_cpu("x86-64", 0)), -16);
  EXPECT_EQ(width_of_code(code_cpu("x86-64-v2", kV2)), -16);
  EXPECT_EQ(width_of_code(code_cpu("x86-64-v3", kV3)), 32);
  EXPECT_EQ(width_of_code(code_cpu("haswell", kV3)), 32);
  EXPECT_EQ(width_of_code(code_cpu("x86-64-v4", kV4)), 64);
  EXPECT_EQ(width_of_code(code_cpu("znver4", kZnver4)), 64);
  // What a name promises and kernels do not use is not checked at the start, so it is not used.
  EXPECT_EQ(width_of_code(code_cpu("znver4", kV3)), 32);
}

// A compiler's name that LLVM has not, a name of another architecture, a feature that LLVM calls otherwise: the
// features count, and nobody is told.
TEST(CodeCpu, NamesThatLlvmDoesNotKnow) {
  if (!jit_available(kCPU)) GTEST_SKIP() << "built without LLVM";
  testing::internal::CaptureStderr();
  for (const char* name : {"lujiazui", "armv8.2-a", "neoverse-n1", ""}) {
    EXPECT_EQ(width_of_code(code_cpu(name, kV2)), -16) << name;
    EXPECT_EQ(width_of_code(code_cpu(name, kV3 | bit(CpuFeature::kApx))), 32) << name;
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// This build's own code needs what its kernels need, at most. With RONDO_CPU=native that is what the host has.
TEST(CodeCpu, ThisBuildNeedsWhatItsKernelsNeed) {
  if (!jit_available(kCPU)) GTEST_SKIP() << "built without LLVM";
  EXPECT_EQ(kernel_cpu().features, names_of(kKernelCpuFeatures));
  const int most = (kKernelCpuFeatures & bit(CpuFeature::kAvx512f)) != 0 ? 64
                   : (kKernelCpuFeatures & bit(CpuFeature::kAvx2)) != 0  ? 32
                   : (kKernelCpuFeatures & bit(CpuFeature::kAvx)) != 0   ? 16
                                                                         : -16;
  EXPECT_LE(width_of_code(kernel_cpu()), most);
  EXPECT_EQ(compile_for_cpu(everything(), kernel_cpu(), {}).object, compile_object(everything(), {}));
}

TEST(CodeCpu, IsInTheKey) {
  const std::string here = describe_cpu(code_cpu("native", 0)), v3 = describe_cpu(code_cpu("x86-64-v3", kV3));
  EXPECT_EQ(describe_cpu(code_cpu("native", kV3)), here);  // CPUID says more
  EXPECT_NE(here.find(names_of(host_cpu_features())), std::string::npos);
  EXPECT_NE(v3, here);
  EXPECT_NE(v3, describe_cpu(code_cpu("x86-64-v2", kV2)));
  EXPECT_NE(v3, describe_cpu(code_cpu("haswell", kV3)));
  EXPECT_NE(v3, describe_cpu(code_cpu("x86-64-v3", kV4)));
  EXPECT_EQ(v3, "x86-64-v3 " + names_of(kV3));  // nothing of this host: others use the same code
  EXPECT_NE(host_key().text().find("cpu: " + describe_cpu(kernel_cpu()) + "\n"), std::string::npos);
}

// Targets that generate code for the processors above, as a build with that RONDO_CPU does.
template <int kLevel> const Target& target_for() {
  static const CodeCpu wanted = kLevel == 2   ? code_cpu("x86-64-v2", kV2)
                                : kLevel == 3 ? code_cpu("x86-64-v3", kV3)
                                              : code_cpu("x86-64-v4", kV4);
  static const HostKey key{{{"target", "cpu of the test"}, {"cpu", describe_cpu(wanted)}}};
  static const Target target = [] {
    Target made = cpu::kTarget;
    made.key = []() -> const HostKey& { return key; };
    made.compile = [](const LoopKernel& kernel, const JitOptions& options) {
      return compile_for_cpu(kernel, wanted, options).object;
    };
    return made;
  }();
  return target;
}

// The targets whose code can run here.
std::vector<const Target*> targets_of_this_host() {
  const std::pair<const Target*, CpuFeatureSet> all[] = {
      {&target_for<2>(), kV2}, {&target_for<3>(), kV3}, {&target_for<4>(), kV4}};
  std::vector<const Target*> targets;
  for (const auto& [target, needs] : all)
    if ((needs & ~host_cpu_features()) == 0) targets.push_back(target);
  return targets;
}

// Without FMA, the C library's stands in: one rounding, too.
TEST(CodeCpu, HasTheInterpretersBits) {
  if (!jit_available(kCPU)) GTEST_SKIP() << "built without LLVM";
  for (const Target* target : targets_of_this_host()) {
    SCOPED_TRACE(target->key().text());
    const auto compare = [&](const LoopKernel& kernel, std::vector<double> scalars) {
      expect_equal_bits(kernel, kernel, {.scalars = std::move(scalars), .target = target});
    };
    for (DType type : {kF32, kF64}) compare(every_op(type, 9, 37), {0.3, 1.00390625});
    compare(every_integer_op(kI64, 9, 37), {3.7, -1e12});
    compare(floats_to_integers(kF16, 0x1p31, 50, 37), {});
    compare(extrema(kF16, 11, 37), {});
    compare(picks(kBF16, 11, 37), {});
    compare(segment_sums(kF32, 53, 37, 7), {});
    compare(random_numbers(9, 100, 100, 1), {0.2});
  }
}

// Without conversions of 16-bit floats, libgcc's stand in. All f16, and for each upper half of an f32 the lower halves
// that decide.
TEST(CodeCpu, RoundsLikeTheRuntime) {
  if (!jit_available(kCPU)) GTEST_SKIP() << "built without LLVM";
  constexpr uint32_t kLower[] = {0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
  const int64_t n = 65536 * static_cast<int64_t>(std::size(kLower));
  KernelBuilder b("round", 1, n);
  b.kernel.split_columns = true;
  const int32_t x = b.dense(kF32), h = b.dense(kF16), bf16 = b.dense(kBF16, true), f16 = b.dense(kF16, true),
                f32 = b.dense(kF32, true);
  b.store(bf16, b.load(x, kF32));
  b.store(f16, b.load(x, kF32));
  b.store(f32, b.load(h, kF32));
  std::vector<float> wide(n), widened(n);
  std::vector<uint16_t> half(n), to_bf16(n), to_f16(n);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t upper = static_cast<uint32_t>(i / static_cast<int64_t>(std::size(kLower)));
    wide[i] = std::bit_cast<float>(upper << 16 | kLower[i % std::size(kLower)]);
    half[i] = static_cast<uint16_t>(upper);
  }
  void* operands[] = {wide.data(), half.data(), to_bf16.data(), to_f16.data(), widened.data()};
  for (const Target* target : targets_of_this_host()) {
    SCOPED_TRACE(target->key().text());
    const auto executable = compile_kernels({&b.kernel, 1}, {}, *target);
    executable->entry(0)(operands, nullptr, nullptr, 0, n);
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(to_bf16[i], BFloat16(wide[i]).bits) << i;
      ASSERT_EQ(to_f16[i], Float16(wide[i]).bits) << i;
      ASSERT_EQ(std::bit_cast<uint32_t>(widened[i]),
                std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<Float16>(half[i]))))
          << i;
    }
  }
}

#endif

}  // namespace
}  // namespace rondo::compile
