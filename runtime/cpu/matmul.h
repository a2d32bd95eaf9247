// Matrix products on CPU. Used for matmul, linear and convolutions in patches. Eager kernels and compiled executables
// run the same products, so they agree bit for bit.
#pragma once

#include "rondo/runtime/ops/matmul_call.h"

namespace rondo::cpu {

// Runs a product: f64 in Eigen, because oneDNN has no f64, and other dtypes in Product.
void matmul(const MatmulCall& call, const MatmulOperands& operands);

}  // namespace rondo::cpu
