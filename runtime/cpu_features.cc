#include "rondo/runtime/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/runtime/error.h"

namespace rondo {
namespace {

// Where CPUID reports a feature, and which registers the system must save for it (bits of XCR0).
struct Entry {
  const char* name;
  uint32_t leaf, subleaf;
  int reg, bit;  // register: eax, ebx, ecx, edx
  uint32_t saved = 0;
};
constexpr uint32_t kYmm = 0x6, kZmm = 0xE6, kTiles = 0x60000;
// In the order of CpuFeature.
constexpr Entry kEntries[kCpuFeatures] = {
    {"sse3", 1, 0, 2, 0},
    {"ssse3", 1, 0, 2, 9},
    {"sse4.1", 1, 0, 2, 19},
    {"sse4.2", 1, 0, 2, 20},
    {"popcnt", 1, 0, 2, 23},
    {"movbe", 1, 0, 2, 22},
    {"avx", 1, 0, 2, 28, kYmm},
    {"f16c", 1, 0, 2, 29, kYmm},
    {"fma", 1, 0, 2, 12, kYmm},
    {"bmi", 7, 0, 1, 3},
    {"bmi2", 7, 0, 1, 8},
    {"lzcnt", 0x80000001, 0, 2, 5},
    {"avx2", 7, 0, 1, 5, kYmm},
    {"avxvnni", 7, 1, 0, 4, kYmm},
    {"avx512f", 7, 0, 1, 16, kZmm},
    {"avx512bw", 7, 0, 1, 30, kZmm},
    {"avx512cd", 7, 0, 1, 28, kZmm},
    {"avx512dq", 7, 0, 1, 17, kZmm},
    {"avx512vl", 7, 0, 1, 31, kZmm},
    {"avx512ifma", 7, 0, 1, 21, kZmm},
    {"avx512vbmi", 7, 0, 2, 1, kZmm},
    {"avx512vbmi2", 7, 0, 2, 6, kZmm},
    {"avx512vnni", 7, 0, 2, 11, kZmm},
    {"avx512bitalg", 7, 0, 2, 12, kZmm},
    {"avx512vpopcntdq", 7, 0, 2, 14, kZmm},
    {"avx512vp2intersect", 7, 0, 3, 8, kZmm},
    {"avx512bf16", 7, 1, 0, 5, kZmm},
    {"avx512fp16", 7, 0, 3, 23, kZmm},
    {"gfni", 7, 0, 2, 8},
    {"amx-tile", 7, 0, 3, 24, kTiles},
    {"avx10", 7, 1, 3, 19, kZmm},
    {"apx", 7, 1, 3, 21},
};

CpuFeatureSet read_features() {
  CpuFeatureSet features = 0;
#if defined(__x86_64__)
  uint32_t regs[4] = {}, saved = 0, high = 0;
  if (__get_cpuid(1, &regs[0], &regs[1], &regs[2], &regs[3]) != 0 && (regs[2] >> 27 & 1u) != 0)
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  for (int i = 0; i < kCpuFeatures; ++i) {
    const Entry& e = kEntries[i];
    if (__get_cpuid_count(e.leaf, e.subleaf, &regs[0], &regs[1], &regs[2], &regs[3]) == 0) continue;
    if ((regs[e.reg] >> e.bit & 1u) != 0 && (saved & e.saved) == e.saved) features |= CpuFeatureSet{1} << i;
  }
#endif
  if (const char* lacks = std::getenv("RONDO_CPU_LACKS"); lacks != nullptr) {
    for (const absl::string_view word : absl::StrSplit(lacks, ','))
      for (int i = 0; i < kCpuFeatures; ++i)
        if (word == kEntries[i].name) features &= ~(CpuFeatureSet{1} << i);
  }
  return features;
}

}  // namespace

CpuFeatureSet host_cpu_features() {
  static const CpuFeatureSet features = read_features();
  return features;
}

std::string names_of(CpuFeatureSet features) {
  std::string names;
  for (int i = 0; i < kCpuFeatures; ++i)
    if ((features >> i & 1u) != 0) absl::StrAppend(&names, names.empty() ? "" : " ", kEntries[i].name);
  return names;
}

void require_cpu_features(CpuFeatureSet needed, CpuFeatureSet host) {
  if (const CpuFeatureSet missing = needed & ~host; missing != 0)
    throw UnsupportedCpuError(absl::StrCat("this processor lacks ", names_of(missing),
                                           ", which Rondo's kernels were compiled for. Build Rondo on this machine, or "
                                           "with -DRONDO_CPU=<the oldest processor that it shall run on>."));
}

}  // namespace rondo
