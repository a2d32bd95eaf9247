// Dtypes and values of mixed operands, cell by cell as PyTorch has them (tests/reference/promotion.txt), and what a
// table of small values does not show: sums that are long, numbers that leave a dtype's range.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/paths.h"

namespace rondo {
namespace {

constexpr DType kAll[] = {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Tensor vector(std::vector<double> values, DType dtype) {
  const auto n = std::ssize(values);
  return Tensor::from<double>(values, {n}).to(dtype);
}
double only(const Tensor& t) { return t.to_vector<double>().at(0); }

// ---- The table

// The operands of tests/reference/record_promotion.py.
Tensor first(DType dtype, bool zero_dim = false) {
  return Tensor::full(zero_dim ? Dims{} : Dims{1}, is_floating(dtype) ? 5.3 : dtype == kBool ? 1 : 5, {dtype});
}
Tensor second(DType dtype, bool zero_dim = false) {
  return Tensor::full(zero_dim ? Dims{} : Dims{1}, is_floating(dtype) ? 1.7 : dtype == kBool ? 1 : 3, {dtype});
}
Tensor condition() { return Tensor::ones({1}, {kBool}); }

// An op with scalars on either side, where it takes them.
template <class A, class B> Tensor apply(const std::string& op, const A& a, const B& b) {
  if (op == "add") return a + b;
  if (op == "sub") return a - b;
  if (op == "mul") return a * b;
  if (op == "div") return a / b;
  const auto flipped = [&](auto compare, auto reverse) -> Tensor {
    if constexpr (requires { compare(a, b); }) return compare(a, b);
    else if constexpr (requires { reverse(b, a); }) return reverse(b, a);
    else throw InternalError("not for scalars: " + op);
  };
#define RONDO_COMPARE(name) [](const auto& x, const auto& y) -> decltype(ops::name(x, y)) { return ops::name(x, y); }
  if (op == "equal") return flipped(RONDO_COMPARE(equal), RONDO_COMPARE(equal));
  if (op == "not_equal") return flipped(RONDO_COMPARE(not_equal), RONDO_COMPARE(not_equal));
  if (op == "less") return flipped(RONDO_COMPARE(less), RONDO_COMPARE(greater));
  if (op == "less_equal") return flipped(RONDO_COMPARE(less_equal), RONDO_COMPARE(greater_equal));
  if (op == "greater") return flipped(RONDO_COMPARE(greater), RONDO_COMPARE(less));
  if (op == "greater_equal") return flipped(RONDO_COMPARE(greater_equal), RONDO_COMPARE(less_equal));
#undef RONDO_COMPARE
  if (op == "where") {
    const auto choose = [](const auto& x, const auto& y) -> decltype(ops::where(condition(), x, y)) {
      return ops::where(condition(), x, y);
    };
    if constexpr (requires { choose(a, b); }) return choose(a, b);
    else throw InternalError("not for scalars: " + op);
  }
  throw std::out_of_range("no such op: " + op);
}
Tensor apply_to_tensors(const std::string& op, Tensor a, const Tensor& b) {
  if (op == "maximum") return ops::maximum(a, b);
  if (op == "minimum") return ops::minimum(a, b);
  if (op == "cat") return ops::cat(std::vector<Tensor>{a, b}, 0);
  if (op == "stack") return ops::stack(std::vector<Tensor>{a, b}, 0);
  if (op == "add_") return a.add_(b);
  if (op == "sub_") return a.sub_(b);
  if (op == "mul_") return a.mul_(b);
  if (op == "div_") return a.div_(b);
  if (op == "copy_") return a.copy_(b);
  return apply(op, a, b);
}
Tensor apply_in_place(const std::string& op, Tensor a, Scalar s) {
  if (op == "add_") ops::add_(a, s);
  else if (op == "sub_") ops::sub_(a, s);
  else if (op == "mul_") ops::mul_(a, s);
  else if (op == "div_") ops::div_(a, s);
  else throw std::out_of_range("no such op: " + op);
  return a;
}
Tensor apply_to_one(const std::string& op, Tensor x) {
  static const std::map<std::string, Tensor (*)(Tensor)> kOps = {
      {"exp", [](Tensor t) { return ops::exp(t); }},
      {"log", [](Tensor t) { return ops::log(t); }},
      {"sqrt", [](Tensor t) { return ops::sqrt(t); }},
      {"rsqrt", [](Tensor t) { return ops::rsqrt(t); }},
      {"tanh", [](Tensor t) { return ops::tanh(t); }},
      {"erf", [](Tensor t) { return ops::erf(t); }},
      {"sigmoid", [](Tensor t) { return ops::sigmoid(t); }},
      {"sin", [](Tensor t) { return ops::sin(t); }},
      {"cos", [](Tensor t) { return ops::cos(t); }},
      {"log1p", [](Tensor t) { return ops::log1p(t); }},
      {"expm1", [](Tensor t) { return ops::expm1(t); }},
      {"neg", [](Tensor t) { return ops::neg(t); }},
      {"abs", [](Tensor t) { return ops::abs(t); }},
      {"square", [](Tensor t) { return ops::square(t); }},
      {"relu", [](Tensor t) { return ops::relu(t); }},
      {"sum", [](Tensor t) { return ops::sum(t); }},
      {"mean", [](Tensor t) { return ops::mean(t); }},
      {"max", [](Tensor t) { return ops::max(t); }},
      {"min", [](Tensor t) { return ops::min(t); }},
      {"cumsum", [](Tensor t) { return ops::cumsum(t, 0); }},
      {"pow_2", [](Tensor t) { return ops::pow(t, 2); }},
      {"pow_2.0", [](Tensor t) { return ops::pow(t, 2.0); }},
      {"pow_0.5", [](Tensor t) { return ops::pow(t, 0.5); }},
      {"clamp_1_2", [](Tensor t) { return ops::clamp(t, 1, 2); }},
      {"clamp_0.5_2.5", [](Tensor t) { return ops::clamp(t, 0.5, 2.5); }},
      {"clamp_-9_300", [](Tensor t) { return ops::clamp(t, -9, 300); }},
      {"fill__0.5", [](Tensor t) { return Tensor(t.fill_(0.5)); }},
      {"fill__-3", [](Tensor t) { return Tensor(t.fill_(-3)); }},
      {"fill__300", [](Tensor t) { return Tensor(t.fill_(300)); }},
      {"fill__1e5", [](Tensor t) { return Tensor(t.fill_(1e5)); }},
      {"fill__inf", [](Tensor t) { return Tensor(t.fill_(kInfinity)); }},
      {"masked_fill_0.5", [](Tensor t) { return ops::masked_fill(t, condition(), 0.5); }},
      {"masked_fill_-inf", [](Tensor t) { return ops::masked_fill(t, condition(), -kInfinity); }},
      {"scatter_0.5", [](Tensor t) { return ops::scatter(t, 0, Tensor::zeros({1}, {kI64}), 0.5); }},
  };
  return kOps.at(op)(x);
}

// "f32=3.5" or "error".
struct Cell {
  bool error = false;
  std::string dtype;
  double value = 0;
  explicit Cell(const std::string& text) : error(text == "error") {
    if (error) return;
    const size_t equals = text.find('=');
    dtype = text.substr(0, equals);
    value = std::stod(text.substr(equals + 1));
  }
};

// Values agree within one rounding of their dtype: a 0-dim tensor of a wider dtype is rounded to the result's before
// PyTorch computes with it, and after it here.
double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 1e-8;  // digits in the file
    case DType::kF32: return 0x1p-21;
    case DType::kBF16: return 0x1p-7;
    case DType::kF16: return 0x1p-10;
    default: return 0;
  }
}

template <class Run> void check(const Cell& expected, const std::string& what, Run run) {
  try {
    const Tensor result = run();
    if (expected.error) {
      ADD_FAILURE() << what << ": PyTorch refuses it; got " << result.to_string();
      return;
    }
    EXPECT_EQ(name_of(result.dtype()), expected.dtype) << what;
    const double value = only(result);
    if (!(std::isnan(value) && std::isnan(expected.value)) && value != expected.value) {
      EXPECT_NEAR(value, expected.value, tolerance(result.dtype()) * std::abs(expected.value)) << what;
    }
  } catch (const InternalError&) {
    // No such overload.
  } catch (const Error& e) {
    EXPECT_TRUE(expected.error) << what << ": " << e.what();
  }
}

TEST(Promotion, EveryCellIsAsInPyTorch) {
  std::ifstream file(std::string(tests::kReferenceDir) + "/promotion.txt");
  ASSERT_TRUE(file);
  int cells = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    const size_t colon = line.find(':');
    std::istringstream head(line.substr(0, colon)), tail(line.substr(colon + 1));
    std::string op, form, left;
    head >> op >> form >> left;
    DType a = kF32;
    for (DType t : kAll)
      if (name_of(t) == left) a = t;
    for (DType t : kAll) {
      std::string text;
      ASSERT_TRUE(tail >> text) << line;
      const Cell cell(text);
      const std::string what = op + " " + form + " " + left + " " + std::string(name_of(t));
      ++cells;
      const bool in_place = op.ends_with('_');
      if (!left.empty())
        check(cell, what, [&] { return apply_to_tensors(op, first(a, form[0] == 'z'), second(t, form[1] == 'z')); });
      else if (form == "ti" && in_place) check(cell, what, [&] { return apply_in_place(op, first(t), 3); });
      else if (form == "tf" && in_place) check(cell, what, [&] { return apply_in_place(op, first(t), 1.7); });
      else if (form == "ti") check(cell, what, [&] { return apply(op, first(t), 3); });
      else if (form == "tf") check(cell, what, [&] { return apply(op, first(t), 1.7); });
      else if (form == "it") check(cell, what, [&] { return apply(op, 3, first(t)); });
      else if (form == "ft") check(cell, what, [&] { return apply(op, 1.7, first(t)); });
      else check(cell, what, [&] { return apply_to_one(op, first(t)); });
    }
  }
  EXPECT_GT(cells, 4500);
}

