// Interpolation of images to other sizes: linear in x, so the gradient is an op whose gradient is the first one again.
#include "rondo/runtime/ops/interpolation.h"

#include <algorithm>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/channels_last.h"
#include "rondo/runtime/floating_point_scope.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/lookup.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/resample.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

namespace {

// The neighbours of dimension `dim` of a tensor like `like`, as tensors; `weight` has sizes that broadcast along it.
struct NeighbourTensors {
  Tensor left, right, weight;
  NeighbourTensors(const Tensor& like, int dim, int64_t from, int64_t size, const Interpolation& how) {
    const Tensor at = Tensor::arange(size, {kI64, like.device()});
    if (!how.linear) {
      left = (at * from).to(kF64) / static_cast<double>(size);
      left = left.to(kI64);  // both are below 2^53, so the quotient does not round up to the next integer
      return;
    }
    const double scale = neighbour_distance(from, size, how.align_corners);
    const Tensor place = how.align_corners ? at.to(kF64) * scale : maximum((at.to(kF64) + 0.5) * scale - 0.5, 0.0);
    left = minimum(place.to(kI64), from - 1);
    right = minimum(left + 1, from - 1);
    Dims beside = {size};
    while (beside.rank() < like.rank() - dim) beside.push_back(1);
    weight = reshape((place - left.to(kF64)).to(like.dtype()), beside);
  }
};

void decompose_interpolate(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  const Interpolation how = Interpolation::of(attrs);
  const Extent size = Interpolation::size_in(attrs);
  Tensor y = in[0].to(compute_dtype(in[0].dtype()));
  for (int d = 0; d < 2; ++d) {
    const int dim = 2 + d;
    if (y.size(dim) == size[d]) continue;
    const NeighbourTensors n(y, dim, y.size(dim), size[d], how);
    const Tensor left = index_select(y, dim, n.left);
    y = how.linear ? left * (1.0 - n.weight) + index_select(y, dim, n.right) * n.weight : left;
  }
  out[0] = y.to(in[0].dtype());
}

void decompose_interpolate_grad(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  const Interpolation how = Interpolation::of(attrs);
  const Extent size = Interpolation::size_in(attrs);
  Tensor g = in[0].to(compute_dtype(in[0].dtype()));
  for (int d = 0; d < 2; ++d) {
    const int dim = 2 + d;
    if (g.size(dim) == size[d]) continue;
    const NeighbourTensors n(g, dim, size[d], g.size(dim), how);
    Dims sizes = g.sizes();
    sizes[dim] = size[d];
    const Tensor zeros = Tensor::zeros(sizes, {g.dtype(), g.device()});
    g = how.linear ? index_add(index_add(zeros, dim, n.left, g * (1.0 - n.weight)), dim, n.right, g * n.weight)
                   : index_add(zeros, dim, n.left, g);
  }
  out[0] = g.to(in[0].dtype());
}

// `fail` is told what is wrong with sizes of images (B, C, ., .), if something is.
void require_sizes(const Dims& x, Extent size, absl::FunctionRef<void(const std::string&)> fail) {
  const std::string from_to = absl::StrCat(": ", to_string(x), " to [", size[0], ", ", size[1], "]");
  for (int d = 0; d < 2; ++d) {
    if (size[d] < 1 || x[2 + d] < 1) fail("sizes must be positive" + from_to);
    if (std::max(size[d], x[2 + d]) > kMostPixels) fail(absl::StrCat("a size may be at most ", kMostPixels, from_to));
  }
}

// An image of the size that the attributes name, in the layout of input 0.
void infer_resized(InferContext& c) {
  c.require_floating(0);
  const Dims& x = c.sizes(0);
  if (x.rank() != 4 || c.attrs().ints.size() != Interpolation::kInts)
    c.fail("needs x (B, C, H, W), a size, and the numbers of an interpolation");
  const Extent size = Interpolation::size_in(c.attrs());
  require_sizes(x, size, [&](const std::string& what) { c.fail(what); });
  const Dims y = {x[0], x[1], size[0], size[1]};
  c.strided_output(0, c.dtype(0), y,
                   is_channels_last(x, c.strides(0)) ? channels_last_strides(y) : contiguous_strides(y));
}

}  // namespace

// Input x (B, C, H, W) -> (B, C, h, w). ints: {h, w, linear, align_corners}
constexpr OpDef kInterpolate = {
    .name = "interpolate",
    .kind = OpKind::kOpaque,
    .infer = &infer_resized,
    .on = {{&cpu::interpolate_kernel}},
    .decompose = &decompose_interpolate,
    .grad =
        [](const GradContext& g) {
          const Dims& x = g.input_sizes(0);
          g.set(0, call(kInterpolateGrad, {g.grad_out()}, Interpolation::of(g.attrs()).attrs({x[2], x[3]})));
        },
    .channels_last = &call_as_usual,
    .fuse_parts = false,
};

// The gradient (B, C, h, w) of a result -> that of x (B, C, H, W). ints: {H, W, linear, align_corners}
constexpr OpDef kInterpolateGrad = {
    .name = "interpolate_grad",
    .kind = OpKind::kOpaque,
    .infer = &infer_resized,
    .on = {{&cpu::interpolate_grad_kernel}},
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
  const Interpolation how{options.mode == InterpolateMode::kBilinear, options.align_corners};
  if (how.align_corners && !how.linear) fail("align_corners is for bilinear interpolation");
  const DType dtype = x.tensor.dtype();
  if (is_floating(dtype)) return call(kInterpolate, {x}, how.attrs({size[0], size[1]}));
  // A mask, which has no gradient.
  if (how.linear)
    fail(absl::StrCat("bilinear interpolation needs floating point, got ", std::string(name_of(dtype)),
                      "; kNearest keeps integers as they are"));
  if (x.tensor.rank() != 4) fail(absl::StrCat("needs x (B, C, H, W), got ", to_string(x.tensor.sizes())));
  require_sizes(x.tensor.sizes(), {size[0], size[1]}, fail);
  Tensor y = x.tensor;
  for (int d = 0; d < 2; ++d) {
    const NeighbourTensors n(y, 2 + d, y.size(2 + d), size[d], how);
    y = select_slices({y, x.where}, 2 + d, n.left);
  }
  return lies_channels_last(x.tensor) ? with_dense_strides(y.contiguous(), channels_last_strides(y.sizes()))
                                      : y.contiguous();
}

constexpr OpList kInterpolationOps = {&kInterpolate, &kInterpolateGrad};

}  // namespace rondo::ops
