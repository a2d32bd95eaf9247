#include "rondo/runtime/base/floating_point_scope.h"

#include <cfenv>

namespace rondo {

#if defined(__x86_64__)

// Sets the default state without std::fesetenv(), which takes 100 ns.
void FloatingPointScope::enter() noexcept {
  constexpr uint16_t kDefaultX87 = 0x037F;
  asm volatile("fnstcw %0" : "=m"(host_x87_));
  if (host_x87_ != kDefaultX87) asm volatile("fldcw %0" : : "m"(kDefaultX87));
  host_.with_default_settings().apply();
}

void FloatingPointScope::leave() const noexcept {
  uint16_t now;
  asm volatile("fnstcw %0" : "=m"(now));
  if (now != host_x87_) asm volatile("fldcw %0" : : "m"(host_x87_));
}

#elif defined(__aarch64__)

void FloatingPointScope::enter() noexcept { host_.with_default_settings().apply(); }
void FloatingPointScope::leave() const noexcept {}

#else

void FloatingPointScope::enter() noexcept { std::fesetenv(FE_DFL_ENV); }
void FloatingPointScope::leave() const noexcept {}

#endif

}  // namespace rondo
