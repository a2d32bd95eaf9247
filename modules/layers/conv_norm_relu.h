// A convolution without bias, BatchNorm and ReLU: what the networks of stdc.h, pp_liteseg.h, ddrnet.h and regseg.h are
// made of.
#pragma once

#include "rondo/modules/layers/channel_norm.h"
#include "rondo/modules/layers/convolution.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

struct ConvNormOptions {
  int64_t stride = 1;
  int64_t groups = 1;
  int64_t dilation = 1;
  bool relu = true;
};

// The padding keeps the size for stride 1; kernel_size is odd.
struct ConvNormReLU : Module<ConvNormReLU> {
  ConvNormReLU(int64_t in_channels, int64_t out_channels, int64_t kernel_size, ConvNormOptions options = {});
  bool relu;
  Conv2d conv;
  BatchNorm2d bn;
  Tensor forward(const Tensor& x);  // (B, in, H, W) -> (B, out, H / stride, W / stride), rounded up
};

// Resizes x to the height and width of `like`, by bilinear interpolation.
Tensor resize_like(const Tensor& x, const Tensor& like);
// Returns the mean of each channel: (B, C, H, W) -> (B, C, 1, 1).
Tensor global_mean(const Tensor& x);

// conv3x3, then a 1x1 convolution without bias to num_classes channels: (B, in, H, W) -> (B, num_classes, H, W).
struct SegmentationHead : Module<SegmentationHead> {
  SegmentationHead(int64_t in_channels, int64_t inner_channels, int64_t num_classes);
  ConvNormReLU conv;
  Conv2d classifier;
  Tensor forward(const Tensor& x) { return classifier(conv(x)); }
};

// Throws Error, in the name of `model`, unless images are (B, 3, H, W) and H and W are multiples of `multiple`.
void require_images(const char* model, const Tensor& images, int64_t multiple);

}  // namespace rondo::nn
#pragma GCC visibility pop
