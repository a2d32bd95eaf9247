// Interpolation of images to other sizes. It is linear in x, so its gradient is an op whose
// gradient is interpolation again.
#include "rondo/runtime/ops/interpolation.h"

#include <algorithm>
#include <cmath>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/ops/channels_last.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/lookup.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

Resampling::Resampling(int64_t from, int64_t size, const Interpolation& how)
    : from(from),
      size(size),
      how(how),
      distance(!how.align_corners ? static_cast<double>(from) / static_cast<double>(size)
               : size > 1         ? static_cast<double>(from - 1) / static_cast<double>(size - 1)
                                  : 0),
      unit(how.antialias ? std::max(distance, 1.0) : 1),
      reach(static_cast<double>(how.taps / 2) * unit),
      a(how.antialias ? -0.5 : -0.75),
      width(how.taps == 1 || from == size ? 1
            : how.antialias               ? std::min(2 * static_cast<int64_t>(std::ceil(reach)) + 1, from)
                                          : how.taps) {}

Taps::Taps(int64_t from, int64_t size, const Interpolation& how) : width(0), size(size) {
  const Resampling r(from, size, how);
  width = r.width;
  pixel.resize(static_cast<size_t>(width * size));
  weight.assign(pixel.size(), 1);
  for (int64_t i = 0; i < size; ++i) {
    if (width == 1) {
      pixel[static_cast<size_t>(i)] = static_cast<int32_t>(i * from / size);
      continue;
    }
    const auto at = static_cast<double>(i);
    double place = r.align_corners() ? at * r.distance : (at + 0.5) * r.distance - 0.5;
    if (how.taps == 2 && !how.antialias) place = std::max(place, 0.0);
    int64_t first = static_cast<int64_t>(std::floor(place)) - how.taps / 2 + 1, end = from;
    if (how.antialias) {
      first = static_cast<int64_t>(std::max(place - r.reach + 1, 0.0));
      end = std::min(static_cast<int64_t>(place + r.reach + 1), from);
    }
    double sum = 0;
    for (int64_t t = 0; t < width; ++t) {
      const auto k = static_cast<size_t>(t * size + i);
      const double d = std::abs(static_cast<double>(first + t) - place) / r.unit;
      pixel[k] = static_cast<int32_t>(std::clamp<int64_t>(first + t, 0, end - 1));
      weight[k] = how.antialias && first + t >= end ? 0
                  : how.taps == 2                   ? std::max(1 - d, 0.0)
                  : d < 1                           ? ((r.a + 2) * d - (r.a + 3)) * d * d + 1
                  : d < 2                           ? (((d - 5) * d + 8) * d - 4) * r.a
                                                    : 0;
      sum += weight[k];
    }
    for (int64_t t = 0; how.antialias && t < width; ++t) weight[static_cast<size_t>(t * size + i)] /= sum;
  }
}

namespace {

// The Taps of one dimension as tensors, on the device of `like`.
struct TapTensors {
  int64_t width;
  Tensor pixel, weight;  // (width, size)

  TapTensors(const Tensor& like, int64_t from, int64_t size, const Interpolation& how) {
    const Resampling r(from, size, how);
    width = r.width;
    const Tensor i = Tensor::arange(size, {kI64, like.device()}), at = i.to(kF64);
    if (width == 1) {
      // i * from and size are below 2^53, so the quotient does not round up to the next integer.
      pixel = ((i * from).to(kF64) / static_cast<double>(size)).to(kI64).view({1, size});
      return;
    }
    Tensor place = r.align_corners() ? at * r.distance : (at + 0.5) * r.distance - 0.5;
    if (how.taps == 2 && !how.antialias) place = maximum(place, 0.0);
    // place + 1 is not negative, so its conversion to an integer rounds down.
    const Tensor first = how.antialias ? maximum(place - r.reach + 1.0, 0.0).to(kI64)
                                       : (place + 1.0).to(kI64) - how.taps / 2;
    const Tensor all = first + Tensor::arange(width, {kI64, like.device()}).view({width, 1});
    Tensor d = abs(all.to(kF64) - place);
    if (how.antialias) d = d / r.unit;
    if (how.taps == 2) {
      weight = maximum(1.0 - d, 0.0);
    } else {
      const Tensor near = ((r.a + 2) * d - (r.a + 3)) * d * d + 1.0, far = (((d - 5.0) * d + 8.0) * d - 4.0) * r.a;
      weight = where(less(d, 1.0), near, where(less(d, 2.0), far, 0.0));
    }
    if (how.antialias) {
      const Tensor end = minimum((place + r.reach + 1.0).to(kI64), from);
      weight = where(less(all, end), weight, 0.0);
      weight = weight / sum(weight, {0});
      pixel = minimum(all, end - 1);
    } else {
      pixel = maximum(minimum(all, from - 1), 0);
    }
    weight = weight.to(like.dtype());
  }

