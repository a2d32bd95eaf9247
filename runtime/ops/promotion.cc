#include "rondo/runtime/ops/promotion.h"

#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/ops/attributes.h"
#include "rondo/runtime/ops/elementwise_body.h"
#include "rondo/runtime/ops/factory.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {
namespace {

enum Category { kBools, kIntegers, kFloats };

constexpr Category category(DType t) { return t == kBool ? kBools : is_floating(t) ? kFloats : kIntegers; }

// True if `to`, a 16-bit float, holds every number of `from` exactly.
constexpr bool is_exact(DType from, DType to) { return from == to || from == kBool || (from == kU8 && to != kBool); }

constexpr DType quotient_dtype(DType t, Promotion promotion) {
  return promotion == Promotion::kQuotient && !is_floating(t) ? kF32 : t;
}

// Returns the dtype in which an op on operands of dtypes a and b computes a result of dtype `result`.
constexpr DType working_dtype(DType result, DType a, DType b, Promotion promotion) {
  if (promotion == Promotion::kCompare) return result;
  if (result == kBool) return kU8;  // a sum is "or", a product is "and"
  return is_low_precision(result) && !(is_exact(a, result) && is_exact(b, result)) ? kF32 : result;
}

// True if an op on operands of dtype `t` needs no conversion of its operands or its result. Nearly every call is such a
// call.
constexpr bool keeps_dtype(DType t, Promotion promotion) {
  return is_floating(t) || promotion == Promotion::kCompare || (promotion == Promotion::kArithmetic && t != kBool);
}

Tensor rounded(const Tensor& result, DType dtype, Promotion promotion, std::source_location where) {
  return promotion == Promotion::kCompare ? result : result.to(dtype, where);
}

void require_fits_in_place(const OpDef& op, DType result, TensorArg target) {
  const DType into = target.tensor.dtype();
  if (category(result) <= category(into)) return;
  throw_op_error(op.name,
                 absl::StrCat("the result is ", std::string(name_of(result)), " and cannot be written in place into ",
                              std::string(name_of(into))),
                 target.where);
}

// Copies a result that was computed in a wider dtype into `target`.
void write_back(const OpDef& op, const Tensor& result, TensorArg target) {
  if (!(result.sizes() == target.tensor.sizes()))
    throw_op_error(op.name,
                   absl::StrCat("the result ", to_string(result.sizes()), " does not fit in place into ",
                                to_string(target.tensor.sizes())),
                   target.where);
  call_in_place(kCopy, {target, {result, target.where}});
}

bool holds(DType dtype, int64_t value) {
  switch (dtype) {
    case kU8: return value >= 0 && value <= UINT8_MAX;
    case kI32: return value >= INT32_MIN && value <= INT32_MAX;
    case kBool: return value == 0 || value == 1;
    default: return true;
  }
}

}  // namespace

DType result_dtype(std::span<const Tensor* const> tensors) {
  // The widest dtype in each category: of tensors with dimensions, and of those without.
  std::array<std::optional<DType>, 3> with_dims, without;
  int highest = kBools;
  for (const Tensor* tensor : tensors) {
    const DType dtype = tensor->dtype();
    const int c = category(dtype);
    std::optional<DType>& widest = (tensor->rank() > 0 ? with_dims : without)[static_cast<size_t>(c)];
    widest = widest ? promote(*widest, dtype) : dtype;
    highest = std::max(highest, c);
  }
  const auto c = static_cast<size_t>(highest);
  return with_dims[c] ? *with_dims[c] : without[c].value_or(kBool);
}

DType result_dtype(const Tensor& a, const Tensor& b) {
  const Tensor* const both[] = {&a, &b};
  return result_dtype(both);
}

Tensor call_promoted(const OpDef& op, TensorArg a, TensorArg b, Promotion promotion) {
  for (const TensorArg& operand : {a, b}) require_defined(op.name, operand);
  const DType left = a.tensor.dtype(), right = b.tensor.dtype();
  if (left == right && keeps_dtype(left, promotion)) return call(op, {a, b});
  const DType result = quotient_dtype(result_dtype(a.tensor, b.tensor), promotion);
  const DType working = working_dtype(result, left, right, promotion);
  const Tensor x = a.tensor.to(working, a.where), y = b.tensor.to(working, b.where);
  return rounded(call(op, {{x, a.where, left}, {y, b.where, right}}), result, promotion, a.where);
}

