// Elementwise arithmetic. To add an op: runtime/README.md.
#include <cmath>

#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/ops/attributes.h"
#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/factory.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/ops/wrapping.h"

namespace rondo::ops {

// ---- Ops of two tensors

void add_grad(const GradContext& g) {
  if (g.needs(0)) g.set_reduced(0, g.grad_out());
  if (g.needs(1)) g.set_reduced(1, g.grad_out());
}
constexpr OpDef kAdd = as_epilogue(
    Epilogue::kAdd,
    elementwise<kNumeric, 2, 0, [](auto a, auto b) { return wrapping_add(a, b); }>("add", {}, &add_grad));
constexpr OpDef kSub = elementwise<kNumeric, 2, 0, [](auto a, auto b) { return wrapping_sub(a, b); }>(
    "sub", {}, [](const GradContext& g) {
      if (g.needs(0)) g.set_reduced(0, g.grad_out());
      if (g.needs(1)) g.set_reduced(1, neg(g.grad_out()));
    });
constexpr OpDef kMul = elementwise<kNumeric, 2, 0, [](auto a, auto b) { return wrapping_mul(a, b); }>(
    "mul", {.inputs = kFirst | kSecond, .product = true}, [](const GradContext& g) {
      if (g.needs(0)) g.set_reduced(0, g.grad_out() * g.input(1));
      if (g.needs(1)) g.set_reduced(1, g.grad_out() * g.input(0));
    });
// Inputs a, b, grad: the gradient of b in a / b. (a / b) / b leaves the range of its dtype only if a / b^2 or a / b
// does. grad / b may leave it for a very small b even if the gradient is an ordinary number.
constexpr OpDef kDivGrad = elementwise<kFloatingOnly, 3, 0, [](auto a, auto b, auto g) { return -(g * (a / b / b)); }>(
    "div_grad", {}, nullptr, [](std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) {
      out[0] = neg(in[2] * (in[0] / in[1] / in[1]));
    });
constexpr OpDef kDiv = elementwise<kFloatingOnly, 2, 0, [](auto a, auto b) { return a / b; }>(
    "div", {.inputs = kFirst | kSecond}, [](const GradContext& g) {
      if (g.needs(0)) g.set_reduced(0, g.grad_out() / g.input(1));
      if (g.needs(1)) g.set_reduced(1, call(kDivGrad, {g.input(0), g.input(1), g.grad_out()}));
    });

// ---- Ops of a tensor and a run-time scalar

constexpr OpDef kAddScalar = elementwise<kNumeric, 1, 1, [](auto a, auto s) { return wrapping_add(a, s); }>(
    "add_scalar", {}, [](const GradContext& g) { g.set(0, g.grad_out()); });
constexpr OpDef kMulScalar = elementwise<kNumeric, 1, 1, [](auto a, auto s) { return wrapping_mul(a, s); }>(
    "mul_scalar", {}, [](const GradContext& g) { g.set(0, g.grad_out() * g.scalar(0)); });
constexpr OpDef kRsubScalar = elementwise<kNumeric, 1, 1, [](auto a, auto s) { return wrapping_sub(s, a); }>(
    "rsub_scalar", {}, [](const GradContext& g) { g.set(0, neg(g.grad_out())); });
// Inputs a, grad: the gradient of a in s / a. In this order the expression leaves the dtype's range only if s / a or
// the result does.
constexpr OpDef kRdivScalarGrad =
    elementwise<kFloatingOnly, 2, 1, [](auto a, auto g, auto s) { return -(g * (s / a) / a); }>(
        "rdiv_scalar_grad", {}, nullptr, [](std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
          out[0] = neg(in[1] * rdiv(in[0], attrs.floats[0]) / in[0]);
        });
constexpr OpDef kRdivScalar = elementwise<kFloatingOnly, 1, 1, [](auto a, auto s) { return s / a; }>(
    "rdiv_scalar", {.inputs = kFirst}, [](const GradContext& g) {
      g.set(0, call(kRdivScalarGrad, {g.input(0), g.grad_out()}, g.attrs()));
    });

// ---- Ops of one tensor

constexpr OpDef kNeg = elementwise<kNumeric, 1, 0, [](auto x) { return wrapping_neg(x); }>(
    "neg", {}, [](const GradContext& g) { g.set(0, neg(g.grad_out())); });

// ---- Public functions

namespace {

// Throws Error for a bool operand of a subtraction, as PyTorch does: users nearly always mean logical "not".
void require_no_bool(const char* op, TensorArg x) {
  require_defined(op, x);
  if (x.tensor.dtype() == kBool) throw_op_error(op, "cannot subtract bool tensors; cast to a number first", x.where);
}
// Converts an integer to a's dtype: its upper bits are lost, as in PyTorch. A sum or a product of integers
// loses the same bits.
Scalar wrapped(const TensorArg& a, Scalar s) {
  if (!a.tensor.defined() || !s.is_integer()) return s;
  if (a.tensor.dtype() == kI32) return static_cast<int32_t>(s.integer());
  if (a.tensor.dtype() == kU8) return static_cast<uint8_t>(s.integer());
  return s;
}
// Returns -s. For integers, the least i64, which has no negative, gives itself.
Scalar negated(const TensorArg& a, Scalar s) {
  const bool least = s.kind() == Scalar::Kind::kInteger && s.integer() == INT64_MIN;
  return least && a.tensor.defined() && !is_floating(a.tensor.dtype()) ? s : -s;
}
// Returns a tensor for an integer operand that a scalar attribute would round.
Tensor as_tensor(const TensorArg& a, Scalar s) {
  return number_tensor(s, a.tensor.sizes(), {promote(a.tensor.dtype(), s), a.tensor.device()});
}
bool needs_tensor(const TensorArg& a, Scalar s) {
  return !is_exact_attribute(s) && a.tensor.defined() && !is_floating(a.tensor.dtype());
}
Tensor divisor(TensorArg a, Scalar s) {
  require_defined("div", a);
  const DType dtype = is_floating(a.tensor.dtype()) ? compute_dtype(a.tensor.dtype()) : kF32;
  return number_tensor(s.real(), {}, {dtype, a.tensor.device()});
}
// True if a product with 1 / s can replace the division by s. It cannot if 1 / s leaves the range of f32. For an s that
// is 0, infinite or NaN both give the same result.
bool has_inverse(SymFloat s) {
  const SymFloat size = max(s, -s);
  return s == 0 || !isfinite(s) || (size > 0x1p-126 && size < 0x1p126);
}

}  // namespace

Tensor add(TensorArg a, TensorArg b) { return call_promoted(kAdd, a, b); }
Tensor sub(TensorArg a, TensorArg b) {
  for (const TensorArg& operand : {a, b}) require_no_bool("sub", operand);
  return call_promoted(kSub, a, b);
}
Tensor mul(TensorArg a, TensorArg b) { return call_promoted(kMul, a, b); }
Tensor div(TensorArg a, TensorArg b) { return call_promoted(kDiv, a, b, Promotion::kQuotient); }
Tensor add(TensorArg a, Scalar s) {
  s = wrapped(a, s);
  return needs_tensor(a, s) ? add(a, {as_tensor(a, s), a.where}) : call_promoted(kAddScalar, a, s);
}
Tensor sub(TensorArg a, Scalar s) {
  require_no_bool("sub", a);
  return add(a, negated(a, s));
}
Tensor mul(TensorArg a, Scalar s) {
  s = wrapped(a, s);
  return needs_tensor(a, s) ? mul(a, {as_tensor(a, s), a.where}) : call_promoted(kMulScalar, a, s);
}
Tensor div(TensorArg a, Scalar s) {
  const FloatingPointScope floating_point;
  s = floating_point.here(s);
  if (!has_inverse(s.real())) return div(a, {divisor(a, s), a.where});
  return call_promoted(kMulScalar, a, 1.0 / s.real(), Promotion::kQuotient);
}
Tensor rsub(TensorArg a, Scalar s) {
  s = wrapped(a, s);
  require_no_bool("sub", a);
  return needs_tensor(a, s) ? sub({as_tensor(a, s), a.where}, a) : call_promoted(kRsubScalar, a, s);
}
Tensor rdiv(TensorArg a, Scalar s) { return call_promoted(kRdivScalar, a, s, Promotion::kQuotient); }
Tensor neg(TensorArg x) { return call(kNeg, {x}); }

void add_(TensorArg a, TensorArg b) { call_promoted_(kAdd, a, b); }
void sub_(TensorArg a, TensorArg b) {
  for (const TensorArg& operand : {a, b}) require_no_bool("sub", operand);
  call_promoted_(kSub, a, b);
}
void mul_(TensorArg a, TensorArg b) { call_promoted_(kMul, a, b); }
void div_(TensorArg a, TensorArg b) { call_promoted_(kDiv, a, b, Promotion::kQuotient); }
void add_(TensorArg a, Scalar s) {
  s = wrapped(a, s);
  return needs_tensor(a, s) ? add_(a, {as_tensor(a, s), a.where}) : call_promoted_(kAddScalar, a, s);
}
void sub_(TensorArg a, Scalar s) {
  require_no_bool("sub", a);
  add_(a, negated(a, s));
}
void mul_(TensorArg a, Scalar s) {
  s = wrapped(a, s);
  return needs_tensor(a, s) ? mul_(a, {as_tensor(a, s), a.where}) : call_promoted_(kMulScalar, a, s);
}
void div_(TensorArg a, Scalar s) {
  const FloatingPointScope floating_point;
  s = floating_point.here(s);
  if (!has_inverse(s.real())) return div_(a, {divisor(a, s), a.where});
  call_promoted_(kMulScalar, a, 1.0 / s.real(), Promotion::kQuotient);
}

constexpr OpList kElementwiseOps = {&kAdd,        &kSub,        &kMul, &kDiv,     &kAddScalar,     &kMulScalar,
                                    &kRsubScalar, &kRdivScalar, &kNeg, &kDivGrad, &kRdivScalarGrad};

}  // namespace rondo::ops
