// Elementwise arithmetic. To add an op: an OpDef here, its line in table.cc, its function in ops.h.
#include <cmath>

#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

// ---- Two tensors

void add_grad(const GradContext& g) {
  if (g.needs(0)) g.set_reduced(0, g.grad_out());
  if (g.needs(1)) g.set_reduced(1, g.grad_out());
}
constexpr OpDef kAdd = as_epilogue(
    Epilogue::kAdd, elementwise<kNumeric, 2, 0, [](auto a, auto b) { return a + b; }>("add", {}, &add_grad));
constexpr OpDef kSub = elementwise<kNumeric, 2, 0, [](auto a, auto b) { return a - b; }>(
    "sub", {}, [](const GradContext& g) {
      if (g.needs(0)) g.set_reduced(0, g.grad_out());
      if (g.needs(1)) g.set_reduced(1, neg(g.grad_out()));
    });
constexpr OpDef kMul = elementwise<kNumeric, 2, 0, [](auto a, auto b) { return a * b; }>(
    "mul", {.inputs = kFirst | kSecond}, [](const GradContext& g) {
      if (g.needs(0)) g.set_reduced(0, g.grad_out() * g.input(1));
      if (g.needs(1)) g.set_reduced(1, g.grad_out() * g.input(0));
    });
constexpr OpDef kDiv = elementwise<kFloatingOnly, 2, 0, [](auto a, auto b) { return a / b; }>(
    "div", {.inputs = kFirst | kSecond}, [](const GradContext& g) {
      const Tensor quotient = g.grad_out() / g.input(1);
      if (g.needs(0)) g.set_reduced(0, quotient);
      if (g.needs(1)) g.set_reduced(1, neg(quotient * (g.input(0) / g.input(1))));
    });

// ---- A tensor and a run-time scalar

constexpr OpDef kAddScalar = elementwise<kNumeric, 1, 1, [](auto a, auto s) { return a + s; }>(
    "add_scalar", {}, [](const GradContext& g) { g.set(0, g.grad_out()); });
constexpr OpDef kMulScalar = elementwise<kNumeric, 1, 1, [](auto a, auto s) { return a * s; }>(
    "mul_scalar", {}, [](const GradContext& g) { g.set(0, g.grad_out() * g.scalar(0)); });
constexpr OpDef kRsubScalar = elementwise<kNumeric, 1, 1, [](auto a, auto s) { return s - a; }>(
    "rsub_scalar", {}, [](const GradContext& g) { g.set(0, neg(g.grad_out())); });
constexpr OpDef kRdivScalar = elementwise<kFloatingOnly, 1, 1, [](auto a, auto s) { return s / a; }>(
    "rdiv_scalar", {.inputs = kFirst, .outputs = kFirst},
    [](const GradContext& g) { g.set(0, neg(g.grad_out() * (g.output(0) / g.input(0)))); });

// ---- One tensor

constexpr OpDef kNeg = elementwise<kNumeric, 1, 0, [](auto x) { return -x; }>(
    "neg", {}, [](const GradContext& g) { g.set(0, neg(g.grad_out())); });
// ---- Public functions

namespace {

// Whole numbers cannot take a fraction in place; dropping it in silence would be worse.
void require_fits(const OpDef& op, TensorArg a, bool fraction) {
  if (fraction && a.tensor.defined() && !is_floating(a.tensor.dtype()))
    throw_op_error(op.name,
                   "a floating-point result cannot be written in place into " + std::string(name_of(a.tensor.dtype())),
                   a.where);
}
void binary_(const OpDef& op, TensorArg a, TensorArg b) {
  for (const TensorArg& operand : {a, b}) require_defined(op.name, operand);
  require_fits(op, a, is_floating(b.tensor.dtype()));
  const Tensor right = b.tensor.to(a.tensor.dtype(), b.where);
  call_in_place(op, {a, {right, b.where}});
}
bool is_whole(double s) { return std::trunc(s) == s; }
void with_scalar_(const OpDef& op, TensorArg a, double s) {
  require_fits(op, a, !is_whole(s));
  call_in_place(op, {a}, {.floats = {s}});
}
Tensor with_scalar(const OpDef& op, TensorArg a, double s) {
  const bool whole = is_whole(s);
  if (a.tensor.defined() && !is_floating(a.tensor.dtype()) && !whole) {
    const Tensor real = a.tensor.to(kF32, a.where);  // an integer with a fraction is a float, as in PyTorch
    return call(op, {{real, a.where}}, {.floats = {s}});
  }
  return call(op, {a}, {.floats = {s}});
}

}  // namespace

Tensor add(TensorArg a, TensorArg b) { return call_promoted(kAdd, a, b); }
Tensor sub(TensorArg a, TensorArg b) { return call_promoted(kSub, a, b); }
Tensor mul(TensorArg a, TensorArg b) { return call_promoted(kMul, a, b); }
Tensor div(TensorArg a, TensorArg b) {
  if (a.tensor.defined() && b.tensor.defined() && !is_floating(a.tensor.dtype()) && !is_floating(b.tensor.dtype())) {
    const Tensor left = a.tensor.to(kF32, a.where), right = b.tensor.to(kF32, b.where);  // true division
    return call(kDiv, {{left, a.where}, {right, b.where}});
  }
  return call_promoted(kDiv, a, b);
}
Tensor add(TensorArg a, double s) { return with_scalar(kAddScalar, a, s); }
Tensor mul(TensorArg a, double s) { return with_scalar(kMulScalar, a, s); }
Tensor div(TensorArg a, double s) { return with_scalar(kMulScalar, a, 1.0 / s); }
Tensor rsub(TensorArg a, double s) { return with_scalar(kRsubScalar, a, s); }
Tensor rdiv(TensorArg a, double s) { return with_scalar(kRdivScalar, a, s); }
Tensor neg(TensorArg x) { return call(kNeg, {x}); }
void add_(TensorArg a, TensorArg b) { binary_(kAdd, a, b); }
void sub_(TensorArg a, TensorArg b) { binary_(kSub, a, b); }
void mul_(TensorArg a, TensorArg b) { binary_(kMul, a, b); }
void div_(TensorArg a, TensorArg b) { binary_(kDiv, a, b); }
void add_(TensorArg a, double s) { with_scalar_(kAddScalar, a, s); }
void mul_(TensorArg a, double s) { with_scalar_(kMulScalar, a, s); }
}  // namespace rondo::ops