Tensor call_promoted(const OpDef& op, TensorArg a, Scalar s, Promotion promotion) {
  require_defined(op.name, a);
  const DType dtype = a.tensor.dtype();
  if (promote(dtype, s) == dtype && keeps_dtype(dtype, promotion)) return call(op, {a}, {.floats = {s.real()}});
  const DType result = quotient_dtype(promote(dtype, s), promotion);
  const Tensor x = a.tensor.to(working_dtype(result, dtype, result, promotion), a.where);
  return rounded(call(op, {{x, a.where, dtype}}, {.floats = {s.real()}}), result, promotion, a.where);
}

void call_promoted_(const OpDef& op, TensorArg a, TensorArg b, Promotion promotion) {
  for (const TensorArg& operand : {a, b}) require_defined(op.name, operand);
  const DType left = a.tensor.dtype(), right = b.tensor.dtype();
  if (left == right && keeps_dtype(left, promotion)) return call_in_place(op, {a, b});
  const DType result = quotient_dtype(result_dtype(a.tensor, b.tensor), promotion);
  require_fits_in_place(op, result, a);
  const DType working = working_dtype(result, left, right, promotion);
  const Tensor y = b.tensor.to(working, b.where);
  if (working == left) return call_in_place(op, {a, {y, b.where, right}});
  const Tensor x = a.tensor.to(working, a.where);
  write_back(op, call(op, {{x, a.where, left}, {y, b.where, right}}), a);
}

void call_promoted_(const OpDef& op, TensorArg a, Scalar s, Promotion promotion) {
  require_defined(op.name, a);
  const DType dtype = a.tensor.dtype();
  const Attrs attrs{.floats = {s.real()}};
  if (promote(dtype, s) == dtype && keeps_dtype(dtype, promotion)) return call_in_place(op, {a}, attrs);
  const DType result = quotient_dtype(promote(dtype, s), promotion);
  require_fits_in_place(op, result, a);
  const Tensor x = a.tensor.to(working_dtype(result, dtype, result, promotion), a.where);
  write_back(op, call(op, {{x, a.where, dtype}}, attrs), a);
}

Tensor call_floating(const OpDef& op, TensorArg x, Attrs attrs) {
  require_defined(op.name, x);
  if (is_floating(x.tensor.dtype())) return call(op, {x}, std::move(attrs));
  const Tensor real = x.tensor.to(kF32, x.where);
  return call(op, {{real, x.where, x.tensor.dtype()}}, std::move(attrs));
}

Tensor call_with_number(const char* name, const OpDef& op, OfTensors of_tensors, TensorArg a, Scalar s,
                        Promotion promotion) {
  const DType dtype = dtype_with_number(name, a, s, promotion);
  const Tensor x = a.tensor.to(dtype, a.where);
  if (is_exact_attribute(s)) return call(op, {{x, a.where, a.tensor.dtype()}}, number_attrs(s, dtype));
  return of_tensors({x, a.where}, {number_tensor(s, x.sizes(), {dtype, x.device()}), a.where});
}

DType dtype_with_number(const char* name, const TensorArg& a, Scalar s, Promotion promotion) {
  require_defined(name, a);
  const DType dtype = promote(a.tensor.dtype(), s);
  if (!s.is_integer() || holds(dtype, s.integer())) return dtype;
  if (promotion != Promotion::kCompare)
    throw_op_error(name, absl::StrCat(s.integer(), " does not fit into ", std::string(name_of(dtype))), a.where);
  return kI64;
}

Attrs number_attrs(Scalar s, DType dtype) {
  if (!is_low_precision(dtype)) return {.floats = {s.real()}};
  const FloatingPointScope floating_point;
  s = floating_point.here(s);
  return visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Attrs{.floats = {static_cast<double>(convert<T>(static_cast<double>(s.real())))}};
  });
}

void require_in_range(const char* op, Scalar value, DType dtype, std::source_location where) {
  const double real = value.real(), whole = std::trunc(real);
  bool fits = true;
  switch (dtype) {
    case DType::kF64:
    case DType::kBool: break;
    case DType::kF32: fits = std::isinf(real) || !(std::abs(real) > 0x1.fffffep127); break;
    case DType::kBF16: fits = std::isinf(real) || !(std::abs(real) > 0x1.fep127); break;
    case DType::kF16: fits = std::isinf(real) || !(std::abs(real) > 65504); break;
    case DType::kI64: fits = value.is_integer() || (whole >= -0x1p63 && whole < 0x1p63); break;
    case DType::kI32: fits = whole >= -0x1p31 && whole < 0x1p31; break;
    case DType::kU8: fits = whole >= -255 && whole <= 255; break;  // -1 is 255, as in PyTorch
  }
  if (!fits)
    throw_op_error(op, absl::StrCat("the value ", real, " is out of range for ", std::string(name_of(dtype))), where);
}

}  // namespace rondo::ops
