// Elementwise ops that a product does on its own result, and gradients that are added to where they stand.
#include <cmath>
#include <limits>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/onednn/product_library.h"
#include "rondo/tests/close.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/compiled_runs.h"

namespace rondo {
namespace {

using test::Block;
using test::BlockTest;
using test::same_bits;
using test::Tensors;

class Epilogues : public BlockTest {
 protected:
  // The results of `body` without gradients, eager and compiled.
  struct Both {
    Tensor eager, compiled;
  };
  Both both(const std::function<Tensor(const Tensor&)>& body, const Tensor& x, compile::CompileOptions options) {
    NoGrad off;
    auto compiled = compile::compile(body, options);
    Both results{body(x), compiled(x)};
    report = compiled.regions().report()[0];
    return results;
  }
  static double difference(const Tensor& a, const Tensor& b) {
    const auto x = a.to_vector<float>(), y = b.to_vector<float>();
    EXPECT_EQ(a.sizes(), b.sizes());
    std::vector<double> off(x.size());
    for (size_t i = 0; i < x.size(); ++i) off[i] = (double{x[i]} - y[i]) / std::max(1.0, std::abs(double{y[i]}));
    return test::largest(off);
  }
};

TEST_F(Epilogues, ResidualHasTheBitsOfASeparateSum) {
  for (const auto& [rows, in, out] : {std::tuple{1, 3, 5},
                                      {7, 64, 64},
                                      {64, 384, 384},
                                      {33, 1536, 384},
                                      {256, 384, 1536},
                                      {5, 4099, 17},
                                      {2, 1, 1},
                                      {130, 2048, 50}}) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(in) + " x " + std::to_string(out));
    const Tensor w = Tensor::randn({out, in}), b = Tensor::randn({out}), skip = Tensor::randn({rows, out});
    for (const bool bias : {false, true}) {
      const auto [eager, compiled] = both(
          [&](const Tensor& x) { return skip + ops::linear(x, w, bias ? b : Tensor()); }, Tensor::randn({rows, in}),
          {.exact = true, .epilogues = compile::Epilogues::kAlways});
      EXPECT_TRUE(same_bits(eager, compiled));
      EXPECT_EQ(report.kernels, 0);
      EXPECT_EQ(report.library_calls, 1);
    }
  }
}

TEST_F(Epilogues, BatchedAndTransposedProductsToo) {
  const Tensor q = Tensor::randn({2, 3, 9, 8}), mask = Tensor::randn({2, 3, 9, 9});
  const auto [eager, compiled] = both([&](const Tensor& k) { return ops::matmul(q, k.transpose(-1, -2)) + mask; },
                                      Tensor::randn({2, 3, 9, 8}),
                                      {.exact = true, .epilogues = compile::Epilogues::kAlways});
  EXPECT_TRUE(same_bits(eager, compiled));
  EXPECT_EQ(report.kernels, 0);
}

TEST_F(Epilogues, SumsOfProductsChainInPlace) {
  const Tensor a = Tensor::randn({16, 16}), b = Tensor::randn({16, 16}), c = Tensor::randn({16, 16});
  const auto [eager, compiled] = both(
      [&](const Tensor& x) { return (ops::matmul(x, a) + ops::matmul(x, b)) + ops::matmul(x, c); },
      Tensor::randn({40, 16}), {.exact = true, .epilogues = compile::Epilogues::kAlways});
  EXPECT_TRUE(same_bits(eager, compiled));
  EXPECT_EQ(report.kernels, 0);
  EXPECT_EQ(report.library_calls, 3);
}

// oneDNN's product of a vector and a matrix starts its sums from what it adds to.
TEST_F(Epilogues, SumsOfVectorsHaveTheBitsOfSeparateSums) {
  const Tensor matrix = Tensor::randn({33, 1064}).slice(1, {0, 40}), wide = Tensor::randn({40, 1064}).slice(1, {0, 33});
  for (const bool row : {true, false}) {
    const Tensor other = Tensor::randn(row ? Dims{1, 33} : Dims{33, 1});
    const auto [eager, compiled] = both(
        [&](const Tensor& x) {
          return row ? ops::matmul(x, matrix) + ops::matmul(other, matrix)
                     : ops::matmul(wide, x) + ops::matmul(wide, other);
        },
        Tensor::randn(other.sizes()), {.exact = true, .epilogues = compile::Epilogues::kAlways});
    EXPECT_TRUE(same_bits(eager, compiled));
    EXPECT_EQ(report.library_calls, 2);
    EXPECT_EQ(report.kernels, 0);
  }
}

