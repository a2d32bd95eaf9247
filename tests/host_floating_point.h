// The floating-point settings that a host program may have, for tests of Note [The host's floating-point state]
// (runtime/base/floating_point_scope.h).
//
//   for (const test::HostSettings& settings : test::all_host_settings()) {
//     const test::HostFloatingPoint host(settings);     // to the end of the block
//     const test::FloatingPointRegisters before;
//     const Tensor y = ops::softmax(x);
//     EXPECT_EQ(test::FloatingPointRegisters(), before);
//   }
#pragma once

#include <fenv.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace rondo::test {

struct HostSettings {
  int traps = 0;  // FE_INVALID | ...
  bool flushes_results = false, flushes_operands = false;
  int rounding = FE_TONEAREST;

  std::string name() const {
    const char* const roundings[] = {"to nearest", "upward", "downward", "toward zero"};
    std::string text = roundings[rounding == FE_TONEAREST  ? 0
                                 : rounding == FE_UPWARD   ? 1
                                 : rounding == FE_DOWNWARD ? 2
                                                           : 3];
    if (traps != 0) text += ", traps";
    if (flushes_results) text += ", results flushed";
    if (flushes_operands) text += ", operands flushed";
    return text;
  }
};

inline constexpr int kTraps = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW;  // as scientific programs have them

// Traps or none, each rounding, both kinds of flushing or none; and one kind alone.
inline std::vector<HostSettings> all_host_settings() {
  std::vector<HostSettings> all;
  for (const int traps : {0, kTraps}) {
    for (const int rounding : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO})
      for (const bool flushes : {false, true}) all.push_back({traps, flushes, flushes, rounding});
    all.push_back({traps, true, false, FE_TONEAREST});
    all.push_back({traps, false, true, FE_TONEAREST});
  }
  return all;
}

// All that a host can see of this thread's state.
struct FloatingPointRegisters {
  uint64_t settings = 0, x87 = 0;
  int rounding = fegetround(), traps = fegetexcept(), flags = fetestexcept(FE_ALL_EXCEPT);

  FloatingPointRegisters() {
#if defined(__x86_64__)
    settings = _mm_getcsr();
    uint16_t word = 0;
    asm volatile("fnstcw %0" : "=m"(word));
    x87 = word;
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(settings));
#endif
  }
  void forget_flags() {
    flags = 0;
#if defined(__x86_64__)
    settings &= ~uint64_t{0x3F};
#endif
  }
  bool operator==(const FloatingPointRegisters&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const FloatingPointRegisters& r) {
    return out << "settings " << std::hex << r.settings << ", x87 " << r.x87 << ", rounding " << r.rounding
               << ", traps " << r.traps << ", flags " << r.flags << std::dec;
  }
};

// These settings, and no flags, on this thread.
class HostFloatingPoint {
 public:
  explicit HostFloatingPoint(const HostSettings& settings) {
    fegetenv(&before_);
    feclearexcept(FE_ALL_EXCEPT);
    fesetround(settings.rounding);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | (settings.flushes_results ? 0x8000 : 0) | (settings.flushes_operands ? 0x0040 : 0));
#elif defined(__aarch64__)  // one bit for both
    if (settings.flushes_results || settings.flushes_operands) {
      uint64_t fpcr;
      asm volatile("mrs %0, fpcr\n\torr %0, %0, #0x1000000\n\tmsr fpcr, %0" : "=&r"(fpcr));
    }
#endif
    feenableexcept(settings.traps);  // not every ARM processor can trap
  }
  ~HostFloatingPoint() { fesetenv(&before_); }
  HostFloatingPoint(const HostFloatingPoint&) = delete;
  HostFloatingPoint& operator=(const HostFloatingPoint&) = delete;

 private:
  fenv_t before_;
};

}  // namespace rondo::test
