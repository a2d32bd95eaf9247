#include "rondo/modules/transformers/vit.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/modules/layers/init.h"
#include "rondo/runtime/autograd/autograd.h"

namespace rondo::nn {

PatchConv2d::PatchConv2d(int64_t in_channels, int64_t out_channels, int64_t patch_size)
    : patch_size(patch_size),
      weight(parameter("weight", constant_parameter({out_channels, in_channels, patch_size, patch_size}, 0.0))),
      bias(parameter("bias", constant_parameter({out_channels}, 0.0))) {}
Tensor PatchConv2d::forward(const Tensor& images) {
  return ops::conv2d(images, weight, bias, {.stride = {patch_size, patch_size}});
}

PatchEmbed::PatchEmbed(const ViTConfig& config)
    : proj(child("proj", config.in_channels, config.n_embd, config.patch_size)) {}
Tensor PatchEmbed::forward(const Tensor& images) { return proj(images).flatten(2).transpose(1, 2); }

ViTAttention::ViTAttention(const ViTConfig& config)
    : n_head(config.n_head),
      qkv(child("qkv", config.n_embd, 3 * config.n_embd, LinearOptions{.bias = config.qkv_bias})),
      attn_drop(child("attn_drop", config.attention_dropout)),
      proj(child("proj", config.n_embd, config.n_embd)),
      proj_drop(child("proj_drop", config.dropout)) {
  if (n_head <= 0 || config.n_embd % n_head != 0)
    throw Error(absl::StrCat("ViT: n_head must divide n_embd, got ", n_head, " and ", config.n_embd));
}
Tensor ViTAttention::forward(const Tensor& x) {
  const int64_t B = x.size(0), T = x.size(1), C = x.size(2);
  std::vector<Tensor> parts = ops::split(qkv(x), C, -1);                                    // 3 x (B, T, C)
  for (Tensor& part : parts) part = part.view({B, T, n_head, C / n_head}).transpose(1, 2);  // 3 x (B, H, T, D)
  const Tensor y = ops::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, {.dropout = attn_drop.rate()});
  return proj_drop(proj(y.transpose(1, 2).reshape({B, T, C})));
}

ViTMLP::ViTMLP(const ViTConfig& config)
    : gelu(config.gelu),
      fc1(child("fc1", config.n_embd, config.n_hidden > 0 ? config.n_hidden : 4 * config.n_embd)),
      fc2(child("fc2", config.n_hidden > 0 ? config.n_hidden : 4 * config.n_embd, config.n_embd)),
      drop(child("drop", config.dropout)) {}

ViTBlock::ViTBlock(const ViTConfig& config)
    : norm1(child("norm1", config.n_embd, LayerNormOptions{.eps = config.norm_eps})),
      attn(child("attn", config)),
      norm2(child("norm2", config.n_embd, LayerNormOptions{.eps = config.norm_eps})),
      mlp(child("mlp", config)) {}
Tensor ViTBlock::forward(const Tensor& x_) {
  const Tensor x = x_ + attn(norm1(x_));
  return x + mlp(norm2(x));
}

namespace {

int64_t count_patches(const ViTConfig& config) {
  if (config.patch_size <= 0 || config.image_size <= 0 || config.image_size % config.patch_size != 0)
    throw Error(
        absl::StrCat("ViT: patch_size must divide image_size, got ", config.patch_size, " and ", config.image_size));
  const int64_t side = config.image_size / config.patch_size;
  return side * side;
}

}  // namespace

ViT::ViT(ViTConfig config, uint64_t seed, const SkipInit&)
    : config(config),
      cls_token(parameter("cls_token", constant_parameter({1, 1, config.n_embd}, 0.0))),
      pos_embed(parameter("pos_embed", constant_parameter({1, count_patches(config) + 1, config.n_embd}, 0.0))),
      patch_embed(child("patch_embed", config)),
      pos_drop(child("pos_drop", config.dropout)),
      blocks(child("blocks", config.n_layer, config)),
      norm(child("norm", config.n_embd, LayerNormOptions{.eps = config.norm_eps})),
      head(config.num_classes > 0 ? child("head", config.n_embd, config.num_classes).make<Linear>()
                                  : std::unique_ptr<Linear>()) {
  init_normal(*this, seed);
}

