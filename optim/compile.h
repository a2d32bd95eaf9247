// Compiled optimizer steps: one generated kernel for each signature (formula, dtypes, what joins the pass), which walks
// a table of the parameters' pointers. The cost of compiling does not depend on how many there are, and nothing that
// changes from step to step (learning rate, corrections, clipping, loss scale, decay of the average) is part of the
// code.
//
//   optim::AdamW optimizer(model.parameters(), {.lr = 3e-4});
//   optim::compile(optimizer);
//   optimizer.step({.max_norm = 1.0});     // compiles with the first step: bit for bit what the eager step does
//
// Kernels come from and go to the same caches and artifact files as those of regions (compile/compile.h).
#pragma once

#include "rondo/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

// From now on step() runs generated code. Throws Error if Rondo was built without LLVM. Optimizer::kernels() reports.
KernelReport compile(Optimizer& optimizer);

}  // namespace rondo::optim
#pragma GCC visibility pop
