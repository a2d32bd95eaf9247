// The scalar bodies against libm of higher precision: double for float, 80-bit long double for double. The bounds are
// the ones that scalar_math.h states. Kernel code: compile with the kernel flags (without hardware FMA it takes
// minutes).
#include "rondo/runtime/ops/scalar_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <type_traits>
#include <vector>

namespace rondo {
namespace {

template <class T> using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
template <class T> using Wide = std::conditional_t<sizeof(T) == 4, double, long double>;
template <class T> constexpr T kInfinity = std::numeric_limits<T>::infinity();
template <class T> constexpr T kQuietNaN = std::numeric_limits<T>::quiet_NaN();

template <class T> bool same_bits(T a, T b) {
  return std::bit_cast<Bits<T>>(a) == std::bit_cast<Bits<T>>(b) || (std::isnan(a) && std::isnan(b));
}

// |got - exact| in units in the last place of the exact value; a result one rounding away from overflow counts as 1.
template <class T> double ulp_error(T got, Wide<T> exact) {
  const double wrong = 1e30;
  if (std::isnan(exact) || std::isnan(got)) return std::isnan(exact) && std::isnan(got) ? 0 : wrong;
  const Wide<T> largest = std::numeric_limits<T>::max();
  if (std::isinf(got) || std::abs(exact) > largest) {
    const bool same_sign = (got > 0) == (exact > 0);
    if (same_sign && std::isinf(got) && std::abs(exact) > largest) return 0;
    const Wide<T> step = std::ldexp(largest, 1 - std::numeric_limits<T>::digits);
    return same_sign && std::abs(exact) < largest + 2 * step && std::abs(exact) > largest - 2 * step &&
                   std::abs(got) > largest - 2 * step
               ? 1
               : wrong;
  }
  const int exponent = exact == 0 ? std::numeric_limits<T>::min_exponent : std::ilogb(exact) + 1;
  const int unit = std::max(exponent, std::numeric_limits<T>::min_exponent) - std::numeric_limits<T>::digits;
  return static_cast<double>(std::abs(got - exact) / std::ldexp(Wide<T>(1), unit));
}

// |got - exact| in units of epsilon max(1, |exact|).
template <class T> double epsilon_error(T got, Wide<T> exact) {
  if (std::isnan(exact) || std::isinf(exact)) return same_bits(got, static_cast<T>(exact)) ? 0 : 1e30;
  const Wide<T> unit = std::numeric_limits<T>::epsilon() * std::max<Wide<T>>(1, std::abs(exact));
  return static_cast<double>(std::abs(got - exact) / unit);
}

// Bit patterns over all exponents and both signs, then points spread evenly over [low, high].
template <class T> std::vector<T> sweep(double low, double high) {
  const int n = sizeof(T) == 4 ? 1 << 20 : 1 << 15;
  std::mt19937_64 random(7);
  std::vector<T> points;
  points.reserve(2 * n);
  const Bits<T> step = std::numeric_limits<Bits<T>>::max() / n;
  for (int i = 0; i < n; ++i) {
    const T x = std::bit_cast<T>(static_cast<Bits<T>>(i * step + random() % step));
    if (std::isfinite(x)) points.push_back(x);
  }
  for (int i = 0; i < n; ++i) points.push_back(static_cast<T>(low + (high - low) * ((random() >> 11) * 0x1p-53)));
  return points;
}

// Range of the even points, and bounds for float and double.
struct Bound {
  double low, high, f32, f64;
};

template <class T, class F, class Reference, class Error>
void check(const char* name, F f, Reference reference, Error error, double low, double high, double bound) {
  const std::vector<T> points = sweep<T>(low, high);
  std::vector<T> results(points.size());
  for (size_t i = 0; i < points.size(); ++i) results[i] = f(points[i]);
  double worst = 0;
  T where = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    const double e = error(results[i], reference(static_cast<Wide<T>>(points[i])));
    if (!(e <= worst)) worst = e, where = points[i];
  }
  ::testing::Test::RecordProperty(std::string(name) + (sizeof(T) == 4 ? "_f32" : "_f64"), std::to_string(worst));
  EXPECT_LE(worst, bound) << name << (sizeof(T) == 4 ? " f32" : " f64") << " at " << where;
}

template <class F, class Reference> void check_ulp(const char* name, F f, Reference reference, Bound b) {
  check<float>(name, f, reference, ulp_error<float>, b.low, b.high, b.f32);
  check<double>(name, f, reference, ulp_error<double>, b.low, b.high, b.f64);
}
template <class F, class Reference> void check_epsilon(const char* name, F f, Reference reference, Bound b) {
  check<float>(name, f, reference, epsilon_error<float>, b.low, b.high, b.f32);
  check<double>(name, f, reference, epsilon_error<double>, b.low, b.high, b.f64);
}

#define RONDO_SCALAR(f) [](auto x) { return scalar::f(x); }
#define RONDO_SCALAR_GRAD(f) [](auto x) { return scalar::f(x, decltype(x)(1)); }

TEST(ScalarMath, Exponentials) {
  check_ulp("exp", RONDO_SCALAR(exp), [](auto x) { return std::exp(x); }, {-110, 90, 1.4, 1.4});
  check_ulp("exp near 0", RONDO_SCALAR(exp), [](auto x) { return std::exp(x); }, {-2, 2, 1.4, 1.4});
  check_ulp("exp f64 range", RONDO_SCALAR(exp), [](auto x) { return std::exp(x); }, {-750, 715, 1.4, 1.4});
  check_ulp("exp2", RONDO_SCALAR(exp2), [](auto x) { return std::exp2(x); }, {-160, 130, 1.6, 1.6});
  check_ulp("expm1", RONDO_SCALAR(expm1), [](auto x) { return std::expm1(x); }, {-20, 20, 1.5, 2});
  check_ulp("expm1 near 0", RONDO_SCALAR(expm1), [](auto x) { return std::expm1(x); }, {-1, 1, 1.5, 2});
}

TEST(ScalarMath, Logarithms) {
  check_ulp("log", RONDO_SCALAR(log), [](auto x) { return std::log(x); }, {0, 2, 0.9, 0.9});
  check_ulp("log2", RONDO_SCALAR(log2), [](auto x) { return std::log2(x); }, {0, 2, 1.2, 1.2});
  check_ulp("log1p", RONDO_SCALAR(log1p), [](auto x) { return std::log1p(x); }, {-1, 2, 1.5, 1.5});
  const auto softplus = [](auto x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); };
  check_ulp("softplus", RONDO_SCALAR(softplus), softplus, {-20, 20, 2.5, 2.5});
}

