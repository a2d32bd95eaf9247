// RegSeg (Gao, "Rethinking dilated convolution for real-time semantic segmentation", 2021): RegNet's blocks whose
// groups have different dilations, so that 1/16 of the size is enough for a large field of view.
//
//   nn::RegSeg model({.num_classes = 19});
//   model.loss(images, masks).backward();                       // masks i32 or i64 (B, H, W), 255 = ignored
//
// Sizes, with 19 classes: 3,334,951 parameters (paper: 3.34 million).
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "rondo/modules/layers/conv_norm_relu.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/modules/layers/segmentation_loss.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// The defaults are the paper's model for Cityscapes.
struct RegSegConfig {
  // The dilations of the blocks with 1/16 of the size, after the first of these blocks. The channels are split evenly
  // among a block's dilations.
  std::vector<std::vector<int64_t>> dilations = {{1},     {1, 2},  {1, 4},  {1, 4},  {1, 4},  {1, 4}, {1, 14},
                                                 {1, 14}, {1, 14}, {1, 14}, {1, 14}, {1, 14}, {1, 14}};
  int64_t group_width = 16;  // channels of a group of a 3x3 convolution
  int64_t num_classes = 19;
  int64_t ignore_index = kIgnoredClass;
};

// Squeeze and excitation (Hu et al., 2018): x scaled by a gate for each channel.
struct SqueezeExcite : Module<SqueezeExcite> {
  SqueezeExcite(int64_t channels, int64_t inner_channels);
  Conv2d squeeze, excite;
  Tensor forward(const Tensor& x);
};

// 1x1, 3x3 in groups, squeeze and excitation, 1x1, and the shortcut.
struct RegSegBlock : Module<RegSegBlock> {
  RegSegBlock(int64_t in_channels, int64_t out_channels, std::vector<int64_t> dilations, int64_t group_width,
              int64_t stride);
  int64_t stride;
  ConvNormReLU conv1;
  ModuleList<Conv2d> conv2;  // one for each dilation
  BatchNorm2d bn2;
  SqueezeExcite se;
  ConvNormReLU conv3;
  std::unique_ptr<ConvNormReLU> shortcut;  // null: the identity
  Tensor forward(const Tensor& x);
};

struct RegSeg : Module<RegSeg> {
  explicit RegSeg(RegSegConfig config = {}, uint64_t seed = 0);
  RegSegConfig config;
  ConvNormReLU stem;
  ModuleList<RegSegBlock> stage4, stage8, stage16;
  ConvNormReLU head16, head8, head4, conv8, conv4;
  Conv2d classifier;

  // images (B, 3, H, W), H and W multiples of 16 -> logits (B, num_classes, H / 4, W / 4).
  Tensor forward(const Tensor& images);
  Tensor loss(const Tensor& images, const Tensor& targets,
              std::source_location where = std::source_location::current());
};

}  // namespace rondo::nn
#pragma GCC visibility pop
