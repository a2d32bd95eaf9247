// Kernels that make a tensor's first values.
#pragma once

#include "rondo/runtime/op.h"

namespace rondo::cpu {

void fill_kernel(const KernelContext& context);
void arange_kernel(const KernelContext& context);
void draw_kernel(const KernelContext& context);

}  // namespace rondo::cpu
