// Kernels of eager calls whose device runs them later (backend.h, enqueue).
#pragma once

#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/op/op.h"

namespace rondo {

// Runs the kernel on the device's compute stream. `context` need not outlive this call. Only the operands' memory must
// live until the kernel has run; it is freed in stream order.
void queue_kernel(Device device, KernelFn kernel, const KernelContext& context);

}  // namespace rondo
