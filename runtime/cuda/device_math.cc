#include "rondo/runtime/cuda/device_math.h"

namespace rondo::cuda {

std::string_view device_math() {
  return R"cuda(
#define RONDO_DEVICE __device__ __forceinline__

// ---- The 16-bit floats of runtime/base/dtype.h. The hardware's conversions make other NaNs, so these work on
// integers.
struct rondo_bf16 { unsigned short bits; };
struct rondo_f16 { unsigned short bits; };

RONDO_DEVICE float to_float(rondo_bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }
RONDO_DEVICE float to_float(rondo_f16 x) {
  const unsigned sign = static_cast<unsigned>(x.bits & 0x8000u) << 16;
  const unsigned exponent = (x.bits >> 10) & 0x1Fu, mantissa = x.bits & 0x3FFu;
  if (exponent == 0x1Fu) return __uint_as_float(sign | 0x7F800000u | (mantissa ? 0x400000u : 0u) | (mantissa << 13));
  if (exponent == 0u) {
    const float tiny = static_cast<float>(mantissa) * 5.9604644775390625e-08f;  // 2^-24
    return sign ? -tiny : tiny;
  }
  return __uint_as_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}
RONDO_DEVICE rondo_bf16 to_bf16(float value) {
  const unsigned u = __float_as_uint(value);
  const unsigned rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  const unsigned quiet_nan = (u >> 16) | 0x40u;
  return {static_cast<unsigned short>((u & 0x7FFFFFFFu) > 0x7F800000u ? quiet_nan : rounded)};
}
RONDO_DEVICE rondo_f16 to_f16(float value) {
  const unsigned u = __float_as_uint(value);
  const unsigned sign = (u >> 16) & 0x8000u;
  unsigned magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {static_cast<unsigned short>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu))};
  if (magnitude >= 0x47800000u) return {static_cast<unsigned short>(sign | 0x7C00u)};
  if (magnitude < 0x38800000u) {
    // A subnormal result: the adder rounds at the right bit.
    const float shifted = __uint_as_float(magnitude) + __uint_as_float(0x3F000000u);
    return {static_cast<unsigned short>(sign | (__float_as_uint(shifted) - 0x3F000000u))};
  }
  magnitude += 0xC8000FFFu + ((magnitude >> 13) & 1u);
  return {static_cast<unsigned short>(sign | (magnitude >> 13))};
}
RONDO_DEVICE float round_bf16(float value) { return to_float(to_bf16(value)); }
RONDO_DEVICE float round_f16(float value) { return to_float(to_f16(value)); }
// The low byte of the integer that the float holds.
RONDO_DEVICE unsigned char to_byte(float value) {
  return static_cast<unsigned char>(__float_as_uint(value + 12582912.0f));  // 1.5 * 2^23
}

// A float without its fraction: the nearest number of the type where it is out of range, 0 for NaN.
template <class In> RONDO_DEVICE long long to_long(In x) {
  const In high = static_cast<In>(9223372036854775808.0);
  if (x >= high) return 9223372036854775807ll;
  if (x < -high) return -9223372036854775807ll - 1;
  return x == x ? static_cast<long long>(x) : 0ll;
}
template <class In> RONDO_DEVICE int to_int(In x) {
  const In high = static_cast<In>(2147483648.0);
  if (x >= high) return 2147483647;
  if (x < -high) return -2147483647 - 1;
  return x == x ? static_cast<int>(x) : 0;
}
template <class In> RONDO_DEVICE unsigned char low_byte(In x) { return static_cast<unsigned char>(to_long(x)); }

