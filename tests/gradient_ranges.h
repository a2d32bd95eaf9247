// Rules of gradients on grids that reach to the ends of a dtype's range, for tests of eager and of compiled execution.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::test {

struct Limits {
  double least, most, epsilon;  // the smallest normal number, the largest, and the distance of neighbours of 1
  // A number that the dtype holds to its full precision.
  bool holds(double v) const { return std::abs(v) >= least && std::abs(v) <= most; }
};
inline Limits limits_of(DType dtype) {
  if (dtype == kF16) return {0x1p-14, 65504, 0x1p-10};
  if (dtype == kBF16) return {0x1p-126, 0x1.fep127, 0x1p-7};
  return {0x1p-126, 0x1.fffffep127, 0x1p-23};
}

// Operands a (constant) and b, and the gradient that arrives: one element for each combination.
struct RangeGrid {
  Tensor a, b, g;
  std::vector<double> a_values, b_values, g_values;
};
struct RangeCase {
  const char* name;
  double low, high;  // of |b|, as shares of the dtype's exponents
  bool binary;       // reads a
  Tensor (*forward)(const RangeGrid&);
  double (*derivative)(double a, double b);  // by b
  // False where the result, or a value that PyTorch's rule passes through as well, leaves the range.
  bool (*is_fair)(double a, double b, double g, const Limits& in);
  double ulps;
};

inline const std::vector<RangeCase>& range_cases() {
  static const std::vector<RangeCase> cases = {
      {"a / b", -1, 1, true, [](const RangeGrid& x) { return x.a / x.b; },
       [](double a, double b) { return -a / b / b; },
       [](double a, double b, double g, const Limits& in) {
         return in.holds(a / b) && in.holds(a / b / b) && in.holds(g * a / b / b);
       },
       3},
      {"0.75 / b", -1, 1, false, [](const RangeGrid& x) { return 0.75 / x.b; },
       [](double, double b) { return -0.75 / b / b; },
       [](double, double b, double g, const Limits& in) {
         return in.holds(0.75 / b) && in.holds(g * 0.75 / b) && in.holds(g * 0.75 / b / b);
       },
       3},
      {"sqrt(b)", -1, 1, false, [](const RangeGrid& x) { return ops::sqrt(ops::abs(x.b)); },
       [](double, double b) { return 0.5 / std::sqrt(std::abs(b)) * (b > 0 ? 1 : -1); },
       [](double, double b, double g, const Limits& in) { return in.holds(g / std::sqrt(std::abs(b)) / 2); }, 3},
      {"rsqrt(b)", -1, 1, false, [](const RangeGrid& x) { return ops::rsqrt(ops::abs(x.b)); },
       [](double, double b) { return -0.5 * std::pow(std::abs(b), -1.5) * (b > 0 ? 1 : -1); },
       [](double, double b, double g, const Limits& in) {
         return in.holds(g / 2) && in.holds(g / 2 * std::pow(std::abs(b), -1.5));
       },
       5},
      {"log(b)", -1, 1, false, [](const RangeGrid& x) { return ops::log(ops::abs(x.b)); },
       [](double, double b) { return 1 / b; },
       [](double, double b, double g, const Limits& in) { return in.holds(g / b); }, 2},
      {"b^-2", -0.5, 0.5, false, [](const RangeGrid& x) { return ops::pow(x.b, -2.0); },
       [](double, double b) { return -2 / (b * b * b); },
       [](double, double b, double g, const Limits& in) {
         return in.holds(-2 / (b * b * b)) && in.holds(g * -2 / (b * b * b));
       },
       4},
      {"tanh(b)", -0.2, 0.02, false, [](const RangeGrid& x) { return ops::tanh(x.b); },
       [](double, double y) { return 1 - y * y; },  // y = tanh(b), rounded: see grid_of
       [](double, double y, double g, const Limits& in) {
         return std::abs(y) < 1 - 3 * in.epsilon && in.holds(g * (1 - y * y));
       },
       2}};
  return cases;
}

inline RangeGrid grid_of(const RangeCase& rule, DType dtype) {
  const Limits limits = limits_of(dtype);
  const double lowest = std::log2(limits.least), highest = std::log2(limits.most);
  const auto values = [&](double low, double high, int count, double offset) {
    std::vector<double> result;
    const double from = low < 0 ? -low * (lowest - 4) : low * highest, to = high * highest;  // also below the normals
    for (int i = 0; i < count; ++i) {
      const double e = from + (to - from) * (i + offset) / count;
      result.push_back(std::exp2(e) * (i % 2 == 0 ? 1 : -1));
    }
    return result;
  };
  const std::vector<double> as = rule.binary ? values(-1, 0.99, 24, 0.3) : std::vector<double>{1};
  const std::vector<double> bs = values(rule.low, rule.high, rule.binary ? 40 : 200, 0.5),
                            gs = values(-1, 0.9, 40, 0.1);
  std::vector<double> a, b, g;
  for (double x : as)
    for (double y : bs)
      for (double z : gs) a.push_back(x), b.push_back(y), g.push_back(z);
  const Dims sizes = {static_cast<int64_t>(a.size())};
  RangeGrid grid{
      Tensor::from(a, sizes, dtype), Tensor::from(b, sizes, dtype), Tensor::from(g, sizes, dtype), {}, {}, {}};
  grid.a_values = grid.a.to_vector<double>();
  // The error of tanh's result is not its gradient's.
  grid.b_values = (rule.name == std::string("tanh(b)") ? ops::tanh(grid.b) : grid.b).to_vector<double>();
  grid.g_values = grid.g.to_vector<double>();
  return grid;
}

// The gradient of b, through `run`.
inline std::vector<double> gradient_of(const RangeCase&, const RangeGrid& grid,
                                       const std::function<Tensor(const RangeGrid&)>& run) {
  RangeGrid leaf = grid;
  leaf.b = grid.b.detach().requires_grad_();
  run(leaf).backward(grid.g);
  return leaf.b.grad().to_vector<double>();
}

}  // namespace rondo::test
