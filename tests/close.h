// is_close(): floating-point values compared within a tolerance. For equality in every bit: bits.h.
//
//   EXPECT_TRUE(test::is_close(model(x), recorded, {.of_largest = 1e-5})) << "logits";
//   EXPECT_TRUE(test::is_close(got.to(kF64), want, test::relative_above_1(1e-12)));
//
// Every element of `got` may differ from its element of `want` by the tolerance's bound, and by no more. NaN is close
// to nothing, and an infinity neither, unless the tolerance says `nonfinite`: so NaN against a number always fails.
// Tensors must agree in sizes and dtype (convert them, if they are meant to differ), not in device; an undefined one is
// close only to another undefined one. The comparison is a plain loop of the host in f64: it does not run through the
// ops under test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "rondo/runtime/tensor/tensor.h"

namespace rondo::test {

// The bound of an element's difference is the largest of the first three.
struct Tolerance {
  double absolute = 0;
  double relative = 0;     // times the magnitude of the element that is wanted
  double of_largest = 0;   // times the largest finite magnitude that is wanted: for sums of terms that cancel in part
  bool nonfinite = false;  // NaN is close to NaN, and an infinity to itself
};
// Relative to the element, and absolute below 1.
constexpr Tolerance relative_above_1(double t) { return {.absolute = t, .relative = t}; }
// Relative to the largest element, and absolute if that is below 1.
constexpr Tolerance of_largest_above_1(double t) { return {.absolute = t, .of_largest = t}; }

// The largest magnitude. NaN if there is one: then every comparison with the result fails.
inline double largest(std::span<const double> values) {
  double most = 0;
  for (const double v : values) most = std::isnan(most) || std::abs(v) <= most ? most : std::abs(v);
  return most;
}
inline double largest(const Tensor& t) { return largest(t.to_vector<double>()); }

// The largest difference of an element, NaN if there is one: for tests that values are far apart.
inline double difference(const Tensor& a, const Tensor& b) {
  std::vector<double> x = a.to_vector<double>();
  const std::vector<double> y = b.to_vector<double>();
  if (!(a.sizes() == b.sizes())) return std::numeric_limits<double>::quiet_NaN();
  for (size_t i = 0; i < x.size(); ++i) x[i] -= y[i];
  return largest(x);
}

// By element: how far it may be off. For bounds that come from an analysis of rounding.
inline ::testing::AssertionResult is_close(std::span<const double> got, std::span<const double> want,
                                           std::span<const double> bounds, bool nonfinite = false) {
  if (got.size() != want.size() || bounds.size() != want.size())
    return ::testing::AssertionFailure() << got.size() << " elements, not " << want.size();
  size_t far = 0, worst = 0;
  double most = -1;  // the worst element's difference, in bounds
  for (size_t i = 0; i < want.size(); ++i) {
    const double off = std::abs(got[i] - want[i]);
    const bool finite = std::isfinite(got[i]) && std::isfinite(want[i]);
    if (finite ? off <= bounds[i] : nonfinite && (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))))
      continue;
    const double in_bounds = finite && bounds[i] > 0 ? off / bounds[i] : std::numeric_limits<double>::infinity();
    if (in_bounds > most) most = in_bounds, worst = i;
    ++far;
  }
  if (far == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << far << " of " << want.size()
                                       << " elements are too far off. The worst, element " << worst << ": "
                                       << got[worst] << ", not " << want[worst] << "; off by "
                                       << got[worst] - want[worst] << ", with a bound of " << bounds[worst];
}

inline ::testing::AssertionResult is_close(std::span<const double> got, std::span<const double> want,
                                           const Tolerance& tolerance) {
  double most = 0;
  for (const double v : want)
    if (std::isfinite(v)) most = std::max(most, std::abs(v));
  std::vector<double> bounds;
  bounds.reserve(want.size());
  for (const double v : want)
    bounds.push_back(std::max({tolerance.absolute, tolerance.relative * std::abs(v), tolerance.of_largest * most}));
  return is_close(got, want, bounds, tolerance.nonfinite);
}

// Whether two tensors can be compared element by element.
inline ::testing::AssertionResult is_like(const Tensor& got, const Tensor& want) {
  if (got.defined() != want.defined())
    return ::testing::AssertionFailure() << (got.defined() ? "a tensor, not an undefined one" : "an undefined tensor");
  if (!want.defined()) return ::testing::AssertionSuccess();
  if (got.dtype() != want.dtype())
    return ::testing::AssertionFailure() << name_of(got.dtype()) << ", not " << name_of(want.dtype());
  if (!(got.sizes() == want.sizes()))
    return ::testing::AssertionFailure() << to_string(got.sizes()) << ", not " << to_string(want.sizes());
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult is_close(const Tensor& got, const Tensor& want, const Tolerance& tolerance) {
  const ::testing::AssertionResult like = is_like(got, want);
  if (!like || !want.defined()) return like;
  return is_close(got.to_vector<double>(), want.to_vector<double>(), tolerance);
}
// `bounds`: f64, one for each element.
inline ::testing::AssertionResult is_close(const Tensor& got, const Tensor& want, const Tensor& bounds) {
  const ::testing::AssertionResult like = is_like(got, want);
  if (!like || !want.defined()) return like;
  const std::vector<double> a = got.to_vector<double>(), b = want.to_vector<double>(), by = bounds.to_vector<double>();
  return is_close(std::span(a), std::span(b), std::span(by));
}

}  // namespace rondo::test
