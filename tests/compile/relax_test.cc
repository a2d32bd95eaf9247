// Default mode: what codegen/relax.h does to kernels, and what it may not do to gradients.
#include "rondo/compile/codegen/relax.h"

#include "rondo/compile/compile.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/region/region.h"
#include "rondo/compile/transform/joint.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compile/graph_fixture.h"
#include "rondo/tests/compile/kernel_fixture.h"

namespace rondo::compile {
namespace {

int count(const LoopKernel& kernel, LoopOp op) {
  return static_cast<int>(
      std::count_if(kernel.instrs.begin(), kernel.instrs.end(), [&](const Instr& i) { return i.op == op; }));
}

// Sums and differences of products on either side, in every place that matters.
LoopKernel products(DType type, int64_t cols) {
  KernelBuilder b("products", 7, cols, 2);
  const int32_t x = b.dense(type), y = b.dense(type), r = b.per_row(type);
  const auto mul = [&](LoopValue u, LoopValue v) { return b.emit(LoopOp::kMul, type, u, v); };
  const auto store = [&](LoopOp op, LoopValue u, LoopValue v) { b.store(b.dense(type, true), b.emit(op, type, u, v)); };
  b.in_row();
  const LoopValue row = b.load(r, type), row_product = mul(row, row);
  b.in_column();
  const LoopValue u = b.load(x, type), v = b.load(y, type);
  store(LoopOp::kAdd, mul(u, v), u);
  store(LoopOp::kAdd, v, mul(u, row));
  store(LoopOp::kSub, mul(u, v), row);
  store(LoopOp::kSub, u, mul(v, row));
  store(LoopOp::kAdd, mul(u, u), mul(v, v));  // one of the two
  const LoopValue twice = mul(u, v);          // stays
  store(LoopOp::kAdd, twice, v);
  store(LoopOp::kSub, twice, u);
  store(LoopOp::kAdd, row_product, u);  // stays where it is computed once
  const LoopValue total = b.reduce(LoopOp::kReduceSum, b.emit(LoopOp::kAdd, type, mul(u, v), v));
  b.stage(1).in_row();
  b.store(b.per_row(type, true), b.emit(LoopOp::kAdd, type, mul(total, row), row));
  return b.kernel;
}

TEST(Relax, ProductsThatAreOnlyAddedJoinTheAddition) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  for (DType type : {kF32, kF64}) {
    for (int64_t cols : kWidths) {
      const LoopKernel exact = products(type, cols), relaxed = relax(exact);
      EXPECT_EQ(count(relaxed, LoopOp::kFma), 7);
      EXPECT_EQ(count(relaxed, LoopOp::kNeg), 2);
      EXPECT_EQ(count(exact, LoopOp::kMul) - count(relaxed, LoopOp::kMul), 7);
      EXPECT_NE(code_text(exact), code_text(relaxed));  // the key
      EXPECT_EQ(to_string(relax(relaxed)), to_string(relaxed));
      expect_equal_bits(relaxed);  // generated code is the interpreter's to the bit in this mode, too
    }
  }
}

// In default mode a 16-bit result that only the kernel reads stays f32: the result is that of f32 arithmetic, rounded
// once. What the user casts is rounded, and what the caller holds, too. Exact mode rounds each result, as eager does.
TEST(Relax, ResultsThatAreNotStoredAreNotRounded) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  manual_seed(9);
  struct Chain : nn::Module<Chain> {
    Tensor forward(const Tensor& x) { return ops::sigmoid(x + 1.0) - 0.5; }
  };
  for (DType type : {kBF16, kF16}) {
    const Tensor x = Tensor::randn({8, 64}).to(type), once = Chain()(x.to(kF32)).to(type);
    Chain eager, exact, relaxed;
    const Regions a = compile_module(exact, {.exact = true}), b = compile_module(relaxed);
    EXPECT_TRUE(test::same_bits(eager(x), exact(x)));
    EXPECT_FALSE(test::same_bits(eager(x), once));
    EXPECT_TRUE(test::same_bits(relaxed(x), once));
  }
  // A conversion from f32 is the user's own.
  struct Quantised : nn::Module<Quantised> {
    Tensor forward(const Tensor& x) { return (x * 3.0).to(kBF16).to(kF32) - x; }
  } eager, compiled;
  const Regions regions = compile_module(compiled);
  const Tensor x = Tensor::randn({8, 64});
  EXPECT_TRUE(test::same_bits(eager(x), compiled(x)));
}

