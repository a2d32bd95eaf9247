// Matrix products on CPU. The one place for contractions: eager kernels and compiled executables run the same products,
// so they agree bit for bit.
#pragma once

#include "rondo/runtime/ops/matmul_call.h"

namespace rondo::cpu {

// f64 runs through Eigen, which oneDNN does not have; the rest through Product.
void matmul(const MatmulCall& call, const MatmulOperands& operands);

}  // namespace rondo::cpu
