// Properties of ops beside the sweep and the reference values: ties, NaN, bad operands, second derivatives.
#include "rondo/runtime/ops/ops.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

using Values = std::vector<double>;
using Indices = std::vector<int64_t>;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Many columns of one element against one row: a tall product whose left operand has strides of its own.
TEST(Matmul, AnInnerDimensionOfOne) {
  for (DType dtype : {kF32, kF64, kBF16, kF16}) {
    const Tensor a = test::uniform({5, 2, 1}, -2, 2, 1).to(dtype), b = test::uniform({1, 5}, -2, 2, 2).to(dtype);
    EXPECT_TRUE(test::same_bits(ops::matmul(a, b), a * b)) << name_of(dtype);
  }
}

// Every second row of each matrix: no layout that the library knows.
// cpu/wrong_kernels.cc. Small integers: sums are exact in f32, and are rounded once.
TEST(Matmul, DepthsOneBelowAMultipleOf32) {
  for (const int64_t k : {31, 63, 1567, 2047})
    for (const int64_t m : {41, 388})
      for (const int64_t n : {4, 5, 36}) {
        SCOPED_TRACE(testing::Message() << m << " x " << k << " by " << k << " x " << n);
        const Tensor a = Tensor::randint(-2, 3, {m, k}), b = Tensor::randint(-2, 3, {k, n});
        const Tensor want = ops::matmul(a.to(kF64), b.to(kF64)).to(kBF16);
        for (const bool transposed : {false, true}) {
          const Tensor left = transposed ? a.to(kBF16).t().contiguous().t() : a.to(kBF16);
          const Tensor got = ops::matmul(left, b.to(kBF16));
          EXPECT_EQ(got.to_vector<double>(), want.to_vector<double>());
        }
      }
}

TEST(Matmul, MatricesWithRowsLeftOut) {
  for (DType dtype : {kF32, kF64, kBF16, kF16}) {
    const Tensor all = test::uniform({5, 3, 8}, -2, 2, 1).to(dtype), some = all.slice(1, {0, 3, 2});
    const Tensor b = test::uniform({8, 5}, -2, 2, 2).to(dtype), many = test::uniform({5, 4, 2}, -2, 2, 3).to(dtype);
    EXPECT_TRUE(test::same_bits(ops::matmul(some, b), ops::matmul(some.clone(), b))) << name_of(dtype);
    EXPECT_TRUE(test::same_bits(ops::matmul(many, some), ops::matmul(many, some.clone()))) << name_of(dtype);
  }
}

TEST(Orders, TiesGoToTheFirstAndNaNIsLargest) {
  const Tensor x = Tensor::from<double>({1, 3, kNaN, 3, -kInf, kNaN, 1, kInf}, {8});
  EXPECT_EQ(ops::argmax(x).item(), 2);
  EXPECT_EQ(ops::argmin(x).item(), 2);
  EXPECT_EQ(ops::argmax(Tensor::from<double>({1, 3, 2, 3}, {4})).item(), 1);
  EXPECT_EQ(ops::argmin(Tensor::from<double>({1, 3, 1, 3}, {4})).item(), 0);
  EXPECT_EQ(ops::argsort(x).to_vector<int64_t>(), (Indices{4, 0, 6, 1, 3, 7, 2, 5}));
  EXPECT_EQ(ops::argsort(x, 0, true).to_vector<int64_t>(), (Indices{2, 5, 7, 1, 3, 0, 6, 4}));
  EXPECT_EQ(ops::topk(x, 4).indices.to_vector<int64_t>(), (Indices{2, 5, 7, 1}));
  EXPECT_EQ(ops::topk(x, 3, -1, false).indices.to_vector<int64_t>(), (Indices{4, 0, 6}));
  EXPECT_TRUE(std::isnan(ops::min(x).item()));
  EXPECT_EQ(ops::min(Tensor::from<uint8_t>({3, 0, 1}, {3})).item(), 0);
  EXPECT_EQ(to_string(ops::argmax(Tensor::zeros({2, 3}), std::nullopt, true).sizes()), "[1, 1]");
  EXPECT_EQ(to_string(ops::argmax(Tensor::zeros({2, 3}), 1, true).sizes()), "[2, 1]");
  EXPECT_EQ(to_string(ops::argmax(Tensor::zeros({2, 3}), 0).sizes()), "[3]");
}

