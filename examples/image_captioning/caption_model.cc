#include "rondo/examples/image_captioning/caption_model.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"

namespace rondo::examples {
namespace {

nn::VisionEncoderDecoderConfig config_of(const CaptioningOptions& o, const text::PreTrainedTokenizer* words) {
  return {.encoder = {.image_size = o.image_size,
                      .patch_size = o.patch_size,
                      .n_layer = o.n_layer,
                      .n_head = o.n_head,
                      .n_embd = o.n_embd,
                      .dropout = o.dropout},
          .decoder = {.vocab_size = words == nullptr ? o.vocab_size : words->vocab_size(),
                      .block_size = o.max_length,
                      .n_layer = o.n_layer,
                      .n_head = o.n_head,
                      .n_embd = o.n_embd,
                      .dropout = o.dropout},
          .decoder_start_token_id = words == nullptr ? 1 : words->token_to_id("[CLS]"),
          .pad_token_id = words == nullptr ? 0 : words->token_to_id("[PAD]"),
          .eos_token_ids = {words == nullptr ? 2 : words->token_to_id("[SEP]")}};
}

}  // namespace

CaptionModel::CaptionModel(const CaptioningOptions& o, const text::PreTrainedTokenizer* words)
    : made_(std::make_unique<nn::VisionEncoderDecoder>(config_of(o, words), static_cast<uint64_t>(o.seed))),
      model_(made_.get()),
      processor_({.size = {.height = o.image_size, .width = o.image_size}, .do_convert_rgb = true}) {}

CaptionModel::CaptionModel(const std::string& folder, const CaptioningOptions& o)
    : read_(nn::AutoModelForImageTextToText::from_pretrained(
          folder, {.dropout = o.dropout > 0 ? std::optional(o.dropout) : std::nullopt})),
      model_(&read_->vision_encoder_decoder()),
      processor_(nn::ImageProcessor::from_pretrained(folder)) {}

int64_t CaptionModel::end() const {
  if (model_->config.eos_token_ids.empty())
    throw Error("the model names no token that ends a text: give its config.json an eos_token_id");
  return model_->config.eos_token_ids[0];
}

void CaptionModel::save(const std::string& folder) const {
  if (read_) read_->save_pretrained(folder);
  else nn::save_pretrained(*made_, folder);
  processor_.save_pretrained(folder);
}

}  // namespace rondo::examples
