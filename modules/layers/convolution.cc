#include "rondo/modules/layers/convolution.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/runtime/base/floating_point_scope.h"

namespace rondo::nn {
namespace {

// Returns the sizes of a weight: (out, in / groups, kernel...), or (in, out / groups, kernel...) if transposed.
template <int N>
Dims weight_sizes(const char* layer, int64_t in, int64_t out, int64_t groups, const ops::Spatial<N>& kernel,
                  bool transposed) {
  if (in <= 0 || out <= 0) throw Error(absl::StrCat(layer, ": channels must be positive, got ", in, " and ", out));
  if (groups <= 0 || in % groups != 0 || out % groups != 0)
    throw Error(absl::StrCat(layer, ": groups must divide both numbers of channels, got ", groups, " groups of ", in,
                             " and ", out, " channels"));
  Dims sizes = transposed ? Dims{in, out / groups} : Dims{out, in / groups};
  for (int64_t k : kernel.size) {
    if (k <= 0) throw Error(absl::StrCat(layer, ": the kernel's sizes must be positive, got ", k));
    sizes.push_back(k);
  }
  return sizes;
}

// Returns 1 / sqrt(fan in). As in PyTorch, fan in is the product of all sizes but the first, also for a transposed
// convolution.
double bound_of(const Dims& weight) {
  const FloatingPointScope floating_point;
  int64_t fan_in = 1;
  for (int d = 1; d < weight.rank(); ++d) fan_in *= weight[d];
  return floating_point.here(1.0 / std::sqrt(static_cast<double>(fan_in)));
}
Tensor weight_of(const Dims& sizes) { return uniform_parameter(sizes, bound_of(sizes)); }
Tensor bias_of(bool wanted, int64_t out, const Tensor& weight) {
  return wanted ? uniform_parameter({out}, bound_of(weight.sizes())) : Tensor();
}

}  // namespace

Conv1d::Conv1d(int64_t in, int64_t out, ops::Spatial<1> kernel, Conv1dOptions options)
    : options(options),
      weight(parameter("weight", weight_of(weight_sizes("Conv1d", in, out, options.groups, kernel, false)))),
      bias(parameter("bias", bias_of(options.bias, out, weight))) {}
Tensor Conv1d::forward(const Tensor& x) {
  return ops::conv1d(
      x, weight, bias,
      {.stride = options.stride, .padding = options.padding, .dilation = options.dilation, .groups = options.groups});
}

Conv2d::Conv2d(int64_t in, int64_t out, ops::Spatial<2> kernel, Conv2dOptions options)
    : options(options),
      weight(parameter("weight", weight_of(weight_sizes("Conv2d", in, out, options.groups, kernel, false)))),
      bias(parameter("bias", bias_of(options.bias, out, weight))) {}
Tensor Conv2d::forward(const Tensor& x) {
  return ops::conv2d(
      x, weight, bias,
      {.stride = options.stride, .padding = options.padding, .dilation = options.dilation, .groups = options.groups});
}

ConvTranspose2d::ConvTranspose2d(int64_t in, int64_t out, ops::Spatial<2> kernel, ConvTranspose2dOptions options)
    : options(options),
      weight(parameter("weight", weight_of(weight_sizes("ConvTranspose2d", in, out, options.groups, kernel, true)))),
      bias(parameter("bias", bias_of(options.bias, out, weight))) {}
Tensor ConvTranspose2d::forward(const Tensor& x) {
  return ops::conv_transpose2d(x, weight, bias,
                               {.stride = options.stride,
                                .padding = options.padding,
                                .output_padding = options.output_padding,
                                .groups = options.groups,
                                .dilation = options.dilation});
}

}  // namespace rondo::nn
