// A step of every target's schedule.
#pragma once

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

// A kernel without row structure walks all elements as one row, which threads split anywhere: sets split_columns.
// Leaves others as they are. REQUIRES: no column sums.
void flatten(LoopKernel& kernel);

}  // namespace rondo::compile