TEST(Elementwise, KinksShareTheGradient) {
  Tensor a = Tensor::from<double>({1, 2, 3, kNaN}, {4}), b = Tensor::from<double>({1, 3, 2, 0}, {4});
  a.requires_grad_();
  b.requires_grad_();
  const Tensor y = ops::maximum(a, b);
  EXPECT_TRUE(std::isnan(y.to_vector<double>()[3]));
  ops::sum(y).backward();
  EXPECT_EQ(a.grad().slice(0, {0, 3}).to_vector<double>(), (Values{0.5, 0, 1}));
  EXPECT_EQ(b.grad().slice(0, {0, 3}).to_vector<double>(), (Values{0.5, 1, 0}));
  Tensor x = Tensor::from<double>({-2, 0, 2}, {3});
  x.requires_grad_();
  ops::sum(ops::clamp(x, 0, 2) + ops::abs(x) + ops::sign(x)).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (Values{-1, 0, 1}));
  EXPECT_EQ(ops::clamp(Tensor::from<int64_t>({-5, 0, 9}, {3}), -1, 3).to_vector<int64_t>(), (Indices{-1, 0, 3}));
  EXPECT_EQ(ops::clamp(Tensor::from<int64_t>({-5, 9}, {2}), 0, kInf).to_vector<int64_t>(), (Indices{0, 9}));
}

// -1, 0 or 1; so the gradients of |x| and |x - y| have no NaN of their own, as PyTorch's.
TEST(Elementwise, TheSignOfNaNIsZero) {
  for (const DType dtype : {kF64, kF32, kBF16, kF16}) {
    Tensor x = Tensor::from<double>({kNaN, -kNaN, -0.0, -3, 4, -kInf, kInf}, {7}).to(dtype).detach().requires_grad_();
    const Values signs = {0, 0, 0, -1, 1, -1, 1};
    EXPECT_EQ(ops::sign(x).to_vector<double>(), signs);
    ops::sum(ops::abs(x)).backward();
    EXPECT_EQ(x.grad().to_vector<double>(), signs);
    x.zero_grad();
    ops::l1_loss(x, Tensor::zeros({7}, {dtype}), ops::Reduction::kSum).backward();
    EXPECT_EQ(x.grad().to_vector<double>(), signs);
  }
}

// Learnt angles: the gradient of the tables is that of the formula.
TEST(Rotary, TablesMayHaveAGradient) {
  for (const DType dtype : {kF64, kF32, kBF16}) {
    const ops::RotaryTables fixed = ops::rotary_tables(5, 6, 10000.0, 0, {dtype});
    const auto gradients = [&](bool by_hand) {
      manual_seed(2);
      Tensor x = Tensor::randn({2, 5, 6}, {dtype}).requires_grad_();
      ops::RotaryTables tables{fixed.cos.clone().requires_grad_(), fixed.sin.clone().requires_grad_()};
      const DType wide = tables.cos.dtype();
      const Tensor a = x.slice(-1, {0, 3}).to(wide), b = x.slice(-1, {3, 6}).to(wide);
      const Tensor y = by_hand
                           ? ops::cat({a * tables.cos - b * tables.sin, b * tables.cos + a * tables.sin}, -1).to(dtype)
                           : ops::rotary_embedding(x, tables);
      ops::sum(y * Tensor::randn(y.sizes(), {dtype})).backward();
      return std::array{y.detach(), x.grad(), tables.cos.grad(), tables.sin.grad()};
    };
    const auto got = gradients(false), expected = gradients(true);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].to_vector<double>(), expected[i].to_vector<double>()) << i;
    EXPECT_EQ(got[0].to_vector<double>(), [&] {
      manual_seed(2);
      return ops::rotary_embedding(Tensor::randn({2, 5, 6}, {dtype}), fixed).to_vector<double>();
    }());
  }
  EXPECT_THROW(
      ops::rotary_embedding(Tensor::zeros({4, 6}), {Tensor::zeros({5, 3}).requires_grad_(), Tensor::zeros({5, 3})}),
      Error);
}

