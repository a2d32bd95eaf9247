// How a CPU walks a loop kernel: which dimension threads split, and in which order reductions add up.
#pragma once

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile::cpu {

// Sets LoopKernel::split_columns and chunk_rows. The result depends on the kernel and its shape only, and so does the
// order of every reduction (ops/reduction_order.h, as in the CPU's eager kernels).
void schedule(LoopKernel& kernel);

}  // namespace rondo::compile::cpu
