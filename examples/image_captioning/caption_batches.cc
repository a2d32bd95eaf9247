#include "rondo/examples/image_captioning/caption_batches.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "rondo/examples/segmentation/draws.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/random/random.h"

namespace rondo::examples {
namespace {

// For each output pixel along an edge of n pixels: the two source pixels around it, and its distance from the first.
struct Between {
  int64_t first, second;
  float weight;
};
std::vector<Between> seen_along(int64_t n, double scale, double offset) {
  std::vector<Between> out;
  for (int64_t i = 0; i < n; ++i) {
    const double half = 0.5 * static_cast<double>(n);
    const double at = std::clamp((static_cast<double>(i) + 0.5 - half) / scale + half - 0.5 + offset, 0.0,
                                 static_cast<double>(n - 1));
    const auto first = static_cast<int64_t>(at);
    out.push_back({first, std::min(first + 1, n - 1), static_cast<float>(at - static_cast<double>(first))});
  }
  return out;
}

void copy_seen(const float* from, int64_t channels, std::span<const Between> rows, std::span<const Between> columns,
               float* out) {
  const auto mixed = [](float a, float b, float weight) { return a + (b - a) * weight; };
  const int64_t H = std::ssize(rows), W = std::ssize(columns);
  for (int64_t c = 0; c < channels; ++c)
    for (const Between& y : rows) {
      const float *above = from + (c * H + y.first) * W, *below = from + (c * H + y.second) * W;
      for (const Between& x : columns)
        *out++ = mixed(mixed(above[x.first], above[x.second], x.weight),
                       mixed(below[x.first], below[x.second], x.weight), y.weight);
    }
}

}  // namespace

std::optional<data::Batch> CaptionBatches::next() {
  const auto epoch = static_cast<uint64_t>(order_.position().epoch);
  const auto batch = order_.next();
  if (!batch) return std::nullopt;
  const std::span<const int64_t> rows = order_.batch_examples();
  const Tensor first = pixels_(rows[0]);
  const int64_t n = first.numel(), H = first.size(1), W = first.size(2);
  Tensor pixels = Tensor::empty({std::ssize(rows), first.size(0), H, W}, {kF32, kCPU});
  float* const out = pixels.mutable_data<float>();
  parallel_for(std::ssize(rows), 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t row = rows[static_cast<size_t>(b)];
      const Tensor one = b == 0 ? first : pixels_(row);
      if (options_.shift == 0 && options_.zoom == 0) {
        std::memcpy(out + b * n, one.data<float>(), static_cast<size_t>(n) * sizeof(float));
        continue;
      }
      Draws draw(options_.order.seed ^ (epoch << 32), row);
      const auto moved = [&] { return static_cast<double>(draw.below(2 * options_.shift + 1) - options_.shift); };
      double top = moved(), left = moved(), scale = 1;
      if (options_.zoom > 0) {
        scale += draw(-options_.zoom, options_.zoom);
        const double room = 0.5 * std::abs(1 - 1 / scale);
        top += draw(-room, room) * static_cast<double>(H);
        left += draw(-room, room) * static_cast<double>(W);
      }
      copy_seen(one.data<float>(), first.size(0), seen_along(H, scale, top), seen_along(W, scale, left), out + b * n);
    }
  });
  return data::Batch{(*batch)[1], pixels};
}

