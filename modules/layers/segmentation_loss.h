// The loss of a model that gives each pixel of an image num_classes numbers.
//
//   nn::segmentation_loss(model(images), masks).backward();   // masks i32 or i64 (B, H, W), 255 = ignored
#pragma once

#include <cstdint>

#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// The class that many data sets, Cityscapes' training ids among them, give to pixels that do not count.
inline constexpr int64_t kIgnoredClass = 255;

// Returns the mean cross-entropy in nats over the pixels that are not ignored. logits (B, num_classes, h, w) are
// interpolated to the size of the targets (bilinear) if they are smaller or larger; targets i64 or i32 (B, H, W). With
// one class, the loss is the mean of the binary cross-entropy over all pixels: targets are 0 and 1, and the loss of a
// pixel that is ignored or negative is 0. Both are what transformers computes. Throws Error for targets of another
// dtype or shape.
Tensor segmentation_loss(TensorArg logits, const Tensor& targets, int64_t ignore_index = kIgnoredClass);

}  // namespace rondo::nn
#pragma GCC visibility pop