// ---- Computed in the wider dtype, rounded once

TEST(Promotion, TheWiderDtypeComputesAlsoInPlace) {
  EXPECT_EQ(only(vector({1e-3}, kF16).mul_(vector({1e5}, kF32))), 100.0625);
  EXPECT_EQ(only(vector({200}, kBF16).mul_(vector({1.0039}, kF32))), 201);
  EXPECT_EQ(only(vector({1e-3}, kF16) * Tensor::full({}, 1e5)), 100.0625);
  EXPECT_EQ(only(Tensor::full({}, 1e5) * vector({1e-3}, kF16)), 100.0625);
  EXPECT_EQ(only(vector({1e-3}, kF16) * vector({100000}, kI64)), 100.0625);
  EXPECT_EQ(only(vector({6e4}, kF16).sub_(Tensor::full({}, 1e5))), -40000);
  EXPECT_FLOAT_EQ(only(vector({1e-30}, kF32).mul_(vector({1e50}, kF64))), 1e20);
  // A write into a view reaches its base, and a shape that does not fit is named.
  Tensor base = Tensor::ones({2, 3}, {kF16});
  base.slice(1, {0, 2}).mul_(vector({3, 4}, kF32));
  EXPECT_EQ(base.to_vector<float>(), (std::vector<float>{3, 4, 1, 3, 4, 1}));
  EXPECT_THROW(base.mul_(Tensor::ones({4, 2, 3})), Error);
}