TEST(ScalarMath, Sigmoids) {
  check_ulp("tanh", RONDO_SCALAR(tanh), [](auto x) { return std::tanh(x); }, {-10, 10, 1.7, 1.7});
  check_ulp("tanh near 0", RONDO_SCALAR(tanh), [](auto x) { return std::tanh(x); }, {-1, 1, 1.7, 1.7});
  check_ulp("sigmoid", RONDO_SCALAR(sigmoid), [](auto x) { return 1 / (1 + std::exp(-x)); }, {-110, 20, 2.8, 2.8});
  check_ulp("erf", RONDO_SCALAR(erf), [](auto x) { return std::erf(x); }, {-4, 4, 1.6, 1.1});
}

// s and 1 - s for s = 1 / (1 + e^-v).
template <class W> W logistic(W v) { return 1 / (1 + std::exp(-v)); }
template <class W> constexpr W kGeluSlope = 2 * std::numbers::sqrt2_v<W>* std::numbers::inv_sqrtpi_v<W>;
constexpr long double kGeluCubic = 0.044715L;

TEST(ScalarMath, Gelu) {
  const auto tanh_form = [](auto x) {
    using W = decltype(x);
    return x * logistic<W>(kGeluSlope<W> * (x + W(kGeluCubic) * x * x * x));
  };
  const auto tanh_form_grad = [](auto x) {
    using W = decltype(x);
    if (std::abs(x) > 100) return W(x > 0);
    const W v = kGeluSlope<W> * (x + W(kGeluCubic) * x * x * x);
    const W slope = kGeluSlope<W> * (1 + 3 * W(kGeluCubic) * x * x);
    return logistic(v) + x * logistic(v) * logistic(-v) * slope;
  };
  const auto erf_form = [](auto x) {
    using W = decltype(x);
    return x < -1000 ? W(-0.0) : x / 2 * std::erfc(-x / std::numbers::sqrt2_v<W>);
  };
  const auto erf_form_grad = [](auto x) {
    using W = decltype(x);
    const W density = std::exp(-x * x / 2) * std::numbers::inv_sqrtpi_v<W> / std::numbers::sqrt2_v<W>;
    return std::erfc(-x / std::numbers::sqrt2_v<W>) / 2 + (density == 0 ? 0 : x * density);
  };
  check_epsilon("gelu_tanh", RONDO_SCALAR(gelu_tanh), tanh_form, {-8, 8, 1.25, 1.2});
  check_epsilon("gelu_tanh_grad", RONDO_SCALAR_GRAD(gelu_tanh_grad), tanh_form_grad, {-8, 8, 2, 2});
  check_epsilon("gelu_erf", RONDO_SCALAR(gelu_erf), erf_form, {-8, 8, 1.1, 1.1});
  check_epsilon("gelu_erf_grad", RONDO_SCALAR_GRAD(gelu_erf_grad), erf_form_grad, {-8, 8, 1.6, 1.2});
}

