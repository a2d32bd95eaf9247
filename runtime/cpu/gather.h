// Elements picked and placed by an index tensor along one dimension, on CPU. Each reads ints[0] = dim.
#pragma once

#include "rondo/runtime/op.h"

namespace rondo::cpu {

void gather_kernel(const KernelContext& context);       // x, index -> values
void scatter_kernel(const KernelContext& context);      // x, index, values (or a scalar) -> x with them in place
void scatter_sum_kernel(const KernelContext& context);  // values, index -> sums
void cumsum_kernel(const KernelContext& context);       // ints {dim, reverse}

}  // namespace rondo::cpu