TEST(Elementwise, PowersAtZero) {
  Tensor x = Tensor::from<double>({0, -2, 2}, {3});
  x.requires_grad_();
  EXPECT_EQ(ops::pow(x, 0).to_vector<double>(), (Values{1, 1, 1}));
  ops::sum(ops::pow(x, 0)).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (Values{0, 0, 0}));
  x.zero_grad();
  ops::sum(ops::pow(x, 2)).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (Values{0, -4, 4}));
  EXPECT_EQ(ops::square(x).to_vector<double>(), (Values{0, 4, 4}));
}

// A square takes no logarithm, so it is rounded once; under autocast it runs in f32, as other powers do.
TEST(Elementwise, SquaresAreProducts) {
  for (const DType dtype : {kF64, kF32, kBF16, kF16}) {
    const Tensor x = test::uniform({2, 100}, -3, 3, 7).to(dtype);
    EXPECT_TRUE(test::same_bits(ops::pow(x, 2.0), x * x));
    EXPECT_TRUE(test::same_bits(ops::pow(x, 2), x * x));
    const amp::Autocast autocast(kBF16);
    for (const double exponent : {2.0, 3.0})
      EXPECT_EQ(ops::pow(x, exponent).dtype(), dtype == kF64 ? kF64 : kF32) << exponent;
  }
}

TEST(Views, StackAndTriangles) {
  const Tensor a = Tensor::from<double>({1, 2}, {2}), b = Tensor::from<double>({3, 4}, {2});
  const Tensor parts[] = {a, b};
  EXPECT_EQ(ops::stack(parts, 0).to_vector<double>(), (Values{1, 2, 3, 4}));
  EXPECT_EQ(ops::stack(parts, -1).to_vector<double>(), (Values{1, 3, 2, 4}));
  EXPECT_EQ(ops::tril(Tensor::ones({2, 3})).to_vector<double>(), (Values{1, 0, 0, 1, 1, 0}));
  EXPECT_EQ(ops::triu(Tensor::ones({2, 3}), 1).to_vector<double>(), (Values{0, 1, 1, 0, 0, 1}));
  EXPECT_EQ(ops::masked_fill(a, ops::less(a, b * 0.5), 9).to_vector<double>(), (Values{9, 2}));
  EXPECT_EQ(ops::cumsum(Tensor::from<int64_t>({1, 2, 3, 4}, {2, 2}), 1).to_vector<int64_t>(), (Indices{1, 3, 3, 7}));
}

// full() of fresh memory, whatever it holds (UBSan sees a bool that is neither), and of views, which leave what lies
// between.
TEST(Fill, EveryTypeAndLayout) {
  for (DType type : {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool}) {
    EXPECT_EQ(ops::sum(Tensor::full({3, 5}, 1, type).to(kF64)).item(), 15);
    Tensor x = Tensor::zeros({4, 6}, type);
    x.slice(1, {1, 6, 2}).fill_(1);
    EXPECT_EQ(ops::sum(x.to(kF64), {0}).to_vector<double>(), (Values{0, 4, 0, 4, 0, 4}));
    x.transpose(0, 1).slice(0, {0, 2}).slice(1, {2, 3}).fill_(1);
    EXPECT_EQ(ops::sum(x.to(kF64), {1}).to_vector<double>(), (Values{3, 3, 4, 3}));
    x.slice(0, {0, 0}).fill_(1);
    EXPECT_EQ(ops::sum(x.to(kF64)).item(), 13);
  }
}

