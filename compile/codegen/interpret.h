// Runs a LoopKernel one element at a time, with the primitives of runtime/ops/scalar_math.h: the definition of what
// generated code must compute, bit for bit. A test oracle and a tool to find a wrong kernel; hundreds of times slower
// than compiled code.
#pragma once

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

// As a call of the compiled kernel (KernelEntry). Throws InternalError if verify(kernel) finds a problem.
void interpret(const LoopKernel& kernel, void* const* operands, const double* scalars, int64_t begin, int64_t end);

}  // namespace rondo::compile