// The oracle's own results in both modes: within 4 units in the last place of the largest element.
TEST(Relax, ScalarBodiesStayWhatTheyAre) {
  using Function = LoopValue (*)(LoopValue);
  const std::pair<const char*, Function> functions[] = {{"exp", [](LoopValue v) { return scalar::exp(v); }},
                                                        {"log", [](LoopValue v) { return scalar::log(v); }},
                                                        {"tanh", [](LoopValue v) { return scalar::tanh(v); }},
                                                        {"erf", [](LoopValue v) { return scalar::erf(v); }},
                                                        {"sin", [](LoopValue v) { return scalar::sin(v); }},
                                                        {"sigmoid", [](LoopValue v) { return scalar::sigmoid(v); }}};
  constexpr int64_t kElements = 40000;
  for (const auto& [name, function] : functions) {
    for (DType type : {kF32, kF64}) {
      SCOPED_TRACE(testing::Message() << name << " " << name_of(type));
      KernelBuilder b("body", 1, kElements);
      b.kernel.split_columns = true;
      const int32_t x = b.dense(type), y = b.dense(type, true);
      b.store(y, function(b.load(x, type)));
      const LoopKernel relaxed = relax(b.kernel);
      ASSERT_EQ(verify(relaxed), "");
      std::mt19937 random(3);
      Buffer in = random_buffer(type, kElements, random, Samples::kSpecial), expected = in, actual = in;
      void* first[] = {in.data(), expected.data()};
      void* second[] = {in.data(), actual.data()};
      interpret(b.kernel, first, nullptr, 0, kElements);
      interpret(relaxed, second, nullptr, 0, kElements);
      visit_floating(type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        if constexpr (sizeof(T) >= 4) {
          const T *e = reinterpret_cast<const T*>(expected.data()), *a = reinterpret_cast<const T*>(actual.data());
          for (int64_t i = 0; i < kElements; ++i) {
            if (std::memcmp(e + i, a + i, sizeof(T)) == 0 || (e[i] != e[i] && a[i] != a[i])) continue;
            ASSERT_LE(std::abs(e[i] - a[i]), 4 * std::numeric_limits<T>::epsilon() * std::abs(e[i]))
                << "element " << i << " of " << reinterpret_cast<const T*>(in.data())[i];
          }
        }
      });
    }
  }
}

class DefaultMode : public testing::Test {
 protected:
  void SetUp() override {
    if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  }
};

TEST_F(DefaultMode, RunsTheSameKernelsWithOtherCode) {
  nn::GPT2Config config{.vocab_size = 31, .block_size = 16, .n_layer = 2, .n_head = 2, .n_embd = 24};
  const Tensor ids = Tensor::from<int64_t>({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4});
  RegionReport reports[2];
  std::vector<Tensor> grads[2];
  for (bool exact : {false, true}) {
    nn::GPT2 model(config, 3);
    const Regions regions = compile_regions(model, {.exact = exact});
    model.loss(ids, ids).backward();
    for (const Tensor& p : model.parameters()) grads[exact].push_back(p.grad());
    reports[exact] = regions.report()[0];
  }
  EXPECT_EQ(reports[0].library_calls, reports[1].library_calls);
  EXPECT_LE(reports[0].kernels, reports[1].kernels);  // a product may take an epilogue
  bool any_differs = false;
  for (size_t i = 0; i < grads[0].size(); ++i) {
    any_differs = any_differs || !test::same_bits(grads[0][i], grads[1][i]);
    const std::vector<double> a = grads[0][i].to_vector<double>(), b = grads[1][i].to_vector<double>();
    double largest = 0;
    for (double v : b) largest = std::max(largest, std::abs(v));
    for (size_t k = 0; k < a.size(); ++k) ASSERT_NEAR(a[k], b[k], 1e-5 * largest) << "parameter " << i;
  }
  EXPECT_TRUE(any_differs) << "default mode is exact mode";
}

