// Compiles optimizer steps: generates one kernel for each signature (formula, dtypes, step options). A kernel walks a
// table of pointers to the parameters. The cost of compiling does not depend on the number of parameters. The code
// contains nothing that changes from step to step (learning rate, bias corrections, clipping, loss scale, decay of the
// average).
//
//   optim::AdamW optimizer(model.parameters(), {.lr = 3e-4});
//   optim::compile(optimizer);
//   optimizer.step({.max_norm = 1.0});     // compiles in the first step; the same bits as the eager step
//
// Kernels use the same caches and artifact files as those of regions (compile/cache.h).
#pragma once

#include "rondo/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

// Makes step() run generated code from now on. Returns Optimizer::kernels(). Throws Error if Rondo was built without
// LLVM.
KernelReport compile(Optimizer& optimizer);

}  // namespace rondo::optim
#pragma GCC visibility pop