TEST_F(Epilogues, EachSumHasItsOwnOperand) {
  const Tensor w = Tensor::randn({16, 16}), first = Tensor::randn({40, 16}), second = Tensor::randn({40, 16});
  const auto [eager, compiled] = both([&](const Tensor& x) { return (ops::matmul(x, w) + first) + second; },
                                      Tensor::randn({40, 16}),
                                      {.exact = true, .epilogues = compile::Epilogues::kAlways});
  EXPECT_TRUE(same_bits(eager, compiled));
}

TEST_F(Epilogues, WhatTheCallerGetsIsStored) {
  NoGrad off;
  const Tensor w = Tensor::randn({16, 16}), skip = Tensor::randn({40, 16}), x = Tensor::randn({40, 16});
  const auto body = [&](const Tensor& t) {
    const Tensor y = ops::matmul(t, w);
    return Tensors{y, y + skip};
  };
  auto compiled = compile::compile(body, {.exact = true, .epilogues = compile::Epilogues::kAlways});
  const Tensors want = body(x), got = compiled(x);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(same_bits(want[i], got[i])) << i;
}

TEST_F(Epilogues, WhatIsReadTwiceIsStored) {
  const Tensor w = Tensor::randn({8, 8});
  const Tensor x = Tensor::randn({4, 8});
  for (const auto& body :
       {std::function([&](const Tensor& x) {
          const Tensor y = ops::linear(x, w, Tensor());
          return (y + x) * y;
        }),
        std::function([&](const Tensor& x) {
          const Tensor y = ops::linear(x, w, Tensor());
          return y + y;
        }),
        std::function([&](const Tensor& x) {
          return ops::linear(x, w, Tensor()) + x.transpose(0, 1).contiguous().view({8, 4}).transpose(0, 1);
        }),
        std::function([&](const Tensor& x) {
          return ops::linear(x, w, Tensor()) + x.slice(0, {1, 2});
        })}) {
    const auto [eager, compiled] = both(body, x, {.exact = true, .epilogues = compile::Epilogues::kAlways});
    EXPECT_TRUE(same_bits(eager, compiled));
  }
}

TEST_F(Epilogues, ActivationsAreTheirsInDefaultMode) {
  const Tensor w = Tensor::randn({96, 64}) * 0.2, b = Tensor::randn({96});
  struct Activation {
    Epilogue epilogue;
    ops::GeluKind kind;
  };
  for (const Activation& tried :
       {Activation{Epilogue::kGelu, ops::GeluKind::kErf}, {Epilogue::kGeluTanh, ops::GeluKind::kTanh}}) {
    SCOPED_TRACE(static_cast<int>(tried.epilogue));
    // cpu/wrong_kernels.cc
    const bool wrong = tried.epilogue == Epilogue::kGelu && product_library().starts_with("oneDNN 3") &&
                       library_has_avx512();
    const auto activation = [&](const Tensor& t) { return ops::gelu(t, tried.kind); };
    const auto body = [&](const Tensor& x) { return activation(ops::linear(x, w, b)); };
    const Tensor x = Tensor::randn({32, 64});
    const auto exact = both(body, x, {.exact = true, .epilogues = compile::Epilogues::kAlways});
    EXPECT_TRUE(same_bits(exact.eager, exact.compiled));
    EXPECT_EQ(report.kernels, 1);
    const auto [eager, compiled] = both(body, x, {.epilogues = compile::Epilogues::kAlways});
    EXPECT_EQ(report.kernels, wrong ? 1 : 0);
    EXPECT_LT(difference(compiled, eager), 2e-6);
    // What is not a number stays so, and infinity, too.
    Tensor odd = Tensor::zeros({3, 64});
    odd.mutable_data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    odd.mutable_data<float>()[64] = std::numeric_limits<float>::infinity();
    const auto [eager_odd, compiled_odd] = both(
        [&](const Tensor& x) { return activation(ops::linear(x, ops::abs(w) + 0.1, b)); }, odd,
        {.epilogues = compile::Epilogues::kAlways});
    const auto expected = eager_odd.to_vector<float>(), got = compiled_odd.to_vector<float>();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(std::isnan(expected[i]), std::isnan(got[i])) << i << ": " << expected[i] << " " << got[i];
      EXPECT_EQ(std::isinf(expected[i]), std::isinf(got[i])) << i << ": " << expected[i] << " " << got[i];
    }
  }
}