Tensor ViT::features(const Tensor& images) {
  const Dims& s = images.sizes();
  if (s.rank() != 4 || s[1] != config.in_channels || s[2] != config.image_size || s[3] != config.image_size)
    throw_op_error("ViT",
                   absl::StrCat("images must be (B, ", config.in_channels, ", ", config.image_size, ", ",
                                config.image_size, "), got ", to_string(s)),
                   std::source_location::current());
  const Tensor parts[] = {cls_token.expand({s[0], 1, config.n_embd}), patch_embed(images)};
  Tensor x = pos_drop(ops::cat(parts, 1) + pos_embed);  // (B, patches + 1, C)
  for (ViTBlock& block : blocks) x = block(x);
  return norm(x);
}

Tensor ViT::forward(const Tensor& images) {
  const Tensor x = features(images);
  return head == nullptr ? x : (*head)(x.select(1, 0));
}

Tensor ViT::loss(const Tensor& images, const Tensor& targets, std::source_location where) {
  if (head == nullptr) throw_op_error("ViT", "has no loss without a classifier: num_classes is 0", where);
  return classification_loss({(*this)({images, where}), where}, targets, config.problem_type);
}

namespace {

// Hugging Face's name for a part of a block, and ours.
constexpr std::pair<std::string_view, std::string_view> kBlockParts[] = {{"attention.output.dense.", "attn.proj."},
                                                                         {"intermediate.dense.", "mlp.fc1."},
                                                                         {"output.dense.", "mlp.fc2."},
                                                                         {"layernorm_before.", "norm1."},
                                                                         {"layernorm_after.", "norm2."}};
constexpr std::pair<std::string_view, std::string_view> kModelParts[] = {
    {"vit.embeddings.cls_token", "cls_token"},
    {"vit.embeddings.position_embeddings", "pos_embed"},
    {"vit.embeddings.patch_embeddings.projection.", "patch_embed.proj."},
    {"vit.layernorm.", "norm."},
    {"classifier.", "head."}};

template <size_t N>
std::string replace_front(std::string_view name, const std::pair<std::string_view, std::string_view> (&parts)[N]) {
  for (const auto& [theirs, ours] : parts)
    if (name.starts_with(theirs)) return absl::StrCat(std::string(ours), std::string(name.substr(theirs.size())));
  return std::string(name);
}

}  // namespace

StateDict vit_from_hugging_face(const StateDict& published) {
  constexpr std::string_view kLayer = "vit.encoder.layer.";
  const std::string query = "attention.attention.query.";
  const NoGrad off;
  StateDict state;
  for (const auto& [name, tensor] : published) {
    if (!name.starts_with(kLayer)) {
      state[replace_front(name, kModelParts)] = tensor;
      continue;
    }
    const size_t dot = name.find('.', kLayer.size());
    if (dot == name.npos)
      throw Error(absl::StrCat("vit_from_hugging_face: the name ", name, " has no part after a layer"));
    const std::string layer = name.substr(0, dot + 1), rest = name.substr(dot + 1);
    const std::string block = absl::StrCat("blocks.", name.substr(kLayer.size(), dot + 1 - kLayer.size()));
    if (rest.starts_with("attention.attention.")) {
      const bool is_query = rest.starts_with(query);
      if (!is_query && published.contains(absl::StrCat(layer, query, rest.substr(rest.rfind('.') + 1))))
        continue;                                                 // joined with its query
      const std::string leaf = rest.substr(rest.rfind('.') + 1);  // weight or bias
      std::vector<Tensor> joined;
      for (const char* part : {"query.", "key.", "value."}) {
        const std::string wanted = absl::StrCat(layer, "attention.attention.", part, leaf);
        const auto found = published.find(wanted);
        if (found == published.end()) throw Error(absl::StrCat("vit_from_hugging_face: ", wanted, " is missing"));
        joined.push_back(found->second);
      }
      state[absl::StrCat(block, "attn.qkv.", leaf)] = ops::cat(joined, 0);
    } else {
      state[block + replace_front(rest, kBlockParts)] = tensor;
    }
  }
  return state;
}

}  // namespace rondo::nn
