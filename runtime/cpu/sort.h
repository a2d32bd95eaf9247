// Orders along one dimension on CPU. NaN is larger than every number; equal elements keep their order.
#pragma once

#include "rondo/runtime/op.h"

namespace rondo::cpu {

void argmax_kernel(const KernelContext& context);   // ints {dim, smallest}
void argsort_kernel(const KernelContext& context);  // ints {dim, descending}
void topk_kernel(const KernelContext& context);     // ints {k, dim, largest}

}  // namespace rondo::cpu