  Tensor pixels(int64_t tap) const { return select(pixel, 0, tap); }
  // Multiplies `x` along dimension `dim` by the weights of tap number `tap`.
  Tensor weighted(const Tensor& x, int dim, int64_t tap) const {
    if (!weight.defined()) return x;
    Dims beside = {weight.size(1)};
    while (beside.rank() < x.rank() - dim) beside.push_back(1);
    return x * reshape(select(weight, 0, tap), beside);
  }
};

void decompose_interpolate(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  const Interpolation how = Interpolation::of(attrs);
  const Extent size = Interpolation::size_in(attrs);
  Tensor y = in[0].to(compute_dtype(in[0].dtype()));
  for (int d = 0; d < 2; ++d) {
    const int dim = 2 + d;
    if (y.size(dim) == size[d]) continue;
    const TapTensors taps(y, y.size(dim), size[d], how);
    Tensor sum;
    for (int64_t t = 0; t < taps.width; ++t) {
      const Tensor part = taps.weighted(index_select(y, dim, taps.pixels(t)), dim, t);
      sum = t == 0 ? part : sum + part;
    }
    y = sum;
  }
  out[0] = y.is_same(in[0]) ? y.clone() : y.to(in[0].dtype());  // not in[0] itself, because the caller may write to it
}

void decompose_interpolate_grad(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  const Interpolation how = Interpolation::of(attrs);
  const Extent size = Interpolation::size_in(attrs);
  Tensor g = in[0].to(compute_dtype(in[0].dtype()));
  for (int d = 0; d < 2; ++d) {
    const int dim = 2 + d;
    if (g.size(dim) == size[d]) continue;
    const TapTensors taps(g, size[d], g.size(dim), how);
    Dims sizes = g.sizes();
    sizes[dim] = size[d];
    Tensor sum = Tensor::zeros(sizes, {g.dtype(), g.device()});
    for (int64_t t = 0; t < taps.width; ++t) sum = index_add(sum, dim, taps.pixels(t), taps.weighted(g, dim, t));
    g = sum;
  }
  out[0] = g.is_same(in[0]) ? g.clone() : g.to(in[0].dtype());
}

// Calls `fail` with a message if these sizes of images (B, C, ., .) are not valid.
void require_sizes(const Dims& x, Extent size, absl::FunctionRef<void(const std::string&)> fail) {
  const std::string from_to = absl::StrCat(": ", to_string(x), " to [", size[0], ", ", size[1], "]");
  for (int d = 0; d < 2; ++d) {
    if (size[d] < 1 || x[2 + d] < 1) fail("sizes must be positive" + from_to);
    if (std::max(size[d], x[2 + d]) > kMostPixels) fail(absl::StrCat("a size may be at most ", kMostPixels, from_to));
  }
}

// Infers the result: an image of the size that the attributes name, in the layout of input 0.
void infer_resized(InferContext& c) {
  c.require_floating(0);
  const Dims& x = c.sizes(0);
  if (x.rank() != 4 || c.attrs().ints.size() != Interpolation::kInts)
    c.fail("needs x (B, C, H, W), a size, and the numbers of an interpolation");
  const int64_t taps = Interpolation::of(c.attrs()).taps;
  if (taps != 1 && taps != 2 && taps != 4) c.fail(absl::StrCat("there is no interpolation by ", taps, " pixels"));
  const Extent size = Interpolation::size_in(c.attrs());
  require_sizes(x, size, [&](const std::string& what) { c.fail(what); });
  const Dims y = {x[0], x[1], size[0], size[1]};
  c.strided_output(0, c.dtype(0), y,
                   is_channels_last(x, c.strides(0)) ? channels_last_strides(y) : contiguous_strides(y));
}

}  // namespace

