// How images get other sizes: what the op, its parts, its kernels and the processors of images share. An interpolation
// works along one dimension after the other, by a table of pixels and weights for each.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/runtime/op/op.h"
#include "rondo/runtime/ops/convolution.h"

namespace rondo::ops {

// Along one dimension. What is made for each pixel of it on the host fits into memory.
inline constexpr int64_t kMostPixels = int64_t{1} << 28;

// Along a dimension whose size stays, each pixel is taken as it is.
struct Interpolation {
  int64_t taps = 1;  // pixels of a result along a dimension. 1: the nearest, floor(i from / size); 2: linear; 4: cubic
  bool align_corners = false;
  bool antialias = false;

  // {h, w}: the size of the other image (of the result; of x for the gradient), and how.
  static constexpr size_t kInts = 5;
  static Interpolation of(const Attrs& attrs) { return {attrs.ints[2], attrs.ints[3] != 0, attrs.ints[4] != 0}; }
  static Extent size_in(const Attrs& attrs) { return {attrs.ints[0], attrs.ints[1]}; }
  Attrs attrs(Extent size) const { return {.ints = {size[0], size[1], taps, align_corners, antialias}}; }
};

// Where `size` results lie among `from` pixels, and how many of these make one.
//
// Result i lies at (i + 1/2) distance - 1/2, or, with align_corners, at i distance. Its pixels are those around it,
// weighted by their distance d from it: 1 - d, or the cubic of Keys, "Cubic convolution interpolation for digital image
// processing" (1981), with the a of PyTorch. With antialias, results that are more than a pixel apart count d in
// units of that distance, so that no pixel is left out; their weights are divided by their sum. That is what Pillow
// does, and PyTorch, which ignores align_corners there but for the distance.
struct Resampling {
  int64_t from, size;
  Interpolation how;
  double distance;  // of two results
  double unit;      // of d
  double reach;     // pixels farther away have no weight
  double a;         // of the cubic
  int64_t width;    // pixels of a result. 1: the nearest one, as it is

  Resampling(int64_t from, int64_t size, const Interpolation& how);
  bool align_corners() const { return how.align_corners && !how.antialias; }
};

// The pixels of each result and their weights, as tables (width, size). Pixels never lie outside: those at the border
// stand for those beyond it.
struct Taps {
  int64_t width, size;
  std::vector<int32_t> pixel;
  std::vector<double> weight;

  Taps(int64_t from, int64_t size, const Interpolation& how);
};

}  // namespace rondo::ops
