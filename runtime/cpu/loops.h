// Loops of the eager elementwise kernels: broadcasting, strides and threads around the rows that a scalar body computes
// (ops/elementwise_body.h).
#pragma once

#include <cstdint>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/op/op.h"
#include "rondo/runtime/ops/elementwise_body.h"

namespace rondo::cpu {

// Elements below which threads cost more than they give.
inline constexpr int64_t kElementwiseGrain = 1 << 15;

// Where a tensor's elements begin. T is its dtype's type.
template <class T> T* pointer(const Tensor& t) { return reinterpret_cast<T*>(t.impl()->data()); }

// Cuts output 0 and the first N inputs of `context` into runs, on several threads where that pays. N is 0 to 3.
// `scalars` goes to each run.
template <int N>
void for_each_run(const KernelContext& context, ops::ElementwiseRunFn run, const double* scalars = nullptr);

}  // namespace rondo::cpu
