// Element types. Part of the runtime's vocabulary: every tensor, kernel and IR value names one of these.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#pragma GCC visibility push(default)
namespace rondo {

enum class DType : uint8_t { kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool };
inline constexpr int kNumDTypes = 8;

inline constexpr DType kF64 = DType::kF64, kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16,
                       kI64 = DType::kI64, kI32 = DType::kI32, kU8 = DType::kU8, kBool = DType::kBool;

// bfloat16: the upper half of an f32. Conversion from f32 rounds to nearest even; NaN stays NaN.
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value) {
    uint32_t u = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (u >> 16) | 0x40u;
    bits = static_cast<uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? quiet_nan : rounded);
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// IEEE binary16. Conversion from f32 rounds to nearest even, with the same result on every host.
struct Float16 {
  uint16_t bits = 0;
  Float16() = default;
  explicit Float16(float value);
  operator float() const;
};

inline Float16::Float16(float value) {
#ifdef __F16C__
  // Uses one hardware instruction, which rounds as the software path below does.
  using F4 = float __attribute__((vector_size(16)));
  using S8 = short __attribute__((vector_size(16)));
  const S8 packed = __builtin_ia32_vcvtps2ph(F4{value, 0, 0, 0}, 0);
  bits = static_cast<uint16_t>(packed[0]);
#else
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (u >> 16) & 0x8000u;
  uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    bits = static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  } else if (magnitude >= 0x47800000u) {
    bits = static_cast<uint16_t>(sign | 0x7C00u);
  } else if (magnitude < 0x38800000u) {
    // Subnormal result: let the float adder do the rounding at the right bit position.
    const float shifted = std::bit_cast<float>(magnitude) + std::bit_cast<float>(0x3F000000u);
    bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  } else {
    magnitude += 0xC8000FFFu + ((magnitude >> 13) & 1u);
    bits = static_cast<uint16_t>(sign | (magnitude >> 13));
  }
#endif
}

inline Float16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu, mantissa = bits & 0x3FFu;
  if (exponent == 0x1F)
    return std::bit_cast<float>(sign | 0x7F800000u | (mantissa ? 0x400000u : 0u) | (mantissa << 13));
  if (exponent == 0) {
    const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -tiny : tiny;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

constexpr size_t size_of(DType t) {
  constexpr size_t kSizes[kNumDTypes] = {8, 4, 2, 2, 8, 4, 1, 1};
  return kSizes[static_cast<int>(t)];
}
constexpr std::string_view name_of(DType t) {
  constexpr std::string_view kNames[kNumDTypes] = {"f64", "f32", "bf16", "f16", "i64", "i32", "u8", "bool"};
  return kNames[static_cast<int>(t)];
}
constexpr bool is_floating(DType t) { return t <= DType::kF16; }
// True for the dtypes of indices. Every argument that takes indices accepts both of them.
constexpr bool is_index(DType t) { return t == DType::kI64 || t == DType::kI32; }
constexpr bool is_low_precision(DType t) { return t == DType::kBF16 || t == DType::kF16; }

// Returns the dtype in which arithmetic on `t` is done: f32 for the 16-bit floats, else `t` itself.
constexpr DType compute_dtype(DType t) { return is_low_precision(t) ? DType::kF32 : t; }
// compute_dtype() for C++ types: float for the 16-bit floats, else T itself.
template <class T>
using ComputeType = std::conditional_t<std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>, float, T>;

// Returns the result dtype of a binary op on two tensors, as in PyTorch: a float beats any integer; bf16 with f16 gives
// f32.
constexpr DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_floating(a) != is_floating(b)) return is_floating(a) ? a : b;
  if (is_low_precision(a) && is_low_precision(b)) return DType::kF32;
  return a < b ? a : b;  // The enum lists each family from widest to narrowest.
}

template <class T> struct DTypeOf;
template <> struct DTypeOf<double> { static constexpr DType value = DType::kF64; };
template <> struct DTypeOf<float> { static constexpr DType value = DType::kF32; };
template <> struct DTypeOf<BFloat16> { static constexpr DType value = DType::kBF16; };
template <> struct DTypeOf<Float16> { static constexpr DType value = DType::kF16; };
template <> struct DTypeOf<int64_t> { static constexpr DType value = DType::kI64; };
template <> struct DTypeOf<int32_t> { static constexpr DType value = DType::kI32; };
template <> struct DTypeOf<uint8_t> { static constexpr DType value = DType::kU8; };
template <> struct DTypeOf<bool> { static constexpr DType value = DType::kBool; };
template <class T> inline constexpr DType dtype_of = DTypeOf<T>::value;

template <class T> struct TypeTag { using type = T; };

// Calls `f(TypeTag<T>{})` with the C++ type of `t`. Use it instead of a switch over dtypes.
template <class F> decltype(auto) visit_dtype(DType t, F&& f) {
  switch (t) {
    case DType::kF64: return f(TypeTag<double>{});
    case DType::kF32: return f(TypeTag<float>{});
    case DType::kBF16: return f(TypeTag<BFloat16>{});
    case DType::kF16: return f(TypeTag<Float16>{});
    case DType::kI64: return f(TypeTag<int64_t>{});
    case DType::kI32: return f(TypeTag<int32_t>{});
    case DType::kU8: return f(TypeTag<uint8_t>{});
    case DType::kBool: break;
  }
  return f(TypeTag<bool>{});
}
// Like visit_dtype, for the four floating types. REQUIRES: is_floating(t).
template <class F> decltype(auto) visit_floating(DType t, F&& f) {
  switch (t) {
    case DType::kF64: return f(TypeTag<double>{});
    case DType::kBF16: return f(TypeTag<BFloat16>{});
    case DType::kF16: return f(TypeTag<Float16>{});
    default: return f(TypeTag<float>{});
  }
}

}  // namespace rondo
#pragma GCC visibility pop
