// The fuzzer: one seed, one program, one verdict.
#pragma once

#include <functional>
#include <string>

#include "rondo/tests/fuzz/differential.h"
#include "rondo/tests/fuzz/generate.h"

namespace rondo::fuzz {

struct FuzzOptions {
  GenerateOptions generate;
  Check check;
  // Compares a program: `difference`, or something that survives a crash.
  std::function<std::string(const Program&)> compare;
};

// Empty if compiled and eager execution agree on the program of this seed; else what differs, in the smallest program
// that still shows it.
std::string try_seed(uint64_t seed, const FuzzOptions& options = {});

}  // namespace rondo::fuzz
