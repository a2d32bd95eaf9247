// Draws classes as colours.
#pragma once

#include <vector>

#include "rondo/runtime/image/image.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::examples {

// Returns a colour for each class: those of Pascal VOC, which are made of the bits of the class number.
std::vector<io::Color> class_colours(int64_t classes);

// Returns (3, H, W) u8: each pixel in the colour of its class, or white if it has no class.
Tensor coloured(const Tensor& mask, const std::vector<io::Color>& colours);

// Returns (3, H, W) u8: the mean of `image` and the classes' colours. Pixels of class 0 or without a class are darkened
// to half.
Tensor overlay(const Tensor& image, const Tensor& mask, const std::vector<io::Color>& colours);

// Puts pictures (3, H, W) u8 of one size into rows of `columns` pictures, with white margins. Returns one picture.
Tensor sheet(const std::vector<Tensor>& pictures, int64_t columns);

}  // namespace rondo::examples
