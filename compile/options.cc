#include "rondo/compile/options.h"

#include <atomic>

namespace rondo::compile {
namespace {
std::atomic<Stance> current_stance{Stance::kDefault};
}  // namespace

void set_stance(Stance stance) { current_stance.store(stance); }
Stance stance() { return current_stance.load(); }

}  // namespace rondo::compile
