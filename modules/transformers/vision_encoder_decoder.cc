#include "rondo/modules/transformers/vision_encoder_decoder.h"

#include "absl/strings/str_cat.h"
#include "rondo/modules/layers/init.h"
#include "rondo/modules/mode_scope.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/within_memory.h"

namespace rondo::nn {
namespace {

VisionEncoderDecoderConfig checked(VisionEncoderDecoderConfig config) {
  config.encoder.num_classes = 0;
  config.decoder.cross_attention = true;
  const auto check = [&](const char* name, int64_t token) {
    if (token < 0 || token >= config.decoder.vocab_size)
      throw Error(absl::StrCat("VisionEncoderDecoder: ", name, " must be a token of the decoder's ",
                               config.decoder.vocab_size, ", got ", token));
  };
  check("decoder_start_token_id", config.decoder_start_token_id);
  check("pad_token_id", config.pad_token_id);
  for (const int64_t token : config.eos_token_ids) check("an entry of eos_token_ids", token);
  return config;
}

}  // namespace

Tensor shift_tokens_right(const Tensor& labels, int64_t pad_token_id, int64_t decoder_start_token_id,
                          std::source_location where) {
  if (labels.rank() != 2 || !is_index(labels.dtype()) || labels.size(1) == 0)
    throw_op_error("shift_tokens_right",
                   absl::StrCat("labels must be i64 or i32 (B, T) with T > 0, got ",
                                std::string(name_of(labels.dtype())), to_string(labels.sizes())),
                   where);
  const Tensor parts[] = {Tensor::full({labels.size(0), 1}, decoder_start_token_id, {labels.dtype(), labels.device()}),
                          labels.slice(1, {0, labels.size(1) - 1})};
  const Tensor shifted = ops::cat(parts, 1);
  return ops::masked_fill(shifted, ops::equal(shifted, ops::CrossEntropyOptions().ignore_index), pad_token_id);
}

VisionEncoderDecoder::VisionEncoderDecoder(VisionEncoderDecoderConfig given, uint64_t seed, const SkipInit&)
    : config(checked(std::move(given))),
      encoder(child("encoder", config.encoder, seed)),
      enc_to_dec_proj(config.encoder.n_embd != config.decoder.n_embd
                          ? child("enc_to_dec_proj", config.encoder.n_embd, config.decoder.n_embd).make<Linear>()
                          : std::unique_ptr<Linear>()),
      decoder(child("decoder", config.decoder, seed + 1)),
      pooler_weight(buffer("pooler_weight", constant_parameter({config.encoder.n_embd, config.encoder.n_embd}, 0.0))),
      pooler_bias(buffer("pooler_bias", constant_parameter({config.encoder.n_embd}, 0.0))) {
  if (enc_to_dec_proj != nullptr) init_normal(*enc_to_dec_proj, seed + 2);
}

Tensor VisionEncoderDecoder::encode(TensorArg pixel_values) {
  const Tensor x = encoder(pixel_values);
  return enc_to_dec_proj == nullptr ? x : (*enc_to_dec_proj)(x);
}

Tensor VisionEncoderDecoder::forward(const Tensor& pixel_values, const Tensor& decoder_input_ids,
                                     const Tensor& decoder_attention_mask) {
  return decoder(decoder_input_ids, Tensor(), encode(pixel_values), decoder_attention_mask);
}

Tensor VisionEncoderDecoder::loss(const Tensor& pixel_values, const Tensor& labels, std::source_location where) {
  const Tensor idx = shift_tokens_right(labels, config.pad_token_id, config.decoder_start_token_id, where);
  const auto logits = [&] { return (*this)({pixel_values, where}, idx); };
  GPT2& writer = decoder.current();
  const auto below = [&] { return writer.features(idx, Tensor(), encode({pixel_values, where})); };
  // A hook on the decoder, like one on this model, runs only if the forward of its module is called.
  const ModuleBase& hooked = is_plain() ? static_cast<const ModuleBase&>(writer) : *this;
  return NextTokenLoss{hooked, writer.wte.weight, writer.config.whole_logits, logits, below}(idx, labels, where);
}

std::vector<Generation> VisionEncoderDecoder::generate(TensorArg pixel_values, GenerationOptions options) try {
  const NoGrad off;
  const ModeScope modes(*this);
  eval();
  options.encoded = encode(pixel_values);
  options.stop_tokens.insert(options.stop_tokens.end(), config.eos_token_ids.begin(), config.eos_token_ids.end());
  const std::vector<std::vector<int64_t>> starts(static_cast<size_t>(pixel_values.tensor.size(0)),
                                                 {config.decoder_start_token_id});
  return nn::generate(decoder.current(), starts, options);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("VisionEncoderDecoder::generate");
}

}  // namespace rondo::nn
