// Statistics and attributes of batch_norm, which its definition and its kernels share.
#pragma once

#include "rondo/runtime/ops/ops.h"

namespace rondo::ops {

// Returns mean and variance of each channel of x, in the compute dtype. The variance divides by the number of values.
// `channels`: the dimension of x that holds the channels.
VarAndMean channel_statistics(const Tensor& x, int channels);
// Returns the dimension that holds the channels, from the attributes of a call of batch_norm or its gradient.
int channel_dim(const Attrs& attrs);

}  // namespace rondo::ops
