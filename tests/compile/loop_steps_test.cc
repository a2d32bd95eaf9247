// Long loops over time run in pieces of some steps: as in eager execution in every bit, compiled a number of times that
// does not depend on how many steps there are.
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "rondo/tests/close.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using namespace test;

// A recurrent cell in plain ops: 5 calls a step, one of them the part of x that the step reads.
Tensor cell(Block& b, const Tensor& x, const Tensor& h) { return ops::tanh(ops::matmul(h, b.weight) + x * b.bias); }

struct Loop {
  bool reads_computed = false;  // x is computed in the region
  bool returns_all = true;      // else the last state only
  int64_t throws_at = -1, reads_at = -1, hooks_at = -1;
  bool inner = false;  // the step has a loop of its own

  Tensors operator()(Block& b, const Tensor& given) const {
    const Tensor x = reads_computed ? ops::exp(given * 0.1) : given;
    Tensor h = Tensor::zeros({x.size(0), x.size(2)});
    Tensors all;
    for (int64_t t = 0; t < x.size(1); ++t) {
      h = cell(b, x.select(1, t), h);
      for (int k = 0; inner && k < 3; ++k) h = h * 0.9;
      if (t == throws_at) throw std::runtime_error("at step " + std::to_string(t));
      if (t == reads_at && ops::sum(h).item<float>() == 12345) return {};
      if (t == hooks_at) h.register_hook([&b](const Tensor& g) { return ++b.state.hook_calls, g * 0.5; });
      if (returns_all) all.push_back(h);
      b.state.kept = {h};
    }
    if (returns_all) return {ops::stack(all, 1), h};
    return {h};
  }
};

class LoopsOverTime : public BlockTest {
 protected:
  static Tensors steps(Block& b, int64_t T, int n = 2) {
    Tensors all;
    const Tensor x = input({4, T, 6});
    for (int i = 0; i < n; ++i)  // the second adds to .grad
      for (const Tensor& t : train_step(b, x)) all.push_back(t.detach().clone());
    for (const Tensor& t : b.state.kept) all.push_back(t);
    return all;
  }
  void expect_pieces(int64_t least) const {
    EXPECT_EQ(report.failed_compilations, 0) << report.last_failed_compilation;
    EXPECT_EQ(report.eager_runs, 0);
    EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
    EXPECT_GE(report.loop_pieces, least);
  }
};

TEST_F(LoopsOverTime, EqualEagerExecutionInEveryBit) {
  for (const int64_t T : {20, 33, 64, 71, 100, 130})
    for (const Loop& loop : {Loop{}, Loop{.reads_computed = true}, Loop{.returns_all = false}, Loop{.inner = true}}) {
      SCOPED_TRACE(testing::Message() << "T " << T << loop.reads_computed << loop.returns_all << loop.inner);
      expect_as_eager(loop, [&](Block& b) { return steps(b, T); });
      expect_pieces(T >= 64 ? 2 * ((T - 48) / 16) : 0);
    }
}

TEST_F(LoopsOverTime, AreCompiledOnceForAllLengths) {
  manual_seed(3);
  Block block(Loop{.returns_all = false});
  const compile::Regions regions = compile::compile_module(block);
  const auto report = [&] { return regions.report()[0]; };
  for (const int64_t T : {160, 95, 95}) steps(block, T);  // 95: all lengths of pieces
  const int entries = report().entries, compilations = report().compilations;
  for (const int64_t T : {112, 200, 77, 63, 300}) steps(block, T);
  EXPECT_EQ(report().entries, entries) << report().last_recompile;
  EXPECT_EQ(report().compilations, compilations);
  EXPECT_LE(entries, 7);  // found in; 16 steps behind a state without a gradient, and with one; 8, 4, 2, 1
  EXPECT_EQ(report().graph_breaks, 0) << report().last_break;
}

// Short loops are found once a region has some recordings: each length would be one more.
TEST_F(LoopsOverTime, LengthsThatGrowNeedFewRecordings) {
  expect_as_eager(Loop{.returns_all = false}, [](Block& b) {
    Tensors all;
    for (int64_t T = 1; T <= 40; ++T)
      for (const Tensor& t : steps(b, T, 1)) all.push_back(t);
    return all;
  });
  expect_pieces(40);
  EXPECT_LE(report.fresh_programs, 24) << "programs of their own of the first few, and the pieces of 16, 8, 4, 2, 1";
}

