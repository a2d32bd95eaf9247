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

// The pixels of one example, f32 (C, H, W), contiguous and in host memory. Called from several threads.
using PixelsOf = std::function<Tensor(int64_t example)>;

struct CaptionBatchesOptions {
  data::ExampleBatchesOptions order = {};
  // How each picture is seen, drawn by (seed, epoch, example): scaled by 1 +- zoom, as far from its middle as then
  // shows all of it, or nothing beside it, and moved by up to `shift` pixels more. What comes in repeats the edge.
  double zoom = 0;
  int64_t shift = 0;
};

class CaptionBatches : public data::BatchSource {
 public:
  // captions: as an ExampleSet of a language model, start token first.
  CaptionBatches(std::shared_ptr<const data::ExampleSet> captions, PixelsOf pixels, CaptionBatchesOptions options)
      : order_(std::move(captions), options.order), pixels_(std::move(pixels)), options_(std::move(options)) {}

  std::optional<data::Batch> next() override;
  Position position() const override { return order_.position(); }
  void seek(Position position) override { order_.seek(position); }
  int64_t size() const override { return order_.size(); }
  Rows rows() const override { return order_.rows(); }
  bool cut_from(int64_t rows) override { return order_.cut_from(rows); }
  uint64_t fingerprint() const override { return order_.fingerprint(); }

  // What T is in some batch.
  const std::vector<int64_t>& sizes() const { return order_.sizes(); }
  double padding_share() const { return order_.padding_share(); }
  const data::ExampleSet& captions() const { return order_.examples(); }
  // The examples of the batch that next() returned last.
  std::span<const int64_t> examples() const { return order_.batch_examples(); }

 private:
  data::ExampleBatches order_;
  const PixelsOf pixels_;
  const CaptionBatchesOptions options_;
};

// The captions as tokens: `start`, the caption, `end`. Throws DataError, with its line, for a caption of more than
// max_length tokens with its end, and for one that the tokenizer cannot express.
std::shared_ptr<const data::ExampleSet> encoded(const CaptionedPictures& pictures,
                                                const text::PreTrainedTokenizer& words, int64_t start, int64_t end,
                                                int64_t max_length);

// Pictures as the processor makes them. They stay in memory while all of them have at most `keep_bytes`.
PixelsOf processed(std::shared_ptr<const CaptionedPictures> pictures, const nn::ImageProcessor& processor,
                   int64_t keep_bytes = int64_t{1} << 30);

// The published study's random data: pictures of noise, and captions of random tokens whose lengths are uniform in
// 5..31 with weight 0.9, in 33..63 with 0.09 and in 65..255 with 0.01, times max_length / 256. Tokens are from 3 to
// vocab_size - 1, the last of a caption is its end.
std::shared_ptr<const data::ExampleSet> random_captions(int64_t count, int64_t max_length, int64_t vocab_size,
                                                        int64_t start, int64_t end, uint64_t seed);
PixelsOf random_pixels(int64_t channels, int64_t side, uint64_t seed);
// The same pictures as numbers: each is a slice of one field of noise, `numel` values from where it starts.
struct RandomPixels {
  static constexpr int64_t kStarts = 1 << 12;
  RandomPixels(int64_t numel, uint64_t seed);
  int64_t start(int64_t example) const;

  uint64_t seed;
  Tensor field;  // f32 (numel + kStarts)
};

}  // namespace rondo::examples
