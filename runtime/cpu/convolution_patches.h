// A convolution as products of matrices (matmul.h): the pixels that each output pixel reads are copied into a row, a
// band of output rows at a time. For dtypes and shapes that the library does not serve. f32 and f64.
#pragma once

#include "rondo/runtime/cpu/convolution_call.h"

namespace rondo::cpu {

// REQUIRES: everything is channels last: the input (B, H, W, C), the weight (O, kh, kw, C / groups), the output
// (B, oh, ow, O). Nothing is empty. Sums are in an order of the shapes' alone.
void convolve_patches(const ConvolutionCall& call, const ConvolutionOperands& operands);

}  // namespace rondo::cpu