TEST(ScalarMath, Silu) {
  const auto silu = [](auto x) { return x < -20000 ? decltype(x)(-0.0) : x * logistic(x); };
  const auto silu_grad = [](auto x) {
    if (std::abs(x) > 10000) return decltype(x)(x > 0);
    return logistic(x) * (1 + x * logistic(-x));
  };
  check_epsilon("silu", RONDO_SCALAR(silu), silu, {-20, 20, 1.1, 1.1});
  check_epsilon("silu_grad", RONDO_SCALAR_GRAD(silu_grad), silu_grad, {-20, 20, 2, 2});
}

TEST(ScalarMath, RsqrtIsTwoRoundings) {
  check_ulp("rsqrt", RONDO_SCALAR(rsqrt), [](auto x) { return 1 / std::sqrt(x); }, {0, 100, 1.5, 1.5});
}

template <class T> void trigonometry(double limit, double bound) {
  // Random arguments of every size, and the numbers nearest to multiples of pi/2, where the reduction cancels most.
  std::mt19937_64 random(5);
  double worst_sin = 0, worst_cos = 0;
  for (int i = 0; i < (sizeof(T) == 4 ? 400'000 : 60'000); ++i) {
    const double unit = (random() >> 11) * 0x1p-53;
    const double size = std::exp2(-40 + (40 + std::log2(limit)) * unit);
    const Wide<T> near = std::numbers::pi_v<Wide<T>> / 2 * static_cast<int64_t>(unit * limit / 1.6);
    const T x = static_cast<T>(i % 2 ? near : i % 4 ? size : -size);
    worst_sin = std::max(worst_sin, ulp_error<T>(scalar::sin(x), std::sin(static_cast<Wide<T>>(x))));
    worst_cos = std::max(worst_cos, ulp_error<T>(scalar::cos(x), std::cos(static_cast<Wide<T>>(x))));
  }
  EXPECT_LE(worst_sin, bound);
  EXPECT_LE(worst_cos, bound);
  for (T x : {T(1e20), std::numeric_limits<T>::max()}) EXPECT_LE(std::abs(scalar::sin(x)), T(1.0001));
  EXPECT_TRUE(same_bits(scalar::sin(T(-0.0)), T(-0.0)));
  EXPECT_EQ(scalar::cos(T(0)), T(1));
  for (T x : {kInfinity<T>, -kInfinity<T>, kQuietNaN<T>}) {
    EXPECT_TRUE(std::isnan(scalar::sin(x)));
    EXPECT_TRUE(std::isnan(scalar::cos(x)));
  }
}
TEST(ScalarMath, Trigonometry) {
  trigonometry<float>(1e5, 1.6);
  trigonometry<double>(1e9, 1.6);
}

