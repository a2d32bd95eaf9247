// The numbers of an interpolation: what the op, its parts and its kernels share.
#pragma once

#include <cstdint>

#include "rondo/runtime/op.h"
#include "rondo/runtime/ops/convolution.h"

namespace rondo::ops {

// The nearest pixel is floor(i from / size); for linear interpolation see resample.h. Along a dimension whose size
// stays, each pixel is taken as it is.
struct Interpolation {
  bool linear = false;
  bool align_corners = false;

  // {h, w}: the size of the other image (of the result; of x for the gradient), and how.
  static constexpr size_t kInts = 4;
  static Interpolation of(const Attrs& attrs) { return {attrs.ints[2] != 0, attrs.ints[3] != 0}; }
  static Extent size_in(const Attrs& attrs) { return {attrs.ints[0], attrs.ints[1]}; }
  Attrs attrs(Extent size) const { return {.ints = {size[0], size[1], linear, align_corners}}; }
};

}  // namespace rondo::ops
