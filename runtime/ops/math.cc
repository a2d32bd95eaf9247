// Elementary functions. To add one: runtime/README.md.
#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {
namespace {

// Returns zeros as the gradient of input i, even if the input or the incoming gradient is infinite or NaN.
Tensor zeros_for(const GradContext& g, int i) {
  return expand(Tensor::zeros({}, {g.input_dtype(i), g.grad_out().device()}), g.input_sizes(i));
}

}  // namespace

// ---- Maximum and minimum. Equal operands share the gradient evenly; if either operand is NaN, the result is NaN.

struct Maximum {
  template <class T> auto operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) return a < b ? b : a;
    else return scalar::maximum(a, b);
  }
};
struct Minimum {
  template <class T> auto operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) return b < a ? b : a;
    else return scalar::minimum(a, b);
  }
};

namespace {

// Sets the gradient of operand `mine` of maximum or minimum. lost(a, b) is true where the other operand,
// b, is the result.
void set_share(const GradContext& g, int mine, Tensor (*lost)(TensorArg, TensorArg)) {
  if (!g.needs(mine)) return;
  const Tensor &a = g.input(mine), &b = g.input(1 - mine), &grad = g.grad_out();
  const Tensor all_or_half = where(equal(a, b), grad * 0.5, grad);
  g.set_reduced(mine, where(lost(a, b), 0.0, all_or_half));
}
// Does the same as set_share() for a tensor and a number.
template <const OpDef& kLost> void number_share(const GradContext& g) {
  const Tensor &a = g.input(0), &grad = g.grad_out();
  const Tensor all_or_half = where(call(kEqualScalar, {a}, g.attrs()), grad * 0.5, grad);
  g.set(0, where(call(kLost, {a}, g.attrs()), 0.0, all_or_half));
}

}  // namespace

constexpr OpDef kMaximum = elementwise<kNumeric, 2, 0, Maximum{}>("maximum", {.inputs = kFirst | kSecond},
                                                                  [](const GradContext& g) {
                                                                    for (int i = 0; i < 2; ++i) set_share(g, i, &less);
                                                                  });
constexpr OpDef kMinimum = elementwise<kNumeric, 2, 0, Minimum{}>("minimum", {.inputs = kFirst | kSecond},
                                                                  [](const GradContext& g) {
                                                                    for (int i = 0; i < 2; ++i)
                                                                      set_share(g, i, &greater);
                                                                  });

// floats: {the scalar operand}
constexpr OpDef kMaximumScalar = elementwise<kNumeric, 1, 1, Maximum{}>("maximum_scalar", {.inputs = kFirst},
                                                                        &number_share<kLessScalar>);
constexpr OpDef kMinimumScalar = elementwise<kNumeric, 1, 1, Minimum{}>("minimum_scalar", {.inputs = kFirst},
                                                                        &number_share<kGreaterScalar>);

// ---- Ops of one tensor

struct Abs {
  template <class T> auto operator()(T x) const {
    if constexpr (std::is_unsigned_v<T>) return x;
    else if constexpr (std::is_integral_v<T>)
      return static_cast<T>(x < 0 ? -static_cast<std::make_unsigned_t<T>>(x) : x);
    else return scalar::abs(x);
  }
};
struct Sign {
  template <class T> auto operator()(T x) const {
    if constexpr (std::is_integral_v<T>) return static_cast<T>((x > T(0)) - (x < T(0)));
    else return scalar::sign(x);
  }
};

constexpr OpDef kSign = elementwise<kNumeric, 1, 0, Sign{}>("sign", {},
                                                            [](const GradContext& g) { g.set(0, zeros_for(g, 0)); });
constexpr OpDef kAbs = elementwise<kNumeric, 1, 0, Abs{}>(
    "abs", {.inputs = kFirst}, [](const GradContext& g) { g.set(0, g.grad_out() * sign(g.input(0))); });
constexpr OpDef kSin = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::sin(x); }>(
    "sin", {.inputs = kFirst}, [](const GradContext& g) { g.set(0, g.grad_out() * cos(g.input(0))); });
constexpr OpDef kCos = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::cos(x); }>(
    "cos", {.inputs = kFirst}, [](const GradContext& g) { g.set(0, neg(g.grad_out() * sin(g.input(0)))); });
