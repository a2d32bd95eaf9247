// CompileOptions::mode: other ways to the same results.
#include <thread>

#include "rondo/compile/jit/tuner.h"
#include "rondo/compile/log.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/cpu/product.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/tests/close.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/compile/temp_folder.h"

namespace rondo {
namespace {

using test::BlockTest;
using test::same_bits;

class Modes : public BlockTest {
 protected:
  struct Step {
    Tensor loss;
    std::vector<Tensor> grads;
  };
  static constexpr nn::GPT2Config kConfig = {
      .vocab_size = 31, .block_size = 24, .n_layer = 2, .n_head = 2, .n_embd = 48};

  // Two training steps without an optimizer; the gradients add up.
  static Step train(nn::GPT2& model, int steps = 2) {
    Step step;
    for (int i = 0; i < steps; ++i) {
      manual_seed(static_cast<uint64_t>(i));
      const Tensor tokens = Tensor::randint(0, 31, {3, 24}), targets = Tensor::randint(0, 31, {3, 24});
      step.loss = model.loss(tokens, targets);
      step.loss.backward();
    }
    for (const Tensor& p : model.parameters()) step.grads.push_back(p.grad());
    return step;
  }
  static Step train_compiled(compile::CompileOptions options) {
    nn::GPT2 model(kConfig, 5);
    const compile::Regions regions = compile::compile_regions(model, options);
    return train(model);
  }
  static Step train_eagerly() {
    nn::GPT2 model(kConfig, 5);
    return train(model);
  }
  static void expect_equal(const Step& a, const Step& b) {
    EXPECT_TRUE(same_bits(a.loss, b.loss));
    ASSERT_EQ(a.grads.size(), b.grads.size());
    for (size_t i = 0; i < a.grads.size(); ++i) EXPECT_TRUE(same_bits(a.grads[i], b.grads[i])) << "parameter " << i;
  }
  static void expect_close(const Step& a, const Step& b) {
    EXPECT_NEAR(a.loss.item(), b.loss.item(), 1e-5);
    ASSERT_EQ(a.grads.size(), b.grads.size());
    for (size_t i = 0; i < a.grads.size(); ++i)
      EXPECT_TRUE(test::is_close(a.grads[i], b.grads[i], {.absolute = 1e-4})) << "parameter " << i;
  }
};

TEST_F(Modes, ReducedOverheadChangesNoBit) {
  expect_equal(train_eagerly(), train_compiled({.exact = true, .mode = compile::Mode::kReduceOverhead}));
}

TEST_F(Modes, ReducedOverheadAllocatesNoWorkingMemoryOnceItHasRun) {
  NoGrad off;
  nn::GPT2 model(kConfig, 5);
  const compile::Regions regions = compile::compile_module(model, {.mode = compile::Mode::kReduceOverhead});
  const Tensor tokens = Tensor::zeros({3, 24}, {kI64});
  const auto allocations_of_a_call = [&] {
    const int64_t before = allocator::stats().bytes_in_use;
    allocator::reset_peak();
    model(tokens);
    return allocator::stats().peak_bytes - before;
  };
  model(tokens);
  nn::GPT2 other(kConfig, 5);
  const compile::Regions usual = compile::compile_module(other, {});
  const auto usual_bytes = [&] {
    const int64_t before = allocator::stats().bytes_in_use;
    allocator::reset_peak();
    other(tokens);
    return allocator::stats().peak_bytes - before;
  };
  usual_bytes();
  EXPECT_LT(allocations_of_a_call(), usual_bytes());
}

TEST_F(Modes, ReducedOverheadServesTwoThreadsAtOnce) {
  NoGrad off;
  nn::GPT2 model(kConfig, 5);
  const Tensor tokens = Tensor::randint(0, 31, {3, 24});
  const Tensor expected = model(tokens);
  const compile::Regions regions = compile::compile_module(model,
                                                           {.exact = true, .mode = compile::Mode::kReduceOverhead});
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      NoGrad off;
      for (int i = 0; i < 20; ++i) wrong += !same_bits(model(tokens), expected);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Modes, TunedResultsAreTheSameWithinRounding) {
  expect_close(train_eagerly(), train_compiled({.mode = compile::Mode::kMaxAutotune}));
  EXPECT_GT(compile::Tuner::instance().measured(), 0);
}

TEST_F(Modes, TunedExactResultsAreTheSame) {
  expect_equal(train_eagerly(), train_compiled({.exact = true, .mode = compile::Mode::kMaxAutotune}));
}

// Tuning runs kernels on made-up operands. In lookups, sums by index and segments some of them are places in memory.
TEST_F(Modes, WhatPicksAndAddsByIndexIsTuned) {
  struct Sums : nn::Module<Sums> {
    std::function<Tensor(const Tensor&, const Tensor&)> body;
    explicit Sums(std::function<Tensor(const Tensor&, const Tensor&)> body) : body(std::move(body)) {}
    Tensor forward(const Tensor& x, const Tensor& at) { return body(x, at); }
  };
  constexpr int64_t kRows = 40, kMany = 300;
  const std::function<Tensor(const Tensor&, const Tensor&)> bodies[] = {
      [](const Tensor& x, const Tensor& at) { return ops::embedding(x, at) * 2.0; },
      [](const Tensor& x, const Tensor& at) {
        return ops::index_add(x, 0, at, ops::tanh(ops::index_select(x, 0, at) * 0.5));
      },
      [](const Tensor& x, const Tensor& at) {
        const Tensor places = ops::expand(ops::reshape(at, {kMany, 1}), {kMany, x.size(1)});
        return ops::scatter_add(Tensor::zeros({kRows, x.size(1)}), 0, places, ops::exp(ops::gather(x, 0, places)));
      },
      // Places that the block computes: in range for its own numbers, and not for made-up ones.
      [](const Tensor& x, const Tensor& at) {
        const Tensor computed = (ops::select(x, 1, 0) * 390.0).to(kI64);
        return ops::index_add(x * 2.0, 0, computed, ops::index_select(x, 0, computed) * x) +
               ops::sum(ops::index_select(x, 0, at));
      },
      [](const Tensor& x, const Tensor&) {
        const Tensor order = ops::argsort(ops::select(x, 1, 1), 0);
        return ops::index_add(x * 2.0, 0, order, ops::index_select(x, 0, order) * x);
      }};
  const Tensor start = Tensor::rand({kRows, 7}) * 0.1, at = Tensor::randint(0, kRows, {kMany});
  for (const auto& body : bodies)
    for (const bool exact : {true, false}) {
      SCOPED_TRACE(testing::Message() << "body " << &body - bodies << (exact ? ", exact" : ""));
      const auto run = [&](bool compiled) {
        Sums block(body);
        if (compiled) compile::compile_module(block, {.exact = exact, .mode = compile::Mode::kMaxAutotune});
        const Tensor x = start.clone().requires_grad_();
        const Tensor y = block(x, at);
        (y * y).sum().backward();
        return std::pair(y, x.grad());
      };
      const auto [eager, eager_grad] = run(false);
      const auto [tuned, tuned_grad] = run(true);
      if (exact) {
        EXPECT_TRUE(same_bits(tuned, eager));
        EXPECT_TRUE(same_bits(tuned_grad, eager_grad));
      } else {
        EXPECT_TRUE(test::is_close(tuned, eager, {.of_largest = 1e-5}));
        EXPECT_TRUE(test::is_close(tuned_grad, eager_grad, {.of_largest = 1e-5}));
      }
    }
}

TEST_F(Modes, AMeasurementIsMadeOnce) {
  const test::TempFolder folder;
  const compile::DiskCacheOptions disk{.folder = folder / "cache"};
  int slow_runs = 0;
  const std::function<void()> candidates[] = {[&] {
                                                ++slow_runs;
                                                std::this_thread::sleep_for(std::chrono::milliseconds(2));
                                              },
                                              [] {}};
  compile::Tuner here(disk);
  EXPECT_EQ(here.fastest("a test", candidates), 1);
  EXPECT_EQ(here.measured(), 1);
  slow_runs = 0;
  EXPECT_EQ(here.fastest("a test", candidates), 1);
  compile::Tuner later(disk);  // another process
  EXPECT_EQ(later.fastest("a test", candidates), 1);
  EXPECT_EQ(slow_runs, 0);
  EXPECT_EQ(here.measured() + later.measured(), 1);
  EXPECT_EQ(later.fastest("another test", candidates), 1);
  EXPECT_EQ(later.measured(), 1);
  // Where there is nothing to choose, nothing is measured.
  EXPECT_EQ(later.fastest("a test", std::span(candidates).first(1)), 0);
  // A choice is a position among so many ways: among fewer it says nothing, here and in another process.
  const std::function<void()> three[] = {candidates[0], candidates[0], candidates[1]},
                              first_wins[] = {candidates[1], candidates[0], candidates[0]};
  EXPECT_EQ(later.fastest("three ways", three), 2);
  EXPECT_LT(later.fastest("three ways", std::span(three).first(2)), 2);
  EXPECT_EQ(later.fastest("the first of three", first_wins), 0);
  compile::Tuner last(disk);
  EXPECT_EQ(last.fastest("the first of three", std::span(first_wins).first(2)), 0);
  EXPECT_EQ(last.measured(), 1);
}

// What is measured of a product is a choice for its layout. In exact mode there is none: other products are other sums.
TEST_F(Modes, AChoiceOfAProductIsOneOfItsLayout) {
  NoGrad off;
  // Large enough for several ways to cut it.
  const Tensor x = Tensor::randn({250, 260}), w = Tensor::randn({260, 260});
  const auto measures = [&](const Tensor& right, bool exact) {
    const int64_t before = compile::Tuner::instance().measured();
    auto product = compile::compile([&](const Tensor& left) { return ops::matmul(left, right); },
                                    {.exact = exact, .mode = compile::Mode::kMaxAutotune});
    product(x);
    return compile::Tuner::instance().measured() - before;
  };
  // Our own product, where it is the faster one, knows one way.
  const MatmulCall call(kF32, 250, 260, 260, {260, 1}, {260, 1}, {260, 1});
  const int64_t choices = default_device().backend != Backend::kCUDA && cpu::Product::get(call)->slices() == 0 ? 0 : 1;
  EXPECT_EQ(measures(w, true), 0);
  EXPECT_EQ(measures(w, false), choices);
  EXPECT_EQ(measures(w, false), 0);
  EXPECT_EQ(measures(w.t(), false), choices);
}

// Nor a choice of other chunks, whose sums are other sums, too.
TEST_F(Modes, ExactModeKeepsTheChunksOfASum) {
  NoGrad off;
  const Tensor x = Tensor::randn({3001, 47});
  const auto choices = [&](bool exact) {
    std::string said;
    compile::log::configure("perf_hints");
    const auto before = compile::log::set_log_sink([&](std::string_view text) { said += text; });
    auto sums = compile::compile([](const Tensor& t) { return ops::sum(t * 2.0, {0}); },
                                 {.exact = exact, .mode = compile::Mode::kMaxAutotune});
    sums(x);
    compile::log::set_log_sink(before);
    compile::log::configure("");
    // "tuned kernel, 2 threads, exact: choice 0 of 1.2 0.9 us"
    const size_t begin = said.find(" of ", said.find("tuned kernel")), end = said.find(" us", begin);
    EXPECT_NE(end, std::string::npos) << said;
    return std::count(said.begin() + static_cast<std::ptrdiff_t>(begin) + 3,
                      said.begin() + static_cast<std::ptrdiff_t>(std::min(end, said.size())), ' ');
  };
  const auto exact = choices(true);
  EXPECT_EQ(choices(false), exact + 2);
}

}  // namespace
}  // namespace rondo
