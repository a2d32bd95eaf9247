// Recurrent layers as users write them, a C++ loop over time: plain, GRU and LSTM cells, in both directions, with
// dropout in each step and with sequences of several lengths. Compiled in pieces of some steps, whatever the length is;
// in exact mode, as in eager execution in every bit.
#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/stages/stages.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"

namespace rondo {
namespace {

using test::same_bits;
using Tensors = std::vector<Tensor>;

enum class Kind { kPlain, kGru, kLstm };
constexpr int kGates[] = {1, 3, 4};

struct Cell : nn::Module<Cell> {
  Cell(Kind kind, int64_t C) : kind(kind), C(C) {}
  Kind kind;
  int64_t C;
  nn::Linear x_gates = child("x_gates", C, kGates[static_cast<int>(kind)] * C);
  nn::Linear h_gates = child("h_gates", C, kGates[static_cast<int>(kind)] * C);

  // x: (B, C). `state`: h, and c of an LSTM.
  Tensors forward(const Tensor& x, const Tensors& state) {
    const Tensor &h = state[0], gx = x_gates(x), gh = h_gates(h);
    if (kind == Kind::kPlain) return {ops::tanh(gx + gh)};
    if (kind == Kind::kLstm) {
      const Tensors gates = ops::chunk(gx + gh, 4, 1);
      const Tensor c = ops::sigmoid(gates[1]) * state[1] + ops::sigmoid(gates[0]) * ops::tanh(gates[2]);
      return {ops::sigmoid(gates[3]) * ops::tanh(c), c};
    }
    const Tensors of_x = ops::chunk(gx, 3, 1), of_h = ops::chunk(gh, 3, 1);
    const Tensor reset = ops::sigmoid(of_x[0] + of_h[0]), update = ops::sigmoid(of_x[1] + of_h[1]);
    const Tensor fresh = ops::tanh(of_x[2] + reset * of_h[2]);
    return {fresh + update * (h - fresh)};
  }
};

struct Options {
  Kind kind = Kind::kPlain;
  bool bidirectional = false, drops = false, has_lengths = false;
  friend std::ostream& operator<<(std::ostream& out, const Options& o) {
    return out << "kind " << static_cast<int>(o.kind) << (o.bidirectional ? " bidirectional" : "")
               << (o.drops ? " drops" : "") << (o.has_lengths ? " has lengths" : "");
  }
};

struct Layer : nn::Module<Layer> {
  Layer(Options options, int64_t C) : options(options), C(C) {}
  Options options;
  int64_t C;
  Cell forth = child("forth", options.kind, C), back = child("back", options.kind, C);
  nn::Dropout dropout = child("dropout", 0.3);

  // x: (B, T, C). lengths: i64 (B, 1).
  Tensor forward(const Tensor& x, const Tensor& lengths) {
    const Tensor all = run(forth, x, lengths, false);
    return options.bidirectional ? ops::cat({all, run(back, x, lengths, true)}, 2) : all;
  }
  Tensor run(Cell& cell, const Tensor& x, const Tensor& lengths, bool backwards) {
    const int64_t T = x.size(1);
    Tensors state(options.kind == Kind::kLstm ? 2 : 1, Tensor::zeros({x.size(0), C})), all(static_cast<size_t>(T));
    for (int64_t i = 0; i < T; ++i) {
      const int64_t t = backwards ? T - 1 - i : i;
      Tensors next = cell(x.select(1, t), state);
      if (options.drops) next[0] = dropout(next[0]);
      if (options.has_lengths) {
        const Tensor goes_on = ops::greater(lengths, t);
        for (size_t k = 0; k < next.size(); ++k) next[k] = ops::where(goes_on, next[k], state[k]);
      }
      state = next;
      all[static_cast<size_t>(t)] = state[0];
    }
    return ops::stack(all, 1);
  }
};

// Result and gradients of two steps, the second of which adds to the gradients of the first.
Tensors two_steps(Layer& layer, int64_t T) {
  constexpr int64_t kBatch = 4;
  layer.zero_grad();
  Tensors results;
  manual_seed(5 + static_cast<uint64_t>(T));
  for (int i = 0; i < 2; ++i) {
    const Tensor x = Tensor::randn({kBatch, T, layer.C}).requires_grad_();
    const Tensor y = layer(x, Tensor::randint(1, T + 1, {kBatch, 1}));
    ops::sum(y * Tensor::rand(y.sizes())).backward();
    results.insert(results.end(), {y.detach(), x.grad()});
  }
  for (const Tensor& p : layer.parameters()) results.push_back(p.grad().defined() ? p.grad().clone() : Tensor());
  return results;
}

class RecurrentLayers : public testing::TestWithParam<Options> {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    manual_seed(3);
  }
  static constexpr int64_t kWidth = 8;
};

TEST_P(RecurrentLayers, EqualEagerExecutionInEveryBitAndRunInPieces) {
  Layer eager(GetParam(), kWidth), compiled(GetParam(), kWidth);
  compiled.load_state_dict(eager.state_dict());
  const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
  const auto report = [&] { return regions.report()[0]; };
  const auto expect_equal = [&](int64_t T) {
    SCOPED_TRACE(T);
    const Tensors want = two_steps(eager, T), got = two_steps(compiled, T);
    ASSERT_EQ(want.size(), got.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(want[i].defined(), got[i].defined()) << i;
      if (want[i].defined()) {
        EXPECT_TRUE(same_bits(want[i], got[i])) << "result " << i;
      }
    }
  };
  expect_equal(100);  // learns the loops
  const int64_t directions = GetParam().bidirectional ? 2 : 1;
  for (const int64_t T : {1, 15, 16, 17, 33, 100}) {
    const int64_t before = report().loop_pieces;
    expect_equal(T);
    EXPECT_GE(report().loop_pieces - before, 2 * directions * (T / 16)) << T;
  }
  EXPECT_EQ(report().graph_breaks, 0) << report().last_break;
  EXPECT_EQ(report().eager_runs, 0) << report().last_failed_compilation;
  const compile::RegionReport known = report();
  EXPECT_GT(known.kernels, 0);
  EXPECT_GT(known.library_calls, 0);
  for (const int64_t T : {33, 100, 49, 80}) expect_equal(T);
  EXPECT_EQ(report().compilations, known.compilations) << report().last_recompile;
}

// Lengths share code, and what shares code is no compilation: 60 of them stay below the recompile limit. A second
// region of the same layer needs no code of its own.
TEST(RecurrentLengths, StayBelowTheRecompileLimit) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  for (const bool again : {false, true}) {
    SCOPED_TRACE(again);
    manual_seed(3);
    Layer layer({.kind = Kind::kLstm}, 8);
    const compile::Regions regions = compile::compile_module(layer);
    for (int64_t k = 0; k < 60; ++k) two_steps(layer, 5 + (k * 97 + 7) % 252);
    const compile::RegionReport report = regions.report()[0];
    EXPECT_EQ(report.eager_runs, 0) << report.last_recompile;
    EXPECT_GE(report.entries, 60);
    EXPECT_LE(report.compilations, report.fresh_programs);
    if (again) {
      EXPECT_EQ(report.fresh_programs, 0);
    }
  }
}

