#include "rondo/runtime/cuda/scalar_text.h"

#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/format.h"

namespace rondo::cuda {
namespace {

std::string name_of(LoopValue v) { return absl::StrCat("v", v.id); }

// Returns a literal with exactly this value, including the sign of zero, and NaN.
std::string double_literal(double value) {
  return formatted("__longlong_as_double(0x%xll)", std::bit_cast<uint64_t>(value));
}
std::string float_literal(float value) { return formatted("__uint_as_float(0x%xu)", std::bit_cast<uint32_t>(value)); }

}  // namespace

const char* ScalarText::type_of(DType dtype) {
  switch (compute_dtype(dtype)) {
    case kF32: return "float";
    case kF64: return "double";
    case kI64: return "long long";
    case kI32: return "int";
    default: return "unsigned char";
  }
}

LoopValue ScalarText::define(DType type, const std::string& expression, bool is_double) {
  const LoopValue value{this, next_++, type};
  absl::StrAppend(&text_, "const ",
                  type == kBool ? "bool"
                  : is_double   ? "double"
                                : "C",
                  " ", name_of(value), " = ", expression, "; ");
  return value;
}

LoopValue ScalarText::input(int i) {
  return define(inputs_[static_cast<size_t>(i)] == kBool ? kBool : carried(), absl::StrCat("a", i));
}

LoopValue ScalarText::scalar(int i) { return define(carried(), absl::StrCat("s", i)); }

LoopValue ScalarText::constant(double value, DType type) {
  if (is_floating(compute_)) {
    const bool single = compute_ == kF32;
    return define(carried(), single ? float_literal(static_cast<float>(value)) : double_literal(value));
  }
  // An integer is compared with infinity as a double.
  if (!std::isfinite(value)) return define(type, double_literal(value), /*is_double=*/true);
  return define(type, absl::StrCat("static_cast<C>(", static_cast<int64_t>(value), "ll)"));
}

LoopValue ScalarText::emit(LoopOp op, DType type, LoopValue a, LoopValue b, LoopValue c) {
  const std::string x = name_of(a), y = name_of(b), z = name_of(c);
  const bool floating = is_floating(compute_);
  // Integers are computed as unsigned numbers, because unsigned arithmetic wraps around.
  const auto wide = [](const std::string& v) { return absl::StrCat("static_cast<unsigned long long>(", v, ")"); };
  const auto arithmetic = [&](const char* sign) {
    return floating ? absl::StrCat(x, sign, y) : absl::StrCat("static_cast<C>(", wide(x), sign, wide(y), ")");
  };
  const std::string minus = floating ? absl::StrCat("-", x) : absl::StrCat("static_cast<C>(0ull - ", wide(x), ")");
  const auto call = [&](const char* function) {
    if (!floating) throw_internal("an operation that integers do not have");
    return absl::StrCat(function, "(", x, b.id < 0 ? "" : ", " + y, c.id < 0 ? "" : ", " + z, ")");
  };
  switch (op) {
    case LoopOp::kAdd: return define(type, arithmetic(" + "));
    case LoopOp::kSub: return define(type, arithmetic(" - "));
    case LoopOp::kMul: return define(type, arithmetic(" * "));
    case LoopOp::kNeg: return define(type, minus);
    case LoopOp::kAbs:
      return define(type, floating ? call("abs_of") : absl::StrCat(x, " < static_cast<C>(0) ? ", minus, " : ", x));
    case LoopOp::kDiv:
      if (!floating) throw_internal("an operation that integers do not have");
      return define(type, absl::StrCat(x, " / ", y));
    case LoopOp::kFma: return define(type, call("fma_of"));
    case LoopOp::kSqrt: return define(type, call("sqrt_of"));
    case LoopOp::kRoundEven: return define(type, call("round_even"));
    case LoopOp::kFloor: return define(type, call("floor_of"));
    case LoopOp::kExp2Int: return define(type, call("exp2_int"));
    case LoopOp::kExponent: return define(type, call("exponent_of"));
    case LoopOp::kMantissa: return define(type, call("mantissa_of"));
    case LoopOp::kLt: return define(kBool, absl::StrCat(x, " < ", y));
    case LoopOp::kLe: return define(kBool, absl::StrCat(x, " <= ", y));
    case LoopOp::kEq: return define(kBool, absl::StrCat(x, " == ", y));
    case LoopOp::kNe: return define(kBool, absl::StrCat(x, " != ", y));
    case LoopOp::kAnd:
      return type == kBool ? define(type, absl::StrCat(x, " && ", y)) : define(type, arithmetic(" & "));
    case LoopOp::kOr: return type == kBool ? define(type, absl::StrCat(x, " || ", y)) : define(type, arithmetic(" | "));
    case LoopOp::kXor:
      return type == kBool ? define(type, absl::StrCat(x, " != ", y)) : define(type, arithmetic(" ^ "));
    case LoopOp::kNot:
      return define(type, type == kBool ? absl::StrCat("!", x) : absl::StrCat("static_cast<C>(~", x, ")"));
    case LoopOp::kShiftLeft: return define(type, absl::StrCat("shift_left(", x, ", ", y, ")"));
    case LoopOp::kShiftRight: return define(type, absl::StrCat("shift_right(", x, ", ", y, ")"));
    case LoopOp::kSelect: return define(type, absl::StrCat(x, " ? ", y, " : ", z));
    case LoopOp::kCast:
      return type == kBool ? define(kBool, absl::StrCat(x, " != 0"))
                           : define(type, absl::StrCat("static_cast<C>(", x, ")"));
    default: throw_internal("an operation that no elementwise op has");
  }
}

LoopValue ScalarText::reduce(LoopOp, LoopValue) { throw_internal("a reduction is no elementwise op"); }

void ScalarText::output(int i, LoopValue v) {
  invariant(i == 0, "an elementwise op has one output");
  absl::StrAppend(&text_, "result = ", name_of(v), ";");
}

std::string scalar_function(const std::string& name, LoopValue (*function)(LoopValue)) {
  std::string both;
  const Attrs none;
  for (const DType type : {kF32, kF64}) {
    const DType inputs[] = {type};
    ScalarText body(type, none, inputs);
    body.output(0, function(body.input(0)));
    const char* const c = ScalarText::type_of(type);
    absl::StrAppend(&both, "RONDO_DEVICE ", c, " ", name, "(", c, " a0) {\n  using C = ", c, ";\n  C result; ",
                    body.text(), "\n  return result;\n}\n");
  }
  return both;
}

}  // namespace rondo::cuda
