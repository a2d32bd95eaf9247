#include "rondo/modules/layers/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo::nn {
namespace {

using Kind = RopeScaling::Kind;

double plain_rate(double base, int64_t i, int64_t D) {
  return std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(D));
}

// Returns the share of its own rate that a pair keeps, from 0 to 1. The other share of the rate is divided by factor.
double kept_llama3(const RopeScaling& s, double rate) {
  // How many full turns the pair makes in original_positions.
  const double waves = static_cast<double>(s.original_positions) * rate / (2 * std::numbers::pi);
  return std::clamp((waves - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0);
}

// Returns the first and last pair of YaRN's ramp.
std::pair<double, double> yarn_ramp(const RopeScaling& s, double base, int64_t D) {
  // Returns the pair, as a real number, that turns `turns` times in original_positions.
  const auto pair_of = [&](double turns) {
    const double width = static_cast<double>(D);
    return width * std::log(static_cast<double>(s.original_positions) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(base));
  };
  double first = pair_of(s.beta_fast), last = pair_of(s.beta_slow);
  if (s.truncate) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(D - 1));
  return {first, last == first ? last + 0.001 : last};
}

std::vector<double> rates_of(const RopeScaling& s, double base, int64_t positions, int64_t D, int64_t length) {
  if (s.kind == Kind::kDynamic) {
    const auto n = static_cast<double>(positions), reach = static_cast<double>(std::max(length, positions));
    base *= std::pow(s.factor * reach / n - (s.factor - 1), static_cast<double>(D) / static_cast<double>(D - 2));
  }
  const auto [first, last] = s.kind == Kind::kYarn ? yarn_ramp(s, base, D) : std::pair(0.0, 1.0);
  std::vector<double> rates;
  for (int64_t i = 0; i < D / 2; ++i) {
    const double rate = plain_rate(base, i, D);
    double kept = 1;
    if (s.kind == Kind::kLinear) kept = 0;
    if (s.kind == Kind::kLlama3) kept = kept_llama3(s, rate);
    if (s.kind == Kind::kYarn) kept = 1 - std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    rates.push_back((1 - kept) * rate / s.factor + kept * rate);
  }
  return rates;
}

double attention_factor(const RopeScaling& s) {
  if (s.kind != Kind::kYarn) return 1;
  return s.attention_factor.value_or(s.factor > 1 ? 0.1 * std::log(s.factor) + 1 : 1);
}

}  // namespace

int64_t RopeScaling::max_length(int64_t positions) const {
  const FloatingPointScope floating_point;
  const bool stretches = kind == Kind::kLinear || kind == Kind::kDynamic || kind == Kind::kYarn;
  if (!stretches || !(factor > 1)) return positions;
  constexpr double kMost = 1LL << 40;
  const auto trained = static_cast<double>(kind == Kind::kYarn ? original_positions : positions);
  return std::max(positions, static_cast<int64_t>(std::min(trained * factor, kMost)));
}

ops::RotaryTables rotary_tables(const RopeScaling& scaling, double base, int64_t positions, int64_t T, int64_t D,
                                int64_t start, TensorOptions options, int64_t length) {
  if (scaling.kind == Kind::kNone) return ops::rotary_tables(T, D, base, start, options);
  if (D <= 0 || D % 2 != 0)
    throw Error(absl::StrCat("rotary_tables: the head dimension must be even and positive, got ", D));
  if (scaling.kind == Kind::kDynamic && D <= 2)
    throw Error(absl::StrCat("rotary_tables: dynamic scaling needs a head dimension above 2, got ", D));
  if (!std::isfinite(scaling.factor) || scaling.factor <= 0)
    throw Error(absl::StrCat("rotary_tables: the factor must be a positive number, got ", scaling.factor));
  if ((scaling.kind == Kind::kYarn || scaling.kind == Kind::kLlama3) && scaling.original_positions <= 0)
    throw Error(absl::StrCat("rotary_tables: original_positions must be positive, got ", scaling.original_positions));
  if (scaling.kind == Kind::kDynamic && positions <= 0)
    throw Error(absl::StrCat("rotary_tables: dynamic scaling needs a positive number of positions, got ", positions));
  const FloatingPointScope floating_point;
  const NoGrad off;
  const RecorderScope run(nullptr);
  const std::vector<double> rates = rates_of(scaling, base, positions, D, length > 0 ? length : start + T);
  const Tensor position = Tensor::arange(T, {kF64, options.device}) + static_cast<double>(start);
  const Tensor angle = position.unsqueeze(1) * Tensor::from(rates, {1, D / 2}, options.device);
  const DType dtype = compute_dtype(options.dtype);
  const double scale = attention_factor(scaling);
  const auto table = [&](const Tensor& t) { return (scale == 1 ? t : t * scale).to(dtype); };
  return {table(ops::cos(angle)), table(ops::sin(angle))};
}

}  // namespace rondo::nn
