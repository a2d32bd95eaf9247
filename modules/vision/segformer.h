// SegFormer (Xie et al., "SegFormer: simple and efficient design for semantic segmentation with transformers", 2021).
//
//   nn::SegformerForSemanticSegmentation model({.num_classes = 19});
//   model.loss(images, masks).backward();                       // masks i32 or i64 (B, H, W), 255 = ignored
//
// Parameter names are those of published checkpoints (Hugging Face); from_pretrained: AutoModelForSemanticSegmentation
// (pretrained/auto_model.h). SegFormer-B0 with 150 classes has 3,752,694 parameters.
//
// Inside the encoder, a feature map is (B, H, W, C): linear layers and LayerNorm work on the last dimension, and
// convolutions read the same memory as a channels-last (B, C, H, W).
#pragma once

#include <memory>
#include <vector>

#include "rondo/modules/layers/channel_norm.h"
#include "rondo/modules/layers/convolution.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/modules/layers/segmentation_loss.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// The defaults are SegFormer-B0 with the classes of ADE20K. Lists have an entry for each stage of the encoder.
struct SegformerConfig {
  int64_t in_channels = 3;
  std::vector<int64_t> depths = {2, 2, 2, 2};
  std::vector<int64_t> hidden_sizes = {32, 64, 160, 256};
  std::vector<int64_t> n_head = {1, 2, 5, 8};
  std::vector<int64_t> patch_sizes = {7, 3, 3, 3};
  std::vector<int64_t> strides = {4, 2, 2, 2};
  std::vector<int64_t> sr_ratios = {8, 4, 2, 1};  // keys and values have 1 / ratio of the height and width
  std::vector<int64_t> mlp_ratios = {4, 4, 4, 4};
  int64_t decoder_hidden_size = 256;
  int64_t num_classes = 150;
  int64_t ignore_index = kIgnoredClass;
  double dropout = 0;            // of each half of a block, and inside its MLP
  double attention_dropout = 0;  // of the attention weights
  double classifier_dropout = 0.1;
  double drop_path = 0.1;  // probability for the last block; rises linearly from 0 at the first block
  ops::GeluKind gelu = ops::GeluKind::kErf;
};

// A strided convolution with overlapping windows. (B, in, H, W) -> (B, h, w, C), normalised.
struct SegformerPatchEmbed : Module<SegformerPatchEmbed> {
  SegformerPatchEmbed(const SegformerConfig& config, size_t stage);
  Conv2d proj;
  LayerNorm layer_norm;
  Tensor forward(const Tensor& x);
};

// Keys and values come from a feature map that a strided convolution has made smaller.
struct SegformerSelfAttention : Module<SegformerSelfAttention> {
  SegformerSelfAttention(const SegformerConfig& config, size_t stage);
  int64_t n_head;
  double attention_dropout;
  Linear query, key, value;
  std::unique_ptr<Conv2d> sr;             // null where the ratio is 1
  std::unique_ptr<LayerNorm> layer_norm;  // normalises the smaller feature map
  Tensor forward(const Tensor& x);        // (B, H, W, C) -> (B, H, W, C)
};

struct SegformerSelfOutput : Module<SegformerSelfOutput> {
  SegformerSelfOutput(const SegformerConfig& config, size_t stage);
  Linear dense;
  Dropout dropout;
  Tensor forward(const Tensor& x) { return dropout(dense(x)); }
};

struct SegformerAttention : Module<SegformerAttention> {
  SegformerAttention(const SegformerConfig& config, size_t stage);
  SegformerSelfAttention self;
  SegformerSelfOutput output;
  Tensor forward(const Tensor& x) { return output(self(x)); }
};

struct SegformerDWConv : Module<SegformerDWConv> {
  explicit SegformerDWConv(int64_t channels);
  Conv2d dwconv;
  Tensor forward(const Tensor& x);  // (B, H, W, C) -> (B, H, W, C)
};

// The MLP of a block (Mix-FFN). Its depthwise convolution replaces position embeddings.
struct SegformerMixFFN : Module<SegformerMixFFN> {
  SegformerMixFFN(const SegformerConfig& config, size_t stage);
  ops::GeluKind gelu;
  Linear dense1;
  SegformerDWConv dwconv;
  Linear dense2;
  Dropout dropout;
  Tensor forward(const Tensor& x) { return dropout(dense2(dropout(ops::gelu(dwconv(dense1(x)), gelu)))); }
};

struct SegformerLayer : Module<SegformerLayer> {
  SegformerLayer(const SegformerConfig& config, size_t stage, double drop_path);
  LayerNorm layer_norm_1;
  SegformerAttention attention;
  DropPath drop_path;
  LayerNorm layer_norm_2;
  SegformerMixFFN mlp;
  Tensor forward(const Tensor& x);  // (B, H, W, C) -> (B, H, W, C)
};

struct SegformerEncoder : Module<SegformerEncoder> {
  explicit SegformerEncoder(const SegformerConfig& config);
  ModuleList<SegformerPatchEmbed> patch_embeddings;
  ModuleList<ModuleList<SegformerLayer>> block;
  ModuleList<LayerNorm> layer_norm;
  // images (B, channels, H, W) -> for each stage (B, h, w, C).
  std::vector<Tensor> forward(const Tensor& images);
};

struct SegformerModel : Module<SegformerModel> {
  explicit SegformerModel(const SegformerConfig& config);
  SegformerEncoder encoder;
  std::vector<Tensor> forward(const Tensor& images) { return encoder(images); }
};

struct SegformerProjection : Module<SegformerProjection> {
  SegformerProjection(const SegformerConfig& config, size_t stage);
  Linear proj;
  Tensor forward(const Tensor& x) { return proj(x); }
};

struct SegformerDecodeHead : Module<SegformerDecodeHead> {
  explicit SegformerDecodeHead(const SegformerConfig& config);
  ModuleList<SegformerProjection> linear_c;
  Conv2d linear_fuse;
  BatchNorm2d batch_norm;
  Dropout dropout;
  Conv2d classifier;
  // Returns logits (B, num_classes, h, w) in the size of `first`, the features of the first stage. `features`: the
  // features of all stages of the encoder.
  Tensor forward(const Tensor& first, const std::vector<Tensor>& features);
};

struct SegformerForSemanticSegmentation : Module<SegformerForSemanticSegmentation> {
  // Weights start N(0, 0.02), biases 0, gains 1; the same for the same seed on any machine.
  explicit SegformerForSemanticSegmentation(SegformerConfig config, uint64_t seed = 0);
  SegformerConfig config;
  SegformerModel segformer;
  SegformerDecodeHead decode_head;
  // images (B, channels, H, W) -> logits (B, num_classes, H / 4, W / 4), rounded up.
  Tensor forward(const Tensor& images);
  // Returns segmentation_loss() of the logits, interpolated to the size of the targets i64 or i32 (B, H, W).
  Tensor loss(const Tensor& images, const Tensor& targets,
              std::source_location where = std::source_location::current());
};

}  // namespace rondo::nn
#pragma GCC visibility pop
