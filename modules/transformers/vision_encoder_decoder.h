// Text about images: a ViT encodes the image, and a GPT-2 that attends to it writes (Li et al., "TrOCR", 2021).
//
//   nn::VisionEncoderDecoder model({.encoder = {.image_size = 64, .n_layer = 4, .n_head = 3, .n_embd = 192},
//                                   .decoder = {.vocab_size = 1024, .n_layer = 4, .n_head = 3, .n_embd = 192},
//                                   .decoder_start_token_id = 1, .pad_token_id = 0, .eos_token_ids = {2}});
//   model.loss(images, captions).backward();                       // captions i64 (B, T): ..., 2, -100, -100
//   const auto texts = model.generate(images, {.temperature = 0});
//
// Children are `encoder`, `decoder` and, if their widths differ, `enc_to_dec_proj`, each with its own parameter names.
// pretrained/ reads and writes transformers' VisionEncoderDecoderModel.
#pragma once

#include <memory>
#include <vector>

#include "rondo/modules/generation/generation.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/vit.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

struct VisionEncoderDecoderConfig {
  ViTConfig encoder = {};                   // its classifier is left out: num_classes becomes 0
  GPT2Config decoder = {};                  // cross_attention becomes true
  int64_t decoder_start_token_id = 0;       // begins each text
  int64_t pad_token_id = 0;                 // what the decoder reads after the end of a text
  std::vector<int64_t> eos_token_ids = {};  // each ends a text that generate() writes
};

// Returns what the decoder reads to predict labels i64 or i32 (B, T): the labels moved one place to the right, with the
// start token first, and pad_token_id instead of -100.
Tensor shift_tokens_right(const Tensor& labels, int64_t pad_token_id, int64_t decoder_start_token_id,
                          std::source_location where = std::source_location::current());

struct VisionEncoderDecoder : Module<VisionEncoderDecoder> {
  // Weights start N(0, 0.02), as those of ViT and GPT2; the same for the same seed on any machine. Throws Error if a
  // token is not in the decoder's vocabulary.
  explicit VisionEncoderDecoder(VisionEncoderDecoderConfig config, uint64_t seed = 0,
                                const SkipInit& skip = SkipInit());

  VisionEncoderDecoderConfig config;
  ViT encoder;
  std::unique_ptr<Linear> enc_to_dec_proj;  // null if encoder and decoder have one width
  GPT2 decoder;
  // The pooler of transformers' ViT: (C, C) and (C), where C is the encoder's width. No text depends on the pooler. It
  // is kept in buffers, which are not trained, because files hold it.
  Tensor &pooler_weight, &pooler_bias;

  // pixel_values (B, channels, image_size, image_size), decoder_input_ids i64 (B, T) -> logits (B, T, V).
  // decoder_attention_mask bool (B, T), true = a real token: GPT2::forward.
  Tensor forward(const Tensor& pixel_values, const Tensor& decoder_input_ids,
                 const Tensor& decoder_attention_mask = {});
  // Returns what the decoder attends to: (B, patches + 1, width of the decoder).
  Tensor encode(TensorArg pixel_values);
  // Returns the mean cross-entropy in nats of labels i64 (B, T); -100 is ignored. Pass the labels without a shift:
  // loss() shifts them.
  Tensor loss(const Tensor& pixel_values, const Tensor& labels,
              std::source_location where = std::source_location::current());
  // Runs nn::generate() from the start token, and returns a text for each image. eos_token_ids end texts, beside
  // options.stop_tokens. The encoder runs once, in evaluation mode and without gradients.
  std::vector<Generation> generate(TensorArg pixel_values, GenerationOptions options = {});
};

}  // namespace rondo::nn
#pragma GCC visibility pop
