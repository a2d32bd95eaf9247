// Note [Collectives are effects] (runtime/op/op.h): a compiled program makes every collective that was recorded, once
// and in order, even if nothing reads its result. In default mode independent neighbours are one message.
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include "rondo/compile/ir/graph.h"
#include "rondo/compile/stages/planted.h"
#include "rondo/compile/stages/stages.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/like_ranks.h"

namespace rondo {
namespace {

using Messages = std::vector<int64_t>;

class Collectives : public test::BlockTest {
 protected:
  using Fn = std::function<Tensor(test::LikeRanks&, const Tensor&)>;
  struct Run {
    Tensor y, dx;
    Messages messages;
  };
  struct Layer : nn::Module<Layer> {
    std::function<Tensor(const Tensor&)> fn;
    Tensor forward(const Tensor& x) { return fn(x); }
  };

  // Forward and backward of x (4, 6), eagerly where there are no options.
  static Run run(const Fn& fn, std::optional<compile::CompileOptions> options) {
    test::LikeRanks ranks(3);
    Layer layer;
    layer.fn = [&](const Tensor& x) { return fn(ranks, x); };
    std::optional<compile::Regions> regions;
    if (options) regions.emplace(compile::compile_module(layer, *options));
    manual_seed(2);
    Tensor x = Tensor::randn({4, 6});
    x.requires_grad_();
    Run result;
    for (int call = 0; call < 2; ++call) {  // recorded, then followed
      x.set_grad(Tensor());
      ranks.messages.clear();
      const Tensor y = layer(x);
      ops::sum(y * y).backward();
      result = {y.detach(), x.grad(), ranks.messages};
    }
    if (regions) {
      const compile::RegionReport report = regions->report()[0];
      EXPECT_EQ(report.eager_runs, 0);
      EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
      EXPECT_GT(report.library_calls, 0);
    }
    return result;
  }
  static void expect_eagers_messages(const Fn& fn, const Messages& expected, compile::CompileOptions options = {}) {
    options.exact = true;
    const Run eager = run(fn, {}), compiled = run(fn, options);
    EXPECT_EQ(eager.messages, expected);
    EXPECT_EQ(compiled.messages, expected);
    EXPECT_TRUE(test::same_bits(compiled.y, eager.y));
    EXPECT_TRUE(test::same_bits(compiled.dx, eager.dx));
  }
};

TEST_F(Collectives, RunInOrderForwardAndBackward) {
  // Sizes that tell them apart: a (6), b (4); backward begins with the later one.
  expect_eagers_messages(&test::two_norms, {6, 4, 4, 6});
}

TEST_F(Collectives, InDefaultModeNeighboursAreOneMessage) {
  const Run eager = run(&test::two_norms, {}), compiled = run(&test::two_norms, compile::CompileOptions{});
  EXPECT_EQ(compiled.messages, (Messages{10, 10}));
  for (const auto& [a, b] : {std::pair(eager.y, compiled.y), std::pair(eager.dx, compiled.dx)})
    EXPECT_LT(ops::max(ops::abs(a - b)).item(), 1e-4 * ops::max(ops::abs(a)).item());
  compile::disable_stages("collectives");
  EXPECT_EQ(run(&test::two_norms, compile::CompileOptions{}).messages, eager.messages);
  compile::disable_stages("");
}

TEST_F(Collectives, OneThatReadsOfAnotherIsAMessageOfItsOwn) {
  const Fn fn = [](test::LikeRanks& ranks, const Tensor& x) {
    const Tensor mean = ops::all_reduce_sum(ops::sum(x, {0}), ranks) / 12.0;
    const Tensor var = ops::all_reduce_sum(ops::sum(ops::square(x - mean), {0}), ranks) / 12.0;
    return (x - mean) / ops::sqrt(var + 1e-5);
  };
  expect_eagers_messages(fn, {6, 6, 6, 6});
  EXPECT_EQ(run(fn, compile::CompileOptions{}).messages, (Messages{6, 6, 6, 6}));
}

// Equal calls with equal operands are two messages, of which the other ranks know.
TEST_F(Collectives, EqualOnesAndUnusedOnesRun) {
  const Fn fn = [](test::LikeRanks& ranks, const Tensor& x) {
    const Tensor sum = ops::sum(x, {0});
    const Tensor a = ops::all_reduce_sum(sum, ranks), b = ops::all_reduce_sum(sum, ranks);
    ops::all_reduce_sum(ops::sum(x, {1}), ranks);
    return x * a * b;
  };
  expect_eagers_messages(fn, {6, 6, 4, 6, 6});
  EXPECT_EQ(run(fn, compile::CompileOptions{}).messages, (Messages{16, 12}));
}

TEST_F(Collectives, BackwardDoesNotRepeatThem) {
  const Fn fn = [](test::LikeRanks& ranks, const Tensor& x) {
    return ops::exp(ops::all_reduce_sum(ops::tanh(x), ranks)) * x;
  };
  using enum compile::Recompute;
  for (const compile::Recompute recompute : {kNone, kAuto, kFull, kBudget})
    expect_eagers_messages(fn, {24, 24}, {.recompute = recompute});
}

// A bad index among collectives. As in eager execution, those behind it are not sent, and those before it are sent
// once, though the recording runs again, to find the draws behind the error and for the writes.
TEST_F(Collectives, ARunThatFailsRepeatsNone) {
  struct Layer : nn::Module<Layer> {
    Tensor& count = buffer("count", Tensor::zeros({6}));
    test::LikeRanks* ranks = nullptr;
    bool draws = false, writes = false;
    Tensor forward(const Tensor& x, const Tensor& index) {
      Tensor h = ops::all_reduce_sum(ops::sum(x, {0}), *ranks) + x;
      if (writes) no_grad([&] { count.add_(ops::sum(h, {0})); });
      if (draws) h = h + ops::all_reduce_sum(Tensor::rand({4, 1}) + h, *ranks);
      h = ops::index_select(h, 0, index);
      if (draws) h = h + Tensor::rand({2, 6});
      h = h + ops::all_reduce_sum(ops::sum(h), *ranks);
      return draws ? h + Tensor::rand({2, 6}) : h;
    }
  };
  struct Seen {
    Messages messages;
    Tensor count, next;
    std::string error;
  };
  const auto run = [](bool draws, bool writes, std::optional<compile::CompileOptions> options) {
    test::LikeRanks ranks(3);
    Layer layer;
    layer.ranks = &ranks;
    layer.draws = draws;
    layer.writes = writes;
    if (options) compile::compile_module(layer, *options);
    manual_seed(3);
    std::vector<Seen> seen;
    for (const int64_t last : {1, 7, 2, 7}) {
      ranks.messages.clear();
      const Tensor index = Tensor::from<int64_t>({0, last}, {2});
      Seen now;
      now.error = test::error_of([&] { layer(Tensor::ones({4, 6}).requires_grad_(), index); });
      EXPECT_EQ(now.error.find("is out of range") != std::string::npos, last == 7) << now.error;
      now.messages = ranks.messages;
      now.count = layer.count.clone();
      now.next = Tensor::rand({3});
      seen.push_back(std::move(now));
    }
    return seen;
  };
  for (const compile::Capture capture : {compile::Capture::kRecord, compile::Capture::kReplay})
    for (const bool exact : {true, false})
      for (const bool draws : {false, true})
        for (const bool writes : {false, true}) {
          SCOPED_TRACE(testing::Message() << "capture " << static_cast<int>(capture) << ", exact " << exact
                                          << ", draws " << draws << ", writes " << writes);
          const std::vector<Seen> eager = run(draws, writes, {});
          EXPECT_EQ(eager[1].messages, draws ? (Messages{6, 24}) : Messages{6});
          const std::vector<Seen> compiled = run(draws, writes,
                                                 compile::CompileOptions{.exact = exact, .capture = capture});
          for (size_t call = 0; call < eager.size(); ++call) {
            EXPECT_EQ(compiled[call].messages, eager[call].messages) << "call " << call;
            EXPECT_TRUE(test::same_bits(compiled[call].next, eager[call].next)) << "call " << call;
            if (exact) {
              EXPECT_TRUE(test::same_bits(compiled[call].count, eager[call].count)) << "call " << call;
            }
          }
        }
}

// Nor does a run with a collective that throws: the others may wait for it in vain, and once is enough.
TEST_F(Collectives, OneThatThrowsIsNotTriedAgain) {
  class Broken final : public Communicator {
   public:
    void all_reduce_sum(const Tensor&) override {
      if (++calls == 2) throw Error("a peer is gone");
    }
    int calls = 0;
  };
  const auto offset_and_calls = [](std::optional<compile::Capture> capture) {
    struct Layer : nn::Module<Layer> {
      Tensor& count = buffer("count", Tensor::zeros({6}));
      Broken broken;
      Tensor forward(const Tensor& x) {
        const Tensor h = ops::all_reduce_sum(x + Tensor::rand({6}), broken);
        no_grad([&] { count.add_(h); });
        return ops::all_reduce_sum(h * 2.0, broken) + Tensor::rand({6});
      }
    } layer;
    if (capture) compile::compile_module(layer, {.exact = true, .capture = *capture});
    manual_seed(3);
    EXPECT_EQ(test::error_of([&] { layer(Tensor::ones({6}).requires_grad_()); }).find("a peer is gone"), 0u);
    return std::tuple(layer.broken.calls, default_generator().offset(), layer.count.to_vector<float>());
  };
  EXPECT_EQ(std::get<0>(offset_and_calls({})), 2);
  for (const compile::Capture capture : {compile::Capture::kRecord, compile::Capture::kReplay})
    EXPECT_EQ(offset_and_calls(capture), offset_and_calls({}));
}

// ---- RONDO_CHECK=units

class CheckedCollectives : public Collectives {
 protected:
  void SetUp() override {
    Collectives::SetUp();
    setenv("RONDO_REPRODUCERS", folder_.path().c_str(), 1);
    compile::set_check_units(true);
  }
  void TearDown() override {
    compile::set_check_units(false);
    compile::misrewrite_for_tests = nullptr;
    unsetenv("RONDO_REPRODUCERS");
    Collectives::TearDown();
  }

