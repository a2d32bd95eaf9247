// Runs an op by its decomposition: for a device's kernel that cannot serve a call.
#pragma once

#include "rondo/runtime/op/op.h"

namespace rondo {

// Runs the parts of the op's `decompose` on the device of the outputs and copies their results there, as run_kernel()
// does for a device without a kernel. No tape, no recording.
void run_in_parts(const KernelContext& context);

}  // namespace rondo
