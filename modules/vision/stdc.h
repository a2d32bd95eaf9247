// STDC (Fan et al., "Rethinking BiSeNet for real-time semantic segmentation", 2021): a backbone whose blocks join the
// results of all their convolutions, an image classifier, and the network for segmentation with detail guidance.
//
//   nn::STDCSeg model({.encoder = nn::stdc1(), .num_classes = 19});
//   model.loss(images, masks).backward();                       // masks i32 or i64 (B, H, W), 255 = ignored
//
// Sizes, with 1000 classes: STDC1 has 8,443,552 parameters, STDC2 12,474,016 (paper: 8.44 and 12.47 million).
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "rondo/modules/layers/conv_norm_relu.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/modules/layers/segmentation_loss.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// The defaults are STDC1.
struct STDCConfig {
  std::vector<int64_t> layers = {2, 2, 2};  // blocks of the stages with 1/8, 1/16 and 1/32 of the size
  int64_t width = 64;                       // the stages have 4, 8 and 16 times as many channels
};
STDCConfig stdc1();
STDCConfig stdc2();

// Four convolutions in a row; each but the first reads the one before it. The results have 1/2, 1/4, 1/8 and 1/8 of the
// channels.
struct STDCBlock : Module<STDCBlock> {
  STDCBlock(int64_t in_channels, int64_t out_channels, int64_t stride);
  int64_t stride;
  ModuleList<ConvNormReLU> convs;
  std::unique_ptr<ConvNormReLU> down;  // depthwise, with stride 2; null for stride 1
  Tensor forward(const Tensor& x);     // (B, in, H, W) -> (B, out, H / stride, W / stride)
};

struct STDCBackbone : Module<STDCBackbone> {
  explicit STDCBackbone(const STDCConfig& config);
  ConvNormReLU stem1, stem2;
  ModuleList<STDCBlock> stage8, stage16, stage32;
  // Returns the features with 1/8, 1/16 and 1/32 of the size. H and W are multiples of 32.
  std::array<Tensor, 3> forward(const Tensor& images);
};

struct STDCForClassification : Module<STDCForClassification> {
  explicit STDCForClassification(STDCConfig config, int64_t num_classes = 1000, uint64_t seed = 0);
  STDCBackbone backbone;
  ConvNormReLU conv_last;
  Linear fc;
  BatchNorm1d bn;
  Dropout dropout;
  Linear linear;
  Tensor forward(const Tensor& images);  // (B, 3, H, W) -> (B, num_classes)
};

// Attention refinement: conv(x) scaled by a gate for each channel.
struct STDCRefinement : Module<STDCRefinement> {
  STDCRefinement(int64_t in_channels, int64_t out_channels);
  ConvNormReLU conv, gate;
  Tensor forward(const Tensor& x);
};

// Feature fusion: the joined features of two paths, with a gate for each channel.
struct STDCFusion : Module<STDCFusion> {
  STDCFusion(int64_t in_channels, int64_t out_channels);
  ConvNormReLU conv;
  Conv2d squeeze, excite;
  Tensor forward(const Tensor& x);
};

struct STDCSegConfig {
  STDCConfig encoder = {};
  int64_t num_classes = 19;
  int64_t ignore_index = kIgnoredClass;
};

struct STDCSeg : Module<STDCSeg> {
  explicit STDCSeg(STDCSegConfig config, uint64_t seed = 0);
  STDCSegConfig config;
  STDCBackbone backbone;
  STDCRefinement arm16, arm32;
  ConvNormReLU conv_avg, conv_head32, conv_head16;
  STDCFusion ffm;
  SegmentationHead conv_out, conv_out16, conv_out32;
  SegmentationHead detail;  // predicts boundaries from the features with 1/8 of the size

  // images (B, 3, H, W), H and W multiples of 32 -> logits (B, num_classes, H / 8, W / 8).
  Tensor forward(const Tensor& images);
  // Returns the sum of the losses of the three heads and of the detail head, for targets i64 or i32 (B, H, W). The
  // heads conv_out16, conv_out32 and `detail` are for training only.
  Tensor forward(const Tensor& images, const Tensor& targets);
  // As forward(images, targets), but through a call of the model, so that it runs compiled.
  Tensor loss(const Tensor& images, const Tensor& targets,
              std::source_location where = std::source_location::current());

 private:
  struct Features {
    Tensor at8, fused, context8, context16;
  };
  Features features(const Tensor& images);
};

// Marks where the classes of targets (B, H, W) change, as the paper's detail ground truth does: 0 or 1, f32 (B, 1, H,
// W). Takes Laplacians of the classes at strides 1, 2 and 4, adds them with weights, and applies a threshold of 0.1
// before and after the sum.
Tensor detail_targets(const Tensor& targets);
// Returns binary cross-entropy plus the dice loss of logits (B, 1, h, w) that are interpolated to the size of the
// targets.
Tensor detail_loss(const Tensor& logits, const Tensor& targets);

}  // namespace rondo::nn
#pragma GCC visibility pop
