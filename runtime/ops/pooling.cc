// Pooling over windows of images. Maxima are an op, which also returns their indices. Means are convolutions with a
// constant weight or, if windows have several sizes, products with a matrix of weights.
#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/ops/channels_last.h"
#include "rondo/runtime/ops/convolution.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {
namespace {

// True if a window reads no pixel of a dimension, only padding.
bool reads_only_padding(const Convolution& how, int d, int64_t size, int64_t kernel) {
  // Only a dilated window that begins before the image can read nothing but padding.
  for (int64_t begin = -how.before[d]; begin < 0; begin += how.stride[d]) {
    const int64_t first = begin + (-begin + how.dilation[d] - 1) / how.dilation[d] * how.dilation[d];
    if (first >= size || first > begin + how.reach(d, kernel) - 1) return true;
  }
  return false;
}

// Describes what is wrong with windows of this size over x; empty if nothing is.
std::string window_problem(const Convolution& how, const Dims& x, Extent kernel) {
  if (std::string problem = how.problem({x[0], 1, x[2], x[3]}, {1, 1, kernel[0], kernel[1]}); !problem.empty())
    return problem;
  for (int d = 0; d < 2; ++d) {
    const int64_t reach = how.reach(d, kernel[d]);
    if (x[2 + d] < 1) return "the image has no pixels";
    if (how.before[d] > reach / 2)
      return absl::StrCat("the padding may be at most half of the kernel, ", reach / 2, ", it is ", how.before[d]);
    if (reads_only_padding(how, d, x[2 + d], kernel[d])) return "a window has no pixel of the image";
  }
  return "";
}

// Converts public options to the parameters of the windows. The padding at the end is as large as `ceil_mode` needs.
template <class Options>
Convolution windows(const char* op, const TensorArg& x, const Spatial<2>& kernel, const Options& options,
                    const Spatial<2>& dilation) {
  require_defined(op, x);
  const auto fail = [&](const std::string& problem) {
    throw_op_error(
        op,
        absl::StrCat(problem, "; got x ", to_string(x.tensor.sizes()), ", kernel [", kernel[0], ", ", kernel[1], "]"),
        x.where);
  };
  if (x.tensor.rank() != 4) fail("needs x (B, C, H, W)");
  if (!is_floating(x.tensor.dtype())) fail("x must be floating point");
  const Spatial<2> stride = options.stride.value_or(kernel);
  Convolution how{.stride = {stride[0], stride[1]},
                  .dilation = {dilation[0], dilation[1]},
                  .before = {options.padding[0], options.padding[1]},
                  .after = {options.padding[0], options.padding[1]}};
  if (std::string problem = how.own_problem(); !problem.empty()) fail(problem);
  const Extent size = {kernel[0], kernel[1]};
  if (std::string problem = window_problem(how, x.tensor.sizes(), size); !problem.empty()) fail(problem);
  for (int d = 0; d < 2 && options.ceil_mode; ++d) {
    const int64_t n = x.tensor.size(2 + d), floor = how.output_size(d, n, kernel[d]);
    const int64_t end = floor * how.stride[d] + how.reach(d, kernel[d]) - n - how.before[d];
    // Adds one window for the rest, unless it would begin behind the image.
    const bool has_rest = (n + 2 * how.before[d] - how.reach(d, kernel[d])) % how.stride[d] != 0;
    if (has_rest && floor * how.stride[d] < n + how.before[d]) how.after[d] = end;
  }
  return how;
}

Extent pooled_size(const Convolution& how, const Dims& x, Extent kernel) {
  return {how.output_size(0, x[2], kernel[0]), how.output_size(1, x[3], kernel[1])};
}

// Finds the maxima and their indices by comparing one pixel of all windows at a time.
void decompose_max_pool2d(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  const Convolution how = Convolution::of(attrs);
  const Tensor& x = in[0];
  const Extent kernel = Convolution::size_in(attrs), size = pooled_size(how, x.sizes(), kernel);
  const Tensor padded = pad(x, {how.before[1], how.after[1], how.before[0], how.after[0]}, PadMode::kConstant,
                            -std::numeric_limits<double>::infinity());
  const TensorOptions counts{kI64, x.device()};
  Tensor best, place;
  for (int64_t i = 0; i < kernel[0]; ++i)
    for (int64_t j = 0; j < kernel[1]; ++j) {
      Tensor value = padded;
      Tensor at[2];
      for (int d = 0; d < 2; ++d) {
        const int64_t begin = (d == 0 ? i : j) * how.dilation[d];
        value = slice(value, 2 + d, {begin, begin + (size[d] - 1) * how.stride[d] + 1, how.stride[d]});
        at[d] = Tensor::arange(size[d], counts) * how.stride[d] + (begin - how.before[d]);
      }
      const Tensor here = expand(unsqueeze(at[0] * x.size(3), 1) + at[1], value.sizes());
      const auto inside = [&](int d) { return bitwise_and(greater_equal(at[d], 0), less(at[d], x.size(2 + d))); };
      Tensor wins = bitwise_and(unsqueeze(inside(0), 1), inside(1));
      if (best.defined()) {
        const Tensor larger = bitwise_or(greater(value, best), bitwise_and(isnan(value), bitwise_not(isnan(best))));
        wins = bitwise_and(wins, bitwise_or(larger, less(place, 0)));
      } else {
        best = value, place = Tensor::full(value.sizes(), -1, counts);
      }
      best = where(wins, value, best);
      place = where(wins, here, place);
    }
  out[0] = best.contiguous();
  out[1] = place;
}

}  // namespace