// ---- The primitives of runtime/ops/scalar_math.h
RONDO_DEVICE float fma_of(float a, float b, float c) { return __fmaf_rn(a, b, c); }
RONDO_DEVICE double fma_of(double a, double b, double c) { return __fma_rn(a, b, c); }
RONDO_DEVICE float sqrt_of(float a) { return __fsqrt_rn(a); }
RONDO_DEVICE double sqrt_of(double a) { return __dsqrt_rn(a); }
RONDO_DEVICE float abs_of(float a) { return fabsf(a); }
RONDO_DEVICE double abs_of(double a) { return fabs(a); }
RONDO_DEVICE float round_even(float a) { return rintf(a); }
RONDO_DEVICE double round_even(double a) { return rint(a); }
RONDO_DEVICE float floor_of(float a) { return floorf(a); }
RONDO_DEVICE double floor_of(double a) { return floor(a); }
RONDO_DEVICE double bits_as_double(unsigned long long bits) {
  return __longlong_as_double(static_cast<long long>(bits));
}
RONDO_DEVICE unsigned long long bits_of(double a) { return static_cast<unsigned long long>(__double_as_longlong(a)); }
RONDO_DEVICE float exp2_int(float a) { return __uint_as_float((__float_as_uint(a + 12582912.0f) << 23) + 0x3F800000u); }
RONDO_DEVICE double exp2_int(double a) {
  return bits_as_double((bits_of(a + 6755399441055744.0) << 52) + 0x3FF0000000000000ull);  // 1.5 * 2^52
}
RONDO_DEVICE float exponent_of(float a) {
  return static_cast<float>((static_cast<int>(__float_as_uint(a)) >> 23) - 127);
}
RONDO_DEVICE double exponent_of(double a) { return static_cast<double>((__double_as_longlong(a) >> 52) - 1023); }
RONDO_DEVICE float mantissa_of(float a) { return __uint_as_float((__float_as_uint(a) & 0x007FFFFFu) | 0x3F800000u); }
RONDO_DEVICE double mantissa_of(double a) {
  return bits_as_double((bits_of(a) & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
}

// ---- The shifts of runtime/ops/bitwise.h: a negative number of bits is a large one.
template <class T> RONDO_DEVICE T shift_left(T a, T b) {
  const unsigned long long n = static_cast<unsigned long long>(b);
  return n < 8 * sizeof(T) ? static_cast<T>(static_cast<unsigned long long>(a) << n) : static_cast<T>(0);
}
template <class T> RONDO_DEVICE T shift_right(T a, T b) {
  const unsigned long long n = static_cast<unsigned long long>(b);
  return n < 8 * sizeof(T) ? static_cast<T>(a >> n) : static_cast<T>(a < 0 ? -1 : 0);
}

// ---- Random numbers: Philox of runtime/random/random.h, word for word.
struct RondoWords { unsigned word[4]; };
RONDO_DEVICE RondoWords philox(unsigned long long key, unsigned long long low, unsigned long long high) {
  unsigned c0 = static_cast<unsigned>(low), c1 = static_cast<unsigned>(low >> 32);
  unsigned c2 = static_cast<unsigned>(high), c3 = static_cast<unsigned>(high >> 32);
  unsigned k0 = static_cast<unsigned>(key), k1 = static_cast<unsigned>(key >> 32);
#pragma unroll 5  // all ten would spill in the backward of attention
  for (int round = 0; round < 10; ++round) {
    const unsigned long long p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    const unsigned n0 = static_cast<unsigned>(p1 >> 32) ^ c1 ^ k0, n2 = static_cast<unsigned>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<unsigned>(p1);
    c3 = static_cast<unsigned>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}
// uniform_from_bits() of random.h.
RONDO_DEVICE float uniform_of(unsigned bits) {
  const float middle = (static_cast<float>(bits >> 8) + 0.5f) * 5.9604644775390625e-08f;  // 2^-24
  return middle < 1.0f ? middle : 0.999999940395355224609375f;
}
// DropoutRule of random_state.h; a p of 1 keeps nothing.
RONDO_DEVICE bool keeps(unsigned word, double p) {
  const double exact = p * 4294967296.0;
  return p < 1.0 && word >= static_cast<unsigned>(4294967295.0 < exact ? 4294967295.0 : exact);
}
// The words of elements from `first` on, where four neighbours share a counter.
template <int kElements> struct RondoDraw { unsigned at[kElements]; };
template <int kElements>
RONDO_DEVICE RondoDraw<kElements> draw_neighbours(unsigned long long seed, unsigned long long offset,
                                                  unsigned long long first) {
  constexpr int kCounters = (kElements + 3) / 4;
  unsigned all[4 * kCounters + 4] = {};
  const unsigned skip = static_cast<unsigned>(first & 3ull);
#pragma unroll
  for (int i = 0; i <= kCounters; ++i) {
    if (i == kCounters && skip + kElements <= 4 * kCounters) break;
    const RondoWords words = philox(seed, first / 4 + i, offset);
#pragma unroll
    for (int k = 0; k < 4; ++k) all[4 * i + k] = words.word[k];
  }
  RondoDraw<kElements> draw;
#pragma unroll
  for (int e = 0; e < kElements; ++e)
    draw.at[e] = skip == 0 ? all[e] : skip == 1 ? all[e + 1] : skip == 2 ? all[e + 2] : all[e + 3];
  return draw;
}
// The same for elements that are `step` apart.
template <int kElements>
RONDO_DEVICE RondoDraw<kElements> draw_apart(unsigned long long seed, unsigned long long offset,
                                             unsigned long long first, unsigned long long step) {
  RondoDraw<kElements> draw;
#pragma unroll
  for (int e = 0; e < kElements; ++e) draw.at[e] = draw_neighbours<1>(seed, offset, first + e * step).at[0];
  return draw;
}
// Words 0 and 1 of the elements' own counters.
template <int kElements> struct RondoOwnDraw { unsigned at[2][kElements]; };
template <int kElements>
RONDO_DEVICE RondoOwnDraw<kElements> draw_own(unsigned long long seed, unsigned long long offset,
                                              unsigned long long first, unsigned long long step) {
  RondoOwnDraw<kElements> draw;
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    const RondoWords words = philox(seed, first + e * step, offset);
    draw.at[0][e] = words.word[0];
    draw.at[1][e] = words.word[1];
  }
  return draw;
}

// ---- Memory. Kernels reach it through these functions only.
// Tests on the host check and count each access.
#ifndef RONDO_LOADED
#define RONDO_SITE
#define RONDO_LOADED(address, bytes)
#define RONDO_STORED(address, bytes)
#define RONDO_SHARED(address, bytes)
// An array in shared memory whose bytes the launch asks for: it may be longer than 48 KB. At most one for a source.
#define RONDO_DYNAMIC_SHARED(Element, name, count) extern __shared__ Element name[]
#endif
// An address that a kernel reads from memory. The compiler believes that it is of global memory; without that, it could
// be of any, and each access looks up of which.
template <class T> RONDO_DEVICE T* global_address(T* address) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(address));
#endif
  return address;
}
// An index into `size` elements; 0 where it is out of range, which a check of the indices reports.
RONDO_DEVICE long long pick_at(long long index, long long size) { return index >= 0 && index < size ? index : 0; }
// One element of global memory, and of shared memory.
template <class T> RONDO_DEVICE T read(const T* from RONDO_SITE) {
  RONDO_LOADED(from, sizeof(T));
  return *from;
}
template <class T> RONDO_DEVICE void write(T* to, T value RONDO_SITE) {
  RONDO_STORED(to, sizeof(T));
  *to = value;
}
template <class T> RONDO_DEVICE T get(const T& at RONDO_SITE) {
  RONDO_SHARED(&at, sizeof(T));
  return at;
}
template <class T> RONDO_DEVICE void put(T& at, T value RONDO_SITE) {
  RONDO_SHARED(&at, sizeof(T));
  at = value;
}
// kElements neighbours, at once where all exist and the address allows it: Note [Width of accesses].
template <class T, int kElements> struct alignas(kElements * sizeof(T) < 16 ? kElements * sizeof(T) : 16) Pack {
  T at[kElements];
};
template <class T, int kElements> RONDO_DEVICE Pack<T, kElements> pack_of(const T (&values)[kElements]) {
  Pack<T, kElements> pack;
#pragma unroll
  for (int e = 0; e < kElements; ++e) pack.at[e] = values[e];
  return pack;
}
template <int kElements, class T> RONDO_DEVICE Pack<T, kElements> load(const T* from, int exist RONDO_SITE) {
  using Whole = Pack<T, kElements>;
  if (exist == kElements && (reinterpret_cast<size_t>(from) & (alignof(Whole) - 1)) == 0) {
    RONDO_LOADED(from, sizeof(Whole));
    return *reinterpret_cast<const Whole*>(from);
  }
  Whole pack = {};
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    if (e >= exist) break;
    RONDO_LOADED(from + e, sizeof(T));
    pack.at[e] = from[e];
  }
  return pack;
}
template <int kElements, class T>
RONDO_DEVICE Pack<T, kElements> load(const T* from, long long stride, int exist RONDO_SITE) {
  Pack<T, kElements> pack = {};
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    if (e >= exist) break;
    RONDO_LOADED(from + e * stride, sizeof(T));
    pack.at[e] = from[e * stride];
  }
  return pack;
}
template <int kElements, class T>
RONDO_DEVICE void store(T* to, const Pack<T, kElements>& pack, int exist RONDO_SITE) {
  using Whole = Pack<T, kElements>;
  if (exist == kElements && (reinterpret_cast<size_t>(to) & (alignof(Whole) - 1)) == 0) {
    RONDO_STORED(to, sizeof(Whole));
    *reinterpret_cast<Whole*>(to) = pack;
    return;
  }
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    if (e >= exist) break;
    RONDO_STORED(to + e, sizeof(T));
    to[e] = pack.at[e];
  }
}
template <int kElements, class T>
RONDO_DEVICE void store(T* to, long long stride, const Pack<T, kElements>& pack, int exist RONDO_SITE) {
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    if (e >= exist) break;
    RONDO_STORED(to + e * stride, sizeof(T));
    to[e * stride] = pack.at[e];
  }
}

