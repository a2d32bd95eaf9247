// Vectors of the host's full width, with GCC's vector extensions, which compile for any ISA. Only for kernel sources,
// which are compiled for RONDO_CPU.
//
// No function reduces across lanes, and fma() rounds once on every processor. So a kernel that keeps each output in one
// lane gives the same bits with every vector width.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "rondo/runtime/base/dtype.h"

namespace rondo::cpu {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

// The type in which arithmetic on T is done, as in compute_dtype().
template <class T> using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class A> struct VectorOf {
  static constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(A));
  using Bits = std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>;
  using Integer = std::make_signed_t<Bits>;
  typedef A Type __attribute__((vector_size(kVectorBytes)));
  typedef Bits BitsType __attribute__((vector_size(kVectorBytes)));
  typedef Integer IntegerType __attribute__((vector_size(kVectorBytes)));
  typedef uint16_t Half __attribute__((vector_size(2 * kWidth)));
};
template <class A> using Vector = typename VectorOf<A>::Type;
template <class A> using BitVector = typename VectorOf<A>::BitsType;
template <class A> using IntegerVector = typename VectorOf<A>::IntegerType;
template <class A> inline constexpr int kWidth = VectorOf<A>::kWidth;

// Returns the least multiple of `multiple` that is at least n.
constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

template <class To, class From> inline To vector_cast(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &v, sizeof(to));
  return to;
}

template <class A> inline Vector<A> broadcast(A value) { return value - Vector<A>{}; }

// Returns 0, 1, 2, ... as integers, to compare with row and column numbers.
template <class A> inline IntegerVector<A> lane_numbers() {
  IntegerVector<A> lanes;
  for (int i = 0; i < kWidth<A>; ++i) lanes[i] = i;
  return lanes;
}

// ---- Loads and stores, converting from and to the element type T

template <class T> inline Vector<Compute<T>> load(const T* p) {
  using A = Compute<T>;
  if constexpr (std::is_same_v<T, A>) {
    Vector<A> v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    // These ISAs use intrinsics, because GCC 12 compiles the portable form to seven instructions.
#if defined(__AVX512F__)
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return (Vector<A>)_mm512_maskz_slli_epi32(0xFFFF, _mm512_maskz_cvtepu16_epi32(0xFFFF, half), 16);
#elif defined(__AVX2__)
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return (Vector<A>)_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
#else
    typename VectorOf<A>::Half half;
    __builtin_memcpy(&half, p, sizeof(half));
    return vector_cast<Vector<A>>(__builtin_convertvector(half, BitVector<A>) << 16);
#endif
  } else {
#if defined(__AVX512F__)
    // The masked form is used because GCC 12 warns about an uninitialised value inside the plain one.
    return (Vector<A>)_mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__ARM_NEON)
    float16x4_t half;
    __builtin_memcpy(&half, static_cast<const void*>(p), sizeof(half));
    return (Vector<A>)vcvt_f32_f16(half);
#else
    Vector<A> v;
    for (int i = 0; i < kWidth<A>; ++i) v[i] = static_cast<float>(p[i]);
    return v;
#endif
  }
}

