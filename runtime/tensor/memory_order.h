// The order in which the dimensions of a tensor follow each other in memory. Most tensors are contiguous; images may be
// channels last.
#pragma once

#include "rondo/runtime/tensor/tensor.h"

namespace rondo {

// Note [Channels last]. True if a tensor (B, C, H, W) lies in memory as (B, H, W, C). The test is that of PyTorch: the
// strides do not decrease in the order C, W, H, B, not even those of dimensions of size 1. If C, H and W are 1 and have
// equal strides, the tensor has the usual layout.
bool is_channels_last(const Dims& sizes, const Dims& strides);
// Returns the strides of a dense tensor (B, C, H, W) that is channels last.
Dims channels_last_strides(const Dims& sizes);
// True for a tensor (B, C, H, W) that is channels last and not dense in the usual layout.
inline bool lies_channels_last(const Tensor& x) {
  return x.rank() == 4 && !x.is_contiguous() && is_channels_last(x.sizes(), x.strides());
}

// Returns the dimensions from the one with the largest stride to the one with the smallest: the order in which a loop
// walks through memory. A permute with this order makes a dense tensor contiguous.
Dims memory_order(const Dims& sizes, const Dims& strides);
// Returns x with these strides, copied if it has others. REQUIRES: they are the strides of a dense tensor, in any order
// of its dimensions.
Tensor with_strides(const Tensor& x, const Dims& strides);

}  // namespace rondo
