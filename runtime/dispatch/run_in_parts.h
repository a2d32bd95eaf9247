// Runs an op by its decomposition: for a device's kernel that cannot serve a call.
#pragma once

#include "rondo/runtime/op/op.h"

namespace rondo {

// Runs the ops of the op's decomposition on the device of the outputs and copies their results into the outputs, as
// run_kernel() does for a device without a kernel. Puts nothing on the tape and records nothing.
void run_in_parts(const KernelContext& context);

}  // namespace rondo
