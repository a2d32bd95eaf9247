// Batches {labels, pixels} of pictures and captions, in the order and with the padding of data::ExampleBatches.
//
//   CaptionBatches batches(captions, pixels, {.order = padded(options, {.batch_size = 16})});
//   while (auto batch = batches.next()) model.loss((*batch)[1], (*batch)[0]).backward();
//
// labels i64 (B, T): the caption's tokens, its end, and -100 behind it. pixels f32 (B, C, H, W).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "rondo/examples/image_captioning/captioned.h"
#include "rondo/modules/pretrained/image_processor.h"
#include "rondo/runtime/data/example_batches.h"
#include "rondo/runtime/text/tokenizer.h"

namespace rondo::examples {

// Returns the pixels of one example, f32 (C, H, W), contiguous and in host memory. Called from several threads.
using PixelsOf = std::function<Tensor(int64_t example)>;

struct CaptionBatchesOptions {
  data::ExampleBatchesOptions order = {};
  // Augmentation, a function of (seed, epoch, example). A picture is scaled by 1 +- zoom and moved: a larger picture so
  // that it still fills the frame, a smaller one so that it stays inside. Then it is moved by up to `shift` pixels
  // more. Pixels outside of the picture repeat its edge.
  double zoom = 0;
  int64_t shift = 0;
};

class CaptionBatches : public data::BatchSource {
 public:
  // captions: examples as for a language model, start token first.
  CaptionBatches(std::shared_ptr<const data::ExampleSet> captions, PixelsOf pixels, CaptionBatchesOptions options)
      : order_(std::move(captions), options.order), pixels_(std::move(pixels)), options_(std::move(options)) {}

  std::optional<data::Batch> next() override;
  Position position() const override { return order_.position(); }
  void seek(Position position) override { order_.seek(position); }
  int64_t size() const override { return order_.size(); }
  Rows rows() const override { return order_.rows(); }
  bool cut_from(int64_t rows) override { return order_.cut_from(rows); }
  uint64_t fingerprint() const override { return order_.fingerprint(); }

  // Returns the values that T has in the batches.
  const std::vector<int64_t>& sizes() const { return order_.sizes(); }
  double padding_share() const { return order_.padding_share(); }
  const data::ExampleSet& captions() const { return order_.examples(); }
  // Returns the indices of the examples of the batch that next() returned last.
  std::span<const int64_t> examples() const { return order_.batch_examples(); }

 private:
  data::ExampleBatches order_;
  const PixelsOf pixels_;
  const CaptionBatchesOptions options_;
};

// Returns the captions as tokens: `start`, the caption, `end`. Throws DataError, with the caption's line, if the
// caption and `end` together have more than max_length tokens, or if the tokenizer cannot encode the caption.
std::shared_ptr<const data::ExampleSet> encoded(const CaptionedPictures& pictures,
                                                const text::PreTrainedTokenizer& words, int64_t start, int64_t end,
                                                int64_t max_length);

// Returns a function that makes pictures with the processor. It keeps up to `keep_bytes` of them in memory.
PixelsOf processed(std::shared_ptr<const CaptionedPictures> pictures, const nn::ImageProcessor& processor,
                   int64_t keep_bytes = int64_t{1} << 30);

// Makes the published study's random data: pictures of noise, and captions of random tokens. The length of a caption is
// uniform in 5..31 with probability 0.9, in 33..63 with 0.09 and in 65..255 with 0.01, times max_length / 256. Tokens
// are from 3 to vocab_size - 1; the last token of a caption is `end`.
std::shared_ptr<const data::ExampleSet> random_captions(int64_t count, int64_t max_length, int64_t vocab_size,
                                                        int64_t start, int64_t end, uint64_t seed);
PixelsOf random_pixels(int64_t channels, int64_t side, uint64_t seed);
// The data of random_pixels(): picture i is the `numel` values from start(i) of one field of noise.
struct RandomPixels {
  static constexpr int64_t kStarts = 1 << 12;
  RandomPixels(int64_t numel, uint64_t seed);
  int64_t start(int64_t example) const;

  uint64_t seed;
  Tensor field;  // f32 (numel + kStarts)
};

}  // namespace rondo::examples