// In default mode the products of a piece's steps are few large ones (transform/merge_products.cc).
TEST_F(LoopsOverTime, MergedProductsAreCloseToEagerOnes) {
  for (const int64_t T : {20, 90}) {
    manual_seed(31);
    Block eager(Loop{}), compiled(Loop{});
    no_grad([&] { eager.weight.mul_(0.25); });  // a state forgets: otherwise rounding grows with every step
    compiled.load_state_dict(eager.state_dict());
    const compile::Regions regions = compile::compile_module(compiled);
    for (int round = 0; round < 2; ++round) {
      manual_seed(77);
      const Tensors want = steps(eager, T);
      manual_seed(77);
      const Tensors got = steps(compiled, T);
      ASSERT_EQ(want.size(), got.size());
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(is_close(got[i], want[i], of_largest_above_1(1e-5))) << i;
      for (size_t i = 0; i < eager.parameters().size(); ++i)
        if (eager.parameters()[i].grad().defined()) {
          EXPECT_TRUE(is_close(compiled.parameters()[i].grad(), eager.parameters()[i].grad(), of_largest_above_1(1e-5)))
              << i;
        }
    }
    EXPECT_LT(regions.report()[0].library_calls, 3 * 20) << "a piece's products are merged";
  }
}

TEST_F(LoopsOverTime, WithoutGradients) {
  expect_as_eager(Loop{}, [](Block& b) {
    const NoGrad off;
    Tensors all = b(input({4, 90, 6}));
    all.push_back(b(input({4, 90, 6}))[0]);
    return all;
  });
  expect_pieces(4);
}

TEST_F(LoopsOverTime, AnExceptionLeavesWhatEagerExecutionLeaves) {
  for (const int64_t at : {70, 79, 80, 81, 87})
    expect_as_eager(Loop{.returns_all = false, .throws_at = at}, [&](Block& b) {
      const Tensor x = input({4, 120, 6});
      EXPECT_THROW(b(x), std::runtime_error);
      Tensors all = b.state.kept;  // the state before the one that threw
      ops::sum(all[0] * all[0]).backward();
      all.push_back(x.grad());
      return all;
    });
}

TEST_F(LoopsOverTime, BreaksInTheMiddle) {
  for (const int64_t at : {40, 72, 80})
    for (const bool reads : {false, true}) {
      const Loop loop{.reads_at = reads ? at : -1, .hooks_at = reads ? -1 : at};
      expect_as_eager(loop, [&](Block& b) {
        Tensors all = steps(b, 121, 1);
        all.push_back(Tensor::full({1}, b.state.hook_calls));
        return all;
      });
      EXPECT_GE(report.graph_breaks, 1);
    }
}

// Two loops, one behind the other, over the same parameters; ops between them.
TEST_F(LoopsOverTime, OneAfterTheOther) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensors first = Loop{}(b, x);
    const Tensors second = Loop{}(b, ops::gelu(first[0]) + x);
    return Tensors{second[0] * 0.5, first[1]};
  };
  expect_as_eager(body, [](Block& b) { return steps(b, 90); });
  expect_pieces(8);
}

// The step reads its part backwards, in windows, and of two tensors.
TEST_F(LoopsOverTime, OtherParts) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor y = x * 2.0;
    Tensor h = x.select(1, 0);
    const int64_t T = x.size(1);
    for (int64_t t = T - 2; t >= 0; --t)
      h = cell(b, x.select(1, t), h) +
          ops::sum(y.slice(1, {t, t + 2}), {1}) * x.slice(1, {T - 1 - t, T - t}).select(1, 0);
    return Tensors{h};
  };
  expect_as_eager(body, [](Block& b) { return steps(b, 90); });
  expect_pieces(6);
}

// What each step adds a row to is another program in each step: such a loop stays whole.
TEST_F(LoopsOverTime, StepsThatGrowStayWhole) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor h = x.select(1, 0), sum = h;
    for (int64_t t = 1; t < 40; ++t) {
      h = cell(b, x.select(1, t), h);
      sum = ops::cat({sum, h}, 0);
    }
    return Tensors{h, ops::sum(sum * sum)};
  };
  expect_as_eager(body, [](Block& b) { return steps(b, 40); });
  EXPECT_EQ(report.loop_pieces, 0);
}

