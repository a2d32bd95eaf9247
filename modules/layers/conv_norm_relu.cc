#include "rondo/modules/layers/conv_norm_relu.h"

#include "absl/strings/str_cat.h"

namespace rondo::nn {

ConvNormReLU::ConvNormReLU(int64_t in, int64_t out, int64_t kernel, ConvNormOptions options)
    : relu(options.relu),
      conv(child("conv", in, out, kernel,
                 Conv2dOptions{.stride = options.stride,
                               .padding = options.dilation * (kernel / 2),
                               .dilation = options.dilation,
                               .groups = options.groups,
                               .bias = false})),
      bn(child("bn", out)) {}
Tensor ConvNormReLU::forward(const Tensor& x) {
  const Tensor y = bn(conv(x));
  return relu ? ops::relu(y) : y;
}

Tensor resize_like(const Tensor& x, const Tensor& like) {
  return ops::interpolate(x, {like.size(2), like.size(3)}, {.mode = ops::InterpolateMode::kBilinear});
}

Tensor global_mean(const Tensor& x) { return ops::mean(x, {2, 3}, /*keepdim=*/true); }

SegmentationHead::SegmentationHead(int64_t in, int64_t inner, int64_t num_classes)
    : conv(child("conv", in, inner, 3)),
      classifier(child("classifier", inner, num_classes, 1, Conv2dOptions{.bias = false})) {}

void require_images(const char* model, const Tensor& images, int64_t multiple) {
  const Dims& s = images.sizes();
  if (s.rank() != 4 || s[1] != 3 || s[2] < 1 || s[3] < 1 || s[2] % multiple != 0 || s[3] % multiple != 0)
    throw_op_error(
        model, absl::StrCat("images must be (B, 3, H, W) with H and W multiples of ", multiple, ", got ", to_string(s)),
        std::source_location::current());
}

}  // namespace rondo::nn