TEST(Promotion, GradientsKeepTheDtypesOfTheirTensors) {
  Tensor a = vector({2, 3}, kBF16).requires_grad_(), b = vector({5, 7}, kF32).requires_grad_();
  Tensor scale = Tensor::full({}, 2.0).requires_grad_();
  ops::sum(a * b * scale).backward();
  EXPECT_EQ(a.grad().dtype(), kBF16);
  EXPECT_EQ(b.grad().dtype(), kF32);
  EXPECT_EQ(a.grad().to_vector<float>(), (std::vector<float>{10, 14}));
  EXPECT_EQ(b.grad().to_vector<float>(), (std::vector<float>{4, 6}));
  EXPECT_EQ(scale.grad().item(), 31);
  // In place: the old value has a gradient of its own dtype.
  Tensor c = vector({2, 3}, kF16).requires_grad_();
  Tensor d = c * 1.0;
  d.mul_(b.detach());
  ops::sum(d).backward();
  EXPECT_EQ(c.grad().dtype(), kF16);
  EXPECT_EQ(c.grad().to_vector<float>(), (std::vector<float>{5, 7}));
}

TEST(Promotion, IntegersDivideToFloats) {
  const Tensor a = Tensor::from<int64_t>({1, 0, -1}, {3});
  const std::vector<double> inf_nan = (a / 0.0).to_vector<double>();
  EXPECT_EQ(inf_nan[0], kInfinity);
  EXPECT_TRUE(std::isnan(inf_nan[1]));
  EXPECT_EQ(inf_nan[2], -kInfinity);
  EXPECT_EQ((a / Tensor::zeros({3}, {kI64})).to_vector<double>()[0], kInfinity);
  // The value of a scalar does not change the dtype.
  for (double s : {2.0, 2.5}) {
    EXPECT_EQ((a / s).dtype(), kF32);
    EXPECT_EQ((s / a).dtype(), kF32);
    EXPECT_EQ((a * s).dtype(), kF32);
  }
  EXPECT_EQ((a / 2).dtype(), kF32);
  EXPECT_EQ((a * 2).dtype(), kI64);
  EXPECT_EQ(only(vector({1e-39}, kF32) / 1e-39), 1) << "1 / s is infinite in f32";
}

