// The Euclidean norm of many tensors together, in one pass. It sums in f64 over chunks of fixed size in a fixed order,
// so the bits do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/runtime/device.h"
#include "rondo/runtime/dtype.h"

namespace rondo::optim {

struct NormOperand {
  const void* data;
  DType dtype;  // floating
  int64_t n;
};
// Writes the norm to *norm, in stream order. All addresses are the device's.
void enqueue_norm(Device device, std::vector<NormOperand> operands, double* norm);

}  // namespace rondo::optim
