// Scalar bodies of the elementwise ops, written once: templates over the scalar type. T is float or double in eager
// kernels (which GCC vectorises: no branches, no libm) and LoopValue in generated ones.
//
// FMA is written explicitly and nothing else contracts (-ffp-contract=off). Errors are given in units in the last place
// (ulp), measured against 80-bit libm by tests/runtime/scalar_math_test.cc.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "rondo/runtime/lowering.h"

namespace rondo::scalar {

// ---- Primitives on float and double: one per LoopOp
template <class T> concept Native = std::is_same_v<T, float> || std::is_same_v<T, double>;
template <Native T> inline T fma(T a, T b, T c) {
  if constexpr (sizeof(T) == 4) return __builtin_fmaf(a, b, c);
  else return __builtin_fma(a, b, c);
}
template <Native T> inline T sqrt(T a) {
  if constexpr (sizeof(T) == 4) return __builtin_sqrtf(a);
  else return __builtin_sqrt(a);
}
template <Native T> inline T abs(T a) {
  if constexpr (sizeof(T) == 4) return __builtin_fabsf(a);
  else return __builtin_fabs(a);
}
template <Native T> inline T round_even(T a) {
  if constexpr (sizeof(T) == 4) return __builtin_rintf(a);
  else return __builtin_rint(a);
}
template <Native T> inline T floor(T a) {
  if constexpr (sizeof(T) == 4) return __builtin_floorf(a);
  else return __builtin_floor(a);
}
template <Native T> inline T exp2_int(T a) {
  // Adding 1.5 * 2^(mantissa bits) leaves the integer in the low bits: defined for every input, NaN too.
  if constexpr (sizeof(T) == 4) return std::bit_cast<float>((std::bit_cast<uint32_t>(a + 0x1.8p23f) << 23) + 0x3F800000u);
  else return std::bit_cast<double>((std::bit_cast<uint64_t>(a + 0x1.8p52) << 52) + 0x3FF0000000000000u);
}
template <Native T> inline T exponent(T a) {
  if constexpr (sizeof(T) == 4) return static_cast<float>((std::bit_cast<int32_t>(a) >> 23) - 127);
  else return static_cast<double>((std::bit_cast<int64_t>(a) >> 52) - 1023);
}
template <Native T> inline T mantissa(T a) {
  if constexpr (sizeof(T) == 4) return std::bit_cast<float>((std::bit_cast<int32_t>(a) & 0x007FFFFF) | 0x3F800000);
  else return std::bit_cast<double>((std::bit_cast<int64_t>(a) & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000);
}
template <Native T> inline bool lt(T a, T b) { return a < b; }
template <Native T> inline bool le(T a, T b) { return a <= b; }
template <Native T> inline bool eq(T a, T b) { return a == b; }
template <Native T> inline bool ne(T a, T b) { return a != b; }
template <Native T> inline T select(bool c, T a, T b) { return c ? a : b; }
// A constant of the same type as `like`.
template <Native T> inline T constant(T /*like*/, double value) { return static_cast<T>(value); }
template <Native T> constexpr bool is_f64(T) { return sizeof(T) == 8; }
inline bool logical_and(bool a, bool b) { return a & b; }
inline bool logical_or(bool a, bool b) { return a | b; }

// ---- The same primitives on LoopValue
inline LoopValue emit(LoopOp op, LoopValue a) { return a.builder->emit(op, a.type, a); }
inline LoopValue emit(LoopOp op, LoopValue a, LoopValue b) { return a.builder->emit(op, a.type, a, b); }
inline LoopValue compare(LoopOp op, LoopValue a, LoopValue b) { return a.builder->emit(op, kBool, a, b); }
inline LoopValue fma(LoopValue a, LoopValue b, LoopValue c) { return a.builder->emit(LoopOp::kFma, a.type, a, b, c); }
inline LoopValue sqrt(LoopValue a) { return emit(LoopOp::kSqrt, a); }
inline LoopValue abs(LoopValue a) { return emit(LoopOp::kAbs, a); }
inline LoopValue round_even(LoopValue a) { return emit(LoopOp::kRoundEven, a); }
inline LoopValue floor(LoopValue a) { return emit(LoopOp::kFloor, a); }
inline LoopValue exp2_int(LoopValue a) { return emit(LoopOp::kExp2Int, a); }
inline LoopValue exponent(LoopValue a) { return emit(LoopOp::kExponent, a); }
inline LoopValue mantissa(LoopValue a) { return emit(LoopOp::kMantissa, a); }
inline LoopValue lt(LoopValue a, LoopValue b) { return compare(LoopOp::kLt, a, b); }
inline LoopValue le(LoopValue a, LoopValue b) { return compare(LoopOp::kLe, a, b); }
inline LoopValue eq(LoopValue a, LoopValue b) { return compare(LoopOp::kEq, a, b); }
inline LoopValue ne(LoopValue a, LoopValue b) { return compare(LoopOp::kNe, a, b); }
inline LoopValue logical_and(LoopValue a, LoopValue b) { return compare(LoopOp::kAnd, a, b); }
inline LoopValue logical_or(LoopValue a, LoopValue b) { return compare(LoopOp::kOr, a, b); }
inline LoopValue select(LoopValue c, LoopValue a, LoopValue b) {
  return a.builder->emit(LoopOp::kSelect, a.type, c, a, b);
}
inline LoopValue constant(LoopValue like, double value) { return like.builder->constant(value, like.type); }
inline bool is_f64(LoopValue v) { return v.type == kF64; }

}  // namespace rondo::scalar

namespace rondo {
inline LoopValue operator+(LoopValue a, LoopValue b) { return scalar::emit(LoopOp::kAdd, a, b); }
inline LoopValue operator-(LoopValue a, LoopValue b) { return scalar::emit(LoopOp::kSub, a, b); }
inline LoopValue operator*(LoopValue a, LoopValue b) { return scalar::emit(LoopOp::kMul, a, b); }
inline LoopValue operator/(LoopValue a, LoopValue b) { return scalar::emit(LoopOp::kDiv, a, b); }
inline LoopValue operator-(LoopValue a) { return scalar::emit(LoopOp::kNeg, a); }
}  // namespace rondo

namespace rondo::scalar {

// c[0] + c[1] x + ... + c[N-1] x^(N-1), by Horner's rule with FMA.
template <class T, int N> inline T polynomial(T x, const double (&c)[N]) {
  T sum = constant(x, c[N - 1]);
  for (int i = N - 2; i >= 0; --i) sum = fma(sum, x, constant(x, c[i]));
  return sum;
}

// NaN if either is NaN.
template <class T> inline T maximum(T a, T b) { return select(ne(a, a), a, select(lt(b, a), a, b)); }
template <class T> inline T minimum(T a, T b) { return select(ne(a, a), a, select(lt(a, b), a, b)); }

// 2^n r for integer-valued n beyond the range of one exponent step: two exact multiplications (the last may round to a
// subnormal).
template <class T> inline T scale_by_power(T r, T n) {
  const T half = floor(n * constant(n, 0.5));
  return r * exp2_int(half) * exp2_int(n - half);
}

// e^x. Cody-Waite reduction by ln 2 in two parts, then a Taylor polynomial on [-ln2/2, ln2/2]. Below 1 ulp (f32), 1.5 (f64).
template <class T> inline T exp(T x) {
  const bool wide = is_f64(x);
  const T lowest = constant(x, wide ? -746.0 : -104.0), highest = constant(x, wide ? 710.0 : 89.0);
  const T clamped = minimum(maximum(x, lowest), highest);
  const T n = round_even(clamped * constant(x, 1.4426950408889634));
  T r;
  if (wide) {
    r = fma(n, constant(x, -6.93147180369123816490e-01), clamped);
    r = fma(n, constant(x, -1.90821492927058770002e-10), r);
    r = polynomial(r, {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880,
                       1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0});
  } else {
    r = fma(n, constant(x, -0.693145751953125), clamped);
    r = fma(n, constant(x, -1.42860677279414e-06), r);
    r = polynomial(r, {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040});
  }
  return scale_by_power(r, n);
}

}  // namespace rondo::scalar