TEST(Indexing, OverwrittenSourcesGetNoGradient) {
  Tensor x = Tensor::from<double>({1, 2, 3}, {3}), source = Tensor::from<double>({7, 8}, {2});
  x.requires_grad_();
  source.requires_grad_();
  const Tensor y = ops::scatter(x, 0, Tensor::from<int64_t>({1, 1}, {2}), source);
  EXPECT_EQ(y.to_vector<double>(), (Values{1, 8, 3}));
  ops::sum(y * Tensor::from<double>({2, 3, 5}, {3})).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (Values{2, 0, 5}));
  EXPECT_EQ(source.grad().to_vector<double>(), (Values{0, 3}));
}

// A cache's write: places are values, a row without a place is left out, and the last of equal places wins.
TEST(Indexing, RowsAreWrittenAtPlaces) {
  const Tensor cache = Tensor::zeros({2, 1, 4, 2}), rows = Tensor::arange(12, {kF32}).view({2, 1, 3, 2});
  const Tensor places = Tensor::from<int32_t>({3, -1, 0, 2, 4, 2}, {2, 3});
  const int64_t version = cache.version();
  ops::write_rows_(cache, rows, places);
  EXPECT_EQ(cache.version(), version + 1);
  EXPECT_EQ(cache.to_vector<float>(), (std::vector<float>{4, 5, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 10, 11, 0, 0}));
  ops::write_rows_(cache, rows.slice(2, {0, 0}), places.slice(1, {0, 0}));  // nothing
  // Through a view of other strides.
  const Tensor wide = Tensor::zeros({2, 4, 1, 2});
  ops::write_rows_(wide.transpose(1, 2), rows, places);
  EXPECT_EQ(wide.to_vector<float>(), cache.to_vector<float>());
  const auto refused = [&](const Tensor& x, const Tensor& source, const Tensor& at) {
    return test::error_of([&] { ops::write_rows_(x, source, at); });
  };
  EXPECT_NE(refused(cache, rows.to(kF64), places).find("write_rows"), std::string::npos);
  EXPECT_NE(refused(cache, rows, places.view({3, 2})).find("places must be i64 (B, T)"), std::string::npos);
  EXPECT_NE(refused(cache, rows.view({1, 2, 3, 2}), places).find("needs x (B, H, S, D)"), std::string::npos);
  EXPECT_NE(refused(cache, rows, Tensor::zeros({2, 3})).find("write_rows: indices"), std::string::npos);
}

TEST(Errors, NameTheOpAndTheReason) {
  const Tensor x = Tensor::zeros({3, 4});
  const Tensor bad = Tensor::from<int64_t>({4}, {1, 1});
  EXPECT_NE(test::error_of([&] { ops::gather(x, 1, bad); }).find("gather: index 4 is out of range for size 4"),
            std::string::npos);
  EXPECT_NE(test::error_of([&] { ops::gather(x, 2, bad); }).find("gather: dimension 2 is out of range"),
            std::string::npos);
  EXPECT_NE(test::error_of([&] {
              ops::gather(x, 0, Tensor::zeros({1, 5}, {kI64}));
            }).find("larger than the tensor"),
            std::string::npos);
  EXPECT_NE(test::error_of([&] { ops::topk(x, 5); }).find("topk: k must lie in [0, 4], not 5"), std::string::npos);
  EXPECT_NE(test::error_of([&] {
              ops::argmax(Tensor::zeros({2, 0}), 1);
            }).find("argmax: nothing to choose from"),
            std::string::npos);
  EXPECT_NE(test::error_of([&] {
              ops::min(Tensor::zeros({2, 0}));
            }).find("min: input has no elements"),
            std::string::npos);
  EXPECT_NE(test::error_of([&] {
              ops::rotary_embedding(Tensor::zeros({2, 3}));
            }).find("even, positive D"),
            std::string::npos);
}

