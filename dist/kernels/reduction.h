// Loops of the communication thread. They use one thread: the thread pool belongs to the computation that runs
// meanwhile.
#pragma once

#include <cstddef>

#include "rondo/runtime/base/dtype.h"

namespace rondo::dist {

// Returns the dtype in which ranks reduce a tensor of dtype `t`: f32 for bf16 and f16, otherwise `t`.
constexpr DType wire_dtype(DType t) { return compute_dtype(t); }
// out[i] = a[i] + b[i] for tensors of a wire dtype. `out` may be `a` or `b`.
using SumFn = void (*)(void* out, const void* a, const void* b, size_t n);
SumFn sum_of(DType wire);
// values[i] /= n_ranks
void divide(void* values, DType wire, size_t n, int n_ranks);
// Convert n values: widen() from bf16 or f16 to f32, narrow() from f32 to bf16 or f16, rounded to nearest even.
void widen(const void* from, DType dtype, float* to, size_t n);
void narrow(const float* from, void* to, DType dtype, size_t n);

}  // namespace rondo::dist
