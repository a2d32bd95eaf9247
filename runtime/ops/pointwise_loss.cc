// Losses of each element of an input and a target. Each is an elementwise op; the reduction follows as an op of its
// own, so a compiler fuses both.
#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

constexpr OpDef kMSELoss = elementwise<kFloatingOnly, 2, 0, [](auto x, auto y) { return (x - y) * (x - y); }>(
    "mse_loss", {.inputs = kFirst | kSecond},
    [](const GradContext& g) {
      const Tensor slope = g.grad_out() * ((g.input(0) - g.input(1)) * 2.0);
      if (g.needs(0)) g.set_reduced(0, slope);
      if (g.needs(1)) g.set_reduced(1, neg(slope));
    },
    nullptr, AmpPolicy::kFloat32);

constexpr OpDef kL1Loss = elementwise<kFloatingOnly, 2, 0, [](auto x, auto y) { return scalar::abs(x - y); }>(
    "l1_loss", {.inputs = kFirst | kSecond},
    [](const GradContext& g) {
      const Tensor slope = g.grad_out() * sign(g.input(0) - g.input(1));
      if (g.needs(0)) g.set_reduced(0, slope);
      if (g.needs(1)) g.set_reduced(1, neg(slope));
    },
    nullptr, AmpPolicy::kFloat32);

// floats: {delta}
struct Huber {
  template <class T> T operator()(T x, T y, T delta) const {
    const T d = scalar::abs(x - y), half = scalar::constant(x, 0.5);
    return scalar::select(scalar::le(d, delta), d * d * half, delta * (d - delta * half));
  }
};
constexpr OpDef kHuberLoss = elementwise<kFloatingOnly, 2, 1, Huber{}>(
    "huber_loss", {.inputs = kFirst | kSecond},
    [](const GradContext& g) {
      const SymFloat delta = g.scalar(0);
      const Tensor slope = g.grad_out() * clamp(g.input(0) - g.input(1), -delta, delta);
      if (g.needs(0)) g.set_reduced(0, slope);
      if (g.needs(1)) g.set_reduced(1, neg(slope));
    },
    nullptr, AmpPolicy::kFloat32);

// The loss for a logit x and a target y: (1 - y) x + softplus(-x), which overflows nowhere.
struct BCEWithLogits {
  template <class T> T operator()(T x, T y) const { return (scalar::constant(x, 1.0) - y) * x + scalar::softplus(-x); }
};
constexpr OpDef kBCEWithLogits = elementwise<kFloatingOnly, 2, 0, BCEWithLogits{}>(
    "bce_with_logits", {.inputs = kFirst | kSecond},
    [](const GradContext& g) {
      if (g.needs(0)) g.set_reduced(0, g.grad_out() * (sigmoid(g.input(0)) - g.input(1)));
      if (g.needs(1)) g.set_reduced(1, neg(g.grad_out() * g.input(0)));
    },
    nullptr, AmpPolicy::kFloat32);

namespace {

// Throws Error unless x and target have one shape. Broadcasting would hide a missing unsqueeze(): (N) against (N, 1) is
// N x N losses.
void require_same_shape(const char* op, TensorArg x, TensorArg target) {
  for (const TensorArg& operand : {x, target}) require_defined(op, operand);
  if (!(x.tensor.sizes() == target.tensor.sizes()))
    throw_op_error(op,
                   "input and target must have the same shape, got " + to_string(x.tensor.sizes()) + " and " +
                       to_string(target.tensor.sizes()) + "; reshape() or unsqueeze() one of them",
                   x.where);
}

Tensor reduced(const Tensor& losses, Reduction reduction, std::source_location where) {
  switch (reduction) {
    case Reduction::kMean: return mean({losses, where});
    case Reduction::kSum: return sum({losses, where});
    case Reduction::kNone: break;
  }
  return losses;
}

Tensor pointwise(const OpDef& op, TensorArg x, TensorArg target, Reduction reduction, const Attrs& attrs = {}) {
  require_same_shape(op.name, x, target);
  const DType dtype = promote(x.tensor.dtype(), target.tensor.dtype());
  const Tensor a = x.tensor.to(dtype, x.where), b = target.tensor.to(dtype, target.where);
  return reduced(call(op, {{a, x.where}, {b, target.where}}, attrs), reduction, x.where);
}

}  // namespace

Tensor mse_loss(TensorArg x, TensorArg target, Reduction reduction) {
  return pointwise(kMSELoss, x, target, reduction);
}
Tensor l1_loss(TensorArg x, TensorArg target, Reduction reduction) { return pointwise(kL1Loss, x, target, reduction); }
Tensor huber_loss(TensorArg x, TensorArg target, HuberLossOptions options) {
  if (!(options.delta > 0))
    throw_op_error("huber_loss", "delta must be positive, not " + std::to_string(options.delta), x.where);
  return pointwise(kHuberLoss, x, target, options.reduction, {.floats = {options.delta}});
}

Tensor bce_with_logits(TensorArg x, TensorArg target, BCEWithLogitsOptions options) {
  if (!options.pos_weight.defined() && !options.weight.defined())
    return pointwise(kBCEWithLogits, x, target, options.reduction);
  require_same_shape("bce_with_logits", x, target);
  Tensor losses;
  if (options.pos_weight.defined()) {
    // Where the target is 1, softplus(-x) is multiplied by pos_weight.
    const Tensor y = target.tensor.to(promote(x.tensor.dtype(), target.tensor.dtype()), target.where);
    const Tensor factor = add({y * (options.pos_weight.detach() - 1.0), x.where}, 1.0);
    losses = (1.0 - y) * x.tensor + factor * softplus({neg(x), x.where});
  } else {
    losses = pointwise(kBCEWithLogits, x, target, Reduction::kNone);
  }
  if (options.weight.defined()) losses = mul({losses, x.where}, {options.weight.detach(), x.where});
  if (!(losses.sizes() == x.tensor.sizes()))
    throw_op_error("bce_with_logits", "weight and pos_weight must broadcast to " + to_string(x.tensor.sizes()),
                   x.where);
  return reduced(losses, options.reduction, x.where);
}

constexpr OpList kPointwiseLossOps = {&kMSELoss, &kL1Loss, &kHuberLoss, &kBCEWithLogits};

}  // namespace rondo::ops
