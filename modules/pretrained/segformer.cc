// config.json and names of SegFormer, which are those of the module.
#include "rondo/modules/vision/segformer.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/modules/pretrained/published.h"

namespace rondo::nn {

static std::unique_ptr<ModuleBase> make_segformer(ConfigFields& config, Task task, const PretrainedOptions& options) {
  if (task != Task::kSegmentation) return nullptr;
  SegformerConfig c;
  constexpr int64_t kMostStages = 16;
  const auto n = static_cast<size_t>(config.size("num_encoder_blocks", 4, kMostStages));
  c.in_channels = config.size("num_channels", 3);
  c.depths = config.sizes("depths", c.depths, n, kMostLayers / kMostStages);
  c.hidden_sizes = config.sizes("hidden_sizes", c.hidden_sizes, n);
  c.n_head = config.sizes("num_attention_heads", c.n_head, n);
  c.patch_sizes = config.sizes("patch_sizes", c.patch_sizes, n);
  c.strides = config.sizes("strides", c.strides, n);
  c.sr_ratios = config.sizes("sr_ratios", c.sr_ratios, n);
  c.mlp_ratios = config.sizes("mlp_ratios", c.mlp_ratios, n);
  c.decoder_hidden_size = config.size("decoder_hidden_size", 256);
  c.dropout = read_dropout(config, "hidden_dropout_prob", 0.0, options);
  c.attention_dropout = read_dropout(config, "attention_probs_dropout_prob", 0.0, options);
  c.classifier_dropout = read_dropout(config, "classifier_dropout_prob", 0.1, options);
  c.drop_path = read_dropout(config, "drop_path_rate", 0.1, options);
  c.gelu = read_gelu(config, "hidden_act", "gelu");
  c.num_classes = read_labels(config, options);
  const std::optional<int64_t> ignored = config.count("semantic_loss_ignore_index");
  c.ignore_index = ignored.value_or(kIgnoredClass);
  for (size_t i = 0; i < n; ++i)
    if (c.hidden_sizes[i] % c.n_head[i] != 0) {
      config.invalid("num_attention_heads", "divisors of hidden_sizes");
      break;
    }
  config.check(options.allow_unknown_fields);
  const SkipInit skip(SkipInit::Memory::kNone);
  return std::make_unique<SegformerForSemanticSegmentation>(c);
}

static bool describe_segformer(ModuleBase& module, Published& out) {
  auto* model = dynamic_cast<SegformerForSemanticSegmentation*>(&module);
  if (model == nullptr) return false;
  const SegformerConfig& c = model->config;
  out.model_type = "segformer";
  out.architecture = "SegformerForSemanticSegmentation";
  out.tensors = same_names(module);
  const auto list = [](const std::vector<int64_t>& values) {
    return absl::StrCat("[", absl::StrJoin(values, ", "), "]");
  };
  out.config = {{"attention_probs_dropout_prob", json_text(c.attention_dropout)},
                {"classifier_dropout_prob", json_text(c.classifier_dropout)},
                {"decoder_hidden_size", json_text(c.decoder_hidden_size)},
                {"depths", list(c.depths)},
                {"drop_path_rate", json_text(c.drop_path)},
                {"hidden_act", json_text(gelu_name(c.gelu))},
                {"hidden_dropout_prob", json_text(c.dropout)},
                {"hidden_sizes", list(c.hidden_sizes)},
                {"mlp_ratios", list(c.mlp_ratios)},
                {"num_attention_heads", list(c.n_head)},
                {"num_channels", json_text(c.in_channels)},
                {"num_encoder_blocks", json_text(static_cast<int64_t>(c.depths.size()))},
                {"patch_sizes", list(c.patch_sizes)},
                {"semantic_loss_ignore_index", json_text(c.ignore_index)},
                {"sr_ratios", list(c.sr_ratios)},
                {"strides", list(c.strides)}};
  for (ConfigField& field : label_fields(c.num_classes)) out.config.push_back(std::move(field));
  return true;
}

extern constexpr Family kSegformerFamily = {
    .model_types = {"segformer"},
    .classes = {"SegformerForSemanticSegmentation"},
    .make = &make_segformer,
    .describe = &describe_segformer,
    .segmentation = {
        .logits = [](ModuleBase& model,
                     TensorArg images) { return dynamic_cast<SegformerForSemanticSegmentation&>(model)(images); },
        .loss =
            [](ModuleBase& model, const Tensor& images, const Tensor& targets, std::source_location where) {
              return dynamic_cast<SegformerForSemanticSegmentation&>(model).loss(images, targets, where);
            }},
};

}  // namespace rondo::nn
