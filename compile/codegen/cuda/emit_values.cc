#include "rondo/compile/codegen/cuda/emit_values.h"

#include <bit>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/ops/elementwise_body.h"

namespace rondo::compile::cuda {
namespace {

bool is_comparison(LoopOp op) { return op >= LoopOp::kLt && op <= LoopOp::kNe; }

// Converts a number (an expression of type float, or double if `is_f64`) to a register of `type`.
std::string make(const std::string& value, bool is_f64, DType type) {
  if (is_integer(type))
    return absl::StrCat(type == kI32 ? "to_int(" : type == kI64 ? "to_long(" : "low_byte(", value, ")");
  const std::string narrow = is_f64 ? absl::StrCat("static_cast<float>(", value, ")") : value;
  switch (type) {
    case kBool: return absl::StrCat(value, " != 0");
    case kF64: return is_f64 ? value : absl::StrCat("static_cast<double>(", value, ")");
    case kBF16: return absl::StrCat("round_bf16(", narrow, ")");
    case kF16: return absl::StrCat("round_f16(", narrow, ")");
    default: return narrow;
  }
}
std::string convert(const std::string& value, DType from, DType type) {
  if (is_integer(from)) {
    if (type == kBool) return absl::StrCat("(", value, " != 0)");
    if (is_integer(type) || type == kF64) return absl::StrCat("static_cast<", register_type(type), ">(", value, ")");
    return make(absl::StrCat("static_cast<float>(", value, ")"), false, type);
  }
  if (from != kBool) return make(value, from == kF64, type);
  if (type == kBool) return value;
  if (is_integer(type)) return absl::StrCat("static_cast<", register_type(type), ">(", value, ")");
  return type == kF64 ? absl::StrCat("(", value, " ? 1.0 : 0.0)") : absl::StrCat("(", value, " ? 1.0f : 0.0f)");
}

}  // namespace

std::string memory_type(DType type) {
  switch (type) {
    case kF64: return "double";
    case kF32: return "float";
    case kBF16: return "rondo_bf16";
    case kF16: return "rondo_f16";
    case kI64: return "long long";
    case kI32: return "int";
    default: return "unsigned char";
  }
}
std::string register_type(DType type) {
  if (is_integer(type)) return memory_type(type);
  return type == kF64 ? "double" : type == kBool ? "bool" : "float";
}

DType result_type(const Instr& i) {
  switch (i.op) {
    default: return is_comparison(i.op) ? kBool : i.type;
  }
}

std::string literal(double value, DType type) {
  char text[64];
  if (type == kBool) return value != 0 ? "true" : "false";
  if (is_integer(type)) {
    const int64_t integer = visit_dtype(
        type, [&](auto tag) { return static_cast<int64_t>(ops::convert<typename decltype(tag)::type>(value)); });
    // As bits, because the smallest integer has no literal.
    return absl::StrCat("static_cast<", register_type(type), ">(", static_cast<uint64_t>(integer), "ull)");
  }
  if (type == kF64) {
    if (!std::isfinite(value)) {
      std::snprintf(text, sizeof(text), "bits_as_double(0x%llxull)",
                    static_cast<unsigned long long>(std::bit_cast<uint64_t>(value)));
      return text;
    }
    std::snprintf(text, sizeof(text), "%a", value);
    return text;
  }
  float rounded = static_cast<float>(value);
  if (type == kBF16) rounded = BFloat16(rounded);
  if (type == kF16) rounded = Float16(rounded);
  if (!std::isfinite(rounded)) {
    std::snprintf(text, sizeof(text), "__uint_as_float(0x%xu)", std::bit_cast<uint32_t>(rounded));
    return text;
  }
  std::snprintf(text, sizeof(text), "%af", static_cast<double>(rounded));
  return text;
}

std::string from_memory(const std::string& element, DType memory, DType type) {
  switch (memory) {
    case kF64:
    case kF32: return make(element, memory == kF64, type);
    case kBF16:
    case kF16: return make(absl::StrCat("to_float(", element, ")"), false, type);
    case kBool: return convert(absl::StrCat("(", element, " != 0)"), kBool, type);
    default: return convert(element, memory, type);
  }
}

std::string to_memory(const std::string& value, DType type, DType memory) {
  const auto real = [&](DType to) { return convert(value, type, to); };
  if (is_integer(memory) && is_integer(type)) return convert(value, type, memory);
  switch (memory) {
    case kU8:
      if (type == kF32) return absl::StrCat("to_byte(", value, ")");
      [[fallthrough]];
    case kBool: return absl::StrCat("static_cast<unsigned char>(", real(kBool), ")");
    case kBF16: return absl::StrCat("to_bf16(", real(kF32), ")");
    case kF16: return absl::StrCat("to_f16(", real(kF32), ")");
    default: return real(memory);
  }
}

namespace {

// Computes with unsigned numbers, because their arithmetic wraps around.
std::string integer_arithmetic(const Instr& i) {
  const auto wide = [](int32_t id) { return absl::StrCat("static_cast<unsigned long long>(v", id, ")"); };
  const auto wrapped = [&](const std::string& value) {
    return absl::StrCat("static_cast<", register_type(i.type), ">(", value, ")");
  };
  const std::string minus = wrapped(absl::StrCat("0ull - ", wide(i.a)));
  switch (i.op) {
    case LoopOp::kAdd: return wrapped(absl::StrCat(wide(i.a), " + ", wide(i.b)));
    case LoopOp::kSub: return wrapped(absl::StrCat(wide(i.a), " - ", wide(i.b)));
    case LoopOp::kMul: return wrapped(absl::StrCat(wide(i.a), " * ", wide(i.b)));
    case LoopOp::kNeg: return minus;
    case LoopOp::kShiftLeft: return absl::StrCat("shift_left(v", i.a, ", v", i.b, ")");
    case LoopOp::kShiftRight: return absl::StrCat("shift_right(v", i.a, ", v", i.b, ")");
    case LoopOp::kAnd: return wrapped(absl::StrCat("v", i.a, " & v", i.b));
    case LoopOp::kOr: return wrapped(absl::StrCat("v", i.a, " | v", i.b));
    case LoopOp::kXor: return wrapped(absl::StrCat("v", i.a, " ^ v", i.b));
    case LoopOp::kNot: return wrapped(absl::StrCat("~v", i.a));
    case LoopOp::kAbs:
      return i.type == kU8 ? absl::StrCat("v", i.a) : absl::StrCat("v", i.a, " < 0 ? ", minus, " : v", i.a);
    default: throw_internal("an operation that integers do not have");
  }
}

}  // namespace

std::string arithmetic(const LoopKernel& kernel, const Instr& i) {
  const bool of_bits = i.op >= LoopOp::kAnd && i.op <= LoopOp::kNot;
  if (is_integer(i.type) && (is_arithmetic(i.op) || of_bits)) return integer_arithmetic(i);
  const auto v = [](int32_t id) { return absl::StrCat("v", id); };
  const auto binary = [&](const char* op) { return absl::StrCat(v(i.a), " ", op, " ", v(i.b)); };
  const auto call = [&](const char* function) { return absl::StrCat(function, "(", v(i.a), ")"); };
  switch (i.op) {
    case LoopOp::kConst: return literal(i.value, i.type);
    case LoopOp::kScalar: return make(absl::StrCat("s", i.index), true, i.type);
    case LoopOp::kAdd: return binary("+");
    case LoopOp::kSub: return binary("-");
    case LoopOp::kMul: return binary("*");
    case LoopOp::kDiv: return binary("/");
    case LoopOp::kFma: return absl::StrCat("fma_of(", v(i.a), ", ", v(i.b), ", ", v(i.c), ")");
    case LoopOp::kSqrt: return call("sqrt_of");
    case LoopOp::kAbs: return call("abs_of");
    case LoopOp::kNeg: return absl::StrCat("-", v(i.a));
    case LoopOp::kRoundEven: return call("round_even");
    case LoopOp::kFloor: return call("floor_of");
    case LoopOp::kExp2Int: return call("exp2_int");
    case LoopOp::kExponent: return call("exponent_of");
    case LoopOp::kMantissa: return call("mantissa_of");
    case LoopOp::kLt: return binary("<");
    case LoopOp::kLe: return binary("<=");
    case LoopOp::kEq: return binary("==");
    case LoopOp::kNe: return binary("!=");
    case LoopOp::kAnd: return binary("&&");
    case LoopOp::kOr: return binary("||");
    case LoopOp::kXor: return binary("!=");
    case LoopOp::kNot: return absl::StrCat("!", v(i.a));
    case LoopOp::kSelect: return absl::StrCat(v(i.a), " ? ", v(i.b), " : ", v(i.c));
    case LoopOp::kCast: return convert(v(i.a), kernel.instrs[static_cast<size_t>(i.a)].type, i.type);
    default: throw_internal("a load, store or reduction among the arithmetic");
  }
}

}  // namespace rondo::compile::cuda