template <class T> void power(double bound) {
  std::mt19937_64 random(11);
  const auto unit = [&] { return (random() >> 11) * 0x1p-53; };
  const double reach = sizeof(T) == 4 ? 1 : 8;  // how much larger exponents may be before every result overflows
  double worst = 0;
  for (int i = 0; i < (sizeof(T) == 4 ? 400'000 : 60'000); ++i) {
    T x, y;
    switch (i % 4) {
      case 0: x = T(std::exp2(20 * unit() - 10)), y = T(20 * unit() - 10); break;
      case 1: x = T(0.65 + 0.7 * unit()), y = T(reach * (400 * unit() - 200)); break;
      case 2: x = T(0.995 + 0.01 * unit()), y = T(reach * (40000 * unit() - 20000)); break;
      default: x = std::abs(std::bit_cast<T>(static_cast<Bits<T>>(random()))), y = T(4 * unit() - 2); break;
    }
    if (std::isnan(x)) continue;
    worst = std::max(worst,
                     ulp_error<T>(scalar::pow(x, y), std::pow(static_cast<Wide<T>>(x), static_cast<Wide<T>>(y))));
  }
  EXPECT_LE(worst, bound);

  using L = std::numeric_limits<T>;
  std::vector<T> values = {0,
                           1,
                           2,
                           3,
                           7,
                           8,
                           T(0.5),
                           T(1.5),
                           T(1e-30),
                           T(1e30),
                           kInfinity<T>,
                           L::denorm_min(),
                           L::min(),
                           L::max(),
                           T(16777215),
                           T(16777216)};
  for (size_t i = 0, n = values.size(); i < n; ++i) values.push_back(-values[i]);
  values.push_back(kQuietNaN<T>);
  for (T x : values) {
    for (T y : values) {
      const T got = scalar::pow(x, y), expected = std::pow(x, y);
      EXPECT_TRUE(same_bits(got, expected) || (ulp_error<T>(got, expected) <= bound && std::isfinite(expected) &&
                                               std::signbit(got) == std::signbit(expected)))
          << x << "^" << y << " = " << got << ", expected " << expected;
    }
  }
}
TEST(ScalarMath, PowHasTheSpecialValuesOfC) {
  power<float>(2);
  power<double>(2);
}

