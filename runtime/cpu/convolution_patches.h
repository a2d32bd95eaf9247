// A convolution as matrix products (matmul.h), also known as im2col: the input pixels for each output pixel are copied
// into a row of a matrix, for a band of output rows at a time. Used for f64, and for f32 convolutions that oneDNN does
// not support.
#pragma once

#include "rondo/runtime/cpu/convolution_call.h"

namespace rondo::cpu {

// Computes the convolution, or the gradient, that `call` describes. REQUIRES: all tensors are channels last: the input
// (B, H, W, C), the weight (O, kh, kw, C / groups), the output (B, oh, ow, O). No tensor is empty. The order of sums
// depends only on the shapes.
void convolve_patches(const ConvolutionCall& call, const ConvolutionOperands& operands);

}  // namespace rondo::cpu
