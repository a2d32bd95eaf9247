#include "rondo/runtime/random.h"

namespace rondo {

Generator& default_generator() {
  static thread_local Generator generator;
  return generator;
}
void manual_seed(uint64_t seed) { default_generator().set_state(seed, 0); }

}  // namespace rondo
