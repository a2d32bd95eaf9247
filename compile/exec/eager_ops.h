// Eager calls as generated kernels, for devices without kernels of their own: an op with a lowering is one kernel, one
// with a decomposition is its parts, fused as in a region. Every program that links compile/ has them:
// runtime/dispatch/op_compiler.h.
#pragma once

#include <cstdint>

namespace rondo::compile {

struct EagerOpsReport {
  int64_t calls = 0;     // that ran generated kernels
  int64_t plans = 0;     // one for each op, dtypes and layout; cheap
  int64_t compiled = 0;  // kernels that were generated: sizes are read when a kernel runs, so they are few
  int64_t refused = 0;   // calls that have no lowering, or parts without one
};

EagerOpsReport eager_ops_report();

}  // namespace rondo::compile
