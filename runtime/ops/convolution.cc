// Convolution whose windows do not overlap: the patch embedding of a vision transformer (Dosovitskiy et al., 2020).
#include "absl/strings/str_cat.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::ops {

Tensor conv2d(TensorArg x, TensorArg weight, TensorArg bias, Conv2dOptions options) {
  const auto fail = [&](std::string_view what) {
    throw_op_error("conv2d",
                   absl::StrCat(std::string(what), "; got x ", to_string(x.tensor.sizes()), ", weight ",
                                to_string(weight.tensor.sizes())),
                   x.where);
  };
  if (!x.tensor.defined() || !weight.tensor.defined())
    throw_op_error("conv2d", "x or weight is an undefined tensor", x.where);
  if (x.tensor.rank() != 4 || weight.tensor.rank() != 4) fail("needs x (B, C, H, W) and weight (O, C, kh, kw)");
  const int64_t B = x.tensor.size(0), C = x.tensor.size(1), O = weight.tensor.size(0);
  const int64_t kh = weight.tensor.size(2), kw = weight.tensor.size(3);
  if (weight.tensor.size(1) != C) fail("the channels of x and weight differ");
  if (kh <= 0 || kw <= 0 || options.stride != std::array{kh, kw} || options.padding != std::array<int64_t, 2>{0, 0})
    fail(absl::StrCat("only patches are supported, that is stride == kernel and padding == 0; stride is [",
                      options.stride[0], ", ", options.stride[1], "], padding [", options.padding[0], ", ",
                      options.padding[1], "]"));
  const int64_t rows = x.tensor.size(2) / kh, cols = x.tensor.size(3) / kw;
  // Pixels beyond the last whole patch are not read.
  const Tensor whole = slice({slice(x, 2, {0, rows * kh}), x.where}, 3, {0, cols * kw});
  const Tensor patches = reshape(permute(view(whole, {B, C, rows, kh, cols, kw}), {0, 2, 4, 1, 3, 5}),
                                 {B, rows, cols, C * kh * kw});
  const Tensor y = linear({patches, x.where}, {reshape(weight, {O, C * kh * kw}), weight.where},
                          bias);  // (B, rows, cols, O)
  return permute(y, {0, 3, 1, 2});
}

}  // namespace rondo::ops
