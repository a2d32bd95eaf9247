// The Euclidean norm of many tensors together, in one pass. It sums in f64 over chunks of fixed size in a fixed order,
// so the bits do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <span>

#include "rondo/runtime/dtype.h"

namespace rondo::optim {

struct NormOperand {
  const void* data;
  DType dtype;  // floating
  int64_t n;
};
double norm_of(std::span<const NormOperand> operands);

}  // namespace rondo::optim
