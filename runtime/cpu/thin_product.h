// Products with few rows: C (m, n) = A (m, k) B (k, n) with m <= kThinRows, where B is the transpose of a dense (n, k)
// matrix. A linear layer that decodes one token, or a few, is such a product. It reads each weight once and computes
// little with it, so memory bandwidth limits its speed. The kernel here walks B row by row of (n, k), in order, on
// every core. Measured on 2 cores of Zen 5, decoding GPT-2 124M: a token takes 0.85 (bf16) and 0.93 (f32) of the time
// that it takes with oneDNN's product of one row.
#pragma once

#include "rondo/runtime/ops/matmul_call.h"

namespace rondo::cpu {

// The choice depends on the shape, dtype and layout of a product alone, so it is the same in eager and compiled
// execution.
inline constexpr int64_t kThinRows = 4;
bool is_thin_product(const MatmulCall& call);

// REQUIRES: is_thin_product(call). Each element is one sum in f32, of an order that depends on k alone: the bits depend
// neither on m, nor on the number of threads, nor on the vector width. The sum is rounded once, after bias and added
// operands.
void thin_product(const MatmulCall& call, const MatmulOperands& operands);

}  // namespace rondo::cpu
