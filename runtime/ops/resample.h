// Bilinear interpolation along one dimension: what its definition in ops and the kernels share.
#pragma once

#include <cstdint>
#include <vector>

namespace rondo::ops {

// Along one dimension. What is made for each pixel of it on the host fits into memory.
inline constexpr int64_t kMostPixels = int64_t{1} << 28;

// For each of `size` results: the pixels to the left and right of it among `from`, and the weight of the right one.
struct Neighbours {
  std::vector<int64_t> left, right;  // both rise
  std::vector<double> weight;
  Neighbours(int64_t from, int64_t size, bool align_corners);
};

// How far apart two results lie among the pixels. Result i lies at (i + 1/2) distance - 1/2, or, with align_corners, at
// i distance.
double neighbour_distance(int64_t from, int64_t size, bool align_corners);

}  // namespace rondo::ops
