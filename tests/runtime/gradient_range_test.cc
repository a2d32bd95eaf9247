// Gradients at the ends of a dtype's range: near the smallest numbers, a rule must not pass through an infinity or a
// zero on its way to an ordinary number. Against the derivative in f64; tests/compile/gradient_range_test.cc has the
// same grids compiled.
#include <gtest/gtest.h>

#include <cmath>

#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/gradient_ranges.h"

namespace rondo {
namespace {

using namespace test;

class GradientRange : public testing::TestWithParam<DType> {};

TEST_P(GradientRange, IsThatOfTheResult) {
  const DType dtype = GetParam();
  for (const RangeCase& rule : range_cases()) {
    const RangeGrid grid = grid_of(rule, dtype);
    const std::vector<double> found = gradient_of(rule, grid, [&](const RangeGrid& g) { return rule.forward(g); });
    int checked = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      const double expected = rule.derivative(grid.a_values[i], grid.b_values[i]) * grid.g_values[i];
      if (!rule.is_fair(grid.a_values[i], grid.b_values[i], grid.g_values[i], limits_of(dtype))) continue;
      ++checked;
      EXPECT_LE(std::abs(found[i] - expected), rule.ulps * limits_of(dtype).epsilon * std::abs(expected))
          << rule.name << " of " << name_of(dtype) << ": a " << grid.a_values[i] << ", b " << grid.b_values[i]
          << ", grad " << grid.g_values[i] << ": " << found[i] << ", not " << expected;
    }
    EXPECT_GT(checked, 1000) << rule.name;
  }
}
INSTANTIATE_TEST_SUITE_P(Floats, GradientRange, testing::Values(kF32, kBF16, kF16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// The one that was reported: PyTorch gives -10104.
TEST(GradientRangeOfF16, OfAQuotientOfSmallNumbers) {
  const Tensor a = Tensor::from({1e-6}, {1}, kF16);
  Tensor b = Tensor::from({1e-5}, {1}, kF16);
  b.requires_grad_();
  (a / b).backward();
  EXPECT_NEAR(b.grad().item(), -10104, 8);
}

}  // namespace
}  // namespace rondo
