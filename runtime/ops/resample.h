// Bilinear interpolation along one dimension: what its definition in ops and a kernel that interpolates by itself
// share.
#pragma once

#include <cstdint>
#include <vector>

namespace rondo::ops {

// For each of `size` results: the pixels to the left and right of it among `from`, and the weight of the right one.
struct Neighbours {
  std::vector<int64_t> left, right;  // both rise
  std::vector<double> weight;
  Neighbours(int64_t from, int64_t size, bool align_corners);
};

}  // namespace rondo::ops