// f at 0, -0, infinity, -infinity.
template <class T, class F>
void special(const char* name, F f, double zero, double minus_zero, double inf, double minus_inf) {
  const T in[] = {T(0), T(-0.0), kInfinity<T>, -kInfinity<T>};
  const double out[] = {zero, minus_zero, inf, minus_inf};
  for (int i = 0; i < 4; ++i) {
    const T expected = static_cast<T>(out[i]);
    EXPECT_TRUE(same_bits(f(in[i]), expected)) << name << "(" << in[i] << ") = " << f(in[i]) << ", not " << expected;
  }
  EXPECT_TRUE(std::isnan(f(kQuietNaN<T>))) << name;
}
template <class T> void specials() {
  const double inf = kInfinity<double>, nan = kQuietNaN<double>, ln2 = std::numbers::ln2;
  special<T>("exp", RONDO_SCALAR(exp), 1, 1, inf, 0);
  special<T>("exp2", RONDO_SCALAR(exp2), 1, 1, inf, 0);
  special<T>("expm1", RONDO_SCALAR(expm1), 0, -0.0, inf, -1);
  special<T>("log", RONDO_SCALAR(log), -inf, -inf, inf, nan);
  special<T>("log2", RONDO_SCALAR(log2), -inf, -inf, inf, nan);
  special<T>("log1p", RONDO_SCALAR(log1p), 0, -0.0, inf, nan);
  special<T>("softplus", RONDO_SCALAR(softplus), ln2, ln2, inf, 0);
  special<T>("tanh", RONDO_SCALAR(tanh), 0, -0.0, 1, -1);
  special<T>("sigmoid", RONDO_SCALAR(sigmoid), 0.5, 0.5, 1, 0);
  special<T>("erf", RONDO_SCALAR(erf), 0, -0.0, 1, -1);
  special<T>("gelu_tanh", RONDO_SCALAR(gelu_tanh), 0, -0.0, inf, nan);
  special<T>("gelu_erf", RONDO_SCALAR(gelu_erf), 0, -0.0, inf, nan);
  special<T>("silu", RONDO_SCALAR(silu), 0, -0.0, inf, nan);
  special<T>("rsqrt", RONDO_SCALAR(rsqrt), inf, -inf, 0, nan);
  special<T>("relu", RONDO_SCALAR(relu), 0, -0.0, inf, 0);
  for (const T x : {T(0), T(-0.0), kQuietNaN<T>}) EXPECT_TRUE(same_bits(scalar::sign(x), T(0))) << x;
  EXPECT_EQ(scalar::sign(kInfinity<T>), 1);
  EXPECT_EQ(scalar::sign(-kInfinity<T>), -1);
  special<T>("ceil", RONDO_SCALAR(ceil), 0, -0.0, inf, -inf);
  special<T>("hardsigmoid", RONDO_SCALAR(hardsigmoid), 0.5, 0.5, 1, 0);
  EXPECT_EQ(scalar::log1p(T(-1)), -kInfinity<T>);
  EXPECT_TRUE(std::isnan(scalar::log(T(-1))));
  EXPECT_TRUE(std::isnan(scalar::log1p(T(-2))));
  // Gradients are finite at infinity.
  for (T x : {T(1e30), kInfinity<T>}) {
    EXPECT_EQ(scalar::gelu_tanh_grad(x, T(1)), T(1));
    EXPECT_EQ(scalar::gelu_erf_grad(x, T(1)), T(1));
    EXPECT_EQ(scalar::silu_grad(x, T(1)), T(1));
    EXPECT_NEAR(scalar::gelu_tanh_grad(-x, T(1)), 0, 1e-30);
    EXPECT_EQ(scalar::gelu_erf_grad(-x, T(1)), T(0));
    EXPECT_EQ(scalar::silu_grad(-x, T(1)), T(0));
  }
  for (int n = -20; n <= 20; ++n) EXPECT_EQ(scalar::log2(std::ldexp(T(1), n)), T(n));
  // exp2_coarse relies on this.
  EXPECT_EQ(scalar::exp2_int(T(sizeof(T) == 4 ? -127 : -1023)), T(0));
  EXPECT_EQ(scalar::exp2_int(T(sizeof(T) == 4 ? 128 : 1024)), kInfinity<T>);
}
TEST(ScalarMath, SpecialValues) {
  specials<float>();
  specials<double>();
}

