// What the code generator of a target is asked for, and how it says that it is not there.
#pragma once

#include "rondo/runtime/base/error.h"

namespace rondo::compile {

// None of these changes the code: one that does must become part of the key in compile_kernels (jit/executable.h).
struct JitOptions {
  // LLVM IR and assembly, to the log's topic output_code. With either of these, kernels are compiled whether they are
  // in a cache or not.
  bool dump_ir = false;
  bool dump_asm = false;
};

// Code would have to be generated for a device whose compiler is not installed.
class NoCodeGenerator : public Error {
 public:
  using Error::Error;
};

}  // namespace rondo::compile
