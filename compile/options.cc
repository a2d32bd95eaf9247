#include "rondo/compile/options.h"

#include <atomic>

namespace rondo::compile {
namespace {
std::atomic<Stance> current_stance{Stance::kDefault};
}  // namespace

std::string_view name_of(Mode mode) {
  constexpr std::string_view kNames[] = {"default", "reduce-overhead", "max-autotune"};
  return kNames[static_cast<size_t>(mode)];
}

void set_stance(Stance stance) { current_stance.store(stance); }
Stance stance() { return current_stance.load(); }

}  // namespace rondo::compile
