// Draws: the random numbers of one synthetic picture. They are a function of (seed, index).
#pragma once

#include <algorithm>
#include <cstdint>

#include "rondo/runtime/random/random.h"

namespace rondo::examples {

class Draws {
 public:
  Draws(uint64_t seed, int64_t index) : seed_(seed), index_(static_cast<uint64_t>(index)) {}
  // Returns a number in [low, high).
  double operator()(double low, double high) {
    return low + (high - low) * static_cast<double>(uniform_from_bits(philox(seed_, index_, count_++)[0]));
  }
  // Returns a whole number from 0 to n - 1.
  int64_t below(int64_t n) { return std::min(static_cast<int64_t>((*this)(0, static_cast<double>(n))), n - 1); }

 private:
  const uint64_t seed_, index_;
  uint64_t count_ = 0;
};

}  // namespace rondo::examples
