// LoopKernel -> llvm::Function. Only the JIT plug-in includes this: no other target sees LLVM's headers.
//
// The function is emitted in the shape it should run in, so that few LLVM passes are needed and compiling stays fast:
// explicit vectors of kLanes columns, row and column bounds as constants, and everything that does not change along a
// row or over the kernel computed outside of the loops. Arithmetic is strict IEEE 754: no fast-math flags, and FMA only
// where the loop IR says kFma.
#pragma once

#include "rondo/compile/codegen/loop_ir.h"

namespace llvm {
class Function;
class Module;
}  // namespace llvm

namespace rondo::compile {

// Adds the function `kernel.name` with the signature of KernelEntry. REQUIRES: verify(kernel) found nothing.
llvm::Function* emit_llvm(const LoopKernel& kernel, llvm::Module& module);

}  // namespace rondo::compile
