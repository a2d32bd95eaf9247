// Elementwise steps: one operand, a scalar, two operands with broadcasting, comparisons and choices, casts.
#include <cmath>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/fuzz/steps.h"

namespace rondo::fuzz {
namespace {

using Tensors = std::vector<Tensor>;

bool pick_floating(Draft& draft, Step& step) {
  step.in = {draft.floating()};
  return step.in[0] != kNone;
}
bool pick_with_scalar(Draft& draft, Step& step) {
  // Exact and inexact ones, zero now and then.
  constexpr double kScalars[] = {0.5, 2, -1, 1.1, 0.3, -0.7, 3, 1e-3, 0, 17};
  step.scalar = kScalars[draft.random.below(std::size(kScalars))];
  return pick_floating(draft, step);
}
bool pick_pair(Draft& draft, Step& step) {
  const ValueId a = draft.floating();
  if (a == kNone) return false;
  const ValueId b = draft.partner(a);
  if (b == kNone) return false;
  step.in = draft.random.chance(0.5) ? std::vector<ValueId>{a, b} : std::vector<ValueId>{b, a};
  return true;
}
bool pick_condition(Draft& draft, Step& step, int operands) {
  const ValueId condition = draft.value([](const Tensor& t) { return t.dtype() == kBool; });
  if (condition == kNone) return false;
  const Dims& sizes = draft.tensor(condition).sizes();
  auto fits = [&](const Tensor& t) {
    Dims ignored;
    return is_floating(t.dtype()) && broadcast_shapes(sizes, t.sizes(), ignored);
  };
  step.in = {condition};
  for (int i = 0; i < operands; ++i) {
    step.in.push_back(draft.value(fits));
    if (step.in.back() == kNone) return false;
  }
  return true;
}

// Far from what overflows.
bool is_small_integer(const Tensor& t) {
  if (is_floating(t.dtype()) || t.dtype() == kBool) return false;
  for (double v : t.to_vector<double>())
    if (std::abs(v) > 1e4) return false;
  return true;
}
bool pick_integers(Draft& draft, Step& step) {
  const ValueId a = draft.value(&is_small_integer);
  if (a == kNone) return false;
  const Tensor first = draft.tensor(a);
  const ValueId b = draft.value([&](const Tensor& t) {
    Dims ignored;
    return is_small_integer(t) && t.dtype() == first.dtype() && broadcast_shapes(first.sizes(), t.sizes(), ignored);
  });
  step.in = {a, b};
  return b != kNone;
}

#define UNARY(name, weight, expression)          \
  {                                              \
    name, weight, &pick_floating, [](Scene& s) { \
      const Tensor& x = s.in[0];                 \
      return Tensors{expression};                \
    }                                            \
  }
#define SCALAR(name, weight, expression)  \
  {                                       \
    name, weight, &pick_with_scalar,      \
        [](Scene& s) {                    \
          const Tensor& x = s.in[0];      \
          const double k = s.step.scalar; \
          return Tensors{expression};     \
        },                                \
        kScalar                           \
  }
#define BINARY(name, weight, expression)       \
  {                                            \
    name, weight, &pick_pair, [](Scene& s) {   \
      const Tensor &a = s.in[0], &b = s.in[1]; \
      return Tensors{expression};              \
    }                                          \
  }

const StepKind kKinds[] = {
    UNARY("neg", 2, -x),
    UNARY("exp", 2, ops::exp(x)),
    UNARY("log", 1, ops::log(x)),
    UNARY("log_of_abs", 1, ops::log(ops::abs(x) + 0.5)),
    UNARY("sqrt", 1, ops::sqrt(x)),
    UNARY("sqrt_of_square", 1, ops::sqrt(x* x + 0.25)),
    UNARY("rsqrt", 1, ops::rsqrt(x)),
    UNARY("tanh", 4, ops::tanh(x)),
    UNARY("erf", 2, ops::erf(x)),
    UNARY("sigmoid", 4, ops::sigmoid(x)),
    UNARY("relu", 4, ops::relu(x)),
    UNARY("silu", 2, ops::silu(x)),
    UNARY("softplus", 2, ops::softplus(x)),
    UNARY("abs", 2, ops::abs(x)),
    UNARY("sign", 1, ops::sign(x)),
    UNARY("square", 2, ops::square(x)),
    UNARY("sin", 1, ops::sin(x)),
    UNARY("cos", 1, ops::cos(x)),
    UNARY("log1p_of_abs", 1, ops::log1p(ops::abs(x))),
    UNARY("expm1", 1, ops::expm1(x)),
    UNARY("gelu", 3, ops::gelu(x)),
    UNARY("gelu_erf", 3, ops::gelu(x, ops::GeluKind::kErf)),
    UNARY("clamp", 2, ops::clamp(x, -1, 1.5)),
    UNARY("leaky_relu", 1, ops::leaky_relu(x)),
    UNARY("to_f32", 2, x.to(kF32)),
    UNARY("to_f64", 1, x.to(kF64)),
    UNARY("to_bf16", 2, x.to(kBF16)),
    UNARY("to_f16", 1, x.to(kF16)),
    UNARY("clone", 2, x.clone()),
    UNARY("contiguous", 2, x.contiguous()),
    UNARY("detach", 2, x.detach()),
    SCALAR("add_scalar", 3, x + k),
    SCALAR("mul_scalar", 4, x* k),
    SCALAR("div_scalar", 2, x / k),
    SCALAR("rsub_scalar", 2, k - x),
    SCALAR("rdiv_scalar", 1, k / x),
    SCALAR("pow", 1, ops::pow(x, k)),
    SCALAR("equal_scalar", 1, ops::equal(x, Tensor::full({}, k, {x.dtype()}))),
    BINARY("add", 8, a + b),
    BINARY("sub", 5, a - b),
    BINARY("mul", 8, a* b),
    BINARY("div", 3, a / b),
    BINARY("maximum", 2, ops::maximum(a, b)),
    BINARY("minimum", 2, ops::minimum(a, b)),
    BINARY("less", 4, ops::less(a, b)),
    BINARY("less_equal", 1, ops::less_equal(a, b)),
    BINARY("greater", 3, ops::greater(a, b)),
    BINARY("equal", 1, ops::equal(a, b)),
    BINARY("not_equal", 1, ops::not_equal(a, b)),
    {"where", 8, [](Draft& d, Step& s) { return pick_condition(d, s, 2); },
     [](Scene& s) {
       const DType dtype = promote(s.in[1].dtype(), s.in[2].dtype());
       return Tensors{ops::where(s.in[0], s.in[1].to(dtype), s.in[2].to(dtype))};
     }},
    {"masked_fill", 8, [](Draft& d, Step& s) { return pick_condition(d, s, 1); },
     [](Scene& s) { return Tensors{ops::masked_fill(s.in[1], s.in[0], -1.5)}; }},
    {"integer_add", 3, &pick_integers, [](Scene& s) { return Tensors{s.in[0] + s.in[1]}; }},
    {"integer_sub_mul", 2, &pick_integers, [](Scene& s) { return Tensors{(s.in[0] - s.in[1]) * s.in[1]}; }},
    {"integer_less", 2, &pick_integers, [](Scene& s) { return Tensors{ops::less(s.in[0], s.in[1])}; }},
    {"integer_to_float", 4,
     [](Draft& d, Step& s) {
       s.in = {d.value([](const Tensor& t) { return is_small_integer(t); })};
       return s.in[0] != kNone;
     },
     [](Scene& s) { return Tensors{s.in[0].to(kF32) * 0.125}; }},
    {"mask_as_float", 6,
     [](Draft& d, Step& s) {
       s.in = {d.value([](const Tensor& t) { return t.dtype() == kBool; })};
       return s.in[0] != kNone;
     },
     [](Scene& s) { return Tensors{s.in[0].to(kF32)}; }},
};
#undef UNARY
#undef SCALAR
#undef BINARY

}  // namespace

std::span<const StepKind> pointwise_steps() { return kKinds; }

}  // namespace rondo::fuzz