TEST(Promotion, IntegersAreExact) {
  const int64_t big = (int64_t{1} << 53) + 1;
  const Tensor one = Tensor::from<int64_t>({1}, {1});
  EXPECT_EQ((one * big).to_vector<int64_t>()[0], big);
  EXPECT_EQ((one + big).to_vector<int64_t>()[0], big + 1);
  EXPECT_EQ((big - one).to_vector<int64_t>()[0], big - 1);
  EXPECT_EQ(Tensor(one.clone().fill_(big)).to_vector<int64_t>()[0], big);
  EXPECT_EQ(only(Tensor::from<uint8_t>({1}, {1}) + 300), 45);  // wraps, as in PyTorch
  EXPECT_EQ(only(Tensor::from<uint8_t>({1}, {1}).add_(Tensor::from<int64_t>({300}, {1}))), 45);
}

// Sums, differences and products with a number beyond the dtype wrap around, as in PyTorch; those that no double holds,
// too.
TEST(Promotion, IntegersWrapAround) {
  const int64_t odd = (int64_t{1} << 53) + 1;
  for (int64_t s : {odd, -odd, INT64_MAX, INT64_MIN, int64_t{1} << 32, (int64_t{1} << 31) + 5, int64_t{-300}}) {
    const auto check = [&]<class T>(T element) {
      const auto wrap = [](uint64_t value) { return static_cast<int64_t>(static_cast<T>(value)); };
      const auto x = static_cast<uint64_t>(element), number = static_cast<uint64_t>(s);
      const Tensor t = Tensor::from<T>({element}, {1});
      Tensor sum = t.clone(), product = t.clone();
      EXPECT_EQ((t + s).item<int64_t>(), wrap(x + number)) << s;
      EXPECT_EQ((t - s).item<int64_t>(), wrap(x - number)) << s;
      EXPECT_EQ((s - t).item<int64_t>(), wrap(number - x)) << s;
      EXPECT_EQ((t * s).item<int64_t>(), wrap(x * number)) << s;
      EXPECT_EQ((sum += s).item<int64_t>(), wrap(x + number)) << s;
      EXPECT_EQ((product *= s).item<int64_t>(), wrap(x * number)) << s;
    };
    check(int32_t{-7});
    check(INT32_MAX);
    check(uint8_t{200});
    check(int64_t{3});
  }
}

TEST(Promotion, FloatsOutOfRangeBecomeIntegersWithoutUndefinedBehaviour) {
  const Tensor x = Tensor::from<float>({-1, 3e20f, -3e20f, INFINITY, NAN, -1000}, {6});
  EXPECT_EQ(x.to(kI64).to_vector<int64_t>(), (std::vector<int64_t>{-1, INT64_MAX, INT64_MIN, INT64_MAX, 0, -1000}));
  EXPECT_EQ(x.to(kI32).to_vector<int32_t>(), (std::vector<int32_t>{-1, INT32_MAX, INT32_MIN, INT32_MAX, 0, -1000}));
  EXPECT_EQ(x.to(kU8).to_vector<uint8_t>()[0], 255);
  EXPECT_EQ(x.to(kU8).to_vector<uint8_t>()[5], 24);
}

