// Products with few rows, C (m, n) = A (m, k) B (k, n) with m <= kThinRows, where B is the transpose of a dense (n, k)
// matrix: a linear layer that decodes one token, or a few. They read each weight once and compute little with it, so
// memory sets the pace: this kernel walks B row by row of (n, k), in order, on every core.
//
// Measured beside oneDNN's own product of one row: tests/bench/README.md.
#pragma once

#include "rondo/runtime/cpu/matmul.h"

namespace rondo::cpu {

// Chosen by the shape, dtype and layout of a product alone: eager and compiled execution take the same way.
inline constexpr int64_t kThinRows = 4;
bool is_thin_product(const MatmulCall& call);

// REQUIRES: is_thin_product(call). Each element is one sum in f32, of an order that depends on k alone: the bits depend
// neither on m, nor on the number of threads, nor on the vector width. Rounded once, after bias and added operands.
void thin_product(const MatmulCall& call, const MatmulOperands& operands);

}  // namespace rondo::cpu
