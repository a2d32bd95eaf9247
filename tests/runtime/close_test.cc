#include "rondo/tests/close.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace rondo::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
Tensor of(std::vector<double> values) { return Tensor::from(values, {static_cast<int64_t>(values.size())}); }

TEST(Close, EachKindOfTolerance) {
  const Tensor want = of({0, 1, -100});
  EXPECT_TRUE(is_close(want, want, Tolerance{}));
  EXPECT_FALSE(is_close(of({1e-9, 1, -100}), want, Tolerance{}));
  EXPECT_TRUE(is_close(of({0.01, 1, -100}), want, {.absolute = 0.01}));
  EXPECT_FALSE(is_close(of({0.011, 1, -100}), want, {.absolute = 0.01}));
  EXPECT_TRUE(is_close(of({0, 1.01, -101}), want, {.relative = 0.0101}));
  EXPECT_FALSE(is_close(of({0, 1.02, -100}), want, {.relative = 0.0101}));
  EXPECT_TRUE(is_close(of({0.9, 0.1, -100.9}), want, {.of_largest = 0.01}));
  EXPECT_FALSE(is_close(of({1.1, 1, -100}), want, {.of_largest = 0.01}));
  EXPECT_TRUE(is_close(of({0.01, 1, -101}), want, relative_above_1(0.0101)));
  EXPECT_FALSE(is_close(of({0.02, 1, -100}), want, relative_above_1(0.0101)));
  EXPECT_TRUE(is_close(of({0.01, 0.001}), of({0, 0}), of_largest_above_1(0.0101)));
  EXPECT_FALSE(is_close(of({0.02, 0}), of({0, 0}), of_largest_above_1(0.0101)));
}

TEST(Close, ABoundForEachElement) {
  EXPECT_TRUE(is_close(of({1, 2}), of({1.5, 2}), of({0.5, 0})));
  EXPECT_FALSE(is_close(of({1, 2.1}), of({1, 2}), of({0.5, 0})));
}

// NaN on either side is far from everything, wherever it stands.
TEST(Close, WhatIsNoNumber) {
  const Tolerance loose = {.absolute = 1e300}, both = {.absolute = 1, .nonfinite = true};
  for (const double odd : {kNaN, kInf, -kInf}) {
    for (const auto& [a, b] :
         {std::pair{of({odd, 1}), of({1, 1})}, {of({1, 1}), of({odd, 1})}, {of({1, 1}), of({1, odd})}}) {
      EXPECT_FALSE(is_close(a, b, loose)) << odd;
      EXPECT_FALSE(is_close(a, b, both)) << odd;
      EXPECT_FALSE(difference(a, b) <= 1e300) << odd;
    }
    EXPECT_FALSE(is_close(of({odd, 1}), of({odd, 1}), loose)) << odd;
    EXPECT_TRUE(is_close(of({odd, 1}), of({odd, 1}), both)) << odd;
  }
  EXPECT_FALSE(is_close(of({kInf}), of({-kInf}), both));
}

TEST(Close, WhatCannotBeCompared) {
  const Tolerance loose = {.absolute = 1e300};
  EXPECT_FALSE(is_close(of({1, 2}), of({1}), loose));
  EXPECT_FALSE(is_close(of({1, 2}), of({1, 2}).view({2, 1}), loose));
  EXPECT_FALSE(is_close(of({1}).to(kF32), of({1}), loose));
  EXPECT_FALSE(is_close(Tensor(), of({1}), loose));
  EXPECT_FALSE(is_close(of({1}), Tensor(), loose));
  EXPECT_TRUE(is_close(Tensor(), Tensor(), loose));
  EXPECT_EQ(std::string(is_close(of({1, 5}), of({1, 2}), {.absolute = 1}).message()),
            "1 of 2 elements are too far off. The worst, element 1: 5, not 2; off by 3, with a bound of 1");
}

}  // namespace
}  // namespace rondo::test
