// The code generator. LLVM is in a plug-in, which the first call of most of these functions loads. So a process that
// finds all its kernels in a cache never maps LLVM. Thread safe. The functions that load the plug-in throw Error if it
// is missing or belongs to another build, and InternalError if LLVM rejects a kernel.
#pragma once

#include <memory>
#include <string>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/jit/cpu/object.h"
#include "rondo/compile/jit/cpu/plugin.h"
#include "rondo/compile/target/code_generator.h"

namespace rondo::compile {

// Compiles a kernel to object code for kernel_cpu() (host_key.h). The code is position independent. REQUIRES: the
// kernel is verified.
std::string compile_object(const LoopKernel& kernel, const JitOptions& options);
// Compiles as compile_object() does, for any processor. The listings that `options` requests are in the result, not in
// the log.
JitResult compile_for_cpu(const LoopKernel& kernel, const CodeCpu& cpu, const JitOptions& options);

// Places an object as place_object() does, but with LLVM's linker: for processors and objects that our own loader does
// not know.
std::shared_ptr<const MachineCode> link_object(const std::string& object);

// Loads the plug-in now.
void load_toolchain();

// Returns the compiler's description of itself: LLVM's version, the target, the CPU and the features of the code. Loads
// the plug-in.
std::string jit_toolchain();

// True if the plug-in's file exists. Does not load it.
bool toolchain_exists();
// Returns the path of the plug-in's file; "" if LLVM is linked statically.
std::string toolchain_path();

}  // namespace rondo::compile
