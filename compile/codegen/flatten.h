// flatten(): a step of every target's schedule.
#pragma once

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

// If no operand needs separate rows, turns the kernel into one row of all elements, which threads may split anywhere:
// sets split_columns. Leaves other kernels unchanged. REQUIRES: no column sums.
void flatten(LoopKernel& kernel);

}  // namespace rondo::compile
