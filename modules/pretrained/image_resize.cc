#include "rondo/modules/pretrained/image_resize.h"

#include <algorithm>
#include <vector>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/interpolation.h"

namespace rondo::nn {
namespace {

constexpr int kWeightBits = 22;  // sums of weights times bytes need 8 bits more, and 2 for results beyond 0 and 255
constexpr int64_t kGrain = 1 << 14;

// Weights of one dimension. Result i is made of count[i] pixels from first[i] on.
struct FixedTaps {
  int64_t width, size;
  std::vector<int32_t> first, count;
  std::vector<int32_t> weight;  // (size, width)

  FixedTaps(int64_t from, int64_t size, ops::InterpolateMode mode) : width(0), size(size) {
    const int64_t taps = mode == ops::InterpolateMode::kBicubic ? 4 : 2;
    const ops::Taps exact(from, size, {.taps = taps, .antialias = true});
    width = exact.width;
    weight.reserve(static_cast<size_t>(size * width));
    for (int64_t i = 0; i < size; ++i) {
      const auto at = [&](int64_t t) { return static_cast<size_t>(t * size + i); };
      first.push_back(exact.pixel[at(0)]);
      count.push_back(exact.pixel[at(width - 1)] - first.back() + 1);
      for (int64_t t = 0; t < width; ++t) {
        const double w = exact.weight[at(t)] * (1 << kWeightBits);
        weight.push_back(static_cast<int32_t>(w < 0 ? w - 0.5 : w + 0.5));
      }
    }
  }
};

uint8_t rounded(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255)); }
constexpr int32_t kHalf = 1 << (kWeightBits - 1);

Tensor bytes(int64_t height, int64_t width, int64_t channels) {
  return Tensor::empty({height, width, channels}, {kU8, kCPU});
}

Tensor resize_columns(const Tensor& pixels, int64_t width, ops::InterpolateMode mode) {
  const int64_t height = pixels.size(0), from = pixels.size(1), channels = pixels.size(2);
  const FixedTaps taps(from, width, mode);
  Tensor out = bytes(height, width, channels);
  const uint8_t* const source = pixels.data<uint8_t>();
  uint8_t* const target = out.mutable_data<uint8_t>();
  parallel_for(height, std::max<int64_t>(1, kGrain / (width * channels)), [&](int64_t begin, int64_t end) {
    for (int64_t y = begin; y < end; ++y)
      for (int64_t x = 0; x < width; ++x) {
        const auto i = static_cast<size_t>(x);
        const uint8_t* const in = source + (y * from + taps.first[i]) * channels;
        const int32_t* const weight = taps.weight.data() + x * taps.width;
        for (int64_t c = 0; c < channels; ++c) {
          int32_t sum = kHalf;
          for (int64_t t = 0; t < taps.count[i]; ++t) sum += in[t * channels + c] * weight[t];
          target[(y * width + x) * channels + c] = rounded(sum);
        }
      }
  });
  return out;
}

Tensor resize_rows(const Tensor& pixels, int64_t height, ops::InterpolateMode mode) {
  const int64_t from = pixels.size(0), n = pixels.size(1) * pixels.size(2);
  const FixedTaps taps(from, height, mode);
  Tensor out = bytes(height, pixels.size(1), pixels.size(2));
  const uint8_t* const source = pixels.data<uint8_t>();
  uint8_t* const target = out.mutable_data<uint8_t>();
  parallel_for(height, std::max<int64_t>(1, kGrain / n), [&](int64_t begin, int64_t end) {
    std::vector<int32_t> sum(static_cast<size_t>(n));
    for (int64_t y = begin; y < end; ++y) {
      const auto i = static_cast<size_t>(y);
      std::fill(sum.begin(), sum.end(), kHalf);
      for (int64_t t = 0; t < taps.count[i]; ++t) {
        const uint8_t* const in = source + (taps.first[i] + t) * n;
        const int32_t weight = taps.weight[static_cast<size_t>(y * taps.width + t)];
        for (int64_t k = 0; k < n; ++k) sum[static_cast<size_t>(k)] += in[k] * weight;
      }
      for (int64_t k = 0; k < n; ++k) target[y * n + k] = rounded(sum[static_cast<size_t>(k)]);
    }
  });
  return out;
}

