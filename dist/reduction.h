// Loops of the communication thread. Plain, on one thread: the pool belongs to the computation that goes on meanwhile.
#pragma once

#include <cstddef>

#include "rondo/runtime/dtype.h"

namespace rondo::dist {

// The dtype that `t` travels in: f32 for the 16-bit floats.
constexpr DType wire_dtype(DType t) { return compute_dtype(t); }
// out[i] = a[i] + b[i], of a wire dtype. `out` may be `a` or `b`.
using SumFn = void (*)(void* out, const void* a, const void* b, size_t n);
SumFn sum_of(DType wire);
// values[i] /= n_ranks
void divide(void* values, DType wire, size_t n, int n_ranks);
// Between a 16-bit float and f32; narrowing rounds to nearest even.
void widen(const void* from, DType dtype, float* to, size_t n);
void narrow(const float* from, void* to, DType dtype, size_t n);

}  // namespace rondo::dist
