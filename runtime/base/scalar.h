// Scalar: a C++ number as an operand of an op. It keeps its kind, because the kind decides the result's dtype, as in
// PyTorch: an i64 tensor plus 2 is i64, plus 2.0 is f32. An f32 tensor plus either is f32.
//
//   less(a, 0.5)   maximum(a, 0)   where(mask, a, 0.0)   a + 1   2.0 / a
#pragma once

#include <cstdint>
#include <source_location>
#include <type_traits>

#include "rondo/runtime/base/dtype.h"
#include "rondo/runtime/base/sym_float.h"

#pragma GCC visibility push(default)
namespace rondo {

class Scalar {
 public:
  enum class Kind : uint8_t { kBool, kInteger, kReal };

  template <class T>
  requires std::is_arithmetic_v<T>
  constexpr Scalar(T value)
      : real_(static_cast<double>(value)),
        integer_(is_exact_integer(value) ? static_cast<int64_t>(value) : 0),
        kind_(std::is_same_v<T, bool>   ? Kind::kBool
              : is_exact_integer(value) ? Kind::kInteger
                                        : Kind::kReal) {}

  constexpr Scalar(SymFloat value) : real_(value.value()), integer_(0), symbol_(value.symbol()), kind_(Kind::kReal) {}

  constexpr Kind kind() const { return kind_; }
  constexpr bool is_integer() const { return kind_ != Kind::kReal; }
  // Returns the value, rounded to a double if it is an integer beyond 2^53.
  constexpr SymFloat real() const { return {real_, symbol_}; }
  // Returns the exact value. REQUIRES: is_integer().
  constexpr int64_t integer() const { return integer_; }
  // Calls f(int64_t) or f(double).
  template <class F> constexpr decltype(auto) visit(F&& f) const {
    return is_integer() ? f(integer_) : f(static_cast<double>(real()));
  }

  constexpr Scalar operator-() const {
    if (!is_integer() || integer_ == INT64_MIN) return Scalar(-real());
    return Scalar(-integer_);
  }

 private:
  // False for an unsigned number above the range of int64_t: it counts as a real number.
  template <class T> static constexpr bool is_exact_integer(T value) {
    if constexpr (!std::is_integral_v<T>) return false;
    else if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8) return value <= static_cast<T>(INT64_MAX);
    else return true;
  }
  double real_;
  int64_t integer_;
  int32_t symbol_ = -1;  // the symbol of real_; -1: none
  Kind kind_;
};

// A scalar with the caller's line, for operators that have no other place to carry it (`x += 2`).
struct ScalarArg {
  template <class T>
  requires std::is_arithmetic_v<T> ScalarArg(T value, std::source_location where = std::source_location::current())
      : value(value), where(where) {}
  ScalarArg(Scalar value, std::source_location where = std::source_location::current()) : value(value), where(where) {}
  Scalar value;
  std::source_location where;
};

// Returns the result dtype of an op on a tensor of dtype `tensor` and a scalar. A scalar of the same or a lower kind
// (bool < integer < float) keeps the tensor's dtype. A scalar of a higher kind gives that kind's default: i64 or f32.
constexpr DType promote(DType tensor, Scalar scalar) {
  if (scalar.kind() == Scalar::Kind::kReal && !is_floating(tensor)) return kF32;
  if (scalar.kind() == Scalar::Kind::kInteger && tensor == kBool) return kI64;
  return tensor;
}

// Returns the dtype of a scalar that is not combined with a tensor: f32, i64 or bool.
constexpr DType default_dtype(Scalar scalar) {
  return scalar.kind() == Scalar::Kind::kReal ? kF32 : scalar.kind() == Scalar::Kind::kInteger ? kI64 : kBool;
}

}  // namespace rondo
#pragma GCC visibility pop
