// Options of a target's code generator, and the error for a missing one.
#pragma once

#include "rondo/runtime/base/error.h"

namespace rondo::compile {

// These options do not change the code. An option that changes it must be in the key that compile_kernels uses
// (jit/executable.h).
struct JitOptions {
  // Write LLVM IR and assembly to the log's topic output_code. With either, kernels are compiled even if
  // they are cached.
  bool dump_ir = false;
  bool dump_asm = false;
};

// Thrown if code would have to be generated for a device whose compiler is not installed.
class NoCodeGenerator : public Error {
 public:
  using Error::Error;
};

}  // namespace rondo::compile
