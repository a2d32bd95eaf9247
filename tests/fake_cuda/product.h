// The arithmetic behind the fake's cublasLtMatmul: matrices by columns, sums in f32 (oneDNN's sgemm) or f64.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rondo/runtime/cuda/driver.h"

namespace rondo::fake_cuda {

size_t element_bytes(cuda::LtType type);

struct MatrixRef {
  void* data = nullptr;
  cuda::LtType type{};
  int64_t ld = 0, stride = 0;  // in elements: of a column, of a matrix of the batch
};

// D = act(alpha op(A) op(B) + beta C + bias), rounded once. K is cut into parts that are summed apart and added in
// order.
struct ProductWork {
  int64_t m = 0, n = 0, k = 0, batch = 1, parts = 1;
  bool transpose_a = false, transpose_b = false, gelu = false, tf32 = false, f64 = false;
  double alpha = 1, beta = 0;
  MatrixRef a, b, c, d;
  const void* bias = nullptr;  // m, of D's type
};
void compute(const ProductWork& work);

}  // namespace rondo::fake_cuda
