// config.json and names of vision-encoder-decoder, which contain those of an encoder and of a decoder.
#include "rondo/modules/transformers/vision_encoder_decoder.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/modules/pretrained/end_tokens.h"
#include "rondo/modules/pretrained/published.h"

namespace rondo::nn {

extern const Family kGPT2Family, kViTFamily;

static std::unique_ptr<ModuleBase> make_vision_encoder_decoder(ConfigFields& config, Task task,
                                                               const PretrainedOptions& options) {
  if (task != Task::kImageTextToText) return nullptr;
  VisionEncoderDecoderConfig c;
  const auto inner = [&](const char* name, const char* family) {
    std::unique_ptr<ConfigFields> fields = config.model(name);
    if (fields != nullptr && fields->word("model_type", "") != family) {
      fields->unsupported("model_type");
      fields = nullptr;
    }
    return fields;
  };
  if (const auto encoder = inner("encoder", "vit")) {
    c.encoder = read_vit(*encoder, options);
    encoder->harmless({"id2label", "num_labels", "problem_type"});  // fields of a head
    encoder->note_unknown();
  }
  if (const auto decoder = inner("decoder", "gpt2")) {
    c.decoder = read_gpt2(*decoder, options);
    for (const char* name : {"is_decoder", "add_cross_attention"})
      if (!decoder->flag(name, false)) decoder->unsupported(name);
    decoder->note_unknown();
  }
  config.must_be("is_encoder_decoder", "true");
  const auto token = [&](const char* name) { return config.count(name, c.decoder.vocab_size - 1); };
  const std::string folder = std::filesystem::path(config.path()).parent_path().string();
  const char* const start_name = config.has("decoder_start_token_id") ? "decoder_start_token_id" : "bos_token_id";
  std::optional<int64_t> start = token(start_name);
  // In transformers, training reads config.json and generate() reads generation_config.json. Here both must agree.
  if (const std::optional<int64_t> other = generation_start(folder); other) {
    if (!start) start = *other;
    if (*start != *other)
      config.invalid(start_name, absl::StrCat("decoder_start_token_id of generation_config.json, ", *other));
  }
  if (!start) config.missing("decoder_start_token_id");
  if (start && *start >= c.decoder.vocab_size)
    config.invalid("decoder_start_token_id", absl::StrCat("below the decoder's vocab_size, ", c.decoder.vocab_size));
  const std::optional<int64_t> padding = token("pad_token_id");
  if (!padding) config.missing("pad_token_id");
  config.check(options.allow_unknown_fields);
  c.decoder_start_token_id = *start;
  c.pad_token_id = *padding;
  c.eos_token_ids = end_tokens(folder, nullptr);
  const SkipInit skip(SkipInit::Memory::kNone);
  return std::make_unique<VisionEncoderDecoder>(c);
}

static bool describe_vision_encoder_decoder(ModuleBase& module, Published& out) {
  auto* model = dynamic_cast<VisionEncoderDecoder*>(&module);
  if (model == nullptr) return false;
  const VisionEncoderDecoderConfig& c = model->config;
  out.model_type = "vision-encoder-decoder";
  out.architecture = "VisionEncoderDecoderModel";
  Published encoder, decoder;
  kViTFamily.describe(model->encoder.current(), encoder);
  kGPT2Family.describe(model->decoder.current(), decoder);
  if (!model->decoder.current().config.bias) out.why_unpublished = decoder.why_unpublished;
  for (PublishedTensor& tensor : encoder.tensors) {
    tensor.file_name = "encoder." + tensor.file_name.substr(encoder.prefix.size());
    tensor.name = "encoder." + tensor.name;
    out.tensors.push_back(std::move(tensor));
  }
  for (PublishedTensor& tensor : decoder.tensors) {
    tensor.file_name = "decoder." + tensor.file_name;
    tensor.name = "decoder." + tensor.name;
    out.tensors.push_back(std::move(tensor));
  }
  for (const char* leaf : {"weight", "bias"}) {
    out.tensors.push_back({absl::StrCat("encoder.pooler.dense.", leaf), absl::StrCat("pooler_", leaf)});
    const std::string projection = absl::StrCat("enc_to_dec_proj.", leaf);
    if (model->enc_to_dec_proj != nullptr) out.tensors.push_back({projection, projection});
  }
  for (const auto& [name, tied_to] : decoder.aliases) out.aliases["decoder." + name] = "decoder." + tied_to;
  out.computed = decoder.computed;
  const auto object = [](const Published& of) {
    std::vector<ConfigField> fields = of.config;
    fields.push_back({"model_type", json_text(of.model_type)});
    return json_object(fields, "  ");
  };
  std::string end = "null";
  if (c.eos_token_ids.size() == 1) end = json_text(c.eos_token_ids[0]);
  else if (!c.eos_token_ids.empty()) end = absl::StrCat("[", absl::StrJoin(c.eos_token_ids, ", "), "]");
  decoder.config.insert(decoder.config.end(), {{"add_cross_attention", "true"},
                                               {"is_decoder", "true"},
                                               // Without this field, transformers takes GPT-2's default, 50256.
                                               {"bos_token_id", json_text(c.decoder_start_token_id)},
                                               {"eos_token_id", end}});
  out.generation = {{"decoder_start_token_id", json_text(c.decoder_start_token_id)},
                    {"pad_token_id", json_text(c.pad_token_id)}};
  if (!c.eos_token_ids.empty()) out.generation.push_back({"eos_token_id", end});
  out.config = out.generation;
  out.config.insert(out.config.end(), {{"decoder", object(decoder)},
                                       {"encoder", object(encoder)},
                                       {"is_encoder_decoder", "true"},
                                       {"tie_word_embeddings", "false"}});
  return true;
}

extern constexpr Family kVisionEncoderDecoderFamily = {
    .model_types = {"vision-encoder-decoder"},
    .classes = {"VisionEncoderDecoder"},
    .make = &make_vision_encoder_decoder,
    .describe = &describe_vision_encoder_decoder,
    .caption = {.logits =
                    [](ModuleBase& model, TensorArg images, const Tensor& idx, const Tensor& mask) {
                      auto& m = dynamic_cast<VisionEncoderDecoder&>(model);
                      return mask.defined() ? m(images, idx, mask) : m(images, idx);
                    },
                .loss =
                    [](ModuleBase& model, const Tensor& images, const Tensor& labels, std::source_location where) {
                      return dynamic_cast<VisionEncoderDecoder&>(model).loss(images, labels, where);
                    }},
};

}  // namespace rondo::nn