// Input x (B, C, H, W); outputs the maxima (B, C, oh, ow), and their indices in the image, h W + w (i64). ints: a
// Convolution without groups, kh, kw.
constexpr OpDef kMaxPool2d = {
    .name = "max_pool2d",
    .kind = OpKind::kOpaque,
    .n_outputs = 2,
    .saved = {.outputs = kSecond},
    .infer =
        [](InferContext& c) {
          c.require_floating(0);
          if (c.sizes(0).rank() != 4 || c.attrs().ints.size() != Convolution::kInts + 2)
            c.fail("needs x (B, C, H, W), the numbers of a convolution, and the kernel's size");
          const Convolution how = Convolution::of(c.attrs());
          const Extent kernel = Convolution::size_in(c.attrs());
          const Dims& x = c.sizes(0);
          if (const std::string problem = window_problem(how, x, kernel); !problem.empty()) c.fail(problem);
          // Kernels keep positions in integers as wide as an element, at least 32 bits.
          if (x[2] > std::numeric_limits<int32_t>::max() / x[3]) c.fail("an image has 2^31 pixels or more");
          const Extent size = pooled_size(how, x, kernel);
          for (int d = 0; d < 2; ++d)
            if ((size[d] - 1) * how.stride[d] - how.before[d] >= x[2 + d]) c.fail("a window has no pixel of the image");
          const Dims y = {x[0], x[1], size[0], size[1]};
          const Dims strides = is_channels_last(x, c.strides(0)) ? channels_last_strides(y) : contiguous_strides(y);
          c.strided_output(0, c.dtype(0), y, strides);
          c.strided_output(1, kI64, y, strides);
        },
    .host = {&cpu::max_pool2d_kernel},
    .decompose = &decompose_max_pool2d,
    .grad =
        [](const GradContext& g) {
          const Dims& x = g.input_sizes(0);
          const Tensor& place = g.output(1);
          const Tensor zeros = Tensor::zeros({x[0], x[1], x[2] * x[3]}, {g.input_dtype(0), g.grad_out().device()});
          g.set(0, reshape(scatter_add(zeros, 2, flatten(place, 2), flatten(g.grad_out(), 2)), x));
        },
    .channels_last = &call_as_usual,
    .fuse_parts = false,
};

Tensor max_pool2d(TensorArg x, Spatial<2> kernel, MaxPool2dOptions options) {
  const Convolution how = windows("max_pool2d", x, kernel, options, options.dilation);
  Tensor outputs[2];
  call(kMaxPool2d, {x}, how.attrs({kernel[0], kernel[1]}), outputs);
  return outputs[0];
}