// With u = 2^-8, the unit roundoff of bf16, and s the rounding error of a product's f32 sum of 64 terms: rounded once,
// a result r is within s + u (|r| + s) of the exact one. Rounding the product p first adds up to u (|p| + s), and again
// u times that.
TEST_F(Epilogues, Bf16RoundsOnceInDefaultModeAndTwiceInExact) {
  const Tensor w = Tensor::randn({64, 64}).to(kBF16), skip = Tensor::randn({32, 64}).to(kBF16),
               x = Tensor::randn({32, 64}).to(kBF16);
  const auto body = [&](const Tensor& x) { return ops::linear(x, w, Tensor()) + skip; };
  const auto exact = both(body, x, {.exact = true, .epilogues = compile::Epilogues::kAlways});
  EXPECT_TRUE(same_bits(exact.eager, exact.compiled));
  EXPECT_EQ(report.kernels, 1);
  const auto [eager, compiled] = both(body, x, {.epilogues = compile::Epilogues::kAlways});
  EXPECT_EQ(report.kernels, 0);
  const Tensor x64 = x.to(kF64), w64 = w.to(kF64);
  const auto products = ops::linear(x64, w64, Tensor()).to_vector<double>();
  const auto magnitudes = ops::linear(ops::abs(x64), ops::abs(w64), Tensor()).to_vector<double>();
  const auto skips = skip.to(kF64).to_vector<double>();
  const auto twice = eager.to(kF64).to_vector<double>(), once = compiled.to(kF64).to_vector<double>();
  constexpr double kUnit = 0x1p-8;
  int rounded_once = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    const double result = products[i] + skips[i], sum = 65 * 0x1p-24 * (magnitudes[i] + std::abs(skips[i]));
    const double one = sum + kUnit * (std::abs(result) + sum), first = kUnit * (std::abs(products[i]) + sum);
    EXPECT_LE(std::abs(once[i] - result), one) << i;
    EXPECT_LE(std::abs(twice[i] - result), one + first * (1 + kUnit)) << i;
    rounded_once += std::abs(twice[i] - result) <= one;
  }
  EXPECT_LT(rounded_once, 2000) << "of 2048: eager execution rounds twice";
}

// A weight's gradient under autocast: f32 straight from the sums, in default mode; exact mode rounds as eager does.
TEST_F(Epilogues, WhatOnlyTheCallerReadsIsWidenedByTheProduct) {
  const Tensor w = Tensor::randn({64, 64}).to(kBF16), x = Tensor::randn({48, 64}).to(kBF16);
  const Tensor in_f32 = ops::linear(x.to(kF32), w.to(kF32), Tensor());
  const auto body = [&](const Tensor& x) { return ops::linear(x, w, Tensor()).to(kF32); };
  const auto exact = both(body, x, {.exact = true});
  EXPECT_TRUE(same_bits(exact.eager, exact.compiled));
  EXPECT_EQ(report.kernels, 1);
  const auto [eager, compiled] = both(body, x, {});
  EXPECT_EQ(report.kernels, 0);
  EXPECT_EQ(compiled.dtype(), kF32);
  EXPECT_LT(difference(compiled, in_f32), 1e-5);
  EXPECT_GT(difference(eager, in_f32), 1e-4);
  // A kernel that goes on with the result reads bf16.
  const auto [eager_more, more] = both([&](const Tensor& x) { return ops::linear(x, w, Tensor()).to(kF32) * 2.0; }, x,
                                       {});
  EXPECT_TRUE(same_bits(eager_more, more));
  const auto viewed = both(
      [&](const Tensor& x) {
        return ops::linear(x, w, Tensor()).to(kF32).view({24, 128}) * 2.0;
      },
      x, {});
  EXPECT_TRUE(same_bits(viewed.eager, viewed.compiled)) << "also through a view";
  // Pieces of a batch, at their places in f32; and sums onto what was widened.
  const Tensor a = Tensor::randn({3, 5, 16, 8}).to(kBF16), b = Tensor::randn({5, 8, 16}).to(kBF16);
  const Tensor skip = Tensor::randn({3, 5, 16, 16});
  const Tensor product = ops::matmul(a.to(kF32), b.to(kF32));
  const auto batched = both([&](const Tensor& a) { return ops::matmul(a, b).to(kF32); }, a, {});
  EXPECT_LT(difference(batched.compiled, product), 1e-5);
  EXPECT_EQ(report.kernels, 0);
  const auto summed = both([&](const Tensor& a) { return skip + ops::matmul(a, b).to(kF32); }, a,
                           {.epilogues = compile::Epilogues::kAlways});
  EXPECT_LT(difference(summed.compiled, product + skip), 1e-5);
  EXPECT_EQ(report.kernels, 0);
}

