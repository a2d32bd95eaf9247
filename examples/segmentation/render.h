// Pictures of classes.
#pragma once

#include <vector>

#include "rondo/runtime/image/image.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::examples {

// A colour for each class: Pascal VOC's, whose bits are those of the class number.
std::vector<io::Color> class_colours(int64_t classes);

// (3, H, W) u8: each pixel in the colour of its class; white where it has none.
Tensor coloured(const Tensor& mask, const std::vector<io::Color>& colours);

// (3, H, W) u8: `image` with the classes' colours over it, half of each; pixels of class 0 and of no class stay darker.
Tensor overlay(const Tensor& image, const Tensor& mask, const std::vector<io::Color>& colours);

// Pictures (3, H, W) u8 of one size in rows of `columns`, with a margin of white.
Tensor sheet(const std::vector<Tensor>& pictures, int64_t columns);

}  // namespace rondo::examples