Tensor avg_pool2d(TensorArg x, Spatial<2> kernel, AvgPool2dOptions options) {
  const FloatingPointScope floating_point;
  Convolution how = windows("avg_pool2d", x, kernel, options, 1);
  const Dims& in = x.tensor.sizes();
  const Extent size = pooled_size(how, in, {kernel[0], kernel[1]});
  // By dimension: the number of pixels over which each window's mean is taken.
  std::vector<double> counts[2];
  bool all_whole = true;
  for (int d = 0; d < 2; ++d)
    for (int64_t i = 0; i < size[static_cast<size_t>(d)]; ++i) {
      const int64_t begin = i * how.stride[d] - how.before[d], n = in[2 + d], pad = options.padding[d];
      const int64_t count = options.count_include_pad ? std::min(begin + kernel[d], n + pad) - begin
                                                      : std::min(begin + kernel[d], n) - std::max<int64_t>(begin, 0);
      all_whole = all_whole && count == kernel[d];
      counts[d].push_back(1.0 / static_cast<double>(count));
    }
  const DType wide = compute_dtype(x.tensor.dtype());
  const TensorOptions like{wide, x.tensor.device()};
  how.groups = std::max<int64_t>(in[1], 1);
  if (in[1] == 0) return Tensor::zeros({in[0], 0, size[0], size[1]}, {x.tensor.dtype(), x.tensor.device()});
  const double share = all_whole ? 1.0 / static_cast<double>(kernel[0] * kernel[1]) : 1.0;
  const Tensor weight = Tensor::full({in[1], 1, kernel[0], kernel[1]}, share, like);
  const amp::Autocast as_given(std::nullopt);
  Tensor y = call(kConv2d, {{x.tensor.to(wide), x.where}, weight}, how.attrs());
  if (!all_whole) {
    const auto shares = [&](int d) {
      const Dims sizes = d == 0 ? Dims{size[0], 1} : Dims{size[1]};
      return Tensor::from(counts[d], sizes, like);
    };
    y = y * (shares(0) * shares(1));
  }
  return y.to(x.tensor.dtype());
}

Tensor adaptive_avg_pool2d(TensorArg x, Spatial<2> size) {
  const FloatingPointScope floating_point;
  require_defined("adaptive_avg_pool2d", x);
  const Dims& in = x.tensor.sizes();
  if (in.rank() != 4 || !is_floating(x.tensor.dtype()) || size[0] < 1 || size[1] < 1 || in[2] < 1 || in[3] < 1)
    throw_op_error("adaptive_avg_pool2d",
                   absl::StrCat("needs floats (B, C, H, W) with pixels, and positive sizes; got x ", to_string(in),
                                ", size [", size[0], ", ", size[1], "]"),
                   x.where);
  if (size[0] == 1 && size[1] == 1) return mean(x, {2, 3}, true);
  if (in[2] % size[0] == 0 && in[3] % size[1] == 0) return avg_pool2d(x, {in[2] / size[0], in[3] / size[1]});
  const DType wide = compute_dtype(x.tensor.dtype());
  // Returns a matrix (size, n): the share of each pixel in each mean.
  const auto means = [&](int64_t n, int64_t size) {
    std::vector<double> shares(static_cast<size_t>(n * size), 0.0);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t begin = i * n / size, end = ((i + 1) * n + size - 1) / size;
      for (int64_t k = begin; k < end; ++k)
        shares[static_cast<size_t>(i * n + k)] = 1.0 / static_cast<double>(end - begin);
    }
    return Tensor::from(shares, {size, n}, {wide, x.tensor.device()});
  };
  const amp::Autocast as_given(std::nullopt);
  const Tensor rows = matmul({x.tensor.to(wide), x.where}, transpose(means(in[3], size[1]), 0, 1));
  const Tensor y = matmul(means(in[2], size[0]), rows).to(x.tensor.dtype());
  return lies_channels_last(x.tensor) ? with_strides(y, channels_last_strides(y.sizes())) : y;
}

constexpr OpList kPoolingOps = {&kMaxPool2d};

}  // namespace rondo::ops
