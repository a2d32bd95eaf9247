// Products with few rows: C (m, n) = A (m, k) B (k, n) with m <= kThinRows, where B is the transpose of a dense (n, k)
// matrix. A linear layer has such a product when a model generates one token, or a few. It reads each weight once and
// computes little with it, so memory bandwidth limits its speed. This kernel reads the (n, k) matrix row by row, in
// order, on every core. Measured on 2 cores of Zen 5, decoding with GPT-2 124M: the time per token is 0.85 (bf16) and
// 0.93 (f32) of that with oneDNN's product of one row.
#pragma once

#include "rondo/runtime/ops/matmul_call.h"

namespace rondo::cpu {

// The largest number of rows of C in a thin product. is_thin_product() depends only on the shape, dtype and layout of a
// product, so its result is the same in eager and compiled execution.
inline constexpr int64_t kThinRows = 4;
bool is_thin_product(const MatmulCall& call);

// REQUIRES: is_thin_product(call). Each element is one sum in f32, in an order that depends only on k: its bits do not
// depend on m, the number of threads or the vector width. The sum is rounded once, after bias and addends.
void thin_product(const MatmulCall& call, const MatmulOperands& operands);

}  // namespace rondo::cpu
