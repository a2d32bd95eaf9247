// Sums and products of all types, for kernels. Integers wrap around, as in PyTorch; in C++ a signed sum that overflows
// is undefined.
#pragma once

#include <type_traits>

namespace rondo::ops {

template <class T> constexpr T wrapping_add(T a, T b) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(std::make_unsigned_t<T>(a) + std::make_unsigned_t<T>(b));
  else return a + b;
}
template <class T> constexpr T wrapping_sub(T a, T b) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(std::make_unsigned_t<T>(a) - std::make_unsigned_t<T>(b));
  else return a - b;
}
template <class T> constexpr T wrapping_mul(T a, T b) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(std::make_unsigned_t<T>(a) * std::make_unsigned_t<T>(b));
  else return a * b;
}
template <class T> constexpr T wrapping_neg(T a) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(-std::make_unsigned_t<T>(a));
  else return -a;
}

}  // namespace rondo::ops
