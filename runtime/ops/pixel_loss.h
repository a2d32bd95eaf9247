// The cross-entropy of the pixels of an image, without logits of the image's size.
//
//   loss = ops::pixel_cross_entropy(model(images), masks, /*ignore_index=*/255);
#pragma once

#include <cstdint>

#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::ops {

// Computes cross_entropy (ops.h) of every pixel of logits (B, C, h, w) that are interpolated (bilinear) to the size of
// target, i64 or i32 (B, H, W), with the mean over the pixels that are not ignored.
Tensor pixel_cross_entropy(TensorArg logits, TensorArg target, int64_t ignore_index = -100);

}  // namespace rondo::ops
#pragma GCC visibility pop