// Interpolates x (B, C, H, W) to (B, C, h, w). ints: {h, w} and those of Interpolation
constexpr OpDef kInterpolate = {
    .name = "interpolate",
    .kind = OpKind::kOpaque,
    .infer = &infer_resized,
    .host = {&cpu::interpolate_kernel},
    .decompose = &decompose_interpolate,
    .grad =
        [](const GradContext& g) {
          const Dims& x = g.input_sizes(0);
          g.set(0, call(kInterpolateGrad, {g.grad_out()}, Interpolation::of(g.attrs()).attrs({x[2], x[3]})));
        },
    .channels_last = &call_as_usual,
    .fuse_parts = false,
};

// Computes the gradient of x (B, C, H, W) from the gradient of the result (B, C, h, w). ints: {H, W} and those of
// Interpolation
constexpr OpDef kInterpolateGrad = {
    .name = "interpolate_grad",
    .kind = OpKind::kOpaque,
    .infer = &infer_resized,
    .host = {&cpu::interpolate_grad_kernel},
    .decompose = &decompose_interpolate_grad,
    .grad =
        [](const GradContext& g) {
          const Dims& y = g.input_sizes(0);
          g.set(0, call(kInterpolate, {g.grad_out()}, Interpolation::of(g.attrs()).attrs({y[2], y[3]})));
        },
    .channels_last = &call_as_usual,
    .fuse_parts = false,
};

Tensor interpolate(TensorArg x, Spatial<2> size, InterpolateOptions options) {
  const FloatingPointScope floating_point;
  require_defined("interpolate", x);
  const auto fail = [&](const std::string& what) { throw_op_error("interpolate", what, x.where); };
  const bool nearest = options.mode == InterpolateMode::kNearest;
  const Interpolation how{nearest                                      ? 1
                          : options.mode == InterpolateMode::kBilinear ? 2
                                                                       : 4,
                          options.align_corners, options.antialias};
  if (how.align_corners && nearest) fail("align_corners is for bilinear and bicubic interpolation");
  if (how.antialias && nearest) fail("antialias is for bilinear and bicubic interpolation");
  const DType dtype = x.tensor.dtype();
  if (is_floating(dtype)) return call(kInterpolate, {x}, how.attrs({size[0], size[1]}));
  // x holds integers, such as a mask. They have no gradient, so the result is a lookup and not a call of kInterpolate.
  if (!nearest)
    fail(absl::StrCat(how.taps == 2 ? "bilinear" : "bicubic", " interpolation needs floating point, got ",
                      std::string(name_of(dtype)), "; kNearest keeps integers as they are"));
  if (x.tensor.rank() != 4) fail(absl::StrCat("needs x (B, C, H, W), got ", to_string(x.tensor.sizes())));
  require_sizes(x.tensor.sizes(), {size[0], size[1]}, fail);
  Tensor y = x.tensor;
  for (int d = 0; d < 2; ++d) {
    const TapTensors taps(y, y.size(2 + d), size[d], how);
    y = select_slices({y, x.where}, 2 + d, taps.pixels(0));
  }
  return lies_channels_last(x.tensor) ? with_strides(y.contiguous(), channels_last_strides(y.sizes())) : y.contiguous();
}

constexpr OpList kInterpolationOps = {&kInterpolate, &kInterpolateGrad};

}  // namespace rondo::ops