TEST(Promotion, ClampTakesTheBoundsAsTheyAre) {
  EXPECT_EQ(ops::clamp(Tensor::from<uint8_t>({0, 1, 2, 3}, {4}), -1, 2).to_vector<uint8_t>(),
            (std::vector<uint8_t>{0, 1, 2, 2}));
  const Tensor a = Tensor::from<int64_t>({0, 1, 9}, {3});
  EXPECT_EQ(ops::clamp(a, 0.5, 7.5).dtype(), kF32);
  EXPECT_EQ(ops::clamp(a, 0.5, 7.5).to_vector<float>(), (std::vector<float>{0.5f, 1, 7.5f}));
  EXPECT_EQ(ops::clamp(a, 1, kInfinity).to_vector<int64_t>(), (std::vector<int64_t>{1, 1, 9}));
  EXPECT_EQ(ops::clamp(a.to(kI32), -(int64_t{1} << 40), int64_t{1} << 40).to_vector<int32_t>(),
            (std::vector<int32_t>{0, 1, 9}));
}

TEST(Promotion, JoinedTensorsMeetInTheWidestDtype) {
  const Tensor a = vector({1, 2}, kBF16).requires_grad_(), b = vector({0.1}, kF32).requires_grad_();
  const Tensor joined = ops::cat(std::vector<Tensor>{a, b}, 0);
  EXPECT_EQ(joined.dtype(), kF32);
  ops::sum(joined * joined).backward();
  EXPECT_EQ(a.grad().dtype(), kBF16);
  const Tensor index = Tensor::from<int64_t>({0, 0}, {2});
  const Tensor sums = ops::scatter_add(Tensor::zeros({1}), 0, index, vector({1, 0x1p-9}, kBF16));
  EXPECT_EQ(sums.dtype(), kF32);
  EXPECT_EQ(only(sums), 1 + 0x1p-9) << "rounded to bf16 on the way";
  EXPECT_EQ(ops::scatter(vector({1}, kBF16), 0, Tensor::zeros({1}, {kI64}), b.detach()).dtype(), kF32);
}

// ---- Sums

TEST(Promotion, SumsOfNarrowDtypesDoNotOverflow) {
  EXPECT_EQ(ops::sum(Tensor::full({300}, 200, {kU8})).dtype(), kI64);
  EXPECT_EQ(ops::sum(Tensor::full({300}, 200, {kU8})).item(), 60000);
  EXPECT_EQ(ops::sum(Tensor::full({3, 100}, 200, {kU8}), {0}).to_vector<int64_t>()[7], 600);
  EXPECT_EQ(ops::sum(Tensor::full({100, 3}, 200, {kU8}), {1}).to_vector<int64_t>()[7], 600);
  EXPECT_EQ(ops::sum(Tensor::full({4}, INT32_MAX, {kI32})).item(), 4.0 * INT32_MAX);
  EXPECT_EQ(ops::sum(Tensor::ones({70000}, {kBool})).item(), 70000);
  EXPECT_EQ(ops::mean(Tensor::ones({100000}, {kF16})).item(), 1);
  EXPECT_EQ(ops::mean(Tensor::ones({100000, 2}, {kF16}), {0}).to_vector<float>()[1], 1);
  EXPECT_EQ(ops::mean(Tensor::ones({2, 100000}, {kF16}), {1}).to_vector<float>()[1], 1);
  EXPECT_EQ(ops::sum(Tensor::full({100000}, 0.5, {kF16})).item(), 49984);  // 50,000 rounded once, to even
  EXPECT_EQ(ops::mean((Tensor::arange(1000) * 0.37 + 3).to(kBF16)).item(), 188);
  EXPECT_THROW(ops::mean(Tensor::arange(3)), Error);
}

TEST(Promotion, ExtremaOfBools) {
  const Tensor mask = Tensor::from<int64_t>({0, 1, 0, 0}, {2, 2}).to(kBool);
  EXPECT_EQ(ops::max(mask, {1}).to_vector<uint8_t>(), (std::vector<uint8_t>{1, 0}));
  EXPECT_EQ(ops::min(mask, {1}).to_vector<uint8_t>(), (std::vector<uint8_t>{0, 0}));
}

