// Computes the sum of the squares of all elements of many tensors, in f64. Each tensor is summed in rows of kNormRow
// elements, and then the rows' sums as one row, all in the order of ops/reduction_order.h (Note [Row order]). So the
// bits do not depend on the number of threads. (Code that is generated for other targets than the CPU may sum in
// another order.)
#pragma once

#include <cstdint>
#include <span>

#include "rondo/runtime/base/dtype.h"
#include "rondo/runtime/device/device.h"

namespace rondo::optim {

class LaunchQueue;

inline constexpr int64_t kNormRow = 1 << 14;

struct NormOperand {
  const void* data;
  DType dtype;  // a floating-point dtype
  int64_t n;
};
// Writes the sum to *sum, in stream order. All addresses are the device's.
void enqueue_sum_of_squares(Device device, std::span<const NormOperand> operands, double* sum);

// Adds up lists of f64 as one row each: *out = data[0] + ... + data[n - 1]. One launch for all lists.
struct ListSum {
  const double* data;
  int64_t n;
  double* out;
};
void queue_sums(LaunchQueue& queue, Device device, std::span<const ListSum> lists);

}  // namespace rondo::optim
