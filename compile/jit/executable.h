// Turns loop kernels into machine code. Code is first looked for in this process, in loaded artifact files and on disk,
// and compiled only if none has it (code_store.h). LLVM is loaded with the first kernel that has to be compiled.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/jit/targets.h"
#include "rondo/compile/target/code_generator.h"
#include "rondo/compile/target/machine_code.h"
#include "rondo/runtime/base/error.h"

namespace rondo::compile {

// Machine code of some kernels; handles are valid as long as it lives. Immutable.
class Executable {
 public:
  Executable(std::vector<std::shared_ptr<const MachineCode>> code, int compiled, int fresh)
      : code_(std::move(code)), compiled_(compiled), fresh_(fresh) {}
  // handle() and entry() take the position of a kernel in the list that compile_kernels() was given.
  KernelHandle handle(int i) const;
  KernelEntry entry(int i) const;             // for host code only
  int compiled() const { return compiled_; }  // kernels that no cache had
  int fresh() const { return fresh_; }        // kernels that this process did not have in memory

 private:
  std::vector<std::shared_ptr<const MachineCode>> code_;
  int compiled_, fresh_;
};

// Thrown if code would have to be generated while a ForbidCodeGeneration exists.
class CodeForbidden : public Error {
 public:
  using Error::Error;
};
// While an object of this class exists, compile_kernels() on this thread takes code from caches only, and throws
// CodeForbidden if no cache has it.
class ForbidCodeGeneration {
 public:
  ForbidCodeGeneration();
  ~ForbidCodeGeneration();
  ForbidCodeGeneration(const ForbidCodeGeneration&) = delete;
  ForbidCodeGeneration& operator=(const ForbidCodeGeneration&) = delete;

 private:
  bool outer_;
};

// Returns machine code for the target. Compiles in parallel the kernels that no cache has. Thread safe. Throws Error if
// a kernel has to be compiled and the compiler is missing (Rondo was built without LLVM, or was moved; there is no
// NVRTC), and InternalError if the compiler rejects a kernel.
std::shared_ptr<Executable> compile_kernels(std::span<const LoopKernel> kernels, const JitOptions& options = {},
                                            const Target& target = target_of(kCPU));

// True if compile_kernels can work for a device: its target's compiler is installed (LLVM for the CPU, NVRTC for CUDA),
// or an artifact file was loaded for the target. Loads no compiler.
bool jit_available(Device device);
// True if compile_kernels can work for any device of this process.
bool jit_available();

// Forgets the code in memory that no executable holds: for tests, and for measurements of a cold or warm start. What is
// on disk stays.
int64_t forget_code();

}  // namespace rondo::compile
