#include "rondo/modules/vision/segformer.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "rondo/modules/layers/init.h"

namespace rondo::nn {
namespace {

Tensor channels_first(const Tensor& x) { return x.permute({0, 3, 1, 2}); }
Tensor channels_last(const Tensor& x) { return x.permute({0, 2, 3, 1}); }

SegformerConfig checked_segformer(const SegformerConfig& config) {
  const size_t n = config.depths.size();
  const std::pair<const char*, const std::vector<int64_t>*> lists[] = {
      {"depths", &config.depths},           {"hidden_sizes", &config.hidden_sizes}, {"n_head", &config.n_head},
      {"patch_sizes", &config.patch_sizes}, {"strides", &config.strides},           {"sr_ratios", &config.sr_ratios},
      {"mlp_ratios", &config.mlp_ratios}};
  for (const auto& [name, list] : lists) {
    if (list->size() != n || n == 0)
      throw Error(absl::StrCat("Segformer: ", name, " needs an entry for each of the ", n, " stages of depths, got ",
                               list->size()));
    for (const int64_t value : *list)
      if (value < 1) throw Error(absl::StrCat("Segformer: ", name, " must be positive, got ", value));
  }
  for (size_t i = 0; i < n; ++i)
    if (config.hidden_sizes[i] % config.n_head[i] != 0)
      throw Error(absl::StrCat("Segformer: n_head must divide hidden_sizes, got ", config.n_head[i], " and ",
                               config.hidden_sizes[i], " in stage ", i));
  if (config.num_classes < 1 || config.decoder_hidden_size < 1 || config.in_channels < 1)
    throw Error(absl::StrCat("Segformer: num_classes, decoder_hidden_size and in_channels must be positive, got ",
                             config.num_classes, ", ", config.decoder_hidden_size, " and ", config.in_channels));
  return config;
}

}  // namespace

SegformerPatchEmbed::SegformerPatchEmbed(const SegformerConfig& config, size_t stage)
    : proj(child("proj", stage == 0 ? config.in_channels : config.hidden_sizes[stage - 1], config.hidden_sizes[stage],
                 config.patch_sizes[stage],
                 Conv2dOptions{.stride = config.strides[stage], .padding = config.patch_sizes[stage] / 2})),
      layer_norm(child("layer_norm", config.hidden_sizes[stage])) {}
Tensor SegformerPatchEmbed::forward(const Tensor& x) { return layer_norm(channels_last(proj(x))); }

SegformerSelfAttention::SegformerSelfAttention(const SegformerConfig& config, size_t stage)
    : n_head(config.n_head[stage]),
      attention_dropout(config.attention_dropout),
      query(child("query", config.hidden_sizes[stage], config.hidden_sizes[stage])),
      key(child("key", config.hidden_sizes[stage], config.hidden_sizes[stage])),
      value(child("value", config.hidden_sizes[stage], config.hidden_sizes[stage])) {
  const int64_t C = config.hidden_sizes[stage], ratio = config.sr_ratios[stage];
  if (ratio == 1) return;
  sr = child("sr", C, C, ratio, Conv2dOptions{.stride = ratio}).make<Conv2d>();
  layer_norm = child("layer_norm", C).make<LayerNorm>();
}
Tensor SegformerSelfAttention::forward(const Tensor& x) {
  const int64_t B = x.size(0), C = x.size(3);
  const Tensor small = sr ? (*layer_norm)(channels_last((*sr)(channels_first(x)))) : x;  // (B, h, w, C)
  const auto heads = [&](const Tensor& t) {                                              // (B, n_head, T, D)
    return t.reshape({B, t.size(1) * t.size(2), n_head, C / n_head}).transpose(1, 2);
  };
  const Tensor y = ops::scaled_dot_product_attention(heads(query(x)), heads(key(small)), heads(value(small)), {},
                                                     {.dropout = is_training() ? attention_dropout : 0});
  return y.transpose(1, 2).reshape(x.sizes());
}

SegformerSelfOutput::SegformerSelfOutput(const SegformerConfig& config, size_t stage)
    : dense(child("dense", config.hidden_sizes[stage], config.hidden_sizes[stage])),
      dropout(child("dropout", config.dropout)) {}

SegformerAttention::SegformerAttention(const SegformerConfig& config, size_t stage)
    : self(child("self", config, stage)), output(child("output", config, stage)) {}

SegformerDWConv::SegformerDWConv(int64_t channels)
    : dwconv(child("dwconv", channels, channels, 3, Conv2dOptions{.padding = 1, .groups = channels})) {}
Tensor SegformerDWConv::forward(const Tensor& x) { return channels_last(dwconv(channels_first(x))); }

SegformerMixFFN::SegformerMixFFN(const SegformerConfig& config, size_t stage)
    : gelu(config.gelu),
      dense1(child("dense1", config.hidden_sizes[stage], config.hidden_sizes[stage] * config.mlp_ratios[stage])),
      dwconv(child("dwconv", config.hidden_sizes[stage] * config.mlp_ratios[stage])),
      dense2(child("dense2", config.hidden_sizes[stage] * config.mlp_ratios[stage], config.hidden_sizes[stage])),
      dropout(child("dropout", config.dropout)) {}

SegformerLayer::SegformerLayer(const SegformerConfig& config, size_t stage, double drop_path)
    : layer_norm_1(child("layer_norm_1", config.hidden_sizes[stage])),
      attention(child("attention", config, stage)),
      drop_path(child("drop_path", drop_path)),
      layer_norm_2(child("layer_norm_2", config.hidden_sizes[stage])),
      mlp(child("mlp", config, stage)) {}
Tensor SegformerLayer::forward(const Tensor& x_) {
  const Tensor x = x_ + drop_path(attention(layer_norm_1(x_)));
  return x + drop_path(mlp(layer_norm_2(x)));
}

SegformerEncoder::SegformerEncoder(const SegformerConfig& config)
    : patch_embeddings(child("patch_embeddings")), block(child("block")), layer_norm(child("layer_norm")) {
  const int64_t blocks = std::accumulate(config.depths.begin(), config.depths.end(), int64_t{0});
  int64_t number = 0;
  for (size_t stage = 0; stage < config.depths.size(); ++stage) {
    patch_embeddings.emplace_back(config, stage);
    ModuleList<SegformerLayer>& layers = block.emplace_back();
    for (int64_t i = 0; i < config.depths[stage]; ++i, ++number)
      layers.emplace_back(
          config, stage,
          config.drop_path * static_cast<double>(number) / static_cast<double>(std::max<int64_t>(blocks - 1, 1)));
    layer_norm.emplace_back(config.hidden_sizes[stage]);
  }
}
std::vector<Tensor> SegformerEncoder::forward(const Tensor& images) {
  std::vector<Tensor> features;
  for (int64_t stage = 0; stage < block.size(); ++stage) {
    Tensor x = patch_embeddings[stage](stage == 0 ? images : channels_first(features.back()));
    for (SegformerLayer& layer : block[stage]) x = layer(x);
    features.push_back(layer_norm[stage](x));
  }
  return features;
}

SegformerModel::SegformerModel(const SegformerConfig& config) : encoder(child("encoder", config)) {}

SegformerProjection::SegformerProjection(const SegformerConfig& config, size_t stage)
    : proj(child("proj", config.hidden_sizes[stage], config.decoder_hidden_size)) {}

SegformerDecodeHead::SegformerDecodeHead(const SegformerConfig& config)
    : linear_c(child("linear_c")),
      linear_fuse(child("linear_fuse", config.decoder_hidden_size * static_cast<int64_t>(config.depths.size()),
                        config.decoder_hidden_size, 1, Conv2dOptions{.bias = false})),
      batch_norm(child("batch_norm", config.decoder_hidden_size)),
      dropout(child("dropout", config.classifier_dropout)),
      classifier(child("classifier", config.decoder_hidden_size, config.num_classes, 1)) {
  for (size_t stage = 0; stage < config.depths.size(); ++stage) linear_c.emplace_back(config, stage);
}
Tensor SegformerDecodeHead::forward(const Tensor& first, const std::vector<Tensor>& features) {
  const ops::Spatial<2> size = {first.size(1), first.size(2)};
  std::vector<Tensor> parts;  // (B, decoder_hidden_size, h, w) each, the last stage's first
  for (int64_t stage = linear_c.size(); stage-- > 0;) {
    const Tensor part = channels_first(linear_c[stage](features[static_cast<size_t>(stage)]));
    const bool has_size = part.size(2) == size[0] && part.size(3) == size[1];
    parts.push_back(has_size ? part : ops::interpolate(part, size, {.mode = ops::InterpolateMode::kBilinear}));
  }
  return classifier(dropout(ops::relu(batch_norm(linear_fuse(ops::cat(parts, 1))))));
}

SegformerForSemanticSegmentation::SegformerForSemanticSegmentation(SegformerConfig given, uint64_t seed)
    : config(checked_segformer(given)),
      segformer(child("segformer", config)),
      decode_head(child("decode_head", config)) {
  init_normal(*this, seed);
}
Tensor SegformerForSemanticSegmentation::forward(const Tensor& images) {
  const Dims& s = images.sizes();
  if (s.rank() != 4 || s[1] != config.in_channels)
    throw_op_error("Segformer", absl::StrCat("images must be (B, ", config.in_channels, ", H, W), got ", to_string(s)),
                   std::source_location::current());
  const std::vector<Tensor> features = segformer(images);
  return decode_head(features.front(), features);
}
Tensor SegformerForSemanticSegmentation::loss(const Tensor& images, const Tensor& targets, std::source_location where) {
  return segmentation_loss({(*this)({images, where}), where}, targets, config.ignore_index);
}

}  // namespace rondo::nn
