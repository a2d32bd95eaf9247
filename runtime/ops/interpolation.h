// Resizing of images: shared by the op, its decomposition, its kernels and image processors. An interpolation works
// along one dimension after the other. For each it has a table of pixels and weights.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/runtime/op/op.h"
#include "rondo/runtime/ops/convolution.h"

namespace rondo::ops {

// The most pixels along one dimension, so that host tables with an entry for each pixel fit into memory.
inline constexpr int64_t kMostPixels = int64_t{1} << 28;

// How an image is interpolated. Along a dimension whose size does not change, pixels are copied.
struct Interpolation {
  int64_t taps = 1;  // pixels of a result along a dimension. 1: the nearest, floor(i from / size); 2: linear; 4: cubic
  bool align_corners = false;
  bool antialias = false;

  // The ints of a call: the size {h, w} of the image that is not an operand (of the result; for the gradient, of x),
  // then the fields above.
  static constexpr size_t kInts = 5;
  static Interpolation of(const Attrs& attrs) { return {attrs.ints[2], attrs.ints[3] != 0, attrs.ints[4] != 0}; }
  static Extent size_in(const Attrs& attrs) { return {attrs.ints[0], attrs.ints[1]}; }
  Attrs attrs(Extent size) const { return {.ints = {size[0], size[1], taps, align_corners, antialias}}; }
};

// The positions of `size` results among `from` pixels, and the number of pixels that contribute to one result.
//
// Result i lies at (i + 1/2) distance - 1/2, or, with align_corners, at i distance. It is a weighted sum of the pixels
// around it. A pixel at distance d has the weight 1 - d, or the cubic of Keys, "Cubic convolution interpolation for
// digital image processing" (1981), with the a of PyTorch. With antialias, if results are more than a pixel apart, d is
// measured in units of their distance, so that no pixel is left out, and the weights are divided by their sum. Pillow
// does this, and so does PyTorch, which then uses align_corners only for the distance of results.
struct Resampling {
  int64_t from, size;
  Interpolation how;
  double distance;  // between neighbouring results
  double unit;      // the distance that counts as 1 in d
  double reach;     // pixels farther away have no weight
  double a;         // the coefficient of the cubic
  int64_t width;    // pixels that contribute to one result. 1: the result is a copy of the nearest pixel

  Resampling(int64_t from, int64_t size, const Interpolation& how);
  bool align_corners() const { return how.align_corners && !how.antialias; }
};

// The pixels of each result and their weights, as tables (width, size). Indices of pixels are always inside of the
// image: beyond the border, the border's pixel is used.
struct Taps {
  int64_t width, size;
  std::vector<int32_t> pixel;
  std::vector<double> weight;

  Taps(int64_t from, int64_t size, const Interpolation& how);
};

}  // namespace rondo::ops
