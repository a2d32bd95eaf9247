// Scalar bodies of the elementwise ops, written once: templates over the scalar type. T is float or double in eager
// kernels (which GCC vectorises: no branches, no libm) and LoopValue in generated ones; the two give the same bits.
//
// Rules: no `if` on a value, only select; FMA is written explicitly and nothing else contracts (-ffp-contract=off); no
// conversion of a float to an integer (undefined for NaN), only the bit operations exp2_int, exponent and mantissa.
// is_f64 chooses between two sets of coefficients; all are minimax fits (Remez) unless a source is named. NaN in gives
// NaN out. Errors are the largest found by tests/runtime/scalar_math_test.cc, rounded up: in units in the last place
// (ulp) or, where results near 0 need only absolute accuracy, in epsilon max(1, |result|), with epsilon 2^-23 (f32) or
// 2^-52 (f64).
//
// GCC: -fno-thread-jumps keeps chains of selects as blends and makes these loops 5 to 40% faster; the bits do not
// change.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "rondo/runtime/op/lowering.h"

#pragma GCC visibility push(default)
namespace rondo::scalar {

// ---- Primitives on float and double: one per LoopOp
template <class T>
concept Native = std::is_same_v<T, float> || std::is_same_v<T, double>;
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
  if constexpr (sizeof(T) == 4)
    return std::bit_cast<float>((std::bit_cast<uint32_t>(a + 0x1.8p23f) << 23) + 0x3F800000u);
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

// Every function below is always inlined: a call in a loop would keep GCC from vectorising it.
namespace rondo::scalar {

// c[0] + c[1] x + ... + c[N-1] x^(N-1), by Horner's rule with FMA. A recursion and not a loop: GCC vectorises only what
// it has unrolled early.
template <int I, class T, int N> [[gnu::always_inline]] inline T horner(T x, T sum, const double (&c)[N]) {
  if constexpr (I < 0) return sum;
  else return horner<I - 1>(x, fma(sum, x, constant(x, c[I])), c);
}
template <class T, int N> [[gnu::always_inline]] inline T polynomial(T x, const double (&c)[N]) {
  return horner<N - 2>(x, constant(x, c[N - 1]), c);
}

// The larger of a and b; NaN if either is NaN.
template <class T> [[gnu::always_inline]] inline T maximum(T a, T b) {
  return select(ne(a, a), a, select(lt(b, a), a, b));
}
template <class T> [[gnu::always_inline]] inline T minimum(T a, T b) {
  return select(ne(a, a), a, select(lt(a, b), a, b));
}

// x limited to [low, high]; NaN stays NaN. One instruction each: the comparison is false for NaN and then gives x.
template <class T> [[gnu::always_inline]] inline T clamp(T x, T low, T high) {
  x = select(lt(x, low), low, x);
  return select(lt(high, x), high, x);
}
template <class T> [[gnu::always_inline]] inline T limit(T x, double low, double high) {
  return clamp(x, constant(x, low), constant(x, high));
}

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// ---- Exponentials

// 2^f on |f| <= 1/2, minimax: relative error 2^-28.6 (f32) and 2^-58 (f64), exact at 0.
template <class T> [[gnu::always_inline]] inline T exp2_fraction(T f) {
  if (is_f64(f)) {
    return polynomial(
        f, {1.0, 0.693147180559945330, 0.240226506959101562, 0.0555041086648199221, 0.00961812910758833315,
            0.00133335581467898459, 0.000154035304625167454, 0.0000152527334900400418, 1.32154330886187134e-6,
            1.01781980050939174e-7, 7.07410578326017667e-9, 4.43528476964086447e-10});
  }
  return polynomial(f, {1.0, 0.69314720670276873, 0.24022650922160232, 0.055503272267866128, 0.0096180566964790616,
                        0.0013400428136708554, 0.00015461439212847729});
}

// 2^f for callers that need only a small error relative to 1 + 2^t. f32: a polynomial of degree 5, error 2^-23.7.
template <class T> [[gnu::always_inline]] inline T exp2_fraction_coarse(T f) {
  if (is_f64(f)) return exp2_fraction(f);
  return polynomial(f, {1.00000007165592815, 0.693146967087879420, 0.240221197185718915, 0.0555071324917496372,
                        0.00967554155177321449, 0.00132764781993021475});
}

// 2^t with the accuracy of exp2_fraction_coarse(). t is limited to where the power of two is 0, a normal number or
// infinity: exp2_int gives 0 for the integer just below its range, and infinity for the one just above.
template <class T> [[gnu::always_inline]] inline T exp2_coarse(T t) {
  t = is_f64(t) ? limit(t, -1023.0, 1024.0) : limit(t, -127.0, 128.0);
  const T n = round_even(t);
  return exp2_fraction_coarse(t - n) * exp2_int(n);
}

// e^r (2^half)^2 for |r| <= ln 2, by a minimax polynomial. An even power of two, applied in two steps: neither leaves
// the exponent range before the result does, and a subnormal result rounds once.
template <class T> [[gnu::always_inline]] inline T exp_reduced(T r, T half) {
  const T fraction = is_f64(r) ? polynomial(r, {1.0, 1.0, 0.5, 0.166666666666666665, 0.0416666666666666372,
                                                0.0083333333333333992, 0.00138888888888947721, 0.000198412698411947835,
                                                0.0000248015872962194891, 2.75573192645778195e-6, 2.7557321792789418e-7,
                                                2.50520972466476024e-8, 2.08760895536800531e-9, 1.60604818222830382e-10,
                                                1.15598519992688103e-11, 7.59473693058219889e-13})
                               : polynomial(r, {1.0, 1.0, 0.5000000107020002, 0.1666667390513262, 0.041666524774420146,
                                                0.0083325247829408252, 0.0013893720932102062, 0.00020110328192614859,
                                                2.4439467760215985e-5});
  const T power = exp2_int(half);
  return fraction * power * power;
}

// x - times n ln 2, with `times` 2, 1 or -1. ln 2 is split into two parts; the first part times any integer up to the
// largest exponent is exact (Cody and Waite 1980).
template <class T> [[gnu::always_inline]] inline T minus_ln2_high(T n, double times, T x) {
  return fma(n, constant(n, -times * (is_f64(n) ? 6.93147180369123816490e-01 : 0.693145751953125)), x);
}
template <class T> [[gnu::always_inline]] inline T minus_ln2_low(T n, double times, T x) {
  return fma(n, constant(n, -times * (is_f64(n) ? 1.90821492927058770002e-10 : 1.42860677279414e-06)), x);
}

// e^(x + low) for |low| <= 1/2 ulp of x; x is limited to where the result is 0 or infinity.
template <class T> [[gnu::always_inline]] inline T exp_sum(T x, T low) {
  x = is_f64(x) ? limit(x, -746.0, 710.0) : limit(x, -104.0, 89.0);
  const T half = round_even(x * constant(x, 0.72134752044448170368));  // 1 / (2 ln 2)
  return exp_reduced(minus_ln2_low(half, 2.0, minus_ln2_high(half, 2.0, x)) + low, half);
}

// e^x. Error below 1.4 ulp (f32 and f64).
template <class T> [[gnu::always_inline]] inline T exp(T x) {
  x = is_f64(x) ? limit(x, -746.0, 710.0) : limit(x, -104.0, 89.0);
  const T half = round_even(x * constant(x, 0.72134752044448170368));  // 1 / (2 ln 2)
  return exp_reduced(minus_ln2_low(half, 2.0, minus_ln2_high(half, 2.0, x)), half);
}

// 2^x. Below 1.6 ulp.
template <class T> [[gnu::always_inline]] inline T exp2(T x) {
  x = is_f64(x) ? limit(x, -1080.0, 1030.0) : limit(x, -160.0, 130.0);
  const T half = round_even(x * constant(x, 0.5));
  const T f = fma(half, constant(x, -2.0), x);
  constexpr double kLn2 = 0.693147180559945309417;
  const T low = constant(x, is_f64(x) ? 2.31904681384629956e-17 : kLn2 - static_cast<float>(kLn2));
  return exp_reduced(fma(f, low, f * constant(x, kLn2)), half);
}

// e^x - 1 = 2^n (e^r - 1) + (2^n - 1), with n - 1 in the exponent so that n = 128 stays finite. Below 1.5 ulp (f32), 2
// (f64).
template <class T> [[gnu::always_inline]] inline T expm1(T x) {
  const bool wide = is_f64(x);
  const T c = wide ? limit(x, -60.0, 710.0) : limit(x, -30.0, 89.0);
  const T n = round_even(c * constant(x, 1.44269504088896340736)), half = constant(x, 0.5);
  const T r = minus_ln2_low(n, 1.0, minus_ln2_high(n, 1.0, c));
  const T p = wide ? polynomial(r, {0.500000000000000087, 0.16666666666666671, 0.0416666666666521865,
                                    0.00833333333332610213, 0.00138888888956331762, 0.000198412698749455519,
                                    0.0000248015744924245341, 2.75572552326881904e-6, 2.7567946057821539e-7,
                                    2.51052896349130786e-8, 1.76878193345504027e-9})
                   : polynomial(r, {0.500000004740131027, 0.166666667192646269, 0.0416663516387588518,
                                    0.00833329835786057421, 0.00139412130770606043, 0.000198993814215200876});
  const T power = exp2_int(n - constant(x, 1.0));
  const T result = fma(power, fma(r * r, p, r), power - half) * constant(x, 2.0);
  return select(lt(abs(x), constant(x, wide ? 0x1p-54 : 0x1p-25)), x, result);  // also keeps -0 and subnormals
}

// ---- Logarithms

// A positive x as 2^exponent (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), f exact. Subnormals are scaled first.
template <class T> struct LogParts { T exponent, f; };
template <class T> [[gnu::always_inline]] inline LogParts<T> log_parts(T x) {
  const bool wide = is_f64(x);
  const auto tiny = lt(x, constant(x, wide ? 0x1p-1022 : 0x1p-126));
  const T scaled = select(tiny, x * constant(x, wide ? 0x1p54 : 0x1p25), x);
  const T m = mantissa(scaled);
  const T e = exponent(scaled) + select(tiny, constant(x, wide ? -54.0 : -25.0), constant(x, 0.0));
  const auto upper = lt(constant(x, 1.41421356237309504880), m);
  return {select(upper, e + constant(x, 1.0), e), select(upper, m * constant(x, 0.5), m) - constant(x, 1.0)};
}

// ln(1 + f) - f, f as in LogParts.
template <class T> [[gnu::always_inline]] inline T log_tail(T f) {
  const T square = f * f;
  if (is_f64(f)) {
    // FDLIBM e_log.c: ln(1 + f) = f - (f^2 / 2 - s (f^2 / 2 + R)), s = f / (2 + f), R even in s.
    const T s = f / (constant(f, 2.0) + f), z = s * s, half_square = constant(f, 0.5) * square;
    const T remainder = z * polynomial(z, {6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
                                           2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
                                           1.479819860511658591e-01});
    return fma(s, half_square + remainder, -half_square);
  }
  const T p = polynomial(f, {0.33333331697573035, -0.25000820979086644, 0.20001227512458317, -0.16623359622749971,
                             0.14201747252518798, -0.13160151827079207, 0.12761632445418186, -0.076346378052188588});
  return fma(constant(f, -0.5), square, p * f * square);
}

// `result`, the logarithm of x, corrected where x is not a positive finite number.
template <class T> [[gnu::always_inline]] inline T log_special(T x, T result) {
  result = select(lt(x, constant(x, kInf)), result, x);  // infinity and NaN
  result = select(lt(x, constant(x, 0.0)), constant(x, kNaN), result);
  return select(eq(x, constant(x, 0.0)), constant(x, -kInf), result);
}

// ln x. Below 0.9 ulp.
template <class T> [[gnu::always_inline]] inline T log(T x) {
  const auto [e, f] = log_parts(x);
  const T low = minus_ln2_low(e, -1.0, log_tail(f));
  return log_special(x, minus_ln2_high(e, -1.0, f + low));
}

// log2 x; exact for powers of two. Below 1.2 ulp.
template <class T> [[gnu::always_inline]] inline T log2(T x) {
  constexpr double kLog2E = 1.44269504088896340736;
  const T high = constant(x, kLog2E);
  const T low = constant(x, is_f64(x) ? 2.03552737409310331e-17 : kLog2E - static_cast<float>(kLog2E));
  const auto [e, f] = log_parts(x);
  // f log2(e) as product and rounding error.
  const T product = f * high;
  const T rest = fma(f, high, -product) + fma(f, low, log_tail(f) * high);
  return log_special(x, (e + product) + ((product - ((e + product) - e)) + rest));
}

// ln(1 + x). u = 1 + x with rounding error c (Knuth's two-sum); both are reduced by the exponent of u. Below 1.5 ulp.
template <class T> [[gnu::always_inline]] inline T log1p(T x) {
  const T one = constant(x, 1.0);
  const T u = one + x, v = u - one, c = (one - (u - v)) + (x - v);
  const auto [e, f] = log_parts(u);
  // For an e above the limit, c is too small to change the result.
  const T g = fma(c, exp2_int(-minimum(e, constant(x, 64.0))), f);
  const T low = minus_ln2_low(e, -1.0, log_tail(g));
  const T result = log_special(u, minus_ln2_high(e, -1.0, g + low));
  return select(lt(abs(x), constant(x, is_f64(x) ? 0x1p-54 : 0x1p-25)), x, result);
}

// ln(1 + e^x), as max(x, 0) + ln(1 + e) with e = e^-|x|; 1 + e lies in [1, 2] and is halved above sqrt(2). Below 2.5
// ulp.
template <class T> [[gnu::always_inline]] inline T softplus(T x) {
  const T e = exp(-abs(x)), zero = constant(x, 0.0), one = constant(x, 1.0), half = constant(x, 0.5);
  const auto upper = lt(constant(x, 0.41421356237309504880), e);
  const T f = select(upper, (e - one) * half, e);
  const T low = log_tail(f), n = select(upper, one, zero);
  return select(lt(x, zero), zero, x) + minus_ln2_high(n, -1.0, f + minus_ln2_low(n, -1.0, low));
}

// ---- Sigmoids

// tanh x. |x| < 0.6: x + x^3 P(x^2), minimax; above: 1 - 2 / (1 + e^2|x|). Below 1.7 ulp.
template <class T> [[gnu::always_inline]] inline T tanh(T x) {
  const bool wide = is_f64(x);
  const T z = x * x, one = constant(x, 1.0);
  const T p = wide ? polynomial(z, {-0.333333333333331342, 0.133333333333009018, -0.0539682539498742992,
                                    0.0218694880159444485, -0.00886322695527622666, 0.0035920388406849453,
                                    -0.00145522303941797608, 0.000587214229006070274, -0.000230450639572514351,
                                    0.0000793772659544166666, -0.0000172108507249738115})
                   : polynomial(z, {-0.333332992720883067, 0.133319582406639178, -0.0537866833738715671,
                                    0.0208053840051179742, -0.00590586785308961531});
  const T near = fma(x * z, p, x);
  const T a = abs(x), top = constant(x, 40.0);
  const T t = select(lt(top, a), top, a) * constant(x, 2.88539008177792681472);  // 2 log2(e)
  const T n = round_even(t);
  const T far = one - constant(x, 2.0) / fma(exp2_fraction(t - n), exp2_int(n), one);
  const T signed_far = select(lt(x, constant(x, 0.0)), -far, far);
  return select(eq(x, constant(x, 0.0)), x, select(lt(a, constant(x, 0.6)), near, signed_far));
}

// 1 / (1 + e^-x), from e^-|x|, so that small values keep their relative accuracy. Below 2.8 ulp.
template <class T> [[gnu::always_inline]] inline T sigmoid(T x) {
  const T e = exp(-abs(x)), one = constant(x, 1.0);
  return select(lt(x, constant(x, 0.0)), e, one) / (one + e);
}

// erf x. |x| < 1: x + x P(x^2); above: 1 - 2^L(|x|), L the minimax polynomial of log2 erfc weighted by erfc. Below 1.6
// ulp (f32), 1.1 (f64).
template <class T> [[gnu::always_inline]] inline T erf(T x) {
  const bool wide = is_f64(x);
  const T z = x * x, one = constant(x, 1.0), top = constant(x, wide ? 6.0 : 4.0);
  const T a = select(lt(top, abs(x)), top, abs(x));
  T p, log2_erfc;
  if (wide) {
    p = polynomial(
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
    p = polynomial(z, {0.1283791224947954, -0.37612326189407545, 0.11280180119790182, -0.02671131129330692,
                       0.0049175512299577393, -0.00056314209444965182});
    log2_erfc = polynomial(a, {-0.00048968214368920858, -1.6260578683602709, -0.92062935288523714, -0.14876753341372393,
                               0.031513009417964187, -0.0042543381971326943, 0.00026906143720623708});
  }
  const T near = fma(p, x, x);
  const T n = round_even(log2_erfc);
  const T far = one - exp2_fraction(log2_erfc - n) * exp2_int(n);
  const T signed_far = select(lt(x, constant(x, 0.0)), -far, far);
  return select(eq(x, constant(x, 0.0)), x, select(lt(z, one), near, signed_far));
}

// The gradients of tanh and sigmoid, computed from the output y = tanh(x) or sigmoid(x).
template <class T> [[gnu::always_inline]] inline T tanh_grad(T y, T g) { return g * fma(-y, y, constant(y, 1.0)); }
template <class T> [[gnu::always_inline]] inline T sigmoid_grad(T y, T g) { return g * (y * (constant(y, 1.0) - y)); }

// ---- GELU and SiLU

inline constexpr double kGeluCubic = 0.044715;
// 2 sqrt(2/pi), and that times log2(e): 1 + tanh(sqrt(2/pi) v) = 2 / (1 + 2^(-kGeluLog2 v)).
inline constexpr double kGeluSlope = 1.59576912160573071176, kGeluLog2 = 2.30220819814432488913;

// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016, arXiv 1606.08415, section 2), as x times
// one sigmoid. Minus infinity gives NaN, as in PyTorch. Error below 1.25 epsilon max(1, |result|).
template <class T> [[gnu::always_inline]] inline T gelu_tanh(T x) {
  const T t = x * fma(x * x, constant(x, -kGeluLog2 * kGeluCubic), constant(x, -kGeluLog2));
  return x / (exp2_coarse(t) + constant(x, 1.0));
}

// g (s + x s (1 - s) v'), s the sigmoid above, v' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2). Error for g = 1 below 2
// epsilon max(1, |result|).
template <class T> [[gnu::always_inline]] inline T gelu_tanh_grad(T x, T g) {
  const bool wide = is_f64(x);
  // Outside of these limits the derivative is 0 or 1 within the last bit of 1. Inside, 2^t is a normal number.
  x = wide ? limit(x, -20.0, 20.0) : limit(x, -9.5, 9.5);
  const T z = x * x, one = constant(x, 1.0);
  const T t = x * fma(z, constant(x, -kGeluLog2 * kGeluCubic), constant(x, -kGeluLog2));
  const T slope = x * fma(z, constant(x, 3 * kGeluSlope * kGeluCubic), constant(x, kGeluSlope));
  const T n = round_even(t);
  const T e = exp2_fraction_coarse(t - n) * exp2_int(n);  // (1 - s) / s
  const T s = one / (e + one);
  return g * (s * fma(slope * e, s, one));
}

// The distribution of the standard normal, with an error below one ulp of 1. For negative x it is 2^M(|x|), where M is
// the minimax polynomial of log2 Phi(-|x|) weighted by Phi; for other x it is 1 - 2^M(|x|). Beyond the range of the
// fit, M falls below every exponent (f32) or is set to such a value (f64).
template <class T> [[gnu::always_inline]] inline T normal_cdf(T x) {
  const T a = abs(x);
  T m;
  if (is_f64(x)) {
    m = polynomial(a, {-1.0000000000000000399,     -1.1511040990721504479,     -0.45922409426387942925,
                       -0.052421193317285738412,   0.0068991287911545020616,   0.000053352666977542868822,
                       -0.000305891554171973928,   0.000075259922561879341074, -2.3516923713881917028e-6,
                       -4.0827613836073461101e-6,  1.3041691124198689136e-6,   -7.3923950766490230875e-8,
                       -9.0521371984449444892e-8,  4.4105159603501688305e-8,   -1.1878224069308271314e-8,
                       2.1392860860820791915e-9,   -2.4538482218284974089e-10, 1.0001180434850485173e-11,
                       2.3155569377673566284e-12,  -5.6042592962522835701e-13, 6.3930462444082909851e-14,
                       -4.3820358888110495969e-15, 1.7352704064249408042e-16,  -3.0776597437292100209e-18});
    m = select(lt(constant(x, 8.4), a), constant(x, -2000.0), m);
  } else {
    m = polynomial(a, {-0.999999978283700422, -1.15110572346334913, -0.459204907669219294, -0.0525050278025389945,
                       0.00707547113906403744, -0.0001458702441598274, -0.000182547276001342645,
                       0.0000386206154657675778, -2.77203283082056124e-6});
  }
  const T tail = exp2_coarse(m);
  return select(lt(x, constant(x, 0.0)), tail, constant(x, 1.0) - tail);
}

// x/2 (1 + erf(x / sqrt 2)) (same paper). Minus infinity gives NaN, as in PyTorch. Error below 1.1 epsilon max(1,
// |result|).
template <class T> [[gnu::always_inline]] inline T gelu_erf(T x) { return x * normal_cdf(x); }

// g (Phi(x) + x phi(x)), phi the density of the standard normal. Error for g = 1 below 1.6 epsilon max(1, |result|).
template <class T> [[gnu::always_inline]] inline T gelu_erf_grad(T x, T g) {
  const T c = limit(x, -40.0, 40.0);
  const T density = exp2_coarse(c * c * constant(x, -0.72134752044448170368)) * constant(x, 0.39894228040143267794);
  return g * fma(c, density, normal_cdf(c));
}

// x sigmoid(x); also called swish (Elfwing et al. 2017, arXiv 1702.03118). Minus infinity gives NaN, as in PyTorch.
// Below 1.1 epsilon max(1, |result|).
template <class T> [[gnu::always_inline]] inline T silu(T x) {
  const T e = exp(-abs(x)), one = constant(x, 1.0);
  return select(lt(x, constant(x, 0.0)), x * e, x) / (one + e);
}

// g s (1 + x (1 - s)), s = sigmoid(x). Error for g = 1 below 2 epsilon max(1, |result|).
template <class T> [[gnu::always_inline]] inline T silu_grad(T x, T g) {
  const T one = constant(x, 1.0);
  const T c = is_f64(x) ? limit(x, -760.0, 760.0) : limit(x, -110.0, 110.0);  // beyond, e is 0
  const T e = exp(-abs(c)), d = one / (one + e), ed = e * d;
  const auto negative = lt(c, constant(x, 0.0));
  const T s = select(negative, ed, d), rest = select(negative, d, ed);  // rest = 1 - s without cancellation
  return g * (s * fma(c, rest, one));
}

// ---- Piecewise functions. NaN stays NaN; gradients at a kink are PyTorch's.

template <class T> [[gnu::always_inline]] inline T relu(T x) {
  return select(lt(x, constant(x, 0.0)), constant(x, 0.0), x);
}
// 0 if x <= 0, else g. A NaN in x gives g.
template <class T> [[gnu::always_inline]] inline T relu_grad(T x, T g) {
  return select(le(x, constant(x, 0.0)), constant(x, 0.0), g);
}

template <class T> [[gnu::always_inline]] inline T leaky_relu(T x, T slope) {
  return select(lt(constant(x, 0.0), x), x, x * slope);
}
template <class T> [[gnu::always_inline]] inline T leaky_relu_grad(T x, T slope, T g) {
  return select(lt(constant(x, 0.0), x), g, g * slope);
}

// x above 0, else alpha (e^x - 1) (Clevert et al. 2015, arXiv 1511.07289).
template <class T> [[gnu::always_inline]] inline T elu(T x, T alpha) {
  return select(lt(constant(x, 0.0), x), x, alpha * expm1(x));
}
template <class T> [[gnu::always_inline]] inline T elu_grad(T x, T alpha, T g) {
  return select(lt(constant(x, 0.0), x), g, g * (alpha * exp(x)));
}

// hardtanh is clamp(x, low, high). Its gradient is g strictly between low and high, else 0.
template <class T> [[gnu::always_inline]] inline T hardtanh(T x, T low, T high) { return clamp(x, low, high); }
template <class T> [[gnu::always_inline]] inline T hardtanh_grad(T x, T low, T high, T g) {
  return select(logical_and(lt(low, x), lt(x, high)), g, constant(x, 0.0));
}
// The gradient of clamp is g strictly between low and high, else 0.
template <class T> [[gnu::always_inline]] inline T clamp_grad(T x, T low, T high, T g) {
  return hardtanh_grad(x, low, high, g);
}

// hardsigmoid: min(max(x + 3, 0), 6) / 6 (Howard et al. 2019, arXiv 1905.02244). hardswish: x times hardsigmoid(x).
template <class T> [[gnu::always_inline]] inline T hardsigmoid(T x) {
  return limit(x + constant(x, 3.0), 0.0, 6.0) / constant(x, 6.0);
}
template <class T> [[gnu::always_inline]] inline T hardsigmoid_grad(T x, T g) {
  return hardtanh_grad(x, constant(x, -3.0), constant(x, 3.0), g / constant(x, 6.0));
}
template <class T> [[gnu::always_inline]] inline T hardswish(T x) {
  return x * limit(x + constant(x, 3.0), 0.0, 6.0) / constant(x, 6.0);
}
template <class T> [[gnu::always_inline]] inline T hardswish_grad(T x, T g) {
  const T inner = g * fma(x, constant(x, 1.0 / 3), constant(x, 0.5));
  return select(lt(x, constant(x, -3.0)), constant(x, 0.0), select(le(x, constant(x, 3.0)), inner, g));
}

// -1, 0 or 1; 0 for -0 and NaN, as PyTorch's.
template <class T> [[gnu::always_inline]] inline T sign(T x) {
  const T zero = constant(x, 0.0);
  return select(lt(zero, x), constant(x, 1.0), select(lt(x, zero), constant(x, -1.0), zero));
}
template <class T> [[gnu::always_inline]] inline T ceil(T x) { return -floor(-x); }

// ---- Powers

// 1 / sqrt(x). Below 1.5 ulp (two roundings).
template <class T> [[gnu::always_inline]] inline T rsqrt(T x) { return constant(x, 1.0) / sqrt(x); }

// x^y with the special values of C (ISO C annex F). ln |x| is computed as a sum of two numbers, with twice the
// precision up to the cubic term of the series 2 atanh(f / (2 + f)); so the error does not grow with y. Below 2 ulp.
template <class T> [[gnu::always_inline]] inline T pow(T x, T y) {
  const bool wide = is_f64(x);
  const T zero = constant(x, 0.0), one = constant(x, 1.0), two = constant(x, 2.0), infinity = constant(x, kInf);
  const T a = abs(x);
  const auto [e, f] = log_parts(a);
  // s = f / (2 + f) and its error.
  const T d = f + two, inverse = one / d, s = f * inverse;
  const T s_low = fma(-s, f - (d - two), fma(-s, d, f)) * inverse;
  // s^2, s^3 and the coefficient 2/3 + s^2 R, each in two parts.
  const T z = s * s, z_low = fma(s, s, -z) + two * s * s_low;
  const T cube = z * s, cube_low = fma(z, s, -cube) + fma(z_low, s, z * s_low);
  const T series = z * (wide ? polynomial(z, {0.399999999999999771, 0.28571428571445337, 0.222222222174816516,
                                              0.18181818877044192, 0.153845564115544559, 0.133363351097711163,
                                              0.116744590738161015, 0.119920094443224241})
                             : polynomial(z, {0.400001531094274776, 0.285470338473391746, 0.234210613283408217}));
  constexpr double kTwoThirds = 2.0 / 3;
  const T third = constant(x, kTwoThirds);
  const T third_low = constant(x, wide ? 3.70074341541718826e-17 : kTwoThirds - static_cast<float>(kTwoThirds));
  const T c = third + series, c_low = (series - (c - third)) + third_low;
  const T term = cube * c, term_low = fma(cube, c, -term) + fma(cube, c_low, cube_low * c);
  // ln |x| = e ln 2 + 2 s + term.
  const T whole = minus_ln2_high(e, -1.0, zero), linear = two * s;
  const T sum = whole + linear, sum_low = linear - (sum - whole);
  T high = sum + term;
  const T low = (term - (high - sum)) + (sum_low + (term_low + minus_ln2_low(e, -1.0, two * s_low)));
  high = select(eq(a, zero), -infinity, select(lt(a, infinity), high, a));
  const T product = y * high;
  const T product_low = fma(y, high, -product) + y * low;
  // Beyond the bound the result is 0 or infinity, and product_low may be NaN.
  const auto bounded = lt(abs(product), constant(x, wide ? 800.0 : 120.0));
  const T magnitude = exp_sum(product, select(bounded, product_low, zero));

  const T half_y = y * constant(x, 0.5);
  const auto odd = logical_and(eq(floor(y), y), ne(floor(half_y), half_y));
  const auto negative = logical_or(lt(x, zero), lt(one / x, zero));  // -0 too
  T result = select(logical_and(odd, negative), -magnitude, magnitude);
  const auto finite_negative = logical_and(lt(x, zero), lt(-infinity, x));
  result = select(logical_and(finite_negative, ne(floor(y), y)), constant(x, kNaN), result);
  const auto unit_to_infinity = logical_and(eq(a, one), eq(abs(y), infinity));
  return select(logical_or(logical_or(eq(y, zero), eq(x, one)), unit_to_infinity), one, result);
}

// ---- Trigonometry

// sin(x + quarter_turns pi/2). x = n pi/2 + r, pi/2 in three parts (Cody and Waite 1980): accurate for |x| < 1e5 (f32)
// and 1e9 (f64), beyond that the result is only bounded. Minimax polynomials of sin and cos on |r| <= pi/4.
template <class T> [[gnu::always_inline]] inline T sin_quarter(T x, double quarter_turns) {
  const bool wide = is_f64(x);
  const T n = round_even(x * constant(x, 0.636619772367581343));
  T r = fma(n, constant(x, wide ? -0x1.921fb54442d18p+0 : -0x1.921fb6p+0), x);
  r = fma(n, constant(x, wide ? -0x1.1a62633145c07p-54 : 0x1.777a5cp-25), r);
  r = fma(n, constant(x, wide ? 0x1.f1976b7ed8fbcp-110 : 0x1.ee59dap-50), r);
  r = limit(r, -0.8, 0.8);
  const T z = r * r, one = constant(x, 1.0);
  const T s = wide ? polynomial(z, {-0.166666666666666666, 0.0083333333333333227, -0.000198412698412549892,
                                    2.7557319214148878e-6, -2.50521049005458367e-8, 1.60583651939331704e-10,
                                    -7.57862552589019936e-13})
                   : polynomial(z, {-0.166666548735220374, 0.00833217354515805969, -0.000195166559862580985});
  const T c = wide ? polynomial(z, {0.041666666666666592, -0.00138888888888728952, 0.0000248015872887482426,
                                    -2.75573141486394201e-7, 2.08756965746886562e-9, -1.13583105947483444e-11})
                   : polynomial(z, {0.0416666455544716512, -0.00138873098666524074, 0.0000244324129815231956});
  const T sine = fma(r * z, s, r);
  // 1 - z/2 + z^2 c, with the rounding error of 1 - z/2 (FDLIBM k_cos.c).
  const T half_z = constant(x, 0.5) * z, head = one - half_z;
  const T cosine = head + fma(z * z, c, (one - head) - half_z);
  const T q = n + constant(x, quarter_turns), half_q = q * constant(x, 0.5), quarter_q = q * constant(x, 0.25);
  const T value = select(eq(floor(half_q), half_q), sine, cosine);
  return select(lt(quarter_q - floor(quarter_q), constant(x, 0.5)), value, -value);
}

// sin x. Below 1.6 ulp in the range of sin_quarter.
template <class T> [[gnu::always_inline]] inline T sin(T x) {
  return select(lt(abs(x), constant(x, is_f64(x) ? 0x1p-27 : 0x1p-13)), x, sin_quarter(x, 0.0));
}
// cos x. Below 1.6 ulp in the range of sin_quarter.
template <class T> [[gnu::always_inline]] inline T cos(T x) { return sin_quarter(x, 1.0); }

}  // namespace rondo::scalar
#pragma GCC visibility pop
