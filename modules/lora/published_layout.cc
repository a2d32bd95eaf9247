#include "rondo/modules/lora/published_layout.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/modules/transformers/bert_names.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/modules/transformers/vision_encoder_decoder.h"

namespace rondo::nn {
namespace {

// Returns a module of ViT as Transformers 5 names it. Query, key and value are three modules in Transformers.
std::vector<PublishedPart> vit_parts(const ModuleBase& model, const std::string& path) {
  constexpr std::pair<std::string_view, std::string_view> kOutside[] = {
      {"patch_embed.proj", "vit.embeddings.patch_embeddings.projection"},
      {"patch_embed", "vit.embeddings.patch_embeddings"},
      {"pos_drop", "vit.embeddings.dropout"},
      {"blocks", "vit.layers"},
      {"norm", "vit.layernorm"},
      {"head", "classifier"}};
  for (const auto& [ours, theirs] : kOutside)
    if (path == ours) return {{std::string(theirs)}};
  constexpr std::string_view kBlocks = "blocks.";
  if (!path.starts_with(kBlocks)) return {{path}};
  const size_t dot = path.find('.', kBlocks.size());
  const std::string block = "vit.layers." + path.substr(kBlocks.size(), dot - kBlocks.size());
  if (dot == path.npos) return {{block}};
  const std::string inner = path.substr(dot + 1);
  if (inner == "attn.qkv") {
    const int64_t C = dynamic_cast<const ViT&>(model).config.n_embd;
    return {{block + ".attention.q_proj", 0, C},
            {block + ".attention.k_proj", C, C},
            {block + ".attention.v_proj", 2 * C, C}};
  }
  constexpr std::pair<std::string_view, std::string_view> kInside[] = {{"attn", "attention"},
                                                                       {"attn.proj", "attention.o_proj"},
                                                                       {"norm1", "layernorm_before"},
                                                                       {"norm2", "layernorm_after"}};
  for (const auto& [ours, theirs] : kInside)
    if (inner == ours) return {{absl::StrCat(block, ".", std::string(theirs))}};
  return {{absl::StrCat(block, ".", inner)}};
}

// Returns a module of VisionEncoderDecoder as Transformers names it: the encoder is a ViTModel, whose paths have no
// "vit.", and the decoder a GPT2LMHeadModel, whose paths begin with "transformer.".
std::vector<PublishedPart> captioner_parts(const ModuleBase& model, const std::string& path) {
  constexpr std::string_view kEncoder = "encoder.", kDecoder = "decoder.", kViT = "vit.";
  if (path.starts_with(kDecoder)) return {{"decoder.transformer." + path.substr(kDecoder.size())}};
  if (!path.starts_with(kEncoder)) return {{path}};
  std::vector<PublishedPart> parts = vit_parts(dynamic_cast<const VisionEncoderDecoder&>(model).encoder,
                                               path.substr(kEncoder.size()));
  for (PublishedPart& part : parts)
    part.path = absl::StrCat("encoder.", part.path.substr(part.path.starts_with(kViT) ? kViT.size() : 0));
  return parts;
}

std::vector<PublishedPart> bert_parts(const ModuleBase& model, const std::string& path) {
  return {{published_bert_name(*bert_config(model), path)}};
}

}  // namespace

std::vector<PublishedPart> published_parts(const PublishedLayout& layout, const ModuleBase& model,
                                           const std::string& path) {
  if (layout.parts != nullptr) return layout.parts(model, path);
  for (const std::string& first : layout.without)
    if (path == first || path.starts_with(first + ".")) return {{path}};
  return {{layout.prefix + path}};
}

PublishedLayout published_layout(const ModuleBase& model) {
  if (dynamic_cast<const GPT2*>(&model) != nullptr) return {"transformer.", {}, /*conv1d=*/"", "CAUSAL_LM", "wte"};
  if (dynamic_cast<const Bert*>(&model) != nullptr) return {.prefix = "bert.", .without = {"classifier"}};
  if (dynamic_cast<const Llama*>(&model) != nullptr) return {.prefix = "", .without = {}, .task_type = "CAUSAL_LM"};
  if (dynamic_cast<const VisionEncoderDecoder*>(&model) != nullptr)
    return {.prefix = "",
            .without = {},
            .conv1d = "decoder.",
            .embedding_is_output = "decoder.wte",
            .parts = &captioner_parts};
  if (dynamic_cast<const ViT*>(&model) != nullptr) return {.prefix = "vit.", .without = {}, .parts = &vit_parts};
  const BertConfig* bert = bert_config(model);
  if (bert != nullptr && (bert->distilbert || dynamic_cast<const BertForMaskedLM*>(&model) != nullptr))
    return {.prefix = "", .without = {}, .parts = &bert_parts};
  return {};
}

}  // namespace rondo::nn
