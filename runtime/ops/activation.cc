// Activations.
#include <cmath>

#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

// ---- ReLU

namespace {

// The gradient rule of the gradient op of a piecewise linear op. The gradient op has the inputs x and grad. It is
// linear in grad, and its derivative by x is 0, even if x is infinite.
void piecewise_grad_grad(const OpDef& op, const GradContext& g) {
  if (g.needs(0)) g.set(0, expand(Tensor::zeros({}, {g.input_dtype(0), g.grad_out().device()}), g.input_sizes(0)));
  if (g.needs(1)) g.set(1, call(op, {g.input(0), g.grad_out()}, g.attrs()));
}

}  // namespace

constexpr OpDef kReluGrad = elementwise<kFloatingOnly, 2, 0, [](auto x, auto g) { return scalar::relu_grad(x, g); }>(
    "relu_grad", {.inputs = kFirst}, [](const GradContext& g) { piecewise_grad_grad(kReluGrad, g); });
// ReLU is not an epilogue that a product applies to its own result, because a library's ReLU turns NaN into 0.
constexpr OpDef kRelu = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::relu(x); }>(
    "relu", {.inputs = kFirst}, [](const GradContext& g) {
      g.set(0, call(kReluGrad, {g.input(0), g.grad_out()}));
    });

// ---- GELU. The gradient ops compute grad_out * gelu'(x) in one pass. Their decompositions can be differentiated
// again.

void decompose_gelu_tanh_grad(std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) {
  constexpr double kScale = 0.7978845608028654, kCubic = 0.044715;  // kScale: sqrt(2 / pi)
  const Tensor &x = in[0], &g = in[1];
  const Tensor t = tanh((x + x * x * x * kCubic) * kScale);
  const Tensor inner = (x * x * (3 * kCubic) + 1.0) * kScale;
  out[0] = g * ((t + 1.0) * 0.5 + x * (1.0 - t * t) * inner * 0.5);
}
void decompose_gelu_erf_grad(std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) {
  constexpr double kInverseSqrt2Pi = 0.3989422804014327;
  const Tensor &x = in[0], &g = in[1];
  // gelu(x) = x Phi(x), so gelu'(x) = Phi(x) + x phi(x), with the distribution Phi(x) = (1 + erf(x / sqrt 2)) / 2 and
  // the density phi of the standard normal.
  out[0] = g * ((erf(x * 0.7071067811865476) + 1.0) * 0.5 + x * exp(x * x * -0.5) * kInverseSqrt2Pi);
}
constexpr OpDef kGeluTanhGrad =
    elementwise<kFloatingOnly, 2, 0, [](auto x, auto g) { return scalar::gelu_tanh_grad(x, g); }>(
        "gelu_tanh_grad", {}, nullptr, &decompose_gelu_tanh_grad);
void gelu_tanh_backward(const GradContext& g) { g.set(0, call(kGeluTanhGrad, {g.input(0), g.grad_out()})); }
constexpr OpDef kGeluTanh = as_epilogue(Epilogue::kGeluTanh,
                                        elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::gelu_tanh(x); }>(
                                            "gelu_tanh", {.inputs = kFirst}, &gelu_tanh_backward));
constexpr OpDef kGeluErfGrad =
    elementwise<kFloatingOnly, 2, 0, [](auto x, auto g) { return scalar::gelu_erf_grad(x, g); }>(
        "gelu_erf_grad", {}, nullptr, &decompose_gelu_erf_grad);
void gelu_erf_backward(const GradContext& g) { g.set(0, call(kGeluErfGrad, {g.input(0), g.grad_out()})); }
constexpr OpDef kGeluErf = as_epilogue(Epilogue::kGelu,
                                       elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::gelu_erf(x); }>(
                                           "gelu_erf", {.inputs = kFirst}, &gelu_erf_backward));

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

// Inputs x, grad. This is one op and not a product of two: in f16, sigmoid(x) may underflow even if grad * sigmoid(x)
// does not.
constexpr OpDef kSoftplusGrad = elementwise<kFloatingOnly, 2, 0, [](auto x, auto g) { return g * scalar::sigmoid(x); }>(
    "softplus_grad", {}, nullptr,
    [](std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) { out[0] = in[1] * sigmoid(in[0]); });
constexpr OpDef kSoftplus = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::softplus(x); }>(
    "softplus", {.inputs = kFirst},
    [](const GradContext& g) {
      g.set(0, call(kSoftplusGrad, {g.input(0), g.grad_out()}));
    },
    nullptr, AmpPolicy::kFloat32);

// ---- Leaky ReLU and clamp

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

// ---- ReLU6 and hardswish. As in PyTorch, the gradient of ReLU6 is 0 at 0 and at 6.

