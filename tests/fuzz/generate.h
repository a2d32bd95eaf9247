// Random programs.
#pragma once

#include "rondo/tests/fuzz/program.h"

namespace rondo::fuzz {

struct GenerateOptions {
  int max_steps = 14;
  double large = 0.05;   // share of programs whose tensors are large enough for threads and several chunks
  double effects = 0.5;  // share of programs that write in place, read values, throw, ...
};
// The same program for the same arguments. Runs its steps eagerly on the way, so that shapes fit.
Program generate(uint64_t seed, const GenerateOptions& options = {});

}  // namespace rondo::fuzz
