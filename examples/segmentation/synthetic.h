// Pictures that the program makes: discs, rectangles, triangles and rings on a texture. The hues of a class vary so
// much that they nearly meet those of the next class. The background has any pale colour.
#pragma once

#include <cstdint>

#include "rondo/examples/segmentation/pictures.h"

namespace rondo::examples {

class SyntheticPictures : public Pictures {
 public:
  static constexpr int64_t kClasses = 5;  // 0: the background
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