 private:
  test::TempFolder folder_;
};

TEST_F(CheckedCollectives, RunOnce) {
  expect_eagers_messages(&test::two_norms, {6, 4, 4, 6});
  EXPECT_EQ(run(&test::two_norms, compile::CompileOptions{}).messages, (Messages{10, 10}));
  // Its gradient is 0 but for rounding, so the graph runs several times.
  const Fn cancels = [](test::LikeRanks& ranks, const Tensor& x) {
    const Tensor mean = ops::all_reduce_sum(ops::sum(x, {0}), ranks) / 12.0;
    return ops::tanh((x - mean) * 1e3 - x * 1e3 + mean * 1e3 + x);
  };
  EXPECT_EQ(run(cancels, compile::CompileOptions{}).messages, run(cancels, {}).messages);
}

// A pass makes another function of what is sent: all sums are of wrong numbers, in both.
void add_for_subtract(std::string_view pass, compile::Graph& graph) {
  if (pass != "segments") return;
  for (compile::GraphNode& node : graph.nodes)
    if (node.op->name == std::string_view("sub")) node.op = find_op("add");
}
TEST_F(CheckedCollectives, AWrongOperandIsFound) {
  const Fn fn = [](test::LikeRanks& ranks, const Tensor& x) { return ops::all_reduce_sum(x * 2.0 - x, ranks) * 0.5; };
  for (const bool exact : {true, false}) {
    compile::misrewrite_for_tests = &add_for_subtract;
    const std::string message = test::error_of<InternalError>(
        [&] { run(fn, compile::CompileOptions{.exact = exact}); });
    compile::misrewrite_for_tests = nullptr;
    EXPECT_NE(message.find("the operand of all_reduce_sum"), std::string::npos) << message;
    EXPECT_NE(message.find("the pass \"segments\""), std::string::npos) << message;
  }
}

// What becomes one message is two results, each in memory of its own.
TEST_F(Collectives, ResultsThatTheCallerGetsDoNotShareMemory) {
  test::LikeRanks ranks;
  struct Pair : nn::Module<Pair> {
    test::LikeRanks* ranks = nullptr;
    std::vector<Tensor> forward(const Tensor& x) {
      return {ops::all_reduce_sum(ops::sum(x, {0}), *ranks), ops::all_reduce_sum(ops::sum(x, {1}), *ranks)};
    }
  } pair;
  pair.ranks = &ranks;
  const compile::Regions regions = compile::compile_module(pair);
  const NoGrad off;
  const Tensor x = Tensor::randn({4, 6});
  std::vector<Tensor> sums = pair(x);
  EXPECT_EQ(ranks.messages, Messages{10});
  EXPECT_FALSE(sums[0].storage() == sums[1].storage());
  const Tensor before = sums[1].clone();
  sums[0].zero_();
  EXPECT_TRUE(test::same_bits(sums[1], before));
  EXPECT_EQ(sums[1].version(), 0);
}

TEST_F(Collectives, LargeOnesAreNotPutTogether) {
  const Fn fn = [](test::LikeRanks& ranks, const Tensor& x) {
    const Tensor wide = ops::reshape(x, {24, 1}) * Tensor::ones({1, 5000});
    const Tensor large = ops::all_reduce_sum(wide, ranks), small = ops::all_reduce_sum(ops::sum(x, {1}), ranks);
    return x + ops::sum(large) + ops::sum(small);
  };
  EXPECT_EQ(run(fn, compile::CompileOptions{}).messages, (Messages{120000, 4, 4, 120000}));
}

TEST_F(Collectives, ADestroyedCommunicatorIsAnError) {
  auto ranks = std::make_unique<test::LikeRanks>();
  const Tensor x = Tensor::ones({3}).requires_grad_();
  const Tensor y = ops::all_reduce_sum(x, *ranks);
  ranks = nullptr;
  EXPECT_NE(test::error_of([&] { ops::sum(y).backward(); }).find("has been destroyed"), std::string::npos);
}

TEST_F(Collectives, IntegersAreAnError) {
  test::LikeRanks ranks;
  EXPECT_NE(test::error_of([&] { ops::all_reduce_sum(Tensor::ones({3}, kI64), ranks); }), "");
  EXPECT_TRUE(ranks.messages.empty());
}

}  // namespace
}  // namespace rondo
