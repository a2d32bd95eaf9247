#include "rondo/examples/segmentation/augment.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/random/random.h"

namespace rondo::examples {
namespace {

constexpr std::array<float, 3> kMean = {0.485f * 255, 0.456f * 255, 0.406f * 255};
constexpr std::array<float, 3> kDeviation = {0.229f * 255, 0.224f * 255, 0.225f * 255};

int64_t rounded_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Gives access to the bytes of a picture. A picture that is not contiguous is copied.
struct Pixels {
  explicit Pixels(const Tensor& image)
      : dense(image.contiguous()), data(dense.data<uint8_t>()), height(image.size(1)), width(image.size(2)) {}
  float at(int64_t c, int64_t y, int64_t x) const { return data[(c * height + y) * width + x]; }
  const Tensor dense;
  const uint8_t* data;
  const int64_t height, width;
};

// The random choices for the augmentation of one item.
struct Choice {
  Choice(const AugmentOptions& o, const Pixels& from, Generator& random) {
    const std::vector<float> u = Tensor::rand({7}, kCPU, &random).to_vector<float>();
    scale = o.min_scale * std::pow(o.max_scale / o.min_scale, static_cast<double>(u[0]));
    const auto place = [&](int64_t size, int64_t crop, float share) {
      // A smaller picture lies anywhere inside the crop; in a larger picture the crop lies anywhere.
      return static_cast<double>(share) * (static_cast<double>(size) * scale - static_cast<double>(crop));
    };
    top = place(from.height, o.crop_height, u[1]);
    left = place(from.width, o.crop_width, u[2]);
    flip = static_cast<double>(u[3]) < o.flip;
    const auto factor = [&](float share) {
      return static_cast<float>(1 + o.colour * (2 * static_cast<double>(share) - 1));
    };
    brightness = factor(u[4]);
    contrast = factor(u[5]);
    saturation = factor(u[6]);
  }
  double scale, top, left;
  bool flip;
  float brightness, contrast, saturation;
};

float gray(const std::array<float, 3>& rgb) { return 0.299f * rgb[0] + 0.587f * rgb[1] + 0.114f * rgb[2]; }

std::vector<Tensor> augmented(const Picture& picture, const AugmentOptions& o, Generator& random) {
  const Pixels from(picture.image);
  const int32_t* classes = picture.mask.data<int32_t>();
  const Choice choice(o, from, random);
  const int64_t H = o.crop_height, W = o.crop_width;
  std::vector<float> image(static_cast<size_t>(3 * H * W));
  std::vector<int32_t> mask(static_cast<size_t>(H * W), static_cast<int32_t>(nn::kIgnoredClass));
  std::vector<bool> padding(mask.size(), true);  // pixels outside of the picture
  double light = 0;
  int64_t inside = 0;
  for (int64_t y = 0; y < H; ++y)
    for (int64_t x = 0; x < W; ++x) {
      const int64_t shown = choice.flip ? W - 1 - x : x;
      // (sy, sx) is the place in the picture that this pixel shows. Colours are interpolated bilinearly; the class is
      // that of the nearest pixel.
      const double sy = (static_cast<double>(y) + 0.5 + choice.top) / choice.scale;
      const double sx = (static_cast<double>(x) + 0.5 + choice.left) / choice.scale;
      if (sy < 0 || sx < 0 || sy >= static_cast<double>(from.height) || sx >= static_cast<double>(from.width)) continue;
      const auto at = static_cast<size_t>(y * W + shown);
      mask[at] = classes[static_cast<int64_t>(sy) * from.width + static_cast<int64_t>(sx)];
      padding[at] = false;
      const double fy = std::max(sy - 0.5, 0.0), fx = std::max(sx - 0.5, 0.0);
      const auto y0 = static_cast<int64_t>(fy), x0 = static_cast<int64_t>(fx);
      const int64_t y1 = std::min(y0 + 1, from.height - 1), x1 = std::min(x0 + 1, from.width - 1);
      const auto wy = static_cast<float>(fy - static_cast<double>(y0)),
                 wx = static_cast<float>(fx - static_cast<double>(x0));
      std::array<float, 3> rgb;
      for (int64_t c = 0; c < 3; ++c) {
        const float above = from.at(c, y0, x0) + (from.at(c, y0, x1) - from.at(c, y0, x0)) * wx;
        const float below = from.at(c, y1, x0) + (from.at(c, y1, x1) - from.at(c, y1, x0)) * wx;
        rgb[static_cast<size_t>(c)] = (above + (below - above) * wy) * choice.brightness;
      }
      const float middle = gray(rgb);
      light += static_cast<double>(middle);
      ++inside;
      for (size_t c = 0; c < 3; ++c) image[c * mask.size() + at] = middle + (rgb[c] - middle) * choice.saturation;
    }
  const auto mean = inside > 0 ? static_cast<float>(light / static_cast<double>(inside)) : 0.0f;
  for (size_t c = 0; c < 3; ++c)
    for (size_t at = 0; at < mask.size(); ++at) {
      float& value = image[c * mask.size() + at];
      const float coloured = std::clamp(mean + (value - mean) * choice.contrast, 0.0f, 255.0f);
      value = padding[at] ? 0.0f : (coloured - kMean[c]) / kDeviation[c];
    }
  return {Tensor::from(image, {3, H, W}, kCPU), Tensor::from(mask, {H, W}, kCPU)};
}

}  // namespace

Tensor normalised(const Tensor& image, int64_t multiple) {
  const Pixels from(image);
  const int64_t H = rounded_up(from.height, multiple), W = rounded_up(from.width, multiple);
  std::vector<float> values(static_cast<size_t>(3 * H * W));
  for (int64_t c = 0; c < 3; ++c)
    for (int64_t y = 0; y < from.height; ++y)
      for (int64_t x = 0; x < from.width; ++x)
        values[static_cast<size_t>((c * H + y) * W + x)] = (from.at(c, y, x) - kMean[static_cast<size_t>(c)]) /
                                                           kDeviation[static_cast<size_t>(c)];
  return Tensor::from(values, {3, H, W}, kCPU);
}

PictureSet::PictureSet(std::shared_ptr<const Pictures> pictures, const AugmentOptions& options)
    : pictures_(std::move(pictures)), augment_(options) {
  if (options.crop_height < 1 || options.crop_width < 1)
    throw Error(absl::StrCat("a crop must have pixels, got ", options.crop_width, " x ", options.crop_height));
  if (!(options.min_scale > 0 && options.min_scale <= options.max_scale && options.max_scale <= 16))
    throw Error(absl::StrCat("scales must be above 0, at most 16, and in order, got ", options.min_scale, " to ",
                             options.max_scale));
  if (!(options.flip >= 0 && options.flip <= 1) || !(options.colour >= 0 && options.colour < 1))
    throw Error(
        absl::StrCat("flip must be in [0, 1] and colour in [0, 1), got ", options.flip, " and ", options.colour));
}
PictureSet::PictureSet(std::shared_ptr<const Pictures> pictures, int64_t multiple)
    : pictures_(std::move(pictures)), multiple_(multiple) {}

std::vector<Tensor> PictureSet::get(int64_t index) const {
  if (augment_) throw Error("an augmented item needs a generator");
  const Picture picture = pictures_->get(index);
  const Tensor image = normalised(picture.image, multiple_);
  const int64_t H = picture.mask.size(0), W = picture.mask.size(1);
  const int64_t height = image.size(1), width = image.size(2);
  const int32_t* from = picture.mask.data<int32_t>();
  std::vector<int32_t> mask(static_cast<size_t>(height * width), static_cast<int32_t>(nn::kIgnoredClass));
  for (int64_t y = 0; y < H; ++y) std::copy_n(from + y * W, W, mask.begin() + y * width);
  return {image, Tensor::from(mask, {height, width}, kCPU)};
}
std::vector<Tensor> PictureSet::get(int64_t index, Generator& random) const {
  return augment_ ? augmented(pictures_->get(index), *augment_, random) : get(index);
}

}  // namespace rondo::examples
