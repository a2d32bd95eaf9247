// Kernels along rows (LoopKernel::inner above 1): a vector holds one column of kLanes neighbouring rows.
#pragma once

#include <llvm/IR/Function.h>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

// As emit_llvm(). REQUIRES: kernel.inner > 1
llvm::Function* emit_llvm_rows(const LoopKernel& kernel, llvm::Module& module);

}  // namespace rondo::compile
