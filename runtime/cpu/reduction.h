// Eager CPU reductions, in the order of ops/reduction_order.h.
#pragma once

#include "rondo/runtime/op.h"

namespace rondo::cpu {

void sum_kernel(const KernelContext& context);
void max_kernel(const KernelContext& context);
void min_kernel(const KernelContext& context);

}  // namespace rondo::cpu