constexpr OpDef kLog1p = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::log1p(x); }>(
    "log1p", {.inputs = kFirst}, [](const GradContext& g) { g.set(0, g.grad_out() / (g.input(0) + 1.0)); }, nullptr,
    AmpPolicy::kFloat32);
constexpr OpDef kExpm1 = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::expm1(x); }>(
    "expm1", {.outputs = kFirst}, [](const GradContext& g) { g.set(0, g.grad_out() * (g.output(0) + 1.0)); }, nullptr,
    AmpPolicy::kFloat32);

constexpr OpDef kExp = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::exp(x); }>(
    "exp", {.outputs = kFirst}, [](const GradContext& g) { g.set(0, g.grad_out() * g.output(0)); });
constexpr OpDef kLog = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::log(x); }>(
    "log", {.inputs = kFirst}, [](const GradContext& g) { g.set(0, g.grad_out() / g.input(0)); }, nullptr,
    AmpPolicy::kFloat32);
constexpr OpDef kSqrt = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::sqrt(x); }>(
    "sqrt", {.outputs = kFirst}, [](const GradContext& g) { g.set(0, g.grad_out() / (g.output(0) * 2.0)); });
// Inputs y = 1 / sqrt(x), grad. In this order the product leaves the dtype's range only if the result does; y^3 may
// leave it earlier.
constexpr OpDef kRsqrtGrad =
    elementwise<kFloatingOnly, 2, 0, [](auto y, auto g) { return g * scalar::constant(y, -0.5) * y * y * y; }>(
        "rsqrt_grad", {}, nullptr, [](std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) {
          out[0] = in[1] * -0.5 * in[0] * in[0] * in[0];
        });
constexpr OpDef kRsqrt = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::rsqrt(x); }>(
    "rsqrt", {.outputs = kFirst}, [](const GradContext& g) {
      g.set(0, call(kRsqrtGrad, {g.output(0), g.grad_out()}));
    });
// Inputs y = tanh(x), grad. (1 - y) (1 + y) keeps its digits where y is near 1; 1 - y^2, with y^2 rounded, loses them.
constexpr OpDef kTanhGrad = elementwise<kFloatingOnly, 2, 0, [](auto y, auto g) {
  const auto one = scalar::constant(y, 1.0);
  return g * ((one - y) * (one + y));
}>("tanh_grad", {}, nullptr, [](std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) {
  out[0] = in[1] * ((1.0 - in[0]) * (in[0] + 1.0));
});
constexpr OpDef kTanh = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::tanh(x); }>(
    "tanh", {.outputs = kFirst}, [](const GradContext& g) {
      g.set(0, call(kTanhGrad, {g.output(0), g.grad_out()}));
    });
constexpr OpDef kSigmoid = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::sigmoid(x); }>(
    "sigmoid", {.outputs = kFirst},
    [](const GradContext& g) { g.set(0, g.grad_out() * (g.output(0) * (1.0 - g.output(0)))); });
constexpr OpDef kErf = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::erf(x); }>(
    "erf", {.inputs = kFirst}, [](const GradContext& g) {
      g.set(0, g.grad_out() * exp(g.input(0) * g.input(0) * -1.0) * 1.1283791670955126);  // 2 / sqrt(pi)
    });

// ---- Powers. floats: {exponent}

// grad * (s x^(s-1)), and 0 for s = 0 even where x^(s-1) is infinite.
struct PowGrad {
  template <class T> T operator()(T x, T g, T s) const {
    const T slope = s * scalar::pow(x, s - scalar::constant(x, 1.0));
    return scalar::select(scalar::eq(s, scalar::constant(x, 0.0)), scalar::constant(x, 0.0), g * slope);
  }
};
constexpr OpDef kPowScalarGrad = elementwise<kFloatingOnly, 2, 1, PowGrad{}>(
    "pow_scalar_grad", {.inputs = kFirst | kSecond}, [](const GradContext& g) {
      const SymFloat s = g.scalar(0);
      if (g.needs(1)) g.set(1, call(kPowScalarGrad, {g.input(0), g.grad_out()}, {.floats = {s}}));
      // s times the derivative of x^(s-1).
      if (g.needs(0)) {
        const Tensor both = g.grad_out() * g.input(1);
        g.set(0, call(kPowScalarGrad, {g.input(0), both}, {.floats = {s - 1.0}}) * s);
      }
    });
