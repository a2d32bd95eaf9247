#include "rondo/examples/segmentation/render.h"

#include <algorithm>

#include "rondo/runtime/ops/ops.h"

namespace rondo::examples {

std::vector<io::Color> class_colours(int64_t classes) {
  std::vector<io::Color> colours;
  for (int64_t c = 0; c < classes; ++c) {
    io::Color colour{};
    for (int bit = 0; bit < 8; ++bit)
      for (int channel = 0; channel < 3; ++channel)
        if (c >> (3 * bit + channel) & 1) colour[static_cast<size_t>(channel)] |= static_cast<uint8_t>(0x80 >> bit);
    colours.push_back(colour);
  }
  return colours;
}

Tensor overlay(const Tensor& image, const Tensor& mask, const std::vector<io::Color>& colours) {
  const std::vector<int64_t> classes = mask.to(kI64).to_vector<int64_t>();
  std::vector<uint8_t> pixels = image.contiguous().to_vector<uint8_t>();
  for (size_t i = 0; i < classes.size(); ++i)
    for (size_t c = 0; c < 3; ++c) {
      uint8_t& value = pixels[c * classes.size() + i];
      const bool shown = classes[i] > 0 && classes[i] < std::ssize(colours);
      value = static_cast<uint8_t>(value / 2 + (shown ? colours[static_cast<size_t>(classes[i])][c] / 2 : 0));
    }
  return Tensor::from(pixels, image.sizes(), kCPU);
}

Tensor sheet(const std::vector<Tensor>& pictures, int64_t columns) {
  constexpr int64_t kMargin = 4;
  const int64_t H = pictures.at(0).size(1), W = pictures[0].size(2);
  const int64_t rows = (std::ssize(pictures) + columns - 1) / columns;
  Tensor out = Tensor::full({3, rows * (H + kMargin) + kMargin, columns * (W + kMargin) + kMargin}, 255, {kU8, kCPU});
  for (int64_t i = 0; i < std::ssize(pictures); ++i) {
    const int64_t top = kMargin + i / columns * (H + kMargin), left = kMargin + i % columns * (W + kMargin);
    out.slice(1, {top, top + H}).slice(2, {left, left + W}).copy_(pictures[static_cast<size_t>(i)]);
  }
  return out;
}

}  // namespace rondo::examples
