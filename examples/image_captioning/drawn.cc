#include "rondo/examples/image_captioning/drawn.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/examples/segmentation/draws.h"
#include "rondo/runtime/base/error.h"

namespace rondo::examples {
namespace {

constexpr std::array kCounts = {"a", "two", "three"};
constexpr std::array kColourNames = {"red", "green", "blue", "yellow", "white"};
constexpr std::array kOne = {"circle", "square", "triangle", "cross"};
constexpr std::array kSeveral = {"circles", "squares", "triangles", "crosses"};
// Scenes, placements and noise draw from different random streams.
constexpr uint64_t kPlaces = 0x706C6163u, kNoise = 0x6E6F6973u, kHeldOut = 0x68656C64u;

std::string text_of(const DrawnGroup& group) {
  return absl::StrCat(kCounts[static_cast<size_t>(group.count - 1)], " ",
                      kColourNames[static_cast<size_t>(group.colour)], " ",
                      (group.count == 1 ? kOne : kSeveral)[static_cast<size_t>(group.shape)]);
}

int64_t number_of(const DrawnGroup& group) {
  return ((group.count - 1) * DrawnPictures::kColours + group.colour) * DrawnPictures::kShapes + group.shape;
}
bool is_held_out(const DrawnScene& scene) {
  const auto number = static_cast<uint64_t>(
      number_of(scene.first) * 128 + (scene.second ? 2 * number_of(*scene.second) + (scene.above ? 1 : 0) : 127));
  return philox(kHeldOut, number, 0)[0] % 8 == 0;
}

// Coordinates are in a picture with edges of length 1.
struct Shape {
  int64_t kind;
  double x, y, radius;
  bool covers(double px, double py) const {
    const double u = (px - x) / radius, v = (py - y) / radius;
    switch (kind) {
      case 0: return std::hypot(u, v) < 1;
      case 1: return std::max(std::abs(u), std::abs(v)) < 0.88;
      case 2: return v < 0.85 && v > -0.95 + 1.8 * std::abs(u);
      default: return std::min(std::abs(u), std::abs(v)) < 0.3 && std::max(std::abs(u), std::abs(v)) < 1;
    }
  }
};
using Shapes = std::vector<Shape>;

// Places a group within these bounds. Returns false if some shape finds no room.
bool place(Draws& draw, const DrawnGroup& group, double left, double right, Shapes& out) {
  for (int64_t i = 0; i < group.count; ++i)
    for (int attempt = 0;; ++attempt) {
      if (attempt == 60) return false;
      const double r = draw(0.09, 0.13);
      const Shape shape{group.shape, draw(left + r, right - r), draw(r + 0.01, 0.99 - r), r};
      const bool is_free = std::none_of(out.begin(), out.end(), [&](const Shape& other) {
        return std::hypot(shape.x - other.x, shape.y - other.y) < 1.3 * (shape.radius + other.radius);
      });
      if (!is_free) continue;
      out.push_back(shape);
      break;
    }
  return true;
}

// Returns how far the vertical ranges of two groups overlap.
double overlap(const Shapes& a, const Shapes& b) {
  const auto range = [](const Shapes& shapes) {
    std::array<double, 2> ends = {2, -1};
    for (const Shape& s : shapes) ends = {std::min(ends[0], s.y - s.radius), std::max(ends[1], s.y + s.radius)};
    return ends;
  };
  const auto [a0, a1] = range(a);
  const auto [b0, b1] = range(b);
  return std::min(a1, b1) - std::max(a0, b0);
}

// Places the shapes of a scene. Returns one list of shapes for each of its groups.
std::array<Shapes, 2> place(Draws& draw, const DrawnScene& scene) {
  for (;;) {
    std::array<Shapes, 2> groups;
    if (!scene.second) {
      if (place(draw, scene.first, 0.01, 0.99, groups[0])) return groups;
      continue;
    }
    const double border = draw(0.4, 0.6);
    if (!place(draw, scene.first, 0.01, border - 0.02, groups[0]) ||
        !place(draw, *scene.second, border + 0.02, 0.99, groups[1]) || overlap(groups[0], groups[1]) < 0.06)
      continue;
    if (scene.above)
      for (Shapes& shapes : groups)
        for (Shape& shape : shapes) std::swap(shape.x, shape.y);
    return groups;
  }
}

}  // namespace

std::string caption_of(const DrawnScene& scene) {
  if (!scene.second) return text_of(scene.first);
  return absl::StrCat(text_of(scene.first), scene.above ? " above " : " left of ", text_of(*scene.second));
}

std::array<uint8_t, 3> DrawnPictures::rgb(int64_t colour) {
  constexpr std::array<std::array<uint8_t, 3>, kColours> kRgb = {
      {{220, 40, 40}, {40, 190, 60}, {60, 90, 230}, {230, 210, 50}, {230, 230, 230}}};
  return kRgb.at(static_cast<size_t>(colour));
}

DrawnScene DrawnPictures::scene(int64_t index) const {
  Draws draw(seed_, index);
  const auto group = [&] {
    return DrawnGroup{
        .count = 1 + draw.below(kMostShapes), .colour = draw.below(kColours), .shape = draw.below(kShapes)};
  };
  for (;;) {
    DrawnScene scene{.first = group()};
    if (draw.below(8) > 0) scene.second = group();
    scene.above = scene.second && draw.below(2) == 1;
    const bool is_clear = !scene.second || scene.first.colour != scene.second->colour;
    if (is_clear && is_held_out(scene) == held_out_) return scene;
  }
}

Tensor DrawnPictures::picture(int64_t index) const {
  const DrawnScene scene = this->scene(index);
  Draws draw(seed_ ^ kPlaces, index);
  const std::array<Shapes, 2> groups = place(draw, scene);
  const double gray = draw(20, 90), noise = draw(2, 10);
  std::array<std::array<double, 3>, 3> colours;  // of the first group, the second group and the background
  for (size_t c = 0; c < 3; ++c) {
    colours[0][c] = rgb(scene.first.colour)[c] + draw(-20, 20);
    colours[1][c] = rgb(scene.second ? scene.second->colour : 0)[c] + draw(-20, 20);
    colours[2][c] = gray + draw(-8, 8);
  }
  const auto n = static_cast<size_t>(side_ * side_);
  std::vector<uint8_t> pixels(3 * n);
  for (int64_t y = 0; y < side_; ++y)
    for (int64_t x = 0; x < side_; ++x) {
      const auto here = static_cast<size_t>(y * side_ + x);
      const double px = (static_cast<double>(x) + 0.5) / static_cast<double>(side_),
                   py = (static_cast<double>(y) + 0.5) / static_cast<double>(side_);
      size_t which = 2;
      for (size_t g = 0; g < 2; ++g)
        for (const Shape& shape : groups[g])
          if (shape.covers(px, py)) which = g;
      const auto bits = philox(seed_ ^ kNoise, static_cast<uint64_t>(index), here);
      for (size_t c = 0; c < 3; ++c) {
        const double value = colours[which][c] + noise * (2 * static_cast<double>(uniform_from_bits(bits[c])) - 1);
        pixels[c * n + here] = static_cast<uint8_t>(std::clamp(value, 0.0, 255.0));
      }
    }
  return Tensor::from(pixels, {3, side_, side_}, kCPU);
}

}  // namespace rondo::examples
