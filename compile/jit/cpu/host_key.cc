#include "rondo/compile/jit/cpu/host_key.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/build_hash.h"
#include "rondo/runtime/base/cpu_features.h"

namespace rondo::compile {

std::string host_name() {
#if defined(__x86_64__)
  return "cpu x86_64";
#elif defined(__aarch64__)
  return "cpu aarch64";
#else
  return "cpu";
#endif
}

const CodeCpu& kernel_cpu() {
  static const CodeCpu& cpu = *new CodeCpu{kernel_cpu_name(), names_of(kKernelCpuFeatures)};
  return cpu;
}

std::string describe_cpu(const CodeCpu& cpu) {
  if (cpu.name != "native") return absl::StrCat(cpu.name, " ", cpu.features);
#if defined(__x86_64__)
  struct Leaf {
    uint32_t leaf, subleaf;
    uint32_t mask[4];  // of eax, ebx, ecx, edx: the bits that are the same on every core and never change
  };
  // All leaves that LLVM 19 derives a processor's name or features from.
  constexpr uint32_t kAll = ~0u;
  static constexpr Leaf kLeaves[] = {
      {0, 0, {0, kAll, kAll, kAll}},         // the vendor
      {1, 0, {kAll, 0, kAll, kAll}},         // family, model, stepping; features (ebx has the core's number)
      {7, 0, {0, kAll, kAll, ~(1u << 15)}},  // features (edx bit 15: hybrid)
      {7, 1, {kAll, kAll, kAll, kAll}},     {0xd, 1, {kAll, 0, 0, 0}},  {0x14, 0, {0, kAll, 0, 0}},
      {0x19, 0, {0, kAll, 0, 0}},           {0x24, 0, {0, kAll, 0, 0}}, {0x80000001, 0, {0, 0, kAll, kAll}},
      {0x80000008, 0, {0, kAll, 0, 0}},
  };
  std::string names, raw;
  for (const Leaf& leaf : kLeaves) {
    uint32_t regs[4] = {};
    if (__get_cpuid_count(leaf.leaf, leaf.subleaf, &regs[0], &regs[1], &regs[2], &regs[3]) == 0) continue;
    if (leaf.leaf == 0) {
      char vendor[13] = {};
      std::memcpy(vendor, &regs[1], 4);
      std::memcpy(vendor + 4, &regs[3], 4);
      std::memcpy(vendor + 8, &regs[2], 4);
      absl::StrAppend(&names, vendor);
    }
    if (leaf.leaf == 1) absl::StrAppend(&names, " ", absl::Hex(regs[0]));
    absl::StrAppend(&raw, " ", absl::Hex(leaf.leaf), ".", leaf.subleaf);
    for (int r = 0; r < 4; ++r) absl::StrAppend(&raw, "-", absl::Hex(regs[r] & leaf.mask[r]));
  }
  // The registers that the operating system saves. Features that need other registers cannot be used.
  uint32_t low = 0, high = 0, regs[4] = {};
  __get_cpuid_count(1, 0, &regs[0], &regs[1], &regs[2], &regs[3]);
  if ((regs[2] >> 27 & 1u) != 0) __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  // Includes the features' names, so that people can read a difference.
  return absl::StrCat(names, " ", names_of(host_cpu_features()), raw, " xcr0-", absl::Hex(low), "-", absl::Hex(high));
#elif defined(__aarch64__)
  // The facts from which LLVM derives the features. Not the processor's name, because cores may have different ones
  // (big.LITTLE). The system reports the features that all cores have, and the length of SVE's vectors.
  std::string sve;
#ifdef PR_SVE_GET_VL
  if (const int length = ::prctl(PR_SVE_GET_VL, 0, 0, 0, 0); length > 0)
    sve = absl::StrCat(" sve-bytes-", length & PR_SVE_VL_LEN_MASK);
#endif
  return absl::StrCat(names_of(host_cpu_features()), " hwcap-", absl::Hex(::getauxval(AT_HWCAP)), "-",
                      absl::Hex(::getauxval(AT_HWCAP2)), sve);
#else
  return "";
#endif
}

const HostKey& host_key() {
  static const HostKey& key = *new HostKey{{
      {"target", host_name()},
      {"build", build_hash()},
      {"llvm", llvm_version()},
      {"launch_abi", absl::StrCat(kPluginAbi)},
      {"cpu", describe_cpu(kernel_cpu())},
  }};
  return key;
}

}  // namespace rondo::compile
