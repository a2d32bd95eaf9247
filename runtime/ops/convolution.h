// The parameters of a convolution over two dimensions: the integers that conv2d and its gradients have as attributes,
// and the shapes that follow from them. A convolution over one dimension has height 1.
#pragma once

#include <array>
#include <string>

#include "rondo/runtime/op/op.h"

namespace rondo::ops {

// Height and width.
using Extent = std::array<int64_t, 2>;

// The layout of an image that a convolution makes. Compilers choose one; in eager calls it is that of the operands.
enum class ResultLayout : uint8_t { kOfOperands, kUsual, kChannelsLast };

struct Convolution {
  Extent stride = {1, 1}, dilation = {1, 1};
  Extent before = {0, 0}, after = {0, 0};  // zeros around the input
  int64_t groups = 1;

  // The first kInts integers of a call; the last of these is a ResultLayout. The gradients' calls have two more: the
  // size of their result, which the operands do not fix.
  static constexpr size_t kInts = 10;
  static constexpr int32_t kLayoutInt = 9;
  static Convolution of(const Attrs& attrs);
  Attrs attrs() const;
  Attrs attrs(Extent size) const;
  static Extent size_in(const Attrs& attrs) { return {attrs.ints[kInts], attrs.ints[kInts + 1]}; }

  // Returns the number of elements from the first to the last that a kernel of this size reads, both included.
  int64_t reach(int dim, int64_t kernel) const { return (kernel - 1) * dilation[dim] + 1; }
  // Returns the size of the output along dimension `dim`. REQUIRES: problem() has returned an empty string.
  int64_t output_size(int dim, int64_t input, int64_t kernel) const {
    return (input + before[dim] + after[dim] - reach(dim, kernel)) / stride[dim] + 1;
  }
  // Describes what is wrong with these parameters alone. Returns an empty string if nothing is wrong; then no sum of
  // the parameters overflows. `spatial`: 1 if messages speak of widths only.
  std::string own_problem(int spatial = 2) const;
  // Describes what is wrong with these parameters, or with their use for x of these sizes (B, C, H, W) and a weight (O,
  // C / groups, kh, kw). Returns an empty string if nothing is wrong.
  std::string problem(const Dims& x, const Dims& weight, int spatial = 2) const;
};

}  // namespace rondo::ops
