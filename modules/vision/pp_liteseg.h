// PP-LiteSeg (Peng et al., "PP-LiteSeg: a superior real-time semantic segmentation model", 2022): an STDC encoder, a
// pyramid of pooled features, and a decoder that weighs high and low features by an attention map of the pixels.
//
//   nn::PPLiteSeg model(nn::pp_liteseg_t(/*num_classes=*/19));
//   model.loss(images, masks).backward();                       // masks i32 or i64 (B, H, W), 255 = ignored
//
// Sizes, with 19 classes and without the two heads for training: PP-LiteSeg-T (STDC1) has 8,037,696 parameters,
// PP-LiteSeg-B (STDC2) 12,234,240. The paper gives none; the encoders are those of stdc.h.
#pragma once

#include <array>
#include <vector>

#include "rondo/modules/vision/stdc.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// The defaults are PP-LiteSeg-T.
struct PPLiteSegConfig {
  STDCConfig encoder = {};
  std::vector<int64_t> decoder = {32, 64, 128};  // channels at 1/8, 1/16 and 1/32 of the image's size
  int64_t pyramid = 128;                         // channels of the pooled features
  std::vector<int64_t> bins = {1, 2, 4};         // sizes of the pooled features
  int64_t head = 64;                             // channels inside a head
  int64_t num_classes = 19;
  int64_t ignore_index = kIgnoredClass;
};
PPLiteSegConfig pp_liteseg_t(int64_t num_classes);
PPLiteSegConfig pp_liteseg_b(int64_t num_classes);

// SPPM: means over bins x bins windows, projected and summed.
struct SimplePyramidPooling : Module<SimplePyramidPooling> {
  SimplePyramidPooling(int64_t in_channels, int64_t out_channels, std::vector<int64_t> bins);
  std::vector<int64_t> bins;
  ModuleList<ConvNormReLU> stages;
  ConvNormReLU conv_out;
  Tensor forward(const Tensor& x);  // (B, in, H, W) -> (B, out, H, W)
};

// UAFM with spatial attention: a low x + (1 - a) high, with a weight `a` for each pixel.
struct UnifiedAttentionFusion : Module<UnifiedAttentionFusion> {
  UnifiedAttentionFusion(int64_t low_channels, int64_t high_channels, int64_t out_channels);
  ConvNormReLU conv_low, attention1, attention2, conv_out;
  Tensor forward(const Tensor& low, const Tensor& high);  // -> (B, out, H, W), the size of `low`
};

struct PPLiteSeg : Module<PPLiteSeg> {
  explicit PPLiteSeg(PPLiteSegConfig config, uint64_t seed = 0);
  PPLiteSegConfig config;
  STDCBackbone encoder;
  SimplePyramidPooling pooling;
  ModuleList<UnifiedAttentionFusion> fusions;  // one for each of 1/8, 1/16 and 1/32 of the size
  ModuleList<SegmentationHead> heads;          // one for each of these sizes; the last two are for training only

  // images (B, 3, H, W), H and W multiples of 32 -> logits (B, num_classes, H / 8, W / 8).
  Tensor forward(const Tensor& images);
  // Returns the sum of the losses of the three heads, for targets i64 or i32 (B, H, W).
  Tensor forward(const Tensor& images, const Tensor& targets);
  // As forward(images, targets), but through a call of the model, so that it runs compiled.
  Tensor loss(const Tensor& images, const Tensor& targets,
              std::source_location where = std::source_location::current());

 private:
  std::array<Tensor, 3> features(const Tensor& images);
};

}  // namespace rondo::nn
#pragma GCC visibility pop
