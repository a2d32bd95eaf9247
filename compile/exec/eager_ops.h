// Runs eager calls as generated kernels, on devices without kernels of their own. An op with a lowering is one kernel.
// An op with a decomposition is several kernels, fused as in a region. Every program that links compile/ does this:
// runtime/dispatch/op_compiler.h.
#pragma once

#include <cstdint>

namespace rondo::compile {

struct EagerOpsReport {
  int64_t calls = 0;     // calls that ran generated kernels
  int64_t plans = 0;     // plans that were made, one for each op, dtypes and layout; a plan is cheap
  int64_t compiled = 0;  // generated kernels: few, because sizes are read at run time
  int64_t refused = 0;   // calls whose op, or a part of its decomposition, has no lowering
};

EagerOpsReport eager_ops_report();

}  // namespace rondo::compile
