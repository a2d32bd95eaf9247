// The parameters of a 2D convolution or of one of its two gradients. All three use the same three tensors: the input
// (B, C, H, W), the weight (O, C / groups, kh, kw) and the output (B, O, oh, ow). One of them is computed from the
// other two. convolution.cc chooses the implementation. Plain data.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "rondo/runtime/base/dtype.h"

namespace rondo::cpu {

struct ConvolutionCall {
  enum class Computes : uint8_t { kOutput, kInput, kWeight };
  Computes computes = Computes::kOutput;
  DType dtype = kF32;
  bool bias = false;  // kOutput: one number for each output channel is added
  // False: (B, C, H, W) in memory; true: channels last, (B, H, W, C).
  bool input_last = false, weight_last = false, output_last = false;
  int64_t batch = 0, channels = 0, outputs = 0, groups = 1;
  // By dimension: height, width.
  std::array<int64_t, 2> input = {}, kernel = {}, output = {};
  std::array<int64_t, 2> stride = {1, 1}, dilation = {1, 1};
  std::array<int64_t, 2> padding_before = {};  // zeros before the input; the zeros after it follow from `output`

  int64_t reach(size_t d) const { return (kernel[d] - 1) * dilation[d] + 1; }
  // Returns the number of input elements from which one output element is computed.
  int64_t taps() const { return channels / groups * kernel[0] * kernel[1]; }
  double flops_of_image() const { return 2.0 * static_cast<double>(output[0] * output[1] * outputs * taps()); }
  friend bool operator==(const ConvolutionCall&, const ConvolutionCall&) = default;
  template <class H> friend H AbslHashValue(H h, const ConvolutionCall& c) {
    return H::combine(std::move(h), c.computes, c.dtype, c.bias, c.input_last, c.weight_last, c.output_last, c.batch,
                      c.channels, c.outputs, c.groups, c.input, c.kernel, c.output, c.stride, c.dilation,
                      c.padding_before);
  }
};

struct ConvolutionOperands {
  std::byte* input = nullptr;
  std::byte* weight = nullptr;
  std::byte* bias = nullptr;
  std::byte* output = nullptr;
};

}  // namespace rondo::cpu
