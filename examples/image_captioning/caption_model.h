// The model of a run, which is newly made or read from a folder, and the model's tokenizer.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "rondo/examples/image_captioning/options.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/modules/pretrained/image_processor.h"
#include "rondo/modules/transformers/vision_encoder_decoder.h"
#include "rondo/runtime/text/tokenizer.h"

namespace rondo::examples {

class CaptionModel {
 public:
  // Makes a new model. `tokenizer` is null for random data, whose tokens 0, 1 and 2 are padding, start and end.
  CaptionModel(const CaptioningOptions& options, const text::PreTrainedTokenizer* tokenizer);
  // Reads a folder that save() or transformers has written. Throws what from_pretrained() throws.
  CaptionModel(const std::string& folder, const CaptioningOptions& options);

  nn::VisionEncoderDecoder& operator*() const { return *model_; }
  nn::VisionEncoderDecoder* operator->() const { return model_; }
  const nn::ImageProcessor& processor() const { return processor_; }
  // Returns the token that ends a caption. Throws Error if the config of a model that was read names no such token.
  int64_t end() const;
  // Writes config.json, model.safetensors, generation_config.json, preprocessor_config.json.
  void save(const std::string& folder) const;

 private:
  std::unique_ptr<nn::VisionEncoderDecoder> made_;
  std::optional<nn::AutoModelForImageTextToText> read_;
  nn::VisionEncoderDecoder* model_;
  nn::ImageProcessor processor_;
};

}  // namespace rondo::examples
