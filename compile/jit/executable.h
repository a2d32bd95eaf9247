// Turns loop kernels into machine code. LLVM lives in a plug-in that is loaded with the first kernel, so a process that
// never compiles never maps it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

// Machine code of some kernels; entries are valid as long as it lives.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual KernelEntry entry(int i) const = 0;  // in the order of the kernels given
};

struct JitOptions {
  bool dump_ir = false;   // to stderr, after optimisation
  bool dump_asm = false;
};

// Compiles kernels for this host. Thread safe. Throws Error if the plug-in is missing (Rondo was built without LLVM, or
// was moved), InternalError if LLVM rejects a kernel.
std::shared_ptr<Executable> compile_kernels(std::span<const LoopKernel> kernels, const JitOptions& options = {});

// True if compile_kernels can work: the plug-in is there. Does not load it.
bool jit_available();

}  // namespace rondo::compile