// Stores a vector, rounded to T: to nearest even; NaN stays NaN.
template <class T> inline void store(T* p, Vector<Compute<T>> v) {
  using A = Compute<T>;
  if constexpr (std::is_same_v<T, A>) {
    __builtin_memcpy(p, &v, sizeof(v));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    const BitVector<A> u = vector_cast<BitVector<A>>(v);
    const BitVector<A> high = u >> 16;
    const BitVector<A> rounded = (u + 0x7FFF + (high & 1)) >> 16;
    const auto half = __builtin_convertvector(v == v ? rounded : (high | 0x40), typename VectorOf<A>::Half);
    __builtin_memcpy(static_cast<void*>(p), &half, sizeof(half));
  } else {
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_maskz_cvtps_ph(0xFFFF, (__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__ARM_NEON)
    const float16x4_t half = vcvt_f16_f32((float32x4_t)v);
    __builtin_memcpy(static_cast<void*>(p), &half, sizeof(half));
#else
    for (int i = 0; i < kWidth<A>; ++i) p[i] = Float16(v[i]);
#endif
  }
}

// Loads or stores only the first n lanes, n in [0, width]. load() sets the others to 0; store() does not write them.
template <class T> inline Vector<Compute<T>> load(const T* p, int64_t n) {
  if (n >= kWidth<Compute<T>>) return load(p);
  T lanes[kWidth<Compute<T>>] = {};
  std::memcpy(static_cast<void*>(lanes), p, n * sizeof(T));
  return load(lanes);
}
template <class T> inline void store(T* p, Vector<Compute<T>> v, int64_t n) {
  if (n >= kWidth<Compute<T>>) return store(p, v);
  T lanes[kWidth<Compute<T>>];
  store(lanes, v);
  std::memcpy(static_cast<void*>(p), lanes, n * sizeof(T));
}

// ---- Arithmetic

// True if the processor has an FMA instruction. The C library's fma() takes about 50 times as long.
#if defined(__FMA__) || defined(__ARM_NEON)
inline constexpr bool kHasFma = true;
#else
inline constexpr bool kHasFma = false;
#endif

// a * b + c, rounded once.
template <class V> inline V fma(V a, V b, V c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(a[0]) == 4) return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
  else return (V)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__) && defined(__FMA__)
  if constexpr (sizeof(a[0]) == 4) return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
  else return (V)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  for (unsigned i = 0; i < sizeof(a) / sizeof(a[0]); ++i) {
    if constexpr (sizeof(a[0]) == 4) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    else c[i] = __builtin_fma(a[i], b[i], c[i]);
  }
  return c;
#endif
}

// Returns the larger of a and b, or `b` if either is NaN. GCC does not compile the portable form to one instruction.
template <class V> inline V larger(V a, V b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(a[0]) == 4) return (V)_mm512_maskz_max_ps(0xFFFF, (__m512)a, (__m512)b);
  else return (V)_mm512_maskz_max_pd(0xFF, (__m512d)a, (__m512d)b);
#else
  return a > b ? a : b;
#endif
}

// 2^t for t <= 127 (f32) or 1023 (f64). Results below the normal range, and t = -inf, give exactly 0; NaN gives NaN.
// Error below 1 ulp. f32: minimax polynomial of degree 6 on [-1/2, 1/2]; f64: Taylor of degree 13.
template <class A> inline Vector<A> exp2(Vector<A> t) {
  constexpr bool kWide = sizeof(A) == 8;
  // Adding 1.5 * 2^(mantissa bits) rounds t to an integer, which is then in the low bits.
  constexpr A kMagic = kWide ? static_cast<A>(0x1.8p52) : static_cast<A>(0x1.8p23f);
  const Vector<A> shifted = t + kMagic;
  const Vector<A> r = t - (shifted - kMagic);
  Vector<A> p;
  const auto horner = [&](const auto& coefficients) {
    p = broadcast<A>(coefficients[0]);
    for (unsigned i = 1; i < sizeof(coefficients) / sizeof(coefficients[0]); ++i)
      p = fma(p, r, broadcast<A>(coefficients[i]));
  };
  if constexpr (kWide) {
    static constexpr A kCoefficients[] = {1.3691488853904128881e-12, 2.5678435993488205142e-11,
                                          4.4455382718708114976e-10, 7.0549116208011233299e-9,
                                          1.0178086009239699727e-7,  1.3215486790144309488e-6,
                                          0.00001525273380405984028, 0.00015403530393381609954,
                                          0.0013333558146428443423,  0.009618129107628477162,
                                          0.055504108664821579953,   0.24022650695910071233,
                                          0.69314718055994530942,    1.0};
    horner(kCoefficients);
  } else {
    static constexpr A kCoefficients[] = {
        0x1.41fbbcp-13f, 0x1.5f3e52p-10f, 0x1.3b2d4cp-7f, 0x1.c6aee8p-5f, 0x1.ebfbdcp-3f, 0x1.62e430p-1f, 1.0f};
    horner(kCoefficients);
  }
  constexpr int kMantissaBits = kWide ? 52 : 23;
  constexpr auto kOne = kWide ? static_cast<typename VectorOf<A>::Bits>(0x3FF0000000000000)
                              : static_cast<typename VectorOf<A>::Bits>(0x3F800000);
  const auto power = vector_cast<Vector<A>>((vector_cast<BitVector<A>>(shifted) << kMantissaBits) + kOne);
  return t < (kWide ? A(-1022) : A(-126)) ? Vector<A>{} : p * power;
}