TEST(ScalarMath, PiecewiseFunctions) {
  const float nan = kQuietNaN<float>;
  const float x[] = {-4, -3, -1, -0.25f, 0, 0.5f, 3, 4};
  for (float v : x) {
    const float inner = v > -3 && v < 3;
    EXPECT_EQ(scalar::relu(v), std::max(v, 0.0f));
    EXPECT_EQ(scalar::relu_grad(v, 2.0f), v > 0 ? 2.0f : 0.0f);
    EXPECT_EQ(scalar::leaky_relu(v, 0.5f), v > 0 ? v : 0.5f * v);
    EXPECT_EQ(scalar::leaky_relu_grad(v, 0.5f, 2.0f), v > 0 ? 2.0f : 1.0f);
    EXPECT_FLOAT_EQ(scalar::elu(v, 0.5f), v > 0 ? v : 0.5f * std::expm1(v));
    EXPECT_FLOAT_EQ(scalar::elu_grad(v, 0.5f, 2.0f), v > 0 ? 2.0f : std::exp(v));
    EXPECT_EQ(scalar::hardtanh(v, -3.0f, 3.0f), std::clamp(v, -3.0f, 3.0f));
    EXPECT_EQ(scalar::hardtanh_grad(v, -3.0f, 3.0f, 2.0f), 2 * inner);
    EXPECT_EQ(scalar::clamp_grad(v, -3.0f, 3.0f, 2.0f), 2 * inner);
    EXPECT_FLOAT_EQ(scalar::hardsigmoid(v), std::clamp(v + 3, 0.0f, 6.0f) / 6);
    EXPECT_FLOAT_EQ(scalar::hardsigmoid_grad(v, 2.0f), inner / 3);
    EXPECT_FLOAT_EQ(scalar::hardswish(v), v * std::clamp(v + 3, 0.0f, 6.0f) / 6);
    EXPECT_FLOAT_EQ(scalar::hardswish_grad(v, 2.0f), v < -3 ? 0 : v <= 3 ? 2 * v / 3 + 1 : 2);
    EXPECT_EQ(scalar::ceil(v), std::ceil(v));
  }
  for (float v :
       {scalar::relu(nan), scalar::hardtanh(nan, 0.0f, 1.0f), scalar::leaky_relu(nan, 0.5f), scalar::elu(nan, 0.5f),
        scalar::hardswish(nan), scalar::maximum(nan, 1.0f), scalar::minimum(1.0f, nan)}) {
    EXPECT_TRUE(std::isnan(v));
  }
}

// A LoopBuilder that evaluates as it builds: the same template must give the same bits on LoopValue as on T.
template <class T> class Evaluator : public LoopBuilder {
 public:
  LoopValue put(T value) { return push({value, false}, sizeof(T) == 8 ? kF64 : kF32); }
  T get(LoopValue v) const { return values_[v.id].number; }
  LoopValue constant(double value, DType) override { return put(static_cast<T>(value)); }
  LoopValue input(int) override { return {}; }
  bool has_input(int) const override { return false; }
  LoopValue scalar(int) override { return {}; }
  int64_t integer(int) const override { return 0; }
  LoopValue reduce(LoopOp, LoopValue) override { return {}; }
  void output(int, LoopValue) override {}
  LoopValue emit(LoopOp op, DType type, LoopValue a, LoopValue b, LoopValue c) override {
    const auto at = [&](LoopValue v) { return v.id < 0 ? Value{} : values_[v.id]; };
    const Value x = at(a), y = at(b), z = at(c);
    switch (op) {
      case LoopOp::kAdd: return push({x.number + y.number, false}, type);
      case LoopOp::kSub: return push({x.number - y.number, false}, type);
      case LoopOp::kMul: return push({x.number * y.number, false}, type);
      case LoopOp::kDiv: return push({x.number / y.number, false}, type);
      case LoopOp::kNeg: return push({-x.number, false}, type);
      case LoopOp::kFma: return push({scalar::fma(x.number, y.number, z.number), false}, type);
      case LoopOp::kSqrt: return push({scalar::sqrt(x.number), false}, type);
      case LoopOp::kAbs: return push({scalar::abs(x.number), false}, type);
      case LoopOp::kRoundEven: return push({scalar::round_even(x.number), false}, type);
      case LoopOp::kFloor: return push({scalar::floor(x.number), false}, type);
      case LoopOp::kExp2Int: return push({scalar::exp2_int(x.number), false}, type);
      case LoopOp::kExponent: return push({scalar::exponent(x.number), false}, type);
      case LoopOp::kMantissa: return push({scalar::mantissa(x.number), false}, type);
      case LoopOp::kLt: return push({0, x.number < y.number}, type);
      case LoopOp::kLe: return push({0, x.number <= y.number}, type);
      case LoopOp::kEq: return push({0, x.number == y.number}, type);
      case LoopOp::kNe: return push({0, x.number != y.number}, type);
      case LoopOp::kAnd: return push({0, x.truth && y.truth}, type);
      case LoopOp::kOr: return push({0, x.truth || y.truth}, type);
      case LoopOp::kSelect: return push(x.truth ? y : z, type);
      default: ADD_FAILURE() << "not a scalar operation"; return {};
    }
  }

 private:
  struct Value {
    T number = 0;
    bool truth = false;
  };
  LoopValue push(Value value, DType type) {
    values_.push_back(value);
    return {this, static_cast<int32_t>(values_.size()) - 1, type};
  }
  std::vector<Value> values_;
};