// Layers have their own parameters: a deep model that is one region stays one program.
TEST_F(LoopsOverTime, LayersAreNoSteps) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor h = x;
    for (size_t i = 0; i < 40; ++i) h = ops::tanh(ops::matmul(h, b.state.kept[i]) + h * 0.5) * 0.9;
    return Tensors{h};
  };
  expect_as_eager(body, [](Block& b) {
    for (int i = 0; i < 40; ++i) b.state.kept.push_back(Tensor::randn({6, 6}).requires_grad_());
    Tensors all = train_step(b, input());
    for (const Tensor& w : b.state.kept) all.push_back(w.grad());
    return all;
  });
  EXPECT_EQ(report.loop_pieces, 0);
}

TEST_F(LoopsOverTime, FrozenWeightsAndOnesThatAreReadAfterwards) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensors y = Loop{}(b, x);
    y.push_back(ops::sum(b.weight * b.weight));
    return y;
  };
  for (const bool frozen : {false, true})
    expect_as_eager(body, [&](Block& b) {
      if (frozen) b.weight.requires_grad_(false);
      return steps(b, 83);
    });
  expect_pieces(4);
}

TEST_F(LoopsOverTime, ReplayRecordsThem) {
  manual_seed(3);
  Block block(Loop{.returns_all = false});
  const compile::Regions regions = compile::compile_module(block, {.capture = compile::Capture::kReplay});
  steps(block, 96, 3);
  EXPECT_EQ(regions.report()[0].replays, 0);
}

// A step that throws ends the loop: the error is eager's, and later calls work. So it is in the pieces that are cut
// from the last steps, with something left to record behind them.
TEST_F(LoopsOverTime, AStepThatThrowsEndsTheLoop) {
  if (default_device() != kCPU) GTEST_SKIP() << "a device finds the error late";
  struct Walk : nn::Module<Walk> {
    Tensor table, weight;
    Tensor forward(const Tensor& x, const Tensor& indices) {
      const Tensor square = ops::matmul(table.t(), table);
      Tensor h = x * 0.1;
      for (int64_t t = 0; t < indices.size(0); ++t)
        h = ops::tanh(ops::matmul(h, weight) + ops::embedding(table, indices.select(0, t)));
      return h + ops::mean(square);
    }
  };
  manual_seed(3);
  Walk eager, compiled;
  eager.table = compiled.table = Tensor::randn({9, 8});
  eager.weight = compiled.weight = Tensor::randn({8, 8});
  const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
  const Tensor x = Tensor::randn({4, 8});
  const NoGrad off;
  for (const int64_t n : {37, 50})
    for (const int64_t bad : {-1, 0, 3, 17, 31, 32, 35, 36, -1}) {
      std::vector<int64_t> values(static_cast<size_t>(n), 1);
      if (bad >= 0) values[static_cast<size_t>(bad)] = 99;
      const Tensor indices = Tensor::from<int64_t>(values, {n});
      Tensor expected, found;
      const std::string error = test::error_of([&] { expected = eager(x, indices); });
      EXPECT_EQ(test::error_of([&] { found = compiled(x, indices); }), error);
      EXPECT_EQ(error.empty(), bad < 0) << error;
      if (error.empty()) {
        EXPECT_TRUE(same_bits(found, expected));
      }
    }
  EXPECT_GT(regions.report()[0].loop_pieces, 0);
}

TEST_F(LoopsOverTime, SeveralThreads) {
  manual_seed(3);
  Block block(Loop{.returns_all = false});
  const compile::Regions regions = compile::compile_module(block);
  const Tensor x = Tensor::randn({4, 100, 6});
  const auto answer = [&] {
    const NoGrad off;
    return block(x)[0];
  };
  const Tensor expected = answer();
  std::vector<std::thread> threads;
  std::vector<Tensor> results(4);
  for (Tensor& result : results) threads.emplace_back([&] { result = answer(); });
  for (std::thread& thread : threads) thread.join();
  for (const Tensor& result : results) EXPECT_TRUE(same_bits(result, expected));
}

}  // namespace
}  // namespace rondo
