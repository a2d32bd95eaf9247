#include "rondo/optim/compile.h"

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/log.h"
#include "rondo/optim/step.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/within_memory.h"

namespace rondo::optim {

KernelReport compile(Optimizer& optimizer) try {
  const FloatingPointScope floating_point;
  compile::log::configure_from_environment();
  if (!compile::jit_available(optimizer.device()))
    throw Error(absl::StrCat(optimizer.name(), ": cannot be compiled: there is no code generator for ",
                             to_string(optimizer.device()), " (LLVM for the CPU, NVRTC for CUDA)"));
  StepPasses& passes = Step::state_of(optimizer).passes;
  if (!passes.report().compiled) passes.compile_all(optimizer.name(), optimizer.device());
  return passes.report();
} catch (const std::bad_alloc&) {
  throw_out_of_memory("optim::compile");
}

}  // namespace rondo::optim
