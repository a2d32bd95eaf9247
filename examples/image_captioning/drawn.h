// Pictures that the program draws: coloured shapes in one or two groups. Each picture has exactly one correct caption.
//
//   "three green triangles"    "two red circles left of a blue square"    "a white cross above three red squares"
//
// 60 groups (1 to 3 of 5 colours and 4 shapes) make 60 + 2 * 60 * 48 captions. A caption names the left or upper group
// first. Only one of "left of" and "above" is true of a picture: in the other direction the ranges of the two groups
// overlap. The two groups differ in colour. About one caption in eight is held out: training never sees it.
#pragma once

#include <optional>

#include "rondo/examples/image_captioning/captioned.h"

namespace rondo::examples {

struct DrawnGroup {
  int64_t count = 1, colour = 0, shape = 0;
  bool operator==(const DrawnGroup&) const = default;
};
struct DrawnScene {
  DrawnGroup first;
  std::optional<DrawnGroup> second = std::nullopt;
  bool above = false;  // the first group is above the second; false: left of it
};
std::string caption_of(const DrawnScene& scene);

class DrawnPictures : public CaptionedPictures {
 public:
  // side: pixels of an edge. A scene is a function of (seed, index, held_out), its picture of these and `side`.
  DrawnPictures(int64_t size, bool held_out, uint64_t seed, int64_t side = 64)
      : size_(size), held_out_(held_out), seed_(seed), side_(side) {}
  int64_t size() const override { return size_; }
  std::string caption(int64_t index) const override { return caption_of(scene(index)); }
  Tensor picture(int64_t index) const override;
  DrawnScene scene(int64_t index) const;

  static constexpr int64_t kColours = 5, kShapes = 4, kMostShapes = 3;
  // Returns the red, green and blue of a colour. The colours in pictures vary around these values.
  static std::array<uint8_t, 3> rgb(int64_t colour);

 private:
  const int64_t size_;
  const bool held_out_;
  const uint64_t seed_;
  const int64_t side_;
};

}  // namespace rondo::examples
