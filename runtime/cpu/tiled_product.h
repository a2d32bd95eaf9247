// Products of f32, bf16 and f16 in f32, where oneDNN has no kernel for them or a slower one: on processors without
// AVX-512. Its portable kernel (aarch64) has no vectors, and where it adds to C it rounds otherwise than a sum after
// the product, which exact mode needs.
#pragma once

#include "rondo/runtime/ops/matmul_call.h"

namespace rondo::cpu {

// REQUIRES: call.dtype is f32, bf16 or f16. Note [Tiled order]: the depth is cut into blocks of 256. A block's sum is
// one chain of FMAs, and the blocks are added in order. Bias and epilogues follow in the order of the call, and each is
// rounded. So the bits of an element depend on its row of A and column of B alone: neither on m and n, nor on layouts,
// the number of threads, or the vector width.
void tiled_product(const MatmulCall& call, const MatmulOperands& operands);

}  // namespace rondo::cpu