std::shared_ptr<const data::ExampleSet> encoded(const CaptionedPictures& pictures,
                                                const text::PreTrainedTokenizer& words, int64_t start, int64_t end,
                                                int64_t max_length) {
  const auto set = std::make_shared<data::ExampleSet>();
  for (int64_t i = 0; i < pictures.size(); ++i) {
    const auto fail = [&](const std::string& why) {
      if (pictures.line(i) > 0) throw data::DataError(pictures.file(), pictures.line(i), why);
      throw Error(why);
    };
    data::Example example{.ids = {static_cast<int32_t>(start)}};
    try {
      const std::vector<int32_t> ids = words.encode(pictures.caption(i),
                                                    {.add_special_tokens = false, .split_special_tokens = true});
      example.ids.insert(example.ids.end(), ids.begin(), ids.end());
    } catch (const Error& error) {
      fail(error.what());
    }
    example.ids.push_back(static_cast<int32_t>(end));
    if (std::ssize(example.ids) - 1 > max_length)
      fail(absl::StrCat("the caption has ", std::ssize(example.ids) - 1, " tokens with its end; at most ", max_length,
                        " are allowed (--max_length)"));
    example.targets.assign(example.ids.size(), true);
    example.targets[0] = false;
    set->add(example);
  }
  return set;
}

PixelsOf processed(std::shared_ptr<const CaptionedPictures> pictures, const nn::ImageProcessor& processor,
                   int64_t keep_bytes) {
  struct Kept {
    std::mutex mutex;
    std::vector<Tensor> pixels;
    int64_t bytes = 0;
  };
  const auto kept = std::make_shared<Kept>();
  kept->pixels.resize(static_cast<size_t>(pictures->size()));
  return [pictures = std::move(pictures), processor, keep_bytes, kept](int64_t i) {
    {
      const std::lock_guard lock(kept->mutex);
      if (const Tensor& pixels = kept->pixels[static_cast<size_t>(i)]; pixels.defined()) return pixels;
    }
    const Tensor pixels = processor(pictures->picture(i)).select(0, 0).contiguous();
    const auto bytes = pixels.numel() * static_cast<int64_t>(sizeof(float));
    const std::lock_guard lock(kept->mutex);
    if (kept->bytes + bytes <= keep_bytes && !kept->pixels[static_cast<size_t>(i)].defined()) {
      kept->pixels[static_cast<size_t>(i)] = pixels;
      kept->bytes += bytes;
    }
    return pixels;
  };
}

std::shared_ptr<const data::ExampleSet> random_captions(int64_t count, int64_t max_length, int64_t vocab_size,
                                                        int64_t start, int64_t end, uint64_t seed) {
  const double scale = static_cast<double>(max_length) / 256;
  const auto set = std::make_shared<data::ExampleSet>();
  for (int64_t i = 0; i < count; ++i) {
    Draws draw(seed, i);
    const double kind = draw(0, 1);
    const double low = kind < 0.9 ? 5 : kind < 0.99 ? 33 : 65, high = kind < 0.9 ? 31 : kind < 0.99 ? 63 : 255;
    const double drawn = low + static_cast<double>(draw.below(static_cast<int64_t>(high - low) + 1));
    const int64_t length = std::clamp<int64_t>(std::llround(scale * drawn), 1, max_length);
    data::Example example{.ids = {static_cast<int32_t>(start)}};
    for (int64_t t = 0; t + 1 < length; ++t)
      example.ids.push_back(static_cast<int32_t>(3 + draw.below(vocab_size - 3)));
    example.ids.push_back(static_cast<int32_t>(end));
    example.targets.assign(example.ids.size(), true);
    example.targets[0] = false;
    set->add(example);
  }
  return set;
}

// A picture is a slice of one field of noise: making it costs a copy, not a random number for each pixel.
RandomPixels::RandomPixels(int64_t numel, uint64_t seed) : seed(seed) {
  Generator random(seed);
  field = Tensor::randn({numel + kStarts}, {kF32, kCPU}, &random);
}
int64_t RandomPixels::start(int64_t example) const {
  return static_cast<int64_t>(philox(seed, static_cast<uint64_t>(example), 1)[0] % kStarts);
}
PixelsOf random_pixels(int64_t channels, int64_t side, uint64_t seed) {
  const int64_t n = channels * side * side;
  return [=, pictures = RandomPixels(n, seed)](int64_t i) {
    const int64_t begin = pictures.start(i);
    return pictures.field.slice(0, {begin, begin + n}).reshape({channels, side, side});
  };
}

}  // namespace rondo::examples
