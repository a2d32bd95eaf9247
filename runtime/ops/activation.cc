// Activations beyond those that elementwise.cc has.
#include <cmath>

#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

// ---- SiLU: x sigmoid(x)

void decompose_silu_grad(std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) {
  const Tensor &x = in[0], &g = in[1];
  const Tensor s = sigmoid(x);
  out[0] = g * (s * (x * (1.0 - s) + 1.0));
}
constexpr OpDef kSiluGrad = elementwise<kFloatingOnly, 2, 0, [](auto x, auto g) { return scalar::silu_grad(x, g); }>(
    "silu_grad", {}, nullptr, &decompose_silu_grad);
constexpr OpDef kSilu = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::silu(x); }>(
    "silu", {.inputs = kFirst}, [](const GradContext& g) {
      g.set(0, call(kSiluGrad, {g.input(0), g.grad_out()}));
    });

// ---- Softplus: ln(1 + e^x)

constexpr OpDef kSoftplus = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::softplus(x); }>(
    "softplus", {.inputs = kFirst}, [](const GradContext& g) { g.set(0, g.grad_out() * sigmoid(g.input(0))); }, nullptr,
    AmpPolicy::kFloat32);

// ---- Piecewise linear; their gradient ops are linear in the gradient and flat in x.

namespace {

// Inputs x, grad of a piecewise linear op.
void piecewise_grad_grad(const OpDef& op, const GradContext& g) {
  if (g.needs(0)) g.set(0, expand(Tensor::zeros({}, {g.input_dtype(0)}), g.input_sizes(0)));
  if (g.needs(1)) g.set(1, call(op, {g.input(0), g.grad_out()}, g.attrs()));
}

}  // namespace

// floats: {slope}
constexpr OpDef kLeakyReluGrad =
    elementwise<kFloatingOnly, 2, 1, [](auto x, auto g, auto slope) { return scalar::leaky_relu_grad(x, slope, g); }>(
        "leaky_relu_grad", {.inputs = kFirst}, [](const GradContext& g) { piecewise_grad_grad(kLeakyReluGrad, g); });
constexpr OpDef kLeakyRelu =
    elementwise<kFloatingOnly, 1, 1, [](auto x, auto slope) { return scalar::leaky_relu(x, slope); }>(
        "leaky_relu", {.inputs = kFirst}, [](const GradContext& g) {
          g.set(0, call(kLeakyReluGrad, {g.input(0), g.grad_out()}, g.attrs()));
        });

// floats: {low, high}
constexpr OpDef kClampGrad = elementwise<kFloatingOnly, 2, 2, [](auto x, auto g, auto low, auto high) {
  return scalar::clamp_grad(x, low, high, g);
}>("clamp_grad", {.inputs = kFirst}, [](const GradContext& g) { piecewise_grad_grad(kClampGrad, g); });
constexpr OpDef kClamp =
    elementwise<kFloatingOnly, 1, 2, [](auto x, auto low, auto high) { return scalar::clamp(x, low, high); }>(
        "clamp", {.inputs = kFirst}, [](const GradContext& g) {
          g.set(0, call(kClampGrad, {g.input(0), g.grad_out()}, g.attrs()));
        });

Tensor silu(TensorArg x) { return call(kSilu, {x}); }
Tensor softplus(TensorArg x) { return call(kSoftplus, {x}); }
Tensor leaky_relu(TensorArg x, double slope) { return call(kLeakyRelu, {x}, {.floats = {slope}}); }

Tensor clamp(TensorArg x, double low, double high) {
  if (!(low <= high)) throw_op_error("clamp", "low must not be above high", x.where);
  if (x.tensor.defined() && !is_floating(x.tensor.dtype())) {
    Tensor result = x.tensor;
    const TensorOptions like = {x.tensor.dtype(), x.tensor.device()};
    if (std::isfinite(low)) result = maximum({result, x.where}, Tensor::full({}, low, like));
    if (std::isfinite(high)) result = minimum({result, x.where}, Tensor::full({}, high, like));
    return result;
  }
  return call(kClamp, {x}, {.floats = {low, high}});
}

}  // namespace rondo::ops