constexpr OpDef kPowScalar = elementwise<kFloatingOnly, 1, 1, [](auto x, auto s) { return scalar::pow(x, s); }>(
    "pow_scalar", {.inputs = kFirst},
    [](const GradContext& g) {
      g.set(0, call(kPowScalarGrad, {g.input(0), g.grad_out()}, g.attrs()));
    },
    nullptr, AmpPolicy::kFloat32);

// ---- Public functions

namespace {
Tensor larger_or_smaller(const char* name, const OpDef& op, OfTensors of_tensors, TensorArg a, Scalar b) {
  // Bools count as the integers 0 and 1.
  if (a.tensor.defined() && promote(a.tensor.dtype(), b) == kBool)
    return call_with_number(name, op, of_tensors, {a.tensor.to(kU8, a.where), a.where}, b).to(kBool);
  return call_with_number(name, op, of_tensors, a, b);
}
}  // namespace

Tensor maximum(TensorArg a, TensorArg b) { return call_promoted(kMaximum, a, b); }
Tensor minimum(TensorArg a, TensorArg b) { return call_promoted(kMinimum, a, b); }
Tensor maximum(TensorArg a, Scalar b) { return larger_or_smaller("maximum", kMaximumScalar, &maximum, a, b); }
Tensor minimum(TensorArg a, Scalar b) { return larger_or_smaller("minimum", kMinimumScalar, &minimum, a, b); }
Tensor exp(TensorArg x) { return call_floating(kExp, x); }
Tensor log(TensorArg x) { return call_floating(kLog, x); }
Tensor sqrt(TensorArg x) { return call_floating(kSqrt, x); }
Tensor rsqrt(TensorArg x) { return call_floating(kRsqrt, x); }
Tensor tanh(TensorArg x) { return call_floating(kTanh, x); }
Tensor erf(TensorArg x) { return call_floating(kErf, x); }
Tensor sigmoid(TensorArg x) { return call_floating(kSigmoid, x); }
Tensor abs(TensorArg x) { return call(kAbs, {x}); }
Tensor sign(TensorArg x) { return call(kSign, {x}); }
Tensor square(TensorArg x) {
  require_defined("square", x);
  return x.tensor.dtype() == kBool ? pow(x, 2) : call(kMul, {x, x});
}
Tensor sin(TensorArg x) { return call_floating(kSin, x); }
Tensor cos(TensorArg x) { return call_floating(kCos, x); }
Tensor log1p(TensorArg x) { return call_floating(kLog1p, x); }
Tensor expm1(TensorArg x) { return call_floating(kExpm1, x); }
Tensor pow(TensorArg x, Scalar exponent) {
  require_defined("pow", x);
  // The square is a product, because the kernel for other exponents takes a logarithm, which costs more.
  if (is_floating(x.tensor.dtype()) && exponent.real() == 2.0) {
    const bool widens = amp::autocast_dtype() && is_low_precision(x.tensor.dtype());  // as autocast does for kPowScalar
    const Tensor base = widens ? x.tensor.to(kF32, x.where) : x.tensor;
    return call(kMul, {{base, x.where}, {base, x.where}});
  }
  if (is_floating(x.tensor.dtype()) || !exponent.is_integer())
    return call_floating(kPowScalar, x, {.floats = {exponent.real()}});
  if (exponent.integer() < 0) throw_op_error("pow", "an integer has no negative power; cast it to a float", x.where);
  // Computes the power by repeated squaring; the result wraps around as a product does.
  Tensor square = x.tensor.to(promote(x.tensor.dtype(), exponent), x.where);
  Tensor result = Tensor::ones(square.sizes(), {square.dtype(), square.device()});
  for (int64_t rest = exponent.integer(); rest > 0; rest /= 2) {
    if (rest % 2 != 0) result = mul({result, x.where}, square);
    if (rest > 1) square = mul({square, x.where}, square);
  }
  return result;
}

constexpr OpList kMathOps = {&kExp,           &kLog,      &kSqrt,     &kRsqrt,         &kTanh,          &kErf,
                             &kSigmoid,       &kMaximum,  &kMinimum,  &kMaximumScalar, &kMinimumScalar, &kAbs,
                             &kSign,          &kSin,      &kCos,      &kLog1p,         &kExpm1,         &kPowScalar,
                             &kPowScalarGrad, &kTanhGrad, &kRsqrtGrad};

}  // namespace rondo::ops
