#include "rondo/runtime/base/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <array>
#include <cstdlib>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/runtime/base/error.h"

namespace rondo {
namespace {

// Each architecture defines its first feature, a table of its features in the order of CpuFeature, and find_features().
#if defined(__x86_64__)
constexpr CpuFeature kFirst = CpuFeature::kSse3;
// Where CPUID reports a feature, and which registers the system must save for it (bits of XCR0).
struct Entry {
  const char* name;
  uint32_t leaf, subleaf;
  int reg, bit;  // register: eax, ebx, ecx, edx
  uint32_t saved = 0;
};
constexpr uint32_t kYmm = 0x6, kZmm = 0xE6, kTiles = 0x60000;
constexpr Entry kEntries[] = {
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

CpuFeatureSet find_features() {
  CpuFeatureSet features = 0, feature = bit(kFirst);
  uint32_t regs[4] = {}, saved = 0, high = 0;
  if (__get_cpuid(1, &regs[0], &regs[1], &regs[2], &regs[3]) != 0 && (regs[2] >> 27 & 1u) != 0)
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  for (const Entry& e : kEntries) {
    if (__get_cpuid_count(e.leaf, e.subleaf, &regs[0], &regs[1], &regs[2], &regs[3]) != 0 &&
        (regs[e.reg] >> e.bit & 1u) != 0 && (saved & e.saved) == e.saved)
      features |= feature;
    feature <<= 1;
  }
  return features;
}
#elif defined(__aarch64__)
constexpr CpuFeature kFirst = CpuFeature::kLse;
// Which bits of which word of the auxiliary vector report a feature. The system does not report a feature whose
// registers it does not save.
struct Entry {
  const char* name;
  unsigned long word, bits;
};
constexpr Entry kEntries[] = {
    {"lse", AT_HWCAP, HWCAP_ATOMICS},     {"fullfp16", AT_HWCAP, HWCAP_FPHP | HWCAP_ASIMDHP},
    {"rdm", AT_HWCAP, HWCAP_ASIMDRDM},    {"complxnum", AT_HWCAP, HWCAP_FCMA},
    {"rcpc", AT_HWCAP, HWCAP_LRCPC},      {"sha3", AT_HWCAP, HWCAP_SHA3},
    {"dotprod", AT_HWCAP, HWCAP_ASIMDDP}, {"fp16fml", AT_HWCAP, HWCAP_ASIMDFHM},
    {"sve", AT_HWCAP, HWCAP_SVE},         {"sve2", AT_HWCAP2, HWCAP2_SVE2},
    {"i8mm", AT_HWCAP2, HWCAP2_I8MM},     {"bf16", AT_HWCAP2, HWCAP2_BF16},
};

CpuFeatureSet find_features() {
  CpuFeatureSet features = 0, feature = bit(kFirst);
  for (const Entry& e : kEntries) {
    if ((getauxval(e.word) & e.bits) == e.bits) features |= feature;
    feature <<= 1;
  }
  return features;
}
#else
constexpr CpuFeature kFirst = CpuFeature::kSse3;
struct Entry {
  const char* name;
};
constexpr std::array<Entry, 0> kEntries = {};
CpuFeatureSet find_features() { return 0; }
#endif

// Calls f(name, bit) for each feature of this architecture.
template <class F> void for_each_feature(F f) {
  CpuFeatureSet feature = bit(kFirst);
  for (const Entry& e : kEntries) {
    f(e.name, feature);
    feature <<= 1;
  }
}

CpuFeatureSet read_features() {
  CpuFeatureSet features = find_features();
  if (const char* lacks = std::getenv("RONDO_CPU_LACKS"); lacks != nullptr) {
    for (const absl::string_view word : absl::StrSplit(lacks, ','))
      for_each_feature([&](const char* name, CpuFeatureSet feature) {
        if (word == name) features &= ~feature;
      });
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
  for_each_feature([&](const char* name, CpuFeatureSet feature) {
    if ((features & feature) != 0) absl::StrAppend(&names, names.empty() ? "" : " ", name);
  });
  return names;
}

void require_cpu_features(CpuFeatureSet needed, CpuFeatureSet host) {
  if (const CpuFeatureSet missing = needed & ~host; missing != 0)
    throw UnsupportedCpuError(absl::StrCat("this processor lacks ", names_of(missing),
                                           ", which Rondo's kernels were compiled for. Build Rondo on this machine, or "
                                           "with -DRONDO_CPU=<the oldest processor that it shall run on>."));
}

}  // namespace rondo