// ---- Reductions in the order of compile/codegen/cuda/schedule.h
struct Sum {
  template <class T> static __device__ __forceinline__ T combine(T a, T b) { return a + b; }
  // Wraps around.
  static __device__ __forceinline__ long long combine(long long a, long long b) {
    return static_cast<long long>(static_cast<unsigned long long>(a) + static_cast<unsigned long long>(b));
  }
};
// NaN if either is.
struct Max {
  template <class T> static __device__ __forceinline__ T combine(T a, T b) { return a != a ? a : (b < a ? a : b); }
};
struct Min {
  template <class T> static __device__ __forceinline__ T combine(T a, T b) { return a != a ? a : (a < b ? a : b); }
};
// op 0: Sum, 1: Max, 2: Min
template <class T> RONDO_DEVICE T combine_by(int op, T a, T b) {
  return op == 0 ? Sum::combine(a, b) : op == 1 ? Max::combine(a, b) : Min::combine(a, b);
}
// Element i takes element i + k, for k = kWidth, kWidth / 2, ... 1. Recursion, as loops around loops are not always
// unrolled, and an array that a loop indexes is no registers.
template <class Op, int kWidth, class T> RONDO_DEVICE void meet(T* tree) {
  if constexpr (kWidth > 0) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) tree[i] = Op::combine(tree[i], tree[i + kWidth]);
    meet<Op, kWidth / 2>(tree);
  }
}
// Reduces the elements that one thread holds, or reads.
template <class Op, class T, int kElements> RONDO_DEVICE T thread_reduce(const T (&lanes)[kElements]) {
  T tree[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) tree[i] = lanes[i];
  meet<Op, kElements / 2>(tree);
  return tree[0];
}
// Reduces over groups of kThreads neighbours in a warp; each of them gets the result. All threads of the warp must call
// it.
template <class Op, int kThreads, class T> RONDO_DEVICE T warp_reduce(T value) {
#pragma unroll
  for (int width = kThreads / 2; width > 0; width /= 2)
    value = Op::combine(value, static_cast<T>(__shfl_down_sync(0xFFFFFFFFu, value, width, kThreads)));
  return __shfl_sync(0xFFFFFFFFu, value, 0, kThreads);
}
)cuda";
}

}  // namespace rondo::cuda
