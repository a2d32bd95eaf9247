// The code generator. LLVM lives in a plug-in that is loaded with the first call of any of these, so a process that
// finds all its kernels in a cache never maps it. Thread safe. All throw Error if the plug-in is missing or belongs to
// another build, InternalError if LLVM refuses.
#pragma once

#include <memory>
#include <string>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/jit/cpu/object.h"
#include "rondo/compile/jit/cpu/plugin.h"
#include "rondo/compile/target/code_generator.h"

namespace rondo::compile {

// Object code for kernel_cpu() (host_key.h); position independent. REQUIRES: the kernel is verified.
std::string compile_object(const LoopKernel& kernel, const JitOptions& options);
// The same for any processor; what `options` asks for is in the result, not in the log.
JitResult compile_for_cpu(const LoopKernel& kernel, const CodeCpu& cpu, const JitOptions& options);

// As place_object, by LLVM's linker: for processors and objects that ours does not know.
std::shared_ptr<const MachineCode> link_object(const std::string& object);

// Loads the plug-in now.
void load_toolchain();

// The compiler, as it describes itself: LLVM's version, the target, the CPU and the features of the code. Loads the
// plug-in.
std::string jit_toolchain();

// True if the plug-in is there. Does not load it.
bool toolchain_exists();
// The file that it is looked for in; "" where LLVM is linked.
std::string toolchain_path();

}  // namespace rondo::compile