constexpr OpDef kRelu6Grad = elementwise<kFloatingOnly, 2, 0, [](auto x, auto g) {
  return scalar::relu_grad(scalar::constant(x, 6.0) - x, scalar::relu_grad(x, g));
}>("relu6_grad", {.inputs = kFirst}, [](const GradContext& g) { piecewise_grad_grad(kRelu6Grad, g); });
constexpr OpDef kRelu6 = elementwise<kFloatingOnly, 1, 0, [](auto x) {
  return scalar::clamp(x, scalar::constant(x, 0.0), scalar::constant(x, 6.0));
}>("relu6", {.inputs = kFirst}, [](const GradContext& g) {
  g.set(0, call(kRelu6Grad, {g.input(0), g.grad_out()}));
});

void decompose_hardswish_grad(std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) {
  const Tensor &x = in[0], &g = in[1];
  out[0] = where(less_equal(x, -3.0), 0.0, where(less(x, 3.0), g * (x / 3.0 + 0.5), g));
}
constexpr OpDef kHardswishGrad = elementwise<kFloatingOnly, 2, 0, [](auto x, auto g) {
  const auto three = scalar::constant(x, 3.0), zero = scalar::constant(x, 0.0), half = scalar::constant(x, 0.5);
  return scalar::select(scalar::le(x, -three), zero, scalar::select(scalar::lt(x, three), g * (x / three + half), g));
}>("hardswish_grad", {}, nullptr, &decompose_hardswish_grad);
constexpr OpDef kHardswish = elementwise<kFloatingOnly, 1, 0, [](auto x) {
  const auto six = scalar::constant(x, 6.0);
  return x * scalar::clamp(x + scalar::constant(x, 3.0), scalar::constant(x, 0.0), six) / six;
}>("hardswish", {.inputs = kFirst}, [](const GradContext& g) {
  g.set(0, call(kHardswishGrad, {g.input(0), g.grad_out()}));
});

Tensor relu6(TensorArg x) { return call(kRelu6, {x}); }
Tensor hardswish(TensorArg x) { return call(kHardswish, {x}); }
Tensor relu(TensorArg x) {
  require_defined("relu", x);
  if (is_floating(x.tensor.dtype()) || x.tensor.dtype() == kBool) return call(kRelu, {x});
  return maximum(x, 0);
}
Tensor gelu(TensorArg x, GeluKind kind) { return call(kind == GeluKind::kTanh ? kGeluTanh : kGeluErf, {x}); }
Tensor silu(TensorArg x) { return call(kSilu, {x}); }
Tensor softplus(TensorArg x) { return call(kSoftplus, {x}); }
Tensor leaky_relu(TensorArg x, double slope) { return call(kLeakyRelu, {x}, {.floats = {slope}}); }

Tensor clamp(TensorArg x, Scalar low, Scalar high) {
  const FloatingPointScope floating_point;
  low = floating_point.here(low);
  require_defined("clamp", x);
  if (!(low.real() <= high.real())) throw_op_error("clamp", "low must not be above high", x.where);
  DType dtype = x.tensor.dtype();
  for (const Scalar& bound : {low, high})
    if (isfinite(bound.real())) dtype = promote(dtype, bound);
  if (is_floating(dtype)) {
    const Tensor real = x.tensor.to(dtype, x.where);
    return call(kClamp, {{real, x.where}}, {.floats = {low.real(), high.real()}});
  }
  // A bound outside of the dtype's range is replaced by the nearest number that the dtype can hold.
  Tensor result = x.tensor.to(dtype, x.where);
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) {
      const auto nearest = [&](Scalar bound) {
        const int64_t least = std::numeric_limits<T>::min();
        const int64_t most = static_cast<int64_t>(std::numeric_limits<T>::max());
        const int64_t value = bound.is_integer() ? bound.integer() : bound.real() < 0 ? least : most;
        return Scalar(static_cast<T>(std::clamp(value, least, most)));
      };
      if (isfinite(low.real())) result = maximum({result, x.where}, nearest(low));
      if (isfinite(high.real())) result = minimum({result, x.where}, nearest(high));
    }
  });
  return result;
}

constexpr OpList kActivationOps = {&kRelu,          &kReluGrad,  &kGeluTanh,     &kGeluTanhGrad, &kGeluErf,
                                   &kGeluErfGrad,   &kSilu,      &kSiluGrad,     &kSoftplus,     &kLeakyRelu,
                                   &kLeakyReluGrad, &kClamp,     &kClampGrad,    &kSoftplusGrad, &kRelu6,
                                   &kRelu6Grad,     &kHardswish, &kHardswishGrad};

}  // namespace rondo::ops