// What would be compared with other roundings than in the forward, or in its neighbour's backward, is not relaxed: two
// numbers that are computed, in the forward or saved for its backward.
TEST(Relax, NotWhereTwoComputedNumbersAreCompared) {
  const Tensor x = Tensor::ones({8}), limit = Tensor::ones({8});
  const auto graph_of = [&](auto body) { return record([&] { return std::vector<Tensor>{body()}; }); };
  EXPECT_FALSE(may_relax(graph_of([&] { return ops::less(x * limit + 1.0, ops::exp(x)); }), nullptr));
  EXPECT_TRUE(may_relax(graph_of([&] { return ops::less(x * limit + 1.0, limit); }), nullptr));
  const Tensor leaf = Tensor::ones({8}).requires_grad_();
  const auto may = [&](auto body) {
    const Graph forward = graph_of(body);
    const BackwardGraph backward = derive_backward(forward);
    return may_relax(forward, &backward);
  };
  EXPECT_TRUE(may([&] { return ops::exp(leaf) + ops::tanh(leaf); }));
  EXPECT_FALSE(may([&] { return ops::maximum(ops::exp(leaf), ops::tanh(leaf)); }));
  EXPECT_TRUE(may([&] { return ops::maximum(ops::exp(leaf), limit); }));
}

// The backward finds the largest element of a row among values that it computes again, from a product that has one use
// there and two in the forward.
TEST_F(DefaultMode, WhatIsComparedIsNotRelaxed) {
  const Tensor w = Tensor::randn({50}).requires_grad_(), bias = Tensor::randn({50}).requires_grad_();
  const auto largest = [&](const Tensor& x) {
    const Tensor product = x * w;
    return ops::max(product + bias, {-1}) + ops::sum(product, {-1});
  };
  const auto mask = [&](const Tensor& x) {
    const Tensor product = x * w, y = product + bias;
    return ops::sum(ops::where(ops::equal(y, ops::max(y, {-1}, true)), ops::exp(y), y), {-1}) + ops::sum(product, {-1});
  };
  for (const std::function<Tensor(const Tensor&)>& function : {std::function<Tensor(const Tensor&)>(largest), {mask}}) {
    const Tensor data = Tensor::randn({200, 50});
    std::vector<Tensor> grads;
    auto compiled = compile(function);
    for (bool eager : {true, false}) {
      Tensor x = data.clone().requires_grad_();
      ops::sum(eager ? function(x) : compiled(x)).backward();
      grads.push_back(x.grad());
    }
    EXPECT_TRUE(test::same_bits(grads[0], grads[1]));
  }
}

// Only the gradient of a maximum compares.
TEST_F(DefaultMode, WhatTheBackwardComparesIsNotRelaxed) {
  auto compiled = compile([](const Tensor& x) { return ops::maximum(ops::exp(x), ops::tanh(x)); });
  compiled(Tensor::randn({8}).requires_grad_());
  EXPECT_TRUE(compiled.regions().regions()[0]->entries()[0]->forward().how().exact);
}

// Beside 1e20 the last bit of a product is 1e13: the largest element of a row must be its maximum to the bit.
TEST_F(DefaultMode, SoftmaxOfLargeProductsIsFinite) {
  const Tensor data = Tensor::from<float>(
      {1e20f, 0, -1e20f, 3e4f, 1e38f, 3e38f, -3e38f, 1, -3.4e38f, -3.4e38f, -3.4e38f, -3.4e38f}, {3, 4});
  const Tensor mask = Tensor::full({4}, -1e30), weights = Tensor::randn({12});
  const std::function<Tensor(const Tensor&)> functions[] = {
      [](const Tensor& x) { return ops::softmax(x * 0.70710678, -1); },
      [](const Tensor& x) {
        return ops::log_softmax(ops::reshape(x * 0.70710678, {1, 12}), -1);
      },
      [&](const Tensor& x) { return ops::exp(ops::log_softmax(x * x * 1e-20 + mask, -1)); }};
  for (const auto& function : functions) {
    auto compiled = compile(function);
    std::vector<Tensor> results;
    for (bool eager : {true, false}) {
      const Tensor x = data.clone().requires_grad_();
      const Tensor y = eager ? function(x) : compiled(x);
      ops::sum(y * ops::reshape(weights, y.sizes())).backward();
      results.insert(results.end(), {y.detach(), x.grad()});
    }
    EXPECT_TRUE(test::same_bits(results[0], results[2]));
    EXPECT_TRUE(test::same_bits(results[1], results[3]));
  }
}

}  // namespace
}  // namespace rondo::compile