// ---- Gradients that are there already

struct Accumulation : Epilogues {
  // Four micro-batches; after each, `check` sees the block. The sums must agree in every bit.
  void four_steps(const Block::Body& body, const std::function<void(Block&, int step)>& check = {}) {
    expect_as_eager(body, [&](Block& block) {
      for (int step = 0; step < 4; ++step) {
        manual_seed(100 + static_cast<uint64_t>(step));
        const Tensor x = Tensor::randn({5, 6});
        Tensor y = block(x)[0];
        ops::sum(y * y).backward();
        if (check) check(block, step);
      }
      return Tensors{block.weight.grad(), block.bias.grad(), block.norm.weight.grad()};
    });
  }
};

TEST_F(Accumulation, HappensInTheMemoryOfTheGradient) {
  const void* memory[2] = {};
  four_steps([](Block& b, const Tensor& x) { return Tensors{ops::linear(b.norm(x), b.weight, b.bias)}; },
             [&](Block& block, int step) {
               const void* now[2] = {block.weight.grad().raw_data(), block.bias.grad().raw_data()};
               for (int i = 0; i < 2; ++i) {
                 if (step > 0) {
                   EXPECT_EQ(now[i], memory[i]);
                 }
                 memory[i] = now[i];
               }
             });
}

// A product that is no epilogue is a launch of its own, and the kernel that adds it reads two matrices of one size.
TEST_F(Accumulation, NeedsNoMemoryForTheSum) {
  const Tensor x = Tensor::randn({256, 256}), seed = Tensor::ones({256, 256});
  Tensor w = Tensor::randn({256, 256}).requires_grad_();
  const int64_t matrix = 256 * 256 * 4;
  const int threads = num_threads();
  set_num_threads(1);  // each thread may have a scratchpad of the library's at the same time, or not
  const auto taken = [](const auto& run) {
    const int64_t before = allocator::stats().bytes_in_use;
    allocator::reset_peak();
    run();
    return allocator::stats().peak_bytes - before;
  };
  const auto product = [&](const Tensor& t) { return ops::matmul(t, w); };
  for (const compile::Epilogues epilogues : {compile::Epilogues::kNever, compile::Epilogues::kAlways}) {
    auto region = compile::compile(product, {.epilogues = epilogues});
    int64_t bytes = 0;
    const void* memory = nullptr;
    w.set_grad({});
    for (int step = 0; step < 3; ++step) {
      const Tensor y = region(x);
      bytes = taken([&] { y.backward(seed); });
      if (step == 0) memory = w.grad().raw_data();
    }
    EXPECT_EQ(w.grad().raw_data(), memory);
    const int64_t library = taken([&] { ops::matmul(x.transpose(0, 1), seed); }) - matrix;  // its scratchpad
    const int64_t products = epilogues == compile::Epilogues::kNever ? 1 : 0;
    EXPECT_LT(bytes, library + products * matrix + matrix / 2);
  }
  set_num_threads(threads);
}

TEST_F(Accumulation, OfAWeightUsedTwiceSumsItsPartsFirst) {
  four_steps([](Block& b, const Tensor& x) {
    return Tensors{ops::linear(ops::tanh(ops::linear(b.norm(x), b.weight, b.bias)), b.weight, b.bias)};
  });
}

