// Products of f32, bf16 and f16, computed in f32. Used for f16, and for f32 and bf16 on processors without AVX-512,
// where oneDNN has no kernel or a slower one. On aarch64, oneDNN's portable kernel uses no vectors. Also, if that
// kernel adds a product to C, it rounds differently than an addition after the product, and exact mode needs the
// rounding of the addition.
#pragma once

#include "rondo/runtime/ops/matmul_call.h"

namespace rondo::cpu {

// REQUIRES: call.dtype is f32, bf16 or f16. Note [Tiled order]: the depth is cut into blocks of 256. The sum of a block
// is one chain of FMAs, and the blocks are added in order. Bias and epilogues follow in the order of the call, and each
// is rounded. So the bits of an element depend only on its row of A and column of B: not on m and n, layouts, the
// number of threads, or the vector width.
void tiled_product(const MatmulCall& call, const MatmulOperands& operands);

}  // namespace rondo::cpu
