// Results of a model by name, and how far apart two of them are.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "rondo/runtime/tensor/tensor.h"

namespace rondo::test {

struct Named {
  std::string name;
  Tensor value;  // on the host
};

// The largest magnitude; infinite if there is a NaN.
inline double largest(const Tensor& t) {
  double most = 0;
  for (const double v : t.to_vector<double>()) {
    if (std::isnan(v)) return std::numeric_limits<double>::infinity();
    most = std::max(most, std::abs(v));
  }
  return most;
}

}  // namespace rondo::test