TEST_F(Accumulation, SeesHooksAndTheirReplacements) {
  std::vector<int64_t> ids;
  expect_as_eager([](Block& b, const Tensor& x) { return Tensors{ops::linear(b.norm(x), b.weight, b.bias)}; },
                  [&](Block& block) {
                    int calls = 0;
                    block.weight.register_hook([&](const Tensor& grad) {
                      ++calls;
                      return grad * 0.5;
                    });
                    for (int step = 0; step < 3; ++step)
                      ops::sum(block(Tensor::ones({2, 6}) * (step + 1))[0]).backward();
                    EXPECT_EQ(calls, 3);
                    return Tensors{block.weight.grad(), block.bias.grad()};
                  });
}

TEST_F(Accumulation, LeavesAGradientOfAnotherLayoutItsOwn) {
  expect_as_eager([](Block& b, const Tensor& x) { return Tensors{ops::linear(b.norm(x), b.weight, b.bias)}; },
                  [](Block& block) {
                    NoGrad off;
                    block.weight.set_grad(Tensor::ones({6, 6}).transpose(0, 1));
                    GradMode on(true);
                    ops::sum(block(Tensor::ones({2, 6}))[0]).backward();
                    return Tensors{block.weight.grad()};
                  });
}

TEST_F(Accumulation, DoesNotTouchGradientsOfOtherQuestions) {
  expect_as_eager([](Block& b, const Tensor& x) { return Tensors{ops::linear(b.norm(x), b.weight, b.bias)}; },
                  [](Block& block) {
                    ops::sum(block(Tensor::ones({2, 6}))[0]).backward();
                    const Tensor before = block.weight.grad().clone();
                    const Tensor loss = ops::sum(block(Tensor::ones({2, 6}) * 2.0)[0]);
                    const Tensor leaves[] = {block.weight}, roots[] = {loss};
                    const Tensor grad = autograd::grad(roots, leaves, {}, true, false, false)[0];
                    EXPECT_TRUE(same_bits(before, block.weight.grad()));
                    loss.backward({}, true);
                    loss.backward();
                    return Tensors{grad, block.weight.grad(), block.bias.grad()};
                  });
}

TEST_F(Accumulation, WithSecondDerivativesGoesThroughTheTape) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "gradients with a history");
  expect_as_eager([](Block& b, const Tensor& x) { return Tensors{ops::tanh(ops::linear(x, b.weight, b.bias))}; },
                  [](Block& block) {
                    Tensor x = Tensor::ones({2, 6});
                    ops::sum(block(x)[0]).backward();
                    const Tensor leaves[] = {block.weight};
                    const Tensor roots[] = {ops::sum(block(x)[0])};
                    const Tensor grad = autograd::grad(roots, leaves, {}, true, true, false)[0];
                    ops::sum(grad * grad).backward();
                    return Tensors{block.weight.grad()};
                  });
}

// The user's own sharing: one memory for two gradients, or a gradient that is also what the loss is weighed by.
// The product that adds to .grad in place reads a gradient that is this .grad.
TEST_F(Accumulation, OfAGradientThatIsItsOwnSeed) {
  using Function = std::function<Tensor(const Tensor&, const Tensor&)>;
  const Function product = [](const Tensor& t, const Tensor& w) { return ops::matmul(t, w); };
  // Reads the seed in another order than that in which it writes the sum.
  const Function turned = [](const Tensor& t, const Tensor& w) { return t * w.t(); };
  for (const Function& function : {product, turned}) {
    const Tensor x = Tensor::randn({6, 6}), old = Tensor::randn({6, 6});
    Tensors grads;
    for (const bool compiled : {false, true}) {
      Tensor w = Tensor::ones({6, 6}).requires_grad_();
      w.set_grad(old.clone());
      const auto of_w = [&](const Tensor& t) { return function(t, w); };
      auto region = compile::compile(of_w, {.exact = true, .epilogues = compile::Epilogues::kAlways});
      (compiled ? region(x) : of_w(x)).backward(w.grad());
      grads.push_back(w.grad());
    }
    EXPECT_TRUE(same_bits(grads[0], grads[1]));
  }
}

