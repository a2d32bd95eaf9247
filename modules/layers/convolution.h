// Convolutions as layers, with PyTorch's names and starting weights: weight and bias uniform in +-1/sqrt(fan in), drawn
// from default_generator(). For errors on inputs of wrong shapes see ops/ops.h.
//
//   nn::Conv2d stem = child("stem", 3, 64, 7, nn::Conv2dOptions{.stride = 2, .padding = 3, .bias = false});
#pragma once

#include "rondo/modules/module.h"
#include "rondo/runtime/ops/ops.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

template <int N> struct ConvOptions {
  ops::Spatial<N> stride = 1;
  ops::ConvPadding<N> padding = 0;  // or ops::kSamePadding
  ops::Spatial<N> dilation = 1;
  int64_t groups = 1;  // each group reads its own part of the channels; one channel per group: depthwise
  bool bias = true;
};
using Conv1dOptions = ConvOptions<1>;
using Conv2dOptions = ConvOptions<2>;

// weight (out, in / groups, kw), bias (out), undefined without one.
struct Conv1d : Module<Conv1d> {
  Conv1d(int64_t in_channels, int64_t out_channels, ops::Spatial<1> kernel_size, Conv1dOptions options = {});
  Conv1dOptions options;
  Tensor& weight;
  Tensor& bias;
  Tensor forward(const Tensor& x);  // (B, in, W) -> (B, out, ow)
};

// weight (out, in / groups, kh, kw), bias (out), undefined without one.
struct Conv2d : Module<Conv2d> {
  Conv2d(int64_t in_channels, int64_t out_channels, ops::Spatial<2> kernel_size, Conv2dOptions options = {});
  Conv2dOptions options;
  Tensor& weight;
  Tensor& bias;
  Tensor forward(const Tensor& x);  // (B, in, H, W) -> (B, out, oh, ow)
};

struct ConvTranspose2dOptions {
  ops::Spatial<2> stride = 1;
  ops::Spatial<2> padding = 0;
  ops::Spatial<2> output_padding = 0;
  int64_t groups = 1;
  bool bias = true;
  ops::Spatial<2> dilation = 1;
};
// weight (in, out / groups, kh, kw), bias (out), undefined without one.
struct ConvTranspose2d : Module<ConvTranspose2d> {
  ConvTranspose2d(int64_t in_channels, int64_t out_channels, ops::Spatial<2> kernel_size,
                  ConvTranspose2dOptions options = {});
  ConvTranspose2dOptions options;
  Tensor& weight;
  Tensor& bias;
  Tensor forward(const Tensor& x);  // (B, in, H, W) -> (B, out, oh, ow)
};

}  // namespace rondo::nn
#pragma GCC visibility pop
