// Matrix products on CPU, through oneDNN. The one place that calls it for contractions: eager kernels and compiled
// executables use the same primitives, so they agree bit for bit.
#pragma once

#include <cstdint>

#include "rondo/runtime/op.h"

namespace rondo::cpu {

// One (batched) product C = A B (+ bias) (+ C). Strides are in elements; an operand must have one of its last two strides
// equal to 1 (any size-1 dimension counts), C must be dense in its last dimension.
struct MatmulCall {
  DType dtype = kF32;  // f32, bf16, f16 or f64, all operands alike
  int64_t batch = 1, m = 0, n = 0, k = 0;
  int64_t a_strides[3] = {};  // batch (0: shared), row, column
  int64_t b_strides[3] = {};
  int64_t c_strides[3] = {};  // column is 1
  bool bias = false;          // a row of n, added to every row
  bool accumulate = false;    // C += A B
  friend bool operator==(const MatmulCall&, const MatmulCall&) = default;
};

// f64 runs through Eigen (oneDNN has no f64), f16 through f32 copies, the rest through oneDNN.
void matmul(const MatmulCall& call, const void* a, const void* b, const void* bias, void* c);

// C (..., M, N) = A (..., M, K) B (..., K, N), batch dimensions broadcast.
void matmul_kernel(const KernelContext& context);
// y (..., out) = x (..., in) w(out, in)^T + bias
void linear_kernel(const KernelContext& context);

}  // namespace rondo::cpu
