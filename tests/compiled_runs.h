// Tests that compare compiled with eager execution pass without a compiler: what cannot be compiled runs eagerly, and
// eager equals eager. So after every test of a program that links the compiler, these are failures:
//
//   - a stage of the compiler failed, a region ran eagerly, or a compiled module was called in vain (kForceEager, ...);
//   - a backward of a region was replayed op by op;
//   - regions were made, and nothing ran compiled.
//
// A test that means one of these to happen says so, and for how long:
//
//   const MeansToRun eagerly(Eagerly::kAll, "the limit is one compilation");
#pragma once

#include <string>

#include "rondo/compile/stages/outcomes.h"

namespace rondo::test {

enum class Eagerly : uint8_t {
  kAll,       // compiled modules and optimizers run eagerly: the stance, the limit, EagerScope, DetectAnomaly
  kFailing,   // the same, because a stage of the compiler fails
  kBackward,  // backwards are replayed op by op: gradients with a history, hooks inside a region, overwritten memory
  kNothing,   // regions are made, but never run
};

// While one lives, this is no failure; that it did not happen is one. Scopes nest.
class MeansToRun {
 public:
  MeansToRun(Eagerly what, std::string reason);
  ~MeansToRun();
  MeansToRun(const MeansToRun&) = delete;
  MeansToRun& operator=(const MeansToRun&) = delete;

 private:
  const Eagerly what_;
  const std::string reason_;
  const compile::OutcomeCounts before_;
};

// While one lives, something must run compiled: for helpers that compare with eager execution.
class MustRunCompiled {
 public:
  MustRunCompiled();
  ~MustRunCompiled();
  MustRunCompiled(const MustRunCompiled&) = delete;
  MustRunCompiled& operator=(const MustRunCompiled&) = delete;

 private:
  const compile::OutcomeCounts before_;
};

// Adds the check above to a test program (fake_device/main.cc calls it), and plants the failure that RONDO_TEST_PLANT
// names (planted_failures.sh).
void watch_compiled_runs();

}  // namespace rondo::test