TEST(Promotion, RunningSumsOfF32AreExactFarBeyond2To24) {
  const int64_t n = 20000000;
  const Tensor sums = ops::cumsum(Tensor::ones({n}), 0);
  EXPECT_EQ(sums.slice(0, {n - 1, n}).to_vector<float>()[0], 2e7f);
  EXPECT_EQ(ops::cumsum(Tensor::full({3}, 200, {kU8}), 0).to_vector<int64_t>(), (std::vector<int64_t>{200, 400, 600}));
  EXPECT_EQ(ops::cumsum(Tensor::ones({3}, {kBool}), 0).to_vector<int64_t>(), (std::vector<int64_t>{1, 2, 3}));
}

TEST(Promotion, TheGradientOfAMeanKeepsItsDtype) {
  Tensor x = Tensor::ones({70000}, {kF16}).requires_grad_();
  ops::mean(x).backward();
  EXPECT_EQ(x.grad().dtype(), kF16);
  EXPECT_NEAR(x.grad().to_vector<float>()[0], 1.0 / 70000, 1e-7);
  // Equal maxima share a gradient even if there are more of them than the dtype counts.
  Tensor y = Tensor::ones({70000}, {kF16}).requires_grad_();
  ops::max(y).backward(Tensor::full({}, 7000.0, {kF16}));
  EXPECT_NEAR(y.grad().to_vector<float>()[3], 0.1, 1e-3);
}

// ---- Gradients at the edges, as in PyTorch 2.15

std::vector<double> gradient(Tensor (*f)(const Tensor&), std::vector<double> at) {
  Tensor x = vector(std::move(at), kF32).requires_grad_();
  ops::sum(f(x)).backward();
  return x.grad().to_vector<double>();
}

TEST(Promotion, GradientsOfReluAndClampAtTheirEdges) {
  EXPECT_EQ(gradient([](const Tensor& x) { return ops::relu(x); }, {kNaN, 0, -0.0, kInfinity, -kInfinity, 1}),
            (std::vector<double>{1, 0, 0, 1, 0, 1}));
  EXPECT_EQ(gradient([](const Tensor& x) { return ops::clamp(x, -1, 2); }, {-1, 2, 0, kNaN, 3, -2}),
            (std::vector<double>{0, 0, 1, 0, 0, 0}));
}

TEST(Promotion, TheSecondDerivativeOfReluIsZeroEverywhere) {
  Tensor x = vector({kInfinity, 1, -kInfinity, kNaN}, kF32).requires_grad_();
  const Tensor w = vector({1, 2, 3, 4}, kF32);
  const Tensor y = ops::sum(ops::relu(x) * w);
  const Tensor g = autograd::grad({&y, 1}, {&x, 1}, {}, false, /*create_graph=*/true)[0];
  ops::sum(g * g).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0, 0, 0, 0}));
}

// ---- The rest

TEST(Promotion, OneDimensionGivenTwiceIsAnError) {
  const Tensor x = Tensor::ones({2, 3, 4});
  EXPECT_THROW(ops::sum(x, {0, -3}), Error);
  EXPECT_THROW(ops::max(x, {1, 1}), Error);
  EXPECT_THROW(ops::mean(x, {2, 0, -1}), Error);
}

TEST(Promotion, SoftmaxOfAScalarIsOne) {
  Tensor x = Tensor::full({}, 3.0).requires_grad_();
  for (int64_t dim : {0, -1}) {
    EXPECT_EQ(ops::softmax(x, dim).item(), 1);
    EXPECT_EQ(ops::log_softmax(x, dim).item(), 0);
    EXPECT_TRUE(ops::softmax(x, dim).sizes().empty());
  }
  EXPECT_THROW(ops::softmax(x, 1), Error);
  ops::softmax(x).backward();
  EXPECT_EQ(x.grad().item(), 0);
}

TEST(Promotion, UniformNumbersAreNeverZeroOrOne) {
  for (uint32_t bits : {0u, 0xFFu, 0x7FFFFFFFu, 0x80000000u, 0xFFFFFE00u, 0xFFFFFEFFu, 0xFFFFFF00u, 0xFFFFFFFFu}) {
    EXPECT_GT(uniform_from_bits(bits), 0.0f) << bits;
    EXPECT_LT(uniform_from_bits(bits), 1.0f) << bits;
  }
}

}  // namespace
}  // namespace rondo
