// 8-bit states: one byte for each element, and one f32 scale for each block of 256 elements (Dettmers et al., "8-bit
// Optimizers via Block-wise Quantization", 2022). The scale is the largest magnitude in the block. A code is a small
// floating-point number relative to the scale, so small values keep their relative precision. The paper's "dynamic"
// codes do the same with a table of 256 values, which needs a search; these codes need arithmetic only:
//
//   unsigned  4 exponent and 4 mantissa bits: 2^-18 to 1, within 2^-5 relative above 2^-14. A positive value never
//             becomes 0, because second moments are divisors.
//   signed    sign, 3 exponent and 4 mantissa bits: 2^-10 to 1, within 2^-5 relative above 2^-6. Smaller values
//             lose precision, and the smallest become 0.
//
// Bits are: [sign] exponent mantissa, with gradual underflow as in IEEE 754. The functions are templates over the
// scalar type (ops/scalar_math.h), so eager and generated code give equal codes.
#pragma once

#include "rondo/runtime/ops/scalar_math.h"

namespace rondo::optim {

// Returns the value of a code (an integer from 0 to 255) in a block with this scale.
template <bool kSigned, class T> [[gnu::always_inline]] inline T decode8(T code, T scale) {
  using namespace scalar;
  constexpr double kLowest = kSigned ? -6 : -14;  // exponent of the smallest normal value
  const T one = constant(code, 1.0), sixteen = constant(code, 16.0), half = constant(code, 128.0);
  T magnitude = code;
  if constexpr (kSigned) magnitude = select(lt(code, half), code, code - half);
  const T e = floor(magnitude * constant(code, 1.0 / 16));
  const T fraction = fma(e, constant(code, -16.0), magnitude);
  const auto tiny = lt(e, one);
  const T digits = select(tiny, fraction, fraction + sixteen);
  const T power = exp2_int(select(tiny, constant(code, kLowest - 4), e + constant(code, kLowest - 5)));
  const T value = digits * power * scale;
  if constexpr (kSigned) return select(lt(code, half), value, -value);
  return value;
}

// Returns the factor for encode8: 1 / scale. If the scale is below the smallest normal f32, the factor is 0, and the
// codes of the block are those of zeros.
template <class T> [[gnu::always_inline]] inline T inverse8(T scale) {
  using namespace scalar;
  const T one = constant(scale, 1.0);
  return select(lt(scale, constant(scale, 0x1p-126)), constant(scale, 0.0), one / scale);
}

// Returns the code nearest to a value, ties to even. The code of a NaN is unspecified, which does no harm: the scale of
// its block is NaN, too.
template <bool kSigned, class T> [[gnu::always_inline]] inline T encode8(T value, T inverse) {
  using namespace scalar;
  constexpr double kLowest = kSigned ? -6 : -14;
  const T zero = constant(value, 0.0), smallest = constant(value, kSigned ? 0x1p-6 : 0x1p-14);
  const T share = abs(value) * inverse;
  const T e = exponent(select(lt(share, smallest), smallest, share));
  const T digits = round_even(share * exp2_int(constant(value, 4.0) - e));
  T code = fma(e - constant(value, kLowest), constant(value, 16.0), digits);
  if constexpr (kSigned) return select(lt(value, zero), code + constant(value, 128.0), code);
  const T one = constant(value, 1.0);
  return select(lt(zero, value), select(lt(code, one), one, code), code);
}

// Returns the byte to store for a code: the low byte of an integer-valued f32. Defined for every input, like
// LoopOp::kStore to u8.
inline uint8_t low_byte(float integer) { return static_cast<uint8_t>(std::bit_cast<uint32_t>(integer + 0x1.8p23f)); }

}  // namespace rondo::optim
