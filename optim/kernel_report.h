// KernelReport: what Optimizer::kernels() returns.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace rondo::optim {

// The kernels that were generated for one optimizer.
struct KernelReport {
  bool compiled = false;  // optim::compile was called
  int kernels = 0;        // signatures in use: one for each combination of dtypes and formula
  int compilations = 0;   // those of `kernels` that had to be generated: no table, disk cache or artifact file had them
  int64_t late = 0;       // compilations after the first step: 0 unless dtypes or options of step() changed
  double compile_ms = 0;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
