// Vision transformer (Dosovitskiy et al., "An image is worth 16x16 words", 2020): an image classifier, or an encoder.
//
//   nn::ViT model({.image_size = 32, .patch_size = 4, .n_layer = 6, .n_head = 6, .n_embd = 192, .num_classes = 10});
//   model.loss(images, targets).backward();
//
// Parameter names are those of timm's checkpoints. vit_from_hugging_face() translates those of Hugging Face.
#pragma once

#include "rondo/modules/layers/classification_loss.h"
#include "rondo/modules/layers/layers.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// The defaults are ViT-B/16.
struct ViTConfig {
  int64_t image_size = 224;
  int64_t patch_size = 16;
  int64_t in_channels = 3;
  int64_t n_layer = 12;
  int64_t n_head = 12;
  int64_t n_embd = 768;
  int64_t num_classes = 1000;                              // 0: no classifier, for an encoder
  std::optional<ProblemType> problem_type = std::nullopt;  // chooses the loss
  double dropout = 0;                                      // of the embeddings and of each half of a block
  double norm_eps = 1e-6;
  double attention_dropout = 0;  // of the attention weights
  int64_t n_hidden = 0;          // units of each MLP; 0: 4 n_embd
  bool qkv_bias = true;
  ops::GeluKind gelu = ops::GeluKind::kErf;
};

// A convolution over patches that do not overlap. weight (out, in, patch, patch), bias (out).
struct PatchConv2d : Module<PatchConv2d> {
  PatchConv2d(int64_t in_channels, int64_t out_channels, int64_t patch_size);
  int64_t patch_size;
  Tensor& weight;
  Tensor& bias;
  Tensor forward(const Tensor& images);  // (B, in, H, W) -> (B, out, H / patch, W / patch)
};

struct PatchEmbed : Module<PatchEmbed> {
  explicit PatchEmbed(const ViTConfig& config);
  PatchConv2d proj;
  Tensor forward(const Tensor& images);  // (B, channels, H, W) -> (B, patches, C), patches row by row
};

struct ViTAttention : Module<ViTAttention> {
  explicit ViTAttention(const ViTConfig& config);
  int64_t n_head;
  Linear qkv;
  Dropout attn_drop;
  Linear proj;
  Dropout proj_drop;
  Tensor forward(const Tensor& x);  // (B, T, C) -> (B, T, C)
};

struct ViTMLP : Module<ViTMLP> {
  explicit ViTMLP(const ViTConfig& config);
  ops::GeluKind gelu;
  Linear fc1;
  Linear fc2;
  Dropout drop;
  Tensor forward(const Tensor& x) { return drop(fc2(ops::gelu(fc1(x), gelu))); }
};

struct ViTBlock : Module<ViTBlock> {
  explicit ViTBlock(const ViTConfig& config);
  LayerNorm norm1;
  ViTAttention attn;
  LayerNorm norm2;
  ViTMLP mlp;
  Tensor forward(const Tensor& x);  // (B, T, C) -> (B, T, C)
};

struct ViT : Module<ViT> {
  // Weights start N(0, 0.02), biases 0, gains 1; the same for the same seed on any machine.
  explicit ViT(ViTConfig config, uint64_t seed = 0, const SkipInit& skip = SkipInit());

  ViTConfig config;
  Tensor& cls_token;  // (1, 1, C)
  Tensor& pos_embed;  // (1, patches + 1, C)
  PatchEmbed patch_embed;
  Dropout pos_drop;
  ModuleList<ViTBlock> blocks;
  LayerNorm norm;
  std::unique_ptr<Linear> head;  // null with num_classes = 0

  // images (B, channels, image_size, image_size) -> logits (B, num_classes); with num_classes = 0, features().
  Tensor forward(const Tensor& images);
  // Returns every token's features, the class token first: (B, patches + 1, C).
  Tensor features(const Tensor& images);
  // Returns the mean loss of the targets; config.problem_type chooses the loss (classification_loss.h). Throws Error
  // without a classifier.
  Tensor loss(const Tensor& images, const Tensor& targets,
              std::source_location where = std::source_location::current());
};

// Returns the state dict of Hugging Face's ViTForImageClassification under this model's names: query, key and value are
// joined. Throws Error if one of the three is missing. Names that are not a ViT's stay, so that a strict load reports
// them.
StateDict vit_from_hugging_face(const StateDict& published);

}  // namespace rondo::nn
#pragma GCC visibility pop