// The first product reads this .grad in its backward, after the second has added to it. Eager execution refuses that;
// a region has read what it needs before it writes.
TEST_F(Accumulation, OfAGradientThatAnEarlierProductReads) {
  const Tensor old = Tensor::randn({6, 6}), weight = Tensor::randn({6, 6});
  Tensor x = Tensor::randn({6, 6}).requires_grad_();
  Tensors sums, grads;
  for (const bool compiled : {false, true}) {
    Tensor w = weight.clone().requires_grad_();
    w.set_grad(old.clone());
    x.set_grad({});
    const Tensor factor = compiled ? w.grad() : old;
    const auto products = [&](const Tensor& t) { return ops::matmul(ops::matmul(t, factor), w); };
    auto region = compile::compile(products, {.epilogues = compile::Epilogues::kAlways});
    ops::sum(compiled ? region(x) : products(x)).backward();
    sums.push_back(w.grad());
    grads.push_back(x.grad());
  }
  EXPECT_LT(difference(sums[0], sums[1]), 1e-4);
  EXPECT_LT(difference(grads[0], grads[1]), 1e-4);
}

// The sum of what arrives and of the region's own parts is not written over what arrives: it may be the caller's.
TEST_F(Accumulation, LeavesTheCallersGradientAsItIs) {
  const Block::Body several = [](Block& b, const Tensor& x) { return Tensors{x * x + ops::tanh(x) * b.bias}; };
  // Reads nothing in the order of the sum but what arrives: only that could give its memory.
  const Block::Body turned = [](Block& b, const Tensor& x) {
    return Tensors{x.t() * b.state.kept[0] + x.t() * b.state.kept[1]};
  };
  for (const Block::Body& body : {several, turned})
    expect_as_eager(body, [](Block& b) {
      b.state.kept = {Tensor::randn({6, 4}), Tensor::randn({6, 4})};
      const Tensor leaf = test::input(), x = leaf * 1.5, seed = Tensor::randn({6, 4}), before = seed.clone();
      const Tensor roots[] = {ops::sum(b(x)[0]), x.view({6, 4})}, inputs[] = {leaf}, seeds[] = {Tensor::ones({}), seed};
      const Tensors grads = autograd::grad(roots, inputs, seeds);
      EXPECT_TRUE(same_bits(seed, before));
      return grads;
    });
}

// The sum is a write: a backward that needs the gradient as it was says so.
TEST_F(Accumulation, IsSeenByWhatHasSavedTheGradient) {
  for (const bool compiled : {false, true}) {
    const Tensor x = Tensor::randn({6, 6});
    Tensor w = Tensor::randn({6, 6}).requires_grad_(), v = Tensor::randn({6, 6}).requires_grad_();
    w.set_grad(Tensor::randn({6, 6}));
    const auto product = [&](const Tensor& t) { return t * w.t(); };
    auto region = compile::compile(product, {.exact = true});
    const Tensor reader = ops::sum(w.grad() * v);  // its gradient reads w.grad()
    ops::sum(compiled ? region(x) : product(x)).backward();
    EXPECT_THROW(reader.backward(), Error) << compiled;
  }
}

TEST_F(Accumulation, InSharedMemoryIsAsInEagerExecution) {
  const auto body = [](Block& b, const Tensor& x) {
    return Tensors{(x * b.bias) * b.norm.weight + ops::matmul(x, b.weight)};
  };
  expect_as_eager(body, [](Block& block) {
    const Tensor one = Tensor::ones({6});
    NoGrad off;
    block.bias.set_grad(one);
    block.norm.weight.set_grad(one);
    GradMode on(true);
    ops::sum(block(Tensor::arange(12, {kF32}).view({2, 6}))[0]).backward();
    return Tensors{block.bias.grad(), block.norm.weight.grad()};
  });
  expect_as_eager(body, [](Block& block) {
    block.weight.set_grad(Tensor::arange(36, {kF32}).view({6, 6}));
    for (int i = 0; i < 2; ++i) block(Tensor::arange(36, {kF32}).view({6, 6}) * 0.1)[0].backward(block.weight.grad());
    return Tensors{block.weight.grad(), block.bias.grad()};
  });
}

}  // namespace
}  // namespace rondo
