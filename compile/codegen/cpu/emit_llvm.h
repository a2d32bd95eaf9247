// LoopKernel -> llvm::Function. Only the JIT plug-in includes this: no other target sees LLVM's headers.
//
// The function is emitted in its final shape, so that few LLVM passes are needed and compiling stays fast. It has
// explicit vectors of kLanes columns, and sizes that do not vary are constants. Values that are constant over a row or
// the kernel are computed outside of the loops. Arithmetic is strict IEEE 754: no fast-math flags, and FMA only for
// kFma.
#pragma once

#include "rondo/compile/codegen/loop_ir.h"

namespace llvm {
class Function;
class Module;
}  // namespace llvm

namespace rondo::compile {

// Adds the function `kernel.name` with the signature of KernelEntry. REQUIRES: verify(kernel) returns "".
llvm::Function* emit_llvm(const LoopKernel& kernel, llvm::Module& module);

}  // namespace rondo::compile
