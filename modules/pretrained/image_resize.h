// Sizes of pictures of 8 bits, as Pillow changes them: the bytes are its own. Not installed: image_processor.h.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::nn {

// Pixels u8 (H, W, C), dense and in host memory, as is the result (h, w, C). Bilinear and bicubic filters see all
// pixels of a larger picture (antialias in ops.h), with weights of 22 bits: columns first, then rows, each rounded to 8
// bits; rows first where the height shrinks by more than twice as many pixels as the width. The order is that of Pillow
// 13: older ones always begin with columns.
Tensor resize_bytes(const Tensor& pixels, int64_t height, int64_t width, ops::InterpolateMode mode);
// The most bytes that it takes at once, its result included.
double resize_memory(int64_t from_height, int64_t from_width, int64_t height, int64_t width, int64_t channels);
// As Pillow's nearest pixel: of each of `size` results, among `from`.
std::vector<int64_t> nearest_pixels(int64_t from, int64_t size);
// The middle (height, width, C). Where the picture is smaller, zeros lie around it.
Tensor crop_bytes(const Tensor& pixels, int64_t height, int64_t width);

}  // namespace rondo::nn
