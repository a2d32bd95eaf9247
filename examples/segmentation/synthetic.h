// Pictures that the program makes: discs, rectangles, triangles and rings on a texture. The hue of a class varies so
// much that it is sometimes close to a hue of the next class. The background has a random pale colour.
#pragma once

#include <cstdint>

#include "rondo/examples/segmentation/pictures.h"

namespace rondo::examples {

class SyntheticPictures : public Pictures {
 public:
  static constexpr int64_t kClasses = 5;  // class 0 is the background
  // Picture i is a function of (seed, i).
  SyntheticPictures(int64_t size, uint64_t seed, int64_t side = 128) : size_(size), seed_(seed), side_(side) {}
  int64_t size() const override { return size_; }
  Picture get(int64_t index) const override;

 private:
  const int64_t size_;
  const uint64_t seed_;
  const int64_t side_;
};

}  // namespace rondo::examples
