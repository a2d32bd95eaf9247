#include "rondo/examples/segmentation/synthetic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "rondo/examples/segmentation/draws.h"
#include "rondo/runtime/random/random.h"

namespace rondo::examples {
namespace {

// Returns the colour of this hue, saturation and value (each in [0, 1]) as red, green and blue from 0 to 255.
std::array<double, 3> rgb_of(double hue, double saturation, double value) {
  std::array<double, 3> rgb;
  for (size_t c = 0; c < 3; ++c) {
    const double k = std::fmod(5 - 2 * static_cast<double>(c) + 6 * hue, 6);
    rgb[c] = 255 * value * (1 - saturation * std::clamp(std::min(k, 4 - k), 0.0, 1.0));
  }
  return rgb;
}

// A pattern of two colours that change along waves in two directions.
struct Texture {
  Texture(Draws& draw, double hue, double least_saturation, double most_saturation) {
    for (std::array<double, 3>* colour : {&from, &to}) {
      const double varied = hue + draw(-0.1, 0.1);
      *colour = rgb_of(varied - std::floor(varied), draw(least_saturation, most_saturation), draw(0.35, 1));
    }
    for (auto& wave : waves)
      for (double& number : wave) number = draw(-0.5, 0.5);
    phase = draw(0, 6.28);
  }
  double at(size_t channel, double x, double y) const {
    double height = 0;
    for (const auto& wave : waves) height += std::sin(wave[0] * x + wave[1] * y + phase);
    const double share = 0.5 + 0.25 * height;
    return from[channel] + (to[channel] - from[channel]) * share;
  }
  std::array<double, 3> from, to;
  std::array<std::array<double, 2>, 2> waves;
  double phase;
};

struct Shape {
  Shape(Draws& draw, double side)
      : kind(1 + static_cast<int32_t>(draw.below(SyntheticPictures::kClasses - 1))),
        x(draw(0.1, 0.9) * side),
        y(draw(0.1, 0.9) * side),
        radius(draw(0.17, 0.32) * side),
        ratio(draw(0.5, 0.9)),
        angle(draw(0, 2 * std::numbers::pi)),
        texture(draw, kind / static_cast<double>(SyntheticPictures::kClasses - 1), 0.45, 1) {}
  bool covers(double px, double py) const {
    const double dx = px - x, dy = py - y, c = std::cos(angle), s = std::sin(angle);
    const double u = (dx * c + dy * s) / radius, v = (dy * c - dx * s) / radius, r = std::hypot(u, v);
    switch (kind) {
      case 1: return r < 0.9;
      case 2: return std::abs(u) < 0.95 && std::abs(v) < ratio;
      case 3: return v > -0.5 && v < 1.0 - std::numbers::sqrt3 * std::abs(u);
      default: return r < 1.0 && r > 0.45;
    }
  }
  int32_t kind;
  double x, y, radius, ratio, angle;
  Texture texture;
};

}  // namespace

Picture SyntheticPictures::get(int64_t index) const {
  Draws draw(seed_, index);
  const Texture background(draw, draw(0, 1), 0, 0.35);
  std::vector<Shape> shapes;
  const int64_t count = 1 + draw.below(4);
  for (int64_t i = 0; i < count; ++i) shapes.emplace_back(draw, static_cast<double>(side_));
  const double noise = draw(2, 14);
  std::vector<uint8_t> pixels(static_cast<size_t>(3 * side_ * side_));
  std::vector<int32_t> classes(static_cast<size_t>(side_ * side_));
  for (int64_t y = 0; y < side_; ++y)
    for (int64_t x = 0; x < side_; ++x) {
      const auto at = static_cast<size_t>(y * side_ + x);
      const double px = static_cast<double>(x) + 0.5, py = static_cast<double>(y) + 0.5;
      const Texture* texture = &background;
      for (const Shape& shape : shapes)  // later ones lie on top
        if (shape.covers(px, py)) {
          texture = &shape.texture;
          classes[at] = shape.kind;
        }
      const auto bits = philox(seed_ ^ 0x9E3779B97F4A7C15ull, static_cast<uint64_t>(index), at);
      for (size_t c = 0; c < 3; ++c) {
        const double value = texture->at(c, px, py) + noise * (2 * static_cast<double>(uniform_from_bits(bits[c])) - 1);
        pixels[c * classes.size() + at] = static_cast<uint8_t>(std::clamp(value, 0.0, 255.0));
      }
    }
  return {absl::StrCat("picture", index), Tensor::from(pixels, {3, side_, side_}, kCPU),
          Tensor::from(classes, {side_, side_}, kCPU)};
}

}  // namespace rondo::examples
