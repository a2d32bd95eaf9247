// config.json and names of ViT. Hugging Face stores query, key and value as three weights; ours are rows of one.
#include "rondo/modules/transformers/vit.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/modules/pretrained/published.h"

namespace rondo::nn {

ViTConfig read_vit(ConfigFields& config, const PretrainedOptions& options) {
  ViTConfig c;
  c.image_size = config.side("image_size", 224);
  c.patch_size = config.side("patch_size", 16);
  c.in_channels = config.size("num_channels", 3);
  c.n_layer = config.size("num_hidden_layers", {}, kMostLayers);
  c.n_head = config.size("num_attention_heads");
  c.n_embd = config.size("hidden_size");
  c.n_hidden = config.size("intermediate_size");
  c.dropout = read_dropout(config, "hidden_dropout_prob", 0.0, options);
  c.attention_dropout = read_dropout(config, "attention_probs_dropout_prob", 0.0, options);
  c.norm_eps = config.positive("layer_norm_eps", 1e-12);
  c.qkv_bias = config.flag("qkv_bias", true);
  c.gelu = read_gelu(config, "hidden_act", "gelu");
  c.num_classes = 0;
  if (c.n_embd % c.n_head != 0) config.invalid("num_attention_heads", "a divisor of hidden_size");
  if (c.image_size % c.patch_size != 0) config.invalid("patch_size", "a divisor of image_size");
  return c;
}

static std::unique_ptr<ModuleBase> make_vit(ConfigFields& config, Task task, const PretrainedOptions& options) {
  if (task != Task::kImageClassification) return nullptr;
  ViTConfig c = read_vit(config, options);
  c.num_classes = read_labels(config, options);
  c.problem_type = read_problem_type(config, c.num_classes, options);
  config.check(options.allow_unknown_fields);
  const SkipInit skip(SkipInit::Memory::kNone);
  return std::make_unique<ViT>(c);
}

namespace {

// Each pair is our name of a part, and Hugging Face's name.
constexpr std::pair<const char*, const char*> kModelParts[] = {
    {"cls_token", "vit.embeddings.cls_token"},
    {"pos_embed", "vit.embeddings.position_embeddings"},
    {"patch_embed.proj.weight", "vit.embeddings.patch_embeddings.projection.weight"},
    {"patch_embed.proj.bias", "vit.embeddings.patch_embeddings.projection.bias"},
    {"norm.weight", "vit.layernorm.weight"},
    {"norm.bias", "vit.layernorm.bias"},
    {"head.weight", "classifier.weight"},
    {"head.bias", "classifier.bias"}};
constexpr std::pair<const char*, const char*> kBlockParts[] = {{"norm1", "layernorm_before"},
                                                               {"attn.proj", "attention.output.dense"},
                                                               {"norm2", "layernorm_after"},
                                                               {"mlp.fc1", "intermediate.dense"},
                                                               {"mlp.fc2", "output.dense"}};

}  // namespace

static bool describe_vit(ModuleBase& module, Published& out) {
  auto* model = dynamic_cast<ViT*>(&module);
  if (model == nullptr) return false;
  const ViTConfig& c = model->config;
  out.model_type = "vit";
  out.architecture = "ViTForImageClassification";
  out.prefix = "vit.";
  if (c.num_classes == 0)
    out.why_unpublished = "no classifier (num_classes = 0), which vit has only as an encoder of others";
  for (const auto& [ours, theirs] : kModelParts)
    if (c.num_classes > 0 || !std::string_view(ours).starts_with("head.")) out.tensors.push_back({theirs, ours});
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const std::string ours = absl::StrCat("blocks.", i, "."), theirs = absl::StrCat("vit.encoder.layer.", i, ".");
    for (const char* leaf : {".weight", ".bias"}) {
      for (const auto& [our_part, their_part] : kBlockParts)
        out.tensors.push_back({theirs + their_part + leaf, ours + our_part + leaf});
      if (leaf == std::string_view(".bias") && !c.qkv_bias) continue;
      int64_t row = 0;
      for (const char* part : {"query", "key", "value"}) {
        out.tensors.push_back({.file_name = theirs + "attention.attention." + part + leaf,
                               .name = ours + "attn.qkv" + leaf,
                               .row = row,
                               .rows = c.n_embd});
        row += c.n_embd;
      }
    }
  }
  const int64_t hidden = c.n_hidden > 0 ? c.n_hidden : 4 * c.n_embd;
  out.config = {{"attention_probs_dropout_prob", json_text(c.attention_dropout)},
                {"hidden_act", json_text(gelu_name(c.gelu))},
                {"hidden_dropout_prob", json_text(c.dropout)},
                {"hidden_size", json_text(c.n_embd)},
                {"image_size", json_text(c.image_size)},
                {"intermediate_size", json_text(hidden)},
                {"layer_norm_eps", json_text(c.norm_eps)},
                {"num_attention_heads", json_text(c.n_head)},
                {"num_channels", json_text(c.in_channels)},
                {"num_hidden_layers", json_text(c.n_layer)},
                {"patch_size", json_text(c.patch_size)},
                {"qkv_bias", json_text(c.qkv_bias)}};
  if (c.num_classes > 0)
    for (ConfigField& field : label_fields(c.num_classes)) out.config.push_back(std::move(field));
  if (c.problem_type) out.config.push_back({"problem_type", json_text(name_of(*c.problem_type))});
  return true;
}

extern constexpr Family kViTFamily = {
    .model_types = {"vit"},
    .classes = {"ViT"},
    .make = &make_vit,
    .describe = &describe_vit,
    .image = {
        .logits = [](ModuleBase& model, TensorArg images) { return dynamic_cast<ViT&>(model)(images); },
        .loss = [](ModuleBase& model, const Tensor& images, const Tensor& targets,
                   std::source_location where) { return dynamic_cast<ViT&>(model).loss(images, targets, where); }},
};

}  // namespace rondo::nn
