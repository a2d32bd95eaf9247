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
template <class T>
concept Native = std::is_same_v<T, float> || std::is_same_v<T, double>;
template <Native T>
inline T fma(T a, T b, T c) {
  if constexpr (sizeof(T) == 4)
    return __builtin_fmaf(a, b, c);
  else
    return __builtin_fma(a, b, c);
}
template <Native T>
inline T sqrt(T a) {
  if constexpr (sizeof(T) == 4)
    return __builtin_sqrtf(a);
  else
    return __builtin_sqrt(a);
}
template <Native T>
inline T abs(T a) {
  if constexpr (sizeof(T) == 4)
    return __builtin_fabsf(a);
  else
    return __builtin_fabs(a);
}
template <Native T>
inline T round_even(T a) {
  if constexpr (sizeof(T) == 4)
    return __builtin_rintf(a);
  else
    return __builtin_rint(a);
}
template <Native T>
inline T floor(T a) {
  if constexpr (sizeof(T) == 4)
    return __builtin_floorf(a);
  else
    return __builtin_floor(a);
}
template <Native T>
inline T exp2_int(T a) {
  // Adding 1.5 * 2^(mantissa bits) leaves the integer in the low bits: defined for every input, NaN too.
  if constexpr (sizeof(T) == 4)
    return std::bit_cast<float>((std::bit_cast<uint32_t>(a + 0x1.8p23f) << 23) + 0x3F800000u);
  else
    return std::bit_cast<double>((std::bit_cast<uint64_t>(a + 0x1.8p52) << 52) + 0x3FF0000000000000u);
}
template <Native T>
inline T exponent(T a) {
  if constexpr (sizeof(T) == 4)
    return static_cast<float>((std::bit_cast<int32_t>(a) >> 23) - 127);
  else
    return static_cast<double>((std::bit_cast<int64_t>(a) >> 52) - 1023);
}
template <Native T>
inline T mantissa(T a) {
  if constexpr (sizeof(T) == 4)
    return std::bit_cast<float>((std::bit_cast<int32_t>(a) & 0x007FFFFF) | 0x3F800000);
  else
    return std::bit_cast<double>((std::bit_cast<int64_t>(a) & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000);
}
template <Native T>
inline bool lt(T a, T b) {
  return a < b;
}
template <Native T>
inline bool le(T a, T b) {
  return a <= b;
}
template <Native T>
inline bool eq(T a, T b) {
  return a == b;
}
template <Native T>
inline bool ne(T a, T b) {
  return a != b;
}
template <Native T>
inline T select(bool c, T a, T b) {
  return c ? a : b;
}
// A constant of the same type as `like`.
template <Native T>
inline T constant(T /*like*/, double value) {
  return static_cast<T>(value);
}
template <Native T>
constexpr bool is_f64(T) {
  return sizeof(T) == 8;
}
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

// Every function below is always inlined: a call in a loop would keep GCC from vectorising it.
namespace rondo::scalar {

template <class T> inline T rsqrt(T x) { return constant(x, 1.0) / sqrt(x); }

// c[0] + c[1] x + ... + c[N-1] x^(N-1), by Horner's rule with FMA. A recursion and not a loop: GCC vectorises only what
// it has unrolled early.
template <int I, class T, int N>
[[gnu::always_inline]] inline T horner(T x, T sum, const double (&c)[N]) {
  if constexpr (I < 0)
    return sum;
  else
    return horner<I - 1>(x, fma(sum, x, constant(x, c[I])), c);
}
template <class T, int N>
[[gnu::always_inline]] inline T polynomial(T x, const double (&c)[N]) {
  return horner<N - 2>(x, constant(x, c[N - 1]), c);
}

// NaN if either is NaN.
template <class T>
[[gnu::always_inline]] inline T maximum(T a, T b) {
  return select(ne(a, a), a, select(lt(b, a), a, b));
}
template <class T>
[[gnu::always_inline]] inline T minimum(T a, T b) {
  return select(ne(a, a), a, select(lt(a, b), a, b));
}

// x limited to [low, high]; NaN stays NaN. One instruction each: the comparison is false for NaN and then gives x.
template <class T>
[[gnu::always_inline]] inline T clamp(T x, T low, T high) {
  x = select(lt(x, low), low, x);
  return select(lt(high, x), high, x);
}
template <class T>
[[gnu::always_inline]] inline T limit(T x, double low, double high) {
  return clamp(x, constant(x, low), constant(x, high));
}

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// ---- Exponentials

// e^x. x = 2 h ln 2 + r with h integer and |r| <= ln 2; then e^x = (2^h e^r) 2^h: an even power, so that neither step
// leaves the exponent range before the result does, and subnormal results round once. Minimax polynomial.
template <class T>
[[gnu::always_inline]] inline T exp(T x) {
  const bool wide = is_f64(x);
  x = wide ? limit(x, -746.0, 710.0) : limit(x, -104.0, 89.0);
  const T half = round_even(x * constant(x, 0.72134752044448170368));  // 1 / (2 ln 2)
  T r;
  if (wide) {
    r = fma(half, constant(x, -2 * 6.93147180369123816490e-01), x);
    r = fma(half, constant(x, -2 * 1.90821492927058770002e-10), r);
    r = polynomial(r, {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320,
                       1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0,
                       1.0 / 87178291200.0, 1.0 / 1307674368000.0, 1.0 / 20922789888000.0});
  } else {
    r = fma(half, constant(x, -2 * 0.693145751953125), x);
    r = fma(half, constant(x, -2 * 1.42860677279414e-06), r);
    r = polynomial(r, {1.0, 1.0, 0.5000000107020002, 0.1666667390513262, 0.041666524774420146, 0.0083325247829408252,
                       0.0013893720932102062, 0.00020110328192614859, 2.4439467760215985e-5});
  }
  const T power = exp2_int(half);
  return r * power * power;
}

// 2^f on |f| <= 1/2: minimax, relative error 2^-28.6 (f32) and 2^-64 (f64), exact at 0.
template <class T>
[[gnu::always_inline]] inline T exp2_fraction(T f) {
  if (is_f64(f)) {
    return polynomial(f,
                      {1.0, 0.69314718055994531, 0.24022650695910071, 0.055504108664821699, 0.009618129107628483,
                       0.0013333558146390353, 0.00015403530393362779, 1.5252733856293361e-5, 1.3215486815980507e-6,
                       1.0178051193004869e-7, 7.0548943936793493e-9, 4.4566753343633976e-10, 2.5733558070274224e-11});
  }
  return polynomial(f, {1.0, 0.69314720670276873, 0.24022650922160232, 0.055503272267866128, 0.0096180566964790616,
                        0.0013400428136708554, 0.00015461439212847729});
}

// 2^t where only absolute accuracy near 1 counts: t is limited to where the power of two is 0, a normal number or
// infinity (exp2_int gives 0 one below its range and infinity one above).
template <class T>
[[gnu::always_inline]] inline T exp2_coarse(T t) {
  t = is_f64(t) ? limit(t, -1023.0, 1024.0) : limit(t, -127.0, 128.0);
  const T n = round_even(t);
  return exp2_fraction(t - n) * exp2_int(n);
}

// ---- Logarithms

// ln x. x = 2^e m with m in [sqrt(1/2), sqrt(2)), f = m - 1 exact.
template <class T>
[[gnu::always_inline]] inline T log(T x) {
  const bool wide = is_f64(x);
  // Subnormals: scale into the normal range.
  const auto tiny = lt(x, constant(x, wide ? 0x1p-1022 : 0x1p-126));
  const T scaled = select(tiny, x * constant(x, wide ? 0x1p54 : 0x1p25), x);
  T m = mantissa(scaled);
  T e = exponent(scaled) + select(tiny, constant(x, wide ? -54.0 : -25.0), constant(x, 0.0));
  const auto upper = lt(constant(x, 1.41421356237309504880), m);
  m = select(upper, m * constant(x, 0.5), m);
  e = select(upper, e + constant(x, 1.0), e);
  const T f = m - constant(x, 1.0);
  T result;
  if (wide) {
    // FDLIBM e_log.c: log(1 + f) = f - (f^2 / 2 - s (f^2 / 2 + R)), s = f / (2 + f), R even in s.
    const T s = f / (constant(x, 2.0) + f), z = s * s, square = constant(x, 0.5) * f * f;
    const T remainder = z * polynomial(z, {6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
                                           2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
                                           1.479819860511658591e-01});
    const T low = fma(s, square + remainder, e * constant(x, 1.90821492927058770002e-10));
    result = fma(e, constant(x, 6.93147180369123816490e-01), f - (square - low));
  } else {
    T p = polynomial(f, {0.33333331697573035, -0.25000820979086644, 0.20001227512458317, -0.16623359622749971,
                         0.14201747252518798, -0.13160151827079207, 0.12761632445418186, -0.076346378052188588});
    const T square = f * f;
    p = fma(e, constant(x, 1.42860677279414e-06), p * f * square);
    p = fma(constant(x, -0.5), square, p);
    result = fma(e, constant(x, 0.693145751953125), f + p);
  }
  result = select(lt(x, constant(x, kInf)), result, x);  // infinity and NaN
  result = select(lt(x, constant(x, 0.0)), constant(x, kNaN), result);
  return select(eq(x, constant(x, 0.0)), constant(x, -kInf), result);
}

// ---- Sigmoids

// tanh x = x P(x^2) / Q(x^2), minimax in relative error up to where tanh rounds to 1.
template <class T>
[[gnu::always_inline]] inline T tanh(T x) {
  if (is_f64(x)) {
    x = limit(x, -19.1, 19.1);
    const T z = x * x;
    const T p =
        polynomial(z, {1.0, 0.153459218677365048, 0.00622465974982053098, 0.000103317434055567719,
                       8.31592348319929382e-7, 3.48105479620435729e-9, 7.65745123183244638e-12, 8.47376553336844426e-15,
                       4.19327788263184929e-18, 7.0743943863159891e-22, 1.71741806392319552e-26});
    const T q = polynomial(
        z, {1.0, 0.48679255201069838, 0.0351555104200533276, 0.000884401274234190997, 0.0000100861683652550581,
            5.82762301844384326e-8, 1.77182993532699268e-10, 2.79008289752342988e-13, 2.10887711851849476e-16,
            6.409865230388464e-20, 5.0179386038441047e-24});
    return x * p / q;
  }
  x = limit(x, -9.05, 9.05);
  const T z = x * x;
  const T p = polynomial(z, {0.999999999533774748, 0.136811545971924826, 0.00386984084354690468,
                             0.0000280354881454578026, 3.06421936834402366e-8, -1.22365121945806213e-11});
  const T q =
      polynomial(z, {1.0, 0.470144870556359, 0.0272514806019243876, 0.000394121058664156663, 1.28918913914676291e-6});
  return x * p / q;
}

// 1 / (1 + e^-x), from e^-|x|, so that small values keep their relative accuracy.
template <class T>
[[gnu::always_inline]] inline T sigmoid(T x) {
  const T e = exp(-abs(x)), one = constant(x, 1.0);
  return select(lt(x, constant(x, 0.0)), e, one) / (one + e);
}

// erf x. Below 1: x + x P(x^2); above: 1 - 2^L(|x|) with L the minimax polynomial of log2 erfc, weighted by erfc.
template <class T>
[[gnu::always_inline]] inline T erf(T x) {
  const bool wide = is_f64(x);
  const T z = x * x, one = constant(x, 1.0);
  const T a = wide ? limit(abs(x), 0.0, 6.0) : limit(abs(x), 0.0, 4.0);
  T near, log2_erfc;
  if (wide) {
    near = polynomial(
        z, {0.12837916709551257375, -0.37612638903183747604, 0.11283791670954857498, -0.026866170645072895423,
            0.00522397762478086733, -0.00085483269787420512511, 0.000120553310368889494, -0.000014925593506540704548,
            1.6460972810247708704e-6, -1.6350025140912134475e-7, 1.4657879238739531955e-8, -1.1365663460445110125e-9,
            5.9452572845328265731e-11});
    log2_erfc = polynomial(
        a, {-2.5687645240790990497e-7, -1.6279043991857969338, -0.91846066400860189644, -0.1482332316218955974,
            0.027524506338589620224, 0.0004038762067686712185, -0.0025512700739278996281, 0.00092428251481972720654,
            -0.00006416845378889049075, -0.0001017853413736069323, 0.000065090463265296952976,
            -0.000023864117451218997059, 6.253332225253186638e-6, -1.2293919127434854058e-6, 1.8172132552531848133e-7,
            -1.970291864106362015e-8, 1.4833840508563796109e-9, -6.9376578173658165234e-11, 1.5186676582123631335e-12});
  } else {
    near = polynomial(z, {0.1283791224947954, -0.37612326189407545, 0.11280180119790182, -0.02671131129330692,
                          0.0049175512299577393, -0.00056314209444965182});
    log2_erfc = polynomial(a, {-0.00048968214368920858, -1.6260578683602709, -0.92062935288523714, -0.14876753341372393,
                               0.031513009417964187, -0.0042543381971326943, 0.00026906143720623708});
  }
  const T n = round_even(log2_erfc);
  const T far = one - exp2_fraction(log2_erfc - n) * exp2_int(n);
  // x + x P rather than x (1 + P), and x itself at -0.
  const T small = select(eq(x, constant(x, 0.0)), x, fma(near, x, x));
  return select(lt(z, one), small, select(lt(x, constant(x, 0.0)), -far, far));
}

// ---- GELU

inline constexpr double kGeluCubic = 0.044715;
// 2 sqrt(2 / pi) log2(e): with it, 1 + tanh(sqrt(2/pi) (x + c x^3)) = 2 / (1 + 2^-(kGeluLog2 (x + c x^3))).
inline constexpr double kGeluLog2 = 2.30220819814432488913;

// x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016, arXiv 1606.08415, section 2), written as
// x sigmoid(2 u). Absolute error below 1 ulp of max(1, |x|); minus infinity gives NaN, as in PyTorch.
template <class T>
[[gnu::always_inline]] inline T gelu_tanh(T x) {
  const T t = x * fma(x * x, constant(x, -kGeluLog2 * kGeluCubic), constant(x, -kGeluLog2));
  return x / (exp2_coarse(t) + constant(x, 1.0));
}

// g times the derivative of gelu_tanh: s + x s (1 - s) 2 u', s = sigmoid(2 u), u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2).
template <class T>
[[gnu::always_inline]] inline T gelu_tanh_grad(T x, T g) {
  const bool wide = is_f64(x);
  // Beyond, the derivative is 0 or 1 to the last bit; inside, 2^t is a normal number.
  x = wide ? limit(x, -20.0, 20.0) : limit(x, -9.5, 9.5);
  const T z = x * x, one = constant(x, 1.0);
  const T t = x * fma(z, constant(x, -kGeluLog2 * kGeluCubic), constant(x, -kGeluLog2));
  const T slope = x * fma(z, constant(x, 3 * kGeluCubic * 1.59576912160573071), constant(x, 1.59576912160573071));
  const T n = round_even(t);
  const T e = exp2_fraction(t - n) * exp2_int(n);  // (1 - s) / s
  const T s = one / (e + one);
  return g * (s * fma(slope * e, s, one));
}

// x / 2 (1 + erf(x / sqrt 2)) (same paper). Absolute error below 1 ulp of max(1, |x|).
template <class T>
[[gnu::always_inline]] inline T gelu_erf(T x) {
  const T phi = constant(x, 1.0) + erf(x * constant(x, 0.70710678118654752440));
  return constant(x, 0.5) * x * phi;
}

// g (Phi(x) + x phi(x)), Phi and phi the distribution and density of the standard normal.
template <class T>
[[gnu::always_inline]] inline T gelu_erf_grad(T x, T g) {
  const T half = constant(x, 0.5);
  const T c = limit(x, -40.0, 40.0);
  const T cdf = fma(half, erf(c * constant(x, 0.70710678118654752440)), half);
  const T density = exp2_coarse(c * c * constant(x, -0.72134752044448170368)) * constant(x, 0.39894228040143267794);
  return g * fma(c, density, cdf);
}

// x sigmoid(x); also called swish (Elfwing et al. 2017, arXiv 1702.03118). Minus infinity gives NaN, as in PyTorch.
template <class T>
[[gnu::always_inline]] inline T silu(T x) {
  const T e = exp(-abs(x)), one = constant(x, 1.0);
  return select(lt(x, constant(x, 0.0)), x * e, x) / (one + e);
}

// g s (1 + x (1 - s)), s = sigmoid(x).
template <class T>
[[gnu::always_inline]] inline T silu_grad(T x, T g) {
  const T one = constant(x, 1.0);
  // (1 - s) is sigmoid(-x): no cancellation. Beyond the clamp x (1 - s) is below rounding and s is 0 or 1.
  const T c = is_f64(x) ? limit(x, -760.0, 760.0) : limit(x, -110.0, 110.0);
  const T e = exp(-abs(c)), d = one / (one + e);
  const auto negative = lt(c, constant(x, 0.0));
  const T s = select(negative, e, one) * d, rest = select(negative, one, e) * d;
  return g * (s * fma(c, rest, one));
}

// max(x, 0); NaN stays NaN.
template <class T>
[[gnu::always_inline]] inline T relu(T x) {
  return select(lt(x, constant(x, 0.0)), constant(x, 0.0), x);
}
// g where x > 0, else 0 (PyTorch's choice at 0).
template <class T>
[[gnu::always_inline]] inline T relu_grad(T x, T g) {
  return select(lt(constant(x, 0.0), x), g, constant(x, 0.0));
}

}  // namespace rondo::scalar
