// How a CPU walks a loop kernel: which of its dimensions threads split, and in which order it adds up.
#pragma once

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile::cpu {

// Sets LoopKernel::split_columns and chunk_rows. Follows from the kernel and its shape only, so that the order of every
// reduction does: ops/reduction_order.h, as in the CPU's eager kernels.
void schedule(LoopKernel& kernel);

}  // namespace rondo::compile::cpu
