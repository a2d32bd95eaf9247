// Ways to compute a product of two matrices on the CPU: what the library and the machine reach at their best.
#pragma once

#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::bench {

// (m, k)(k, n).
struct ProductSize {
  int64_t m, k, n;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n); }
};

struct ProductWay {
  std::string layout;  // "nn": both matrices lie by rows; "tn": the first one by columns; "nt": the second one
  bool spread;         // lines lie 16 numbers further apart than they are wide
  bool ours;           // ops::matmul; else oneDNN alone, on num_threads() of OpenMP's threads
  std::function<void()> run;
};

// Calls use(way) for all layouts, as they lie and spread, ours and oneDNN's where it has such a kernel. Random operands
// live in the way. Sets the number of OpenMP's threads.
void each_product_way(const ProductSize& size, DType dtype, absl::FunctionRef<void(ProductWay)> use);

// Seconds of `runs` products by a way, after one that is not counted. Waits before, until threads of others have
// stopped spinning.
double seconds_of(const ProductWay& way, int runs);

// The least median time of all ways, in milliseconds.
double product_floor_ms(const ProductSize& size, DType dtype);

}  // namespace rondo::bench