TEST(Reductions, FullOnesDoNotDependOnThreads) {
  const Tensor x = test::uniform({123, 457, 3}, -1, 1, 5).to(kF32);
  const int before = num_threads();
  set_num_threads(1);
  const Tensor one = ops::sum(x), most = ops::max(x), least = ops::min(x);
  set_num_threads(4);
  EXPECT_TRUE(test::same_bits(one, ops::sum(x)));
  EXPECT_TRUE(test::same_bits(most, ops::max(x)));
  EXPECT_TRUE(test::same_bits(least, ops::min(x)));
  set_num_threads(before);
  EXPECT_NEAR(one.item(), ops::sum(x.to(kF64)).item(), 1e-2);
}

// An op that nobody wrote a gradient for does not cut the tape in silence.
TEST(Errors, AnOpWithoutAGradientSaysSoInBackward) {
  static constexpr OpDef kTwice = {
      .name = "twice",
      .kind = OpKind::kOpaque,
      .infer = [](InferContext& c) { c.output(0, c.dtype(0), c.sizes(0)); },
      .host = {[](const KernelContext& context) {
        const auto* x = reinterpret_cast<const double*>(context.in(0).address());
        auto* y = reinterpret_cast<double*>(context.out().mutable_address());
        for (int64_t i = 0; i < context.out().numel(); ++i) y[i] = 2 * x[i];
      }},
  };
  Tensor x = Tensor::ones({3}, {kF64});
  EXPECT_FALSE(call(kTwice, {x}).requires_grad());
  x.requires_grad_();
  const Tensor y = call(kTwice, {x});
  EXPECT_TRUE(y.requires_grad());
  const std::string message = test::error_of([&] { ops::sum(y).backward(); });
  EXPECT_NE(message.find("backward of twice: it has no gradient ("), std::string::npos) << message;
  EXPECT_NE(message.find("ops_test.cc:"), std::string::npos) << message;
  EXPECT_FALSE(no_grad([&] { return call(kTwice, {x}); }).requires_grad());
  // Whole numbers have no gradient, and need none.
  EXPECT_FALSE(ops::argmax(x).requires_grad());
  EXPECT_FALSE(ops::less(x, x).requires_grad());
}

// ---- Second derivatives: d/dx <gradient of f, r>, against central differences of the gradient.

using Function = std::function<Tensor(std::span<const Tensor>)>;

void expect_second_derivative(const Function& f, std::vector<Tensor> inputs, const std::string& what) {
  SCOPED_TRACE(what);
  std::vector<Tensor> directions;
  for (size_t i = 0; i < inputs.size(); ++i) directions.push_back(test::uniform(inputs[i].sizes(), -1, 1, 50 + i));
  // <df/dx, r>, as a tensor that can be differentiated once more.
  const auto slope = [&](std::span<const Tensor> at, bool again, std::vector<Tensor>& leaves) {
    leaves.clear();
    for (const Tensor& t : at) {
      leaves.push_back(t.detach());
      leaves.back().requires_grad_();
    }
    const Tensor root[] = {ops::sum(f(leaves))};
    const std::vector<Tensor> grads = autograd::grad(root, leaves, {}, again, again);
    Tensor total;
    for (size_t i = 0; i < grads.size(); ++i) {
      const Tensor part = ops::sum(grads[i] * directions[i]);
      total = total.defined() ? total + part : part;
    }
    return total;
  };
  std::vector<Tensor> leaves, unused;
  slope(inputs, true, leaves).backward();
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor move = test::uniform(inputs[i].sizes(), -1, 1, 90 + i);
    const auto at = [&](double step) {
      std::vector<Tensor> moved = inputs;
      moved[i] = inputs[i] + move * step;
      return slope(moved, false, unused).item();
    };
    const double numeric = (at(kStep) - at(-kStep)) / (2 * kStep);
    // A bias, say, on which no first derivative depends, gets none.
    const double analytic = leaves[i].grad().defined() ? ops::sum(leaves[i].grad() * move).item() : 0.0;
    EXPECT_NEAR(analytic, numeric, 1e-6 * (1 + std::abs(numeric))) << "operand " << i;
  }
}

