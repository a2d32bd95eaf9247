// What a memory planner may assume of an opaque op beyond its OpDef. (A field there, once a second op has it.)
#pragma once

#include "rondo/runtime/op.h"

namespace rondo::ops {

// The input whose memory output 0 may be, if both are dense and of one dtype: the kernel reads each element, and whatever else
// it needs of the input, before it writes there. -1: none.
int reusable_input(const OpDef& op);

}  // namespace rondo::ops
