// Resizes 8-bit pictures to the same bytes as Pillow. This header is not installed; users include
// image_processor.h.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::nn {

// Resizes pixels u8 (H, W, C) -> (h, w, C), both contiguous and in host memory. Bilinear and bicubic filters read all
// pixels of a larger picture (antialias in ops.h), with weights of 22 bits: columns first, then rows, each rounded to 8
// bits. Rows come first if the height shrinks by more than twice as many pixels as the width. This is the order of
// Pillow 13; older versions always begin with columns.
Tensor resize_bytes(const Tensor& pixels, int64_t height, int64_t width, ops::InterpolateMode mode);
// Returns the most bytes that resize_bytes() takes at once, its result included.
double resize_memory(int64_t from_height, int64_t from_width, int64_t height, int64_t width, int64_t channels);
// Returns, for each of `size` pixels along an edge, the index of the nearest of `from` pixels, as Pillow chooses it.
std::vector<int64_t> nearest_pixels(int64_t from, int64_t size);
// Returns the middle (height, width, C) of a picture. A smaller picture gets zeros around it.
Tensor crop_bytes(const Tensor& pixels, int64_t height, int64_t width);

}  // namespace rondo::nn
