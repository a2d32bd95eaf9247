// Cross-entropy of the pixels of an image, whose logits are interpolated to the image's size on the way.
//
// Logits at the size of the image are the largest tensors of a network for segmentation: with 19 classes at 512 x 1024
// they take 40 MB for each image and head. Interpolation, a change of layout, the loss and all their gradients read and
// write them. The kernel holds only a few rows of these logits at a time, and the backward computes them again.
#include "rondo/runtime/ops/pixel_loss.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/ops/interpolation.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {
namespace {

// Interpolates the logits to the target's size, (B, C, H, W), in the compute dtype.
Tensor at_size_of(const Tensor& logits, const Tensor& target) {
  return interpolate(logits.to(compute_dtype(logits.dtype())), {target.size(1), target.size(2)},
                     {.mode = InterpolateMode::kBilinear});
}

// Computes the gradient of at_size_of(), for logits of `sizes`.
Tensor back_to(const Dims& sizes, const Tensor& grad) {
  return call(kInterpolateGrad, {grad}, Interpolation{.taps = 2}.attrs({sizes[2], sizes[3]}));
}

Tensor above_classes(const Tensor& of_pixels) { return unsqueeze(of_pixels, 1); }

void decompose_pixel_cross_entropy(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  const Tensor full = at_size_of(in[0], in[1]);
  const Tensor rows = reshape(permute(full, {0, 2, 3, 1}), {in[1].numel(), full.size(1)});
  const Tensor loss = cross_entropy(rows, reshape(in[1], {in[1].numel()}), {.ignore_index = attrs.ints[0]});
  out[0] = loss.to(in[0].dtype());
  const Tensor top = max(full, 1, /*keepdim=*/true);
  out[1] = select(top + log(sum(exp(full - top), {1}, /*keepdim=*/true)), 1, 0).contiguous();
}

void decompose_pixel_cross_entropy_grad(std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
  const Tensor &logits = in[1], &target = in[2];
  const Tensor full = at_size_of(logits, target), counts = not_equal(target, attrs.ints[0]);
  const Tensor weight = in[0].to(full.dtype()) * (1.0 / sum(counts.to(full.dtype())));
  const Tensor p = exp(full - above_classes(in[3]));
  const Tensor classes = reshape(Tensor::arange(full.size(1), {kI64, target.device()}), {full.size(1), 1, 1});
  const Tensor dx = where(equal(classes, above_classes(target)), p + -1.0, p) * weight;
  out[0] = back_to(logits.sizes(), where(above_classes(counts), dx, 0.0)).to(logits.dtype());
}

// Checks logits and target, which are operands `first` and `first + 1`.
void require_pixels(InferContext& c, int first) {
  c.require_floating(first);
  const Dims &x = c.sizes(first), &t = c.sizes(first + 1);
  if (x.rank() != 4 || x[1] < 1) c.fail("logits must be (B, C, h, w) with a class at least");
  if (c.dtype(first + 1) != kI64 || t.rank() != 3 || t[0] != x[0]) c.fail("target must be i64 or i32 (B, H, W)");
  if (t.numel() > 0 && x.numel() == 0) c.fail("logits without pixels cannot be interpolated");
}

}  // namespace

// Inputs grad (a scalar), logits, target, logsumexp; attributes as pixel_cross_entropy.
constexpr OpDef kPixelCrossEntropyGrad = {
    .name = "pixel_cross_entropy_grad",
    .kind = OpKind::kOpaque,
    .infer =
        [](InferContext& c) {
          require_pixels(c, 1);
          c.output(0, c.dtype(1), c.sizes(1));
        },
    .host = {&cpu::pixel_cross_entropy_grad_kernel},
    .decompose = &decompose_pixel_cross_entropy_grad,
    .fuse_parts = false,
    .checks = true,
};

// The attributes are those of cross_entropy: ints {ignore_index, reduction (always kMean)}; floats {label_smoothing
// (always 0)}. Outputs the loss, and logsumexp (B, H, W).
constexpr OpDef kPixelCrossEntropy = {
    .name = "pixel_cross_entropy",
    .kind = OpKind::kOpaque,
    .n_outputs = 2,
    .saved = {.inputs = kFirst | kSecond, .outputs = kSecond},
    .amp = AmpPolicy::kFloat32,
    .infer =
        [](InferContext& c) {
          require_pixels(c, 0);
          c.output(0, c.dtype(0), Dims());
          c.output(1, compute_dtype(c.dtype(0)), c.sizes(1));
        },
    .host = {&cpu::pixel_cross_entropy_kernel},
    .decompose = &decompose_pixel_cross_entropy,
    .grad =
        [](const GradContext& g) {
          const Tensor &logits = g.input(0), &target = g.input(1);
          Tensor grad;
          if (g.grad_out(0).defined())
            grad = call(kPixelCrossEntropyGrad, {g.grad_out(0), logits, target, g.output(1)}, g.attrs());
          if (g.grad_out(1).defined()) {  // second derivatives only: d logsumexp / d logits is the softmax
            const Tensor p = exp(at_size_of(logits, target) - above_classes(g.output(1)));
            const Tensor more = back_to(logits.sizes(), p * above_classes(g.grad_out(1))).to(logits.dtype());
            grad = grad.defined() ? grad + more : more;
          }
          g.set(0, grad);
        },
    .fuse_parts = false,
    .checks = true,
};

Tensor pixel_cross_entropy(TensorArg logits, TensorArg target, int64_t ignore_index) {
  require_defined("pixel_cross_entropy", logits);
  const Tensor at = index_operand("pixel_cross_entropy", target);
  Tensor outputs[2];
  call(kPixelCrossEntropy, {logits, {at, target.where, target.tensor.dtype()}},
       {.ints = {ignore_index, static_cast<int64_t>(Reduction::kMean)}, .floats = {0.0}}, outputs);
  return outputs[0];
}

constexpr OpList kPixelLossOps = {&kPixelCrossEntropy, &kPixelCrossEntropyGrad};

}  // namespace rondo::ops