// True if rows are resized before columns. The order matters, because the bytes between the two passes are rounded and
// clamped to 0 and 255.
bool rows_first(int64_t from_height, int64_t from_width, int64_t height, int64_t width) {
  return height < from_height && from_height - height > 2 * (from_width - width);
}

}  // namespace

std::vector<int64_t> nearest_pixels(int64_t from, int64_t size) {
  const double step = static_cast<double>(from) / static_cast<double>(size);
  double at = step * 0.5;
  std::vector<int64_t> pixels;
  for (int64_t i = 0; i < size; ++i) {
    pixels.push_back(std::min(static_cast<int64_t>(at), from - 1));
    at += step;  // Pillow adds up steps, too, with the same rounding
  }
  return pixels;
}

Tensor resize_bytes(const Tensor& pixels, int64_t height, int64_t width, ops::InterpolateMode mode) {
  if (mode != ops::InterpolateMode::kNearest) {
    const auto columns = [&](const Tensor& y) { return y.size(1) == width ? y : resize_columns(y, width, mode); };
    const auto rows = [&](const Tensor& y) { return y.size(0) == height ? y : resize_rows(y, height, mode); };
    return rows_first(pixels.size(0), pixels.size(1), height, width) ? columns(rows(pixels)) : rows(columns(pixels));
  }
  const int64_t from = pixels.size(1), channels = pixels.size(2);
  const std::vector<int64_t> rows = nearest_pixels(pixels.size(0), height), columns = nearest_pixels(from, width);
  Tensor out = bytes(height, width, channels);
  const uint8_t* const source = pixels.data<uint8_t>();
  uint8_t* target = out.mutable_data<uint8_t>();
  for (const int64_t y : rows)
    for (const int64_t x : columns) target = std::copy_n(source + (y * from + x) * channels, channels, target);
  return out;
}

double resize_memory(int64_t from_height, int64_t from_width, int64_t height, int64_t width, int64_t channels) {
  const auto h = static_cast<double>(height), w = static_cast<double>(width), rows = static_cast<double>(from_height);
  // The tables of weights: 16 bytes for each tap. There are at most 5 taps for each result if the picture grows, else 4
  // for each source pixel and 3 for each result.
  const double tables = 16 * 5 * (h + w + rows + static_cast<double>(from_width));
  const bool tall = rows_first(from_height, from_width, height, width);
  return static_cast<double>(channels) * ((tall ? h * static_cast<double>(from_width) : rows * w) + h * w) + tables;
}

Tensor crop_bytes(const Tensor& pixels, int64_t height, int64_t width) {
  const int64_t from_height = pixels.size(0), from_width = pixels.size(1), channels = pixels.size(2);
  if (from_height == height && from_width == width) return pixels;
  // The first row or column of the middle, rounded down; below 0 if the picture is smaller.
  const auto middle = [](int64_t from, int64_t size) {
    return from >= size ? (from - size) / 2 : -((size - from + 1) / 2);
  };
  const int64_t top = middle(from_height, height), left = middle(from_width, width);
  const int64_t begin = std::max<int64_t>(0, -left), end = std::min(width, from_width - left);
  Tensor out = bytes(height, width, channels);
  uint8_t* const target = out.mutable_data<uint8_t>();
  std::fill_n(target, out.numel(), uint8_t{0});
  for (int64_t y = std::max<int64_t>(0, -top); y < std::min(height, from_height - top); ++y)
    std::copy_n(pixels.data<uint8_t>() + ((y + top) * from_width + begin + left) * channels, (end - begin) * channels,
                target + (y * width + begin) * channels);
  return out;
}

}  // namespace rondo::nn
