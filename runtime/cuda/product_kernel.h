// Products without cuBLASLt: product.h uses them if the library has no algorithm. They use plain tiles, for
// correctness, and reach an eighth of the library's rate or less.
#pragma once

#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/ops/matmul_call.h"

namespace rondo::cuda {

// Enqueues a whole product with its epilogues, for any strides and alignments. Sums are f32 (f64 for f64), in the order
// of K.
void product_by_kernel(int device, const MatmulCall& call, const MatmulOperands& operands, double alpha);
// Enqueues the rest of a call, after the sums of its product: bias, addend, GELU, rounding. `sums`: dense
// [batch, m, n], of compute_dtype(call.dtype).
void finish_product(int device, const MatmulCall& call, const void* sums, const MatmulOperands& operands);
// Enqueues a dense copy [batch, rows, columns] of a matrix operand; if the whole batch shares one matrix (strides.batch
// is 0), a copy of that one.
void copy_matrices(int device, DType dtype, const void* from, void* to, int64_t batch, int64_t rows, int64_t columns,
                   const MatrixStrides& strides);

const Source& product_source();

}  // namespace rondo::cuda
