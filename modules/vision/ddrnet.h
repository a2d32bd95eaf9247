// DDRNet (Hong et al., "Deep dual-resolution networks for real-time and accurate semantic segmentation of road scenes",
// 2021): a branch that keeps 1/8 of the size and one that goes down to 1/64, which exchange features twice.
//
//   nn::DDRNet model(nn::ddrnet23_slim(/*num_classes=*/19));
//   model.loss(images, masks).backward();                       // masks i32 or i64 (B, H, W), 255 = ignored
//
// Sizes, with 19 classes and without the head for training: DDRNet-23-slim has 5,695,923 parameters (paper: 5.7
// million), DDRNet-23 20.1 million.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "rondo/modules/layers/conv_norm_relu.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/modules/layers/segmentation_loss.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// The defaults are DDRNet-23-slim.
struct DDRNetConfig {
  int64_t width = 32;         // channels of the stem; 1/8 of those of the low branch's last stage
  int64_t pyramid = 128;      // channels of each scale of the pooled features
  int64_t head = 64;          // channels inside a head
  bool extra_head = true;     // a second head in the middle of the high branch, for training only
  double extra_weight = 0.4;  // weight of the second head's loss
  int64_t num_classes = 19;
  int64_t ignore_index = kIgnoredClass;
};
DDRNetConfig ddrnet23_slim(int64_t num_classes);
DDRNetConfig ddrnet23(int64_t num_classes);

struct DDRBlockOptions {
  int64_t stride = 1;
  bool bottleneck = false;  // 1x1, 3x3, 1x1 with twice the channels; otherwise 3x3, 3x3
  bool relu = true;         // the sum goes through a ReLU
};
struct DDRBlock : Module<DDRBlock> {
  DDRBlock(int64_t in_channels, int64_t channels, DDRBlockOptions options);
  bool relu;
  ModuleList<ConvNormReLU> convs;
  std::unique_ptr<ConvNormReLU> shortcut;  // null: the identity
  Tensor forward(const Tensor& x);
};

// BatchNorm, ReLU, convolution.
struct NormReLUConv : Module<NormReLUConv> {
  NormReLUConv(int64_t in_channels, int64_t out_channels, int64_t kernel_size, bool bias = false);
  BatchNorm2d bn;
  Conv2d conv;
  Tensor forward(const Tensor& x) { return conv(ops::relu(bn(x))); }
};

// DAPPM: means over windows of five sizes, each added to the next larger one.
struct DeepPyramidPooling : Module<DeepPyramidPooling> {
  DeepPyramidPooling(int64_t in_channels, int64_t branch_channels, int64_t out_channels);
  ModuleList<NormReLUConv> scales;     // one for each of the five windows
  ModuleList<NormReLUConv> processes;  // one for each window but the smallest
  NormReLUConv compression, shortcut;
  Tensor forward(const Tensor& x);  // (B, in, H, W) -> (B, out, H, W)
};

struct DDRHead : Module<DDRHead> {
  DDRHead(int64_t in_channels, int64_t inner_channels, int64_t num_classes);
  NormReLUConv conv, classifier;
  Tensor forward(const Tensor& x) { return classifier(conv(x)); }
};

struct DDRNet : Module<DDRNet> {
  explicit DDRNet(DDRNetConfig config, uint64_t seed = 0);
  DDRNetConfig config;
  ModuleList<ConvNormReLU> stem;
  ModuleList<DDRBlock> layer1, layer2, layer3, layer4, layer5;  // the low branch, with 1/4 to 1/64 of the size
  ModuleList<DDRBlock> high3, high4, high5;                     // the high branch, with 1/8
  ConvNormReLU compression3, compression4, down3, down4a, down4b;
  DeepPyramidPooling pooling;
  DDRHead head;
  std::unique_ptr<DDRHead> extra_head;

  // images (B, 3, H, W), H and W multiples of 32 -> logits (B, num_classes, H / 8, W / 8).
  Tensor forward(const Tensor& images);
  // Returns the loss of the head, plus extra_weight times the loss of the extra head, for targets i64 or i32 (B, H, W).
  Tensor forward(const Tensor& images, const Tensor& targets);
  // As forward(images, targets), but through a call of the model, so that it runs compiled.
  Tensor loss(const Tensor& images, const Tensor& targets,
              std::source_location where = std::source_location::current());

 private:
  // Returns the features for the head, and those for the extra head.
  std::pair<Tensor, Tensor> features(const Tensor& images);
};

}  // namespace rondo::nn
#pragma GCC visibility pop