// log2 x for normal x > 0; NaN and infinity are returned unchanged; unspecified for other x. Error below 2 ulp; near
// x = 1 this is an absolute error. Formula: log2 f = (2 / ln 2) (z + z^3/3 + z^5/5 + ...), z = (f - 1) / (f + 1), with
// f in [3/4, 3/2).
template <class A> inline Vector<A> log2(Vector<A> x) {
  constexpr bool kWide = sizeof(A) == 8;
  constexpr int kMantissaBits = kWide ? 52 : 23;
  constexpr auto kThreeQuarters = static_cast<typename VectorOf<A>::Integer>(kWide ? 0x3FE8000000000000 : 0x3F400000);
  const IntegerVector<A> bits = vector_cast<IntegerVector<A>>(x);
  const IntegerVector<A> exponent = (bits - kThreeQuarters) >> kMantissaBits;
  const Vector<A> f = vector_cast<Vector<A>>(bits - (exponent << kMantissaBits));
  const Vector<A> z = (f - A(1)) / (f + A(1));
  const Vector<A> z2 = z * z;
  constexpr int kTerms = kWide ? 14 : 6;
  Vector<A> p = broadcast<A>(A(1) / (2 * kTerms + 1));
  for (int i = kTerms - 1; i >= 0; --i) p = fma(p, z2, broadcast<A>(A(1) / (2 * i + 1)));
  const Vector<A> r = fma(z * A(2.8853900817779268147), p, __builtin_convertvector(exponent, Vector<A>));
  return x < std::numeric_limits<A>::infinity() ? r : x;
}

// ---- Transposition of a square block in registers: replaces rows by columns

namespace detail {
template <class V, int... I> inline V zip_low(V a, V b, std::integer_sequence<int, I...>) {
  constexpr int kLanes = sizeof...(I);
  return __builtin_shufflevector(a, b, (I / 2 + I % 2 * kLanes)...);
}
template <class V, int... I> inline V zip_high(V a, V b, std::integer_sequence<int, I...>) {
  constexpr int kLanes = sizeof...(I);
  return __builtin_shufflevector(a, b, (I / 2 + kLanes / 2 + I % 2 * kLanes)...);
}
}  // namespace detail

// Transposes by log2(width) perfect shuffles of the rows.
template <class A> inline void transpose(Vector<A> (&rows)[kWidth<A>]) {
  constexpr int kN = kWidth<A>;
  using Lanes = std::make_integer_sequence<int, kN>;
#pragma GCC unroll 8
  for (int round = 1; round < kN; round *= 2) {
    Vector<A> zipped[kN];
#pragma GCC unroll 16
    for (int i = 0; i < kN / 2; ++i) {
      zipped[2 * i] = detail::zip_low(rows[i], rows[i + kN / 2], Lanes{});
      zipped[2 * i + 1] = detail::zip_high(rows[i], rows[i + kN / 2], Lanes{});
    }
#pragma GCC unroll 16
    for (int i = 0; i < kN; ++i) rows[i] = zipped[i];
  }
}

}  // namespace rondo::cpu
