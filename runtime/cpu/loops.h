// Loops of the eager elementwise kernels. They handle broadcasting, strides and threads; a scalar body
// (ops/elementwise_body.h) computes the rows.
#pragma once

#include <cstdint>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/op/op.h"
#include "rondo/runtime/ops/elementwise_body.h"

namespace rondo::cpu {

// With fewer elements than this, threads cost more than they save.
inline constexpr int64_t kElementwiseGrain = 1 << 15;

// Returns the address of a tensor's first element. T is the C++ type of its dtype.
template <class T> T* pointer(const Tensor& t) { return reinterpret_cast<T*>(t.impl()->data()); }

// Cuts output 0 and the first N inputs of `context` into runs, and calls `run` for each, on several threads if that is
// faster. N is 0 to 3. `scalars` is passed to each call.
template <int N>
void for_each_run(const KernelContext& context, ops::ElementwiseRunFn run, const double* scalars = nullptr);

}  // namespace rondo::cpu
