// Matrix products on CPU, through oneDNN. The one place that calls it for contractions: eager kernels and compiled
// executables use the same primitives, so they agree bit for bit.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "rondo/runtime/op.h"

namespace rondo::cpu {

// One (batched) product C = A B (+ bias), then its epilogues. Strides are in elements; an operand must have one of its
// last two strides equal to 1 (any size-1 dimension counts), C must be dense in its last dimension.
struct MatmulCall {
  DType dtype = kF32;  // f32, bf16, f16 or f64, all operands alike
  bool wide = false;   // but C, and what is added to it, is f32 and the others are bf16: nothing is rounded
  int64_t batch = 1, m = 0, n = 0, k = 0;
  int64_t a_strides[3] = {};  // batch (0: shared), row, column
  int64_t b_strides[3] = {};
  int64_t c_strides[3] = {};                           // column is 1
  bool bias = false;                                   // a row of n, added to every row
  std::array<Epilogue, kMaxEpilogues> epilogues = {};  // f32 and bf16 only
  // By epilogue: the operand is C itself, as it was before.
  std::array<bool, kMaxEpilogues> in_place = {};
  DType result_dtype() const { return wide ? kF32 : dtype; }
  friend bool operator==(const MatmulCall&, const MatmulCall&) = default;
};

struct MatmulOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  std::array<const void*, kMaxEpilogues> added = {};  // by epilogue, laid out as C
  void* c = nullptr;
};

// f64 runs through Eigen (oneDNN has no f64), f16 through f32 copies, the rest through oneDNN.
void matmul(const MatmulCall& call, const MatmulOperands& operands);

}  // namespace rondo::cpu
