// Matrix products on CPU, through oneDNN. The one place that calls it for contractions: eager kernels and compiled
// executables use the same primitives, so they agree bit for bit.
#pragma once

#include "rondo/runtime/matmul_call.h"

namespace rondo::cpu {

using rondo::MatmulCall;
using rondo::MatmulOperands;

// f64 runs through Eigen (oneDNN has no f64), f16 through f32 copies, and so does bf16 on a processor without AVX-512;
// the rest through oneDNN.
void matmul(const MatmulCall& call, const MatmulOperands& operands);

}  // namespace rondo::cpu