template <class T, class F> void same_on_loop_value(const char* name, F f) {
  const T values[] = {T(0),    T(-0.0), T(1),     T(-1),    T(0.3), T(-0.7),      T(2.5),        T(-8.9),
                      T(19.5), T(-95),  T(1e-40), T(1e-20), T(1e5), kInfinity<T>, -kInfinity<T>, kQuietNaN<T>};
  for (T x : values) {
    Evaluator<T> loop;
    const LoopValue v = loop.put(x), g = loop.put(T(0.75));
    EXPECT_TRUE(same_bits(loop.get(f(v, g)), f(x, T(0.75)))) << name << "(" << x << ")";
  }
}
#define RONDO_SAME(f)                                                                          \
  same_on_loop_value<float>(#f, [](auto x, [[maybe_unused]] auto g) { return scalar::f(x); }); \
  same_on_loop_value<double>(#f, [](auto x, [[maybe_unused]] auto g) { return scalar::f(x); })
#define RONDO_SAME_2(f)                                                          \
  same_on_loop_value<float>(#f, [](auto x, auto g) { return scalar::f(x, g); }); \
  same_on_loop_value<double>(#f, [](auto x, auto g) { return scalar::f(x, g); })

TEST(ScalarMath, SameBitsOnLoopValue) {
  RONDO_SAME(exp), RONDO_SAME(exp2), RONDO_SAME(expm1), RONDO_SAME(log), RONDO_SAME(log2), RONDO_SAME(log1p);
  RONDO_SAME(softplus), RONDO_SAME(tanh), RONDO_SAME(sigmoid), RONDO_SAME(erf), RONDO_SAME(gelu_tanh);
  RONDO_SAME(gelu_erf), RONDO_SAME(silu), RONDO_SAME(relu), RONDO_SAME(hardsigmoid), RONDO_SAME(hardswish);
  RONDO_SAME(sign), RONDO_SAME(ceil), RONDO_SAME(rsqrt), RONDO_SAME(sin), RONDO_SAME(cos);
  RONDO_SAME_2(tanh_grad), RONDO_SAME_2(sigmoid_grad), RONDO_SAME_2(gelu_tanh_grad), RONDO_SAME_2(gelu_erf_grad);
  RONDO_SAME_2(silu_grad), RONDO_SAME_2(relu_grad), RONDO_SAME_2(leaky_relu), RONDO_SAME_2(elu), RONDO_SAME_2(pow);
  RONDO_SAME_2(hardsigmoid_grad), RONDO_SAME_2(hardswish_grad), RONDO_SAME_2(maximum), RONDO_SAME_2(minimum);
  const auto three = [](auto x, auto g) { return scalar::elu_grad(x, g, g) + scalar::leaky_relu_grad(x, g, g); };
  same_on_loop_value<float>("elu_grad", three), same_on_loop_value<double>("elu_grad", three);
  const auto four = [](auto x, auto g) { return scalar::hardtanh_grad(x, -g, g, x) + scalar::clamp_grad(x, -g, g, x); };
  same_on_loop_value<float>("clamp_grad", four), same_on_loop_value<double>("clamp_grad", four);
}

}  // namespace
}  // namespace rondo
