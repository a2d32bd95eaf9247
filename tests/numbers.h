// Comparisons and selections of a tensor and a number, by name.
#pragma once

#include <string>

#include "rondo/runtime/ops/ops.h"

namespace rondo::test {

inline constexpr const char* kNumberOps[] = {"equal",   "not_equal",     "less",       "less_equal",
                                             "greater", "greater_equal", "maximum",    "minimum",
                                             "where",   "where_not",     "masked_fill"};

// x (n): the selections are by a condition that holds for elements 0, 2, 4, ...
inline Tensor apply_number(const std::string& op, const Tensor& x, Scalar number) {
  if (op == "equal") return ops::equal(x, number);
  if (op == "not_equal") return ops::not_equal(x, number);
  if (op == "less") return ops::less(x, number);
  if (op == "less_equal") return ops::less_equal(x, number);
  if (op == "greater") return ops::greater(x, number);
  if (op == "greater_equal") return ops::greater_equal(x, number);
  if (op == "maximum") return ops::maximum(x, number);
  if (op == "minimum") return ops::minimum(x, number);
  const Tensor even = ops::equal(ops::bitwise_and(Tensor::arange(x.size(0), {kI64, x.device()}), 1), 0);
  if (op == "where") return ops::where(even, x, number);
  if (op == "where_not") return ops::where(even, number, x);
  if (op == "masked_fill") return ops::masked_fill(x, even, number);
  throw InternalError("no such op: " + op);
}

}  // namespace rondo::test
