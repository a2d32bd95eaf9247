#include "rondo/dist/kernels/reduction.h"

#include <cstdint>
#include <type_traits>

namespace rondo::dist {
namespace {

template <class T> void sum(void* out, const void* a, const void* b, size_t n) {
  // Integers are added as unsigned numbers, so that sums wrap: signed overflow would be undefined.
  using U = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
  const U* x = static_cast<const U*>(a);
  const U* y = static_cast<const U*>(b);
  U* z = static_cast<U*>(out);
  for (size_t i = 0; i < n; ++i) z[i] = x[i] + y[i];
}

template <class T> void divide_by(void* values, size_t n, int n_ranks) {
  T* x = static_cast<T*>(values);
  const T d = static_cast<T>(n_ranks);
  for (size_t i = 0; i < n; ++i) x[i] /= d;
}

}  // namespace

SumFn sum_of(DType wire) {
  switch (wire) {
    case kF64: return sum<double>;
    case kI64: return sum<int64_t>;
    case kI32: return sum<int32_t>;
    default: return sum<float>;
  }
}

void divide(void* values, DType wire, size_t n, int n_ranks) {
  if (wire == kF64) divide_by<double>(values, n, n_ranks);
  else divide_by<float>(values, n, n_ranks);
}

void widen(const void* from, DType dtype, float* to, size_t n) {
  const auto run = [&]<class T>(const T* x) {
    for (size_t i = 0; i < n; ++i) to[i] = static_cast<float>(x[i]);
  };
  if (dtype == kBF16) run(static_cast<const BFloat16*>(from));
  else run(static_cast<const Float16*>(from));
}

void narrow(const float* from, void* to, DType dtype, size_t n) {
  const auto run = [&]<class T>(T* x) {
    for (size_t i = 0; i < n; ++i) x[i] = T(from[i]);
  };
  if (dtype == kBF16) run(static_cast<BFloat16*>(to));
  else run(static_cast<Float16*>(to));
}

}  // namespace rondo::dist
