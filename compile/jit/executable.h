// Turns loop kernels into machine code. LLVM lives in a plug-in that is loaded with the first kernel, so a process that
// never compiles never maps it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

// Machine code of some kernels; entries are valid as long as it lives.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual KernelEntry entry(int i) const = 0;  // in the order of the kernels given
  // The object code behind the entries: a few kB a kernel, position independent, for load_kernels in another process.
  virtual std::string_view object() const = 0;
};

struct JitOptions {
  bool dump_ir = false;   // LLVM IR, to the log's topic output_code
  bool dump_asm = false;  // assembly, likewise
};

// Compiles kernels for this host. Thread safe. Throws Error if the plug-in is missing (Rondo was built without LLVM, or
// was moved), InternalError if LLVM rejects a kernel.
std::shared_ptr<Executable> compile_kernels(std::span<const LoopKernel> kernels, const JitOptions& options = {});

// Makes object() of an earlier Executable callable: 0.1 ms instead of 2 ms a kernel. `names`: the kernels wanted, in
// the order of entry(). REQUIRES: the bytes are whole and come from an equal jit_toolchain(): keep a checksum beside
// them. Throws Error if the plug-in is missing, InternalError if a name is.
std::shared_ptr<Executable> load_kernels(std::string object, std::span<const std::string> names);

// What object code depends on besides the kernels: LLVM's version, the target, the CPU and its features. For cache
// keys. Throws Error if the plug-in is missing.
std::string jit_toolchain();

// True if compile_kernels can work: the plug-in is there. Does not load it.
bool jit_available();

}  // namespace rondo::compile