Tensor real(const Dims& sizes, uint64_t seed) { return test::uniform(sizes, -1, 1, seed); }

TEST(SecondDerivatives, FollowFiniteDifferences) {
  using In = std::span<const Tensor>;
  const auto weighted = [](const Tensor& y) { return y * test::uniform(y.sizes(), -1, 1, 77); };
  const Tensor target = Tensor::from<int64_t>({1, 3, 0, 2}, {4});
  expect_second_derivative([&](In x) { return weighted(ops::layer_norm(x[0], x[1], x[2])); },
                           {real({4, 6}, 1), real({6}, 2), real({6}, 3)}, "layer_norm");
  expect_second_derivative([&](In x) { return weighted(ops::rms_norm(x[0], x[1])); }, {real({4, 6}, 1), real({6}, 2)},
                           "rms_norm");
  expect_second_derivative([&](In x) { return weighted(ops::softmax(x[0])); }, {real({4, 6}, 1)}, "softmax");
  expect_second_derivative([&](In x) { return weighted(ops::log_softmax(x[0])); }, {real({4, 6}, 1)}, "log_softmax");
  for (auto reduction : {ops::Reduction::kMean, ops::Reduction::kNone})
    expect_second_derivative(
        [&](In x) {
          return weighted(
              ops::cross_entropy(x[0], target, {.ignore_index = 3, .label_smoothing = 0.1, .reduction = reduction}));
        },
        {real({4, 5}, 1)}, "cross_entropy");
  for (auto reduction : {ops::Reduction::kMean, ops::Reduction::kNone})
    expect_second_derivative(
        [&](In x) {
          return weighted(ops::linear_cross_entropy(
              x[0], x[1], x[2], target,
              {.ignore_index = 3, .label_smoothing = 0.1, .reduction = reduction, .chunk_rows = 3}));
        },
        {real({4, 3}, 1), real({5, 3}, 2), real({5}, 3)}, "linear_cross_entropy");
  expect_second_derivative([&](In x) { return weighted(ops::pow(x[0], 3.0)); }, {real({7}, 1)}, "pow");
  expect_second_derivative([&](In x) { return weighted(ops::silu(x[0])); }, {real({7}, 1)}, "silu");
  expect_second_derivative([&](In x) { return weighted(ops::gelu(x[0])); }, {real({7}, 1)}, "gelu");
  expect_second_derivative([&](In x) { return weighted(ops::softplus(ops::sin(x[0]) * ops::cos(x[0]))); },
                           {real({7}, 1)}, "softplus");
  expect_second_derivative([&](In x) { return weighted(ops::rotary_embedding(x[0] * x[0])); }, {real({3, 4}, 1)},
                           "rotary");
  expect_second_derivative([&](In x) { return weighted(ops::topk(x[0] * x[0], 2).values); }, {real({3, 4}, 1)}, "topk");
  expect_second_derivative([&](In x) { return weighted(ops::max(x[0] * x[0], {1})); }, {real({3, 4}, 1)}, "max");
  const std::vector<Tensor> qkv = {real({1, 4, 5, 3}, 1), real({1, 2, 5, 3}, 2), real({1, 2, 5, 3}, 3)};
  Tensor allowed = Tensor::ones({5, 5}).to(kBool);
  allowed.slice(0, {2, 3}).fill_(0);  // the third query may attend to nothing
  for (bool causal : {false, true})
    for (const Tensor& mask : {Tensor(), allowed})
      expect_second_derivative(
          [&](In x) { return weighted(ops::scaled_dot_product_attention(x[0], x[1], x[2], mask, {.causal = causal})); },
          qkv, std::string("attention") + (causal ? " causal" : "") + (mask.defined() ? " masked" : ""));
}

}  // namespace
}  // namespace rondo