TEST_P(RecurrentLayers, DefaultModeIsCloseToEagerExecution) {
  Layer eager(GetParam(), kWidth), compiled(GetParam(), kWidth);
  compiled.load_state_dict(eager.state_dict());
  const compile::Regions regions = compile::compile_module(compiled);
  for (const int64_t T : {100, 33, 7}) {
    const Tensors want = two_steps(eager, T), got = two_steps(compiled, T);
    for (size_t i = 0; i < got.size(); ++i)
      if (want[i].defined()) {
        EXPECT_TRUE(test::is_close(got[i], want[i], test::of_largest_above_1(1e-5))) << "T " << T << ", result " << i;
      }
  }
}

// The inputs' share of the gates is one product for all steps; the states' shares are one for each.
TEST(RecurrentProducts, ForwardMultipliesAllInputsAtOnce) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  const auto library_calls = [](bool exact) {
    const NoGrad off;
    Layer layer({.kind = Kind::kLstm}, 8);
    const compile::Regions regions = compile::compile_module(layer, {.exact = exact});
    layer(Tensor::randn({4, 12, 8}), Tensor::zeros({4, 1}, {kI64}));
    return regions.report()[0].library_calls;
  };
  constexpr int kStack = 1;
  EXPECT_EQ(library_calls(true), 12 + 12 + kStack);
  EXPECT_EQ(library_calls(false), 12 + 2 + kStack);  // the inputs side by side, and their product
  compile::disable_stages("products");
  EXPECT_EQ(library_calls(false), 12 + 12 + kStack);
  compile::disable_stages("");
}

struct Scan : nn::Module<Scan> {
  nn::Linear next = child("next", 4, 4);

  // x: (B, T, 4).
  Tensor forward(const Tensor& x) {
    Tensor h = x.select(1, 0) * 0.0;
    Tensors all;
    for (int64_t t = 0; t < x.size(1); ++t) all.push_back(h = ops::tanh(x.select(1, t) + next(h)));
    return ops::stack(all, 1);
  }
};

// A short sequence is recorded in one piece. A long one then makes the loop known, which runs in pieces from there on.
TEST(RecurrentReplay, AShortSequenceIsVerifiedAfterALongOne) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  manual_seed(8);
  Scan layer, eager;
  eager.load_state_dict(layer.state_dict());
  const auto regions = compile::compile_module(layer, {.exact = true, .capture = compile::Capture::kVerify});
  for (const int64_t T : {7, 64, 7, 64, 7}) {
    const Tensor x = Tensor::randn({2, T, 4});
    EXPECT_TRUE(same_bits(layer(x), eager(x))) << T;
  }
  const compile::RegionReport report = regions.report()[0];
  EXPECT_GT(report.loop_pieces, 0);
  EXPECT_EQ(report.graph_breaks, 0);
}

INSTANTIATE_TEST_SUITE_P(Cells, RecurrentLayers,
                         testing::Values(Options{.kind = Kind::kPlain}, Options{.kind = Kind::kGru},
                                         Options{.kind = Kind::kLstm},
                                         Options{.kind = Kind::kGru, .bidirectional = true},
                                         Options{.kind = Kind::kLstm, .drops = true},
                                         Options{.kind = Kind::kPlain, .has_lengths = true},
                                         Options{.kind = Kind::kLstm, .bidirectional = true, .has_lengths = true}));

}  // namespace
}  // namespace rondo
