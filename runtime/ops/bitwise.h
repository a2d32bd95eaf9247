// Shifts of integers by any number of bits, also by a negative one. Eager kernels and the interpreter of generated
// kernels use them.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

namespace rondo::ops {

// Shifts by b bits. All bits are shifted out if b is negative, or at least the number of bits of T.
template <std::integral T> constexpr T shift_left(T a, T b) {
  using U = std::make_unsigned_t<T>;
  constexpr U kBits = 8 * sizeof(T);
  const U n = static_cast<U>(b);
  const U shifted = static_cast<U>(static_cast<uint64_t>(static_cast<U>(a)) << (n & (kBits - 1)));
  return static_cast<T>(n < kBits ? shifted : U(0));
}
// As shift_left, but to the right. Copies of the sign bit fill the upper bits.
template <std::integral T> constexpr T shift_right(T a, T b) {
  using U = std::make_unsigned_t<T>;
  constexpr U kBits = 8 * sizeof(T);
  const U n = static_cast<U>(b);
  const T shifted = static_cast<T>(a >> (n & (kBits - 1)));
  return n < kBits ? shifted : static_cast<T>(a < T(0) ? -1 : 0);
}

}  // namespace rondo::ops
