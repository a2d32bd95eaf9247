// What regions may compile, and what they do about errors: stances, limits, backwards of other gradients, bad data.
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "rondo/compile/explain.h"
#include "rondo/compile/log.h"
#include "rondo/compile/region/region.h"
#include "rondo/compile/stages/planted.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using namespace test;
using compile::Stance;

class Recompile : public BlockTest {
 protected:
  void TearDown() override {
    compile::set_stance(Stance::kDefault);
    BlockTest::TearDown();
  }
};

// A constant makes each call a recording and a kernel of its own.
Tensors steps_body(Block& b, const Tensor& x) {
  Tensor y = x * b.bias;
  for (int64_t i = 0; i < b.state.step; ++i) y = ops::tanh(y + x);
  return {y};
}

TEST_F(Recompile, FailOnRecompileFailsTheSameCallAgain) {
  Block block(steps_body);
  const compile::Regions regions = compile::compile_module(block);
  block.state.step = 1;
  block(input());
  block.state.step = 21;
  compile::set_stance(Stance::kFailOnRecompile);
  for (int i = 0; i < 3; ++i)
    EXPECT_NE(error_of([&] { block(input()); }).find("kFailOnRecompile"), std::string::npos) << i;
  EXPECT_EQ(regions.report()[0].compilations, 1);
  compile::set_stance(Stance::kDefault);
  block(input());
  EXPECT_EQ(regions.report()[0].compilations, 2);
  compile::set_stance(Stance::kFailOnRecompile);
  block(input());  // is known now
}

Tensors many_outputs(Block& b, const Tensor& x) {
  const Tensor h = ops::tanh(x * b.bias) * 1.7;
  return {h, ops::exp(h) * x, ops::sigmoid(h) + b.bias, ops::sum(h * x, {1})};
}
// Goes backward through the outputs that `mask` names.
Tensor go(Block& block, unsigned mask, const Tensor& x) {
  const Tensors y = block(x);
  Tensor loss;
  for (size_t i = 0; i < y.size(); ++i)
    if (mask >> i & 1u) loss = loss.defined() ? loss + ops::sum(y[i]) : ops::sum(y[i]);
  loss.backward();
  return x.grad();
}

TEST_F(Recompile, BackwardsOfOtherGradientsAreCompilations) {
  const MeansToRun eagerly(Eagerly::kAll, "the limit is reached");
  Block eager(many_outputs), block(many_outputs);
  block.load_state_dict(eager.state_dict());
  const compile::Regions regions = compile::compile_module(block, {.exact = true, .recompile_limit = 3});
  for (unsigned mask = 15; mask > 0; --mask) {
    const Tensor x = input();
    EXPECT_TRUE(same_bits(go(eager, mask, x.detach().requires_grad_()), go(block, mask, x))) << mask;
    EXPECT_TRUE(same_bits(eager.bias.grad(), block.bias.grad())) << mask;
  }
  const compile::RegionReport report = regions.report()[0];
  EXPECT_EQ(report.compilations, 3);
  EXPECT_EQ(report.entries, 1);
  EXPECT_EQ(report.other_backwards, 2);
  EXPECT_EQ(report.eager_runs, 12);  // of the 15, the usual one and two more are compiled
  EXPECT_NE(report.last_recompile.find("gradient"), std::string::npos) << report.last_recompile;
}
TEST_F(Recompile, BackwardsOfOtherGradientsObeyTheStance) {
  const MeansToRun eagerly(Eagerly::kAll, "the stance");
  Block block(many_outputs), eager(many_outputs);
  block.load_state_dict(eager.state_dict());
  const compile::Regions regions = compile::compile_module(block, {.exact = true});
  go(block, 15, input());
  const int before = regions.report()[0].compilations;  // 0 if another test has left the code
  compile::set_stance(Stance::kFailOnRecompile);
  for (int i = 0; i < 2; ++i)
    EXPECT_NE(error_of([&] { go(block, 5, input()); }).find("kFailOnRecompile"), std::string::npos) << i;
  compile::set_stance(Stance::kEagerOnRecompile);
  block.zero_grad();
  const Tensor x = input();
  EXPECT_TRUE(same_bits(go(eager, 5, x.detach().requires_grad_()), go(block, 5, x)));
  EXPECT_EQ(regions.report()[0].compilations, before);
}
// A loop over time has an output for each step; what says which of them got a gradient must not list them all.
TEST_F(Recompile, ManyOutputsAreNamedByRanges) {
  constexpr size_t kSteps = 140;
  Block block([](Block& b, const Tensor& x) {
    Tensors all;
    for (size_t i = 0; i < kSteps; ++i) all.push_back(x * static_cast<float>(i + 1) + b.bias);
    return all;
  });
  const compile::Regions regions = compile::compile_module(block, {});
  const auto why = [&](auto takes) {
    const Tensors y = block(input());
    Tensor loss;
    for (size_t i = 0; i < kSteps; ++i)
      if (takes(i)) loss = loss.defined() ? loss + ops::sum(y[i]) : ops::sum(y[i]);
    loss.backward();
    return regions.report()[0].last_recompile;
  };
  EXPECT_EQ(why([](size_t i) { return i != 70; }), "backward: a gradient arrives for outputs [0-69, 71-139] of 140");
  EXPECT_EQ(why([](size_t i) { return i % 2 == 1; }),
            "backward: a gradient arrives for outputs [1, 3, 5, 7, 9, 11, 13, 15, and 62 ranges more] of 140");
  EXPECT_LT(regions.summary().size(), 300u);
}
// As many as there are, only so many are kept.
TEST_F(Recompile, BackwardsOfOtherGradientsAreBounded) {
  Block block(many_outputs);
  const compile::Regions regions = compile::compile_module(block, {.max_entries = 3, .recompile_limit = 1000});
  for (unsigned mask = 15; mask > 0; --mask) go(block, mask, input());
  EXPECT_EQ(regions.report()[0].other_backwards, 14);
  EXPECT_LE(regions.regions()[0]->entries()[0]->backwards().size(), 4u);
}

TEST_F(Recompile, TheBackwardThatWasUsedLongestAgoGoesFirst) {
  Block block(many_outputs);
  const compile::Regions regions = compile::compile_module(block, {.max_entries = 2, .recompile_limit = 1000});
  const auto compiled_after = [&](unsigned mask) {
    block.zero_grad();
    go(block, mask, input());
    return regions.report()[0].other_backwards;
  };
  const std::pair<unsigned, int> calls[] = {{1, 1}, {2, 2}, {1, 2}, {4, 3}, {1, 3}, {2, 4}};  // 4 drives 2 away
  for (const auto& [mask, expected] : calls) EXPECT_EQ(compiled_after(mask), expected) << mask;
}

// Sizes that come in turns: the recordings that are kept are there when their turn comes again. When other sizes come
// to stay, they get their place.
TEST_F(Recompile, MoreRecordingsThanMaxEntriesKeepTheMostUsed) {
  Block eager(many_outputs), block(many_outputs);
  block.load_state_dict(eager.state_dict());
  const compile::Regions regions = compile::compile_module(block,
                                                           {.exact = true, .max_entries = 8, .recompile_limit = 1000});
  const auto pass = [&](int64_t first, int64_t last) {
    for (int64_t rows = first; rows <= last; ++rows) {
      const Tensor x = Tensor::randn({rows, 6}).requires_grad_();
      EXPECT_TRUE(same_bits(go(eager, 15, x.detach().requires_grad_()), go(block, 15, x))) << rows;
    }
    return regions.report()[0];
  };
  EXPECT_EQ(pass(1, 8).forgotten, 0);
  EXPECT_EQ(regions.summary().find("dropped"), std::string::npos);
  EXPECT_EQ(pass(9, 12).forgotten, 4);
  const int once = regions.report()[0].entries;
  EXPECT_EQ(once, 12);
  for (int i = 0; i < 9; ++i) pass(1, 12);
  EXPECT_LE(regions.report()[0].entries, once + 9 * 6);  // seven stay; without that all twelve are made in every pass
  EXPECT_EQ(regions.report()[0].forgotten, regions.report()[0].entries - 8);
  EXPECT_NE(regions.summary().find("dropped earlier (more than CompileOptions::max_entries)"), std::string::npos);
  EXPECT_NE(to_text(compile::explain(regions)).find("recordings were dropped"), std::string::npos);
  for (int i = 0; i < 20; ++i) pass(21, 24);
  const int settled = regions.report()[0].entries;
  for (int i = 0; i < 5; ++i) pass(21, 24);
  EXPECT_EQ(regions.report()[0].entries, settled);
}

TEST_F(Recompile, ABackwardThatFailedIsNotTriedAgain) {
  const MeansToRun eagerly(Eagerly::kFailing, "a failure is planted");
  Block block(many_outputs);
  const compile::Regions regions = compile::compile_module(block);
  go(block, 15, input());
  setenv("RONDO_REPRODUCERS", "off", 1);
  compile::plant_failure("differentiate");
  for (int i = 0; i < 3; ++i) {
    block.zero_grad();
    go(block, 5, input());
  }
  compile::plant_failure("");
  unsetenv("RONDO_REPRODUCERS");
  EXPECT_EQ(regions.report()[0].failed_compilations, 1);
  EXPECT_EQ(regions.report()[0].eager_runs, 3);
}

// One region, two threads, each with inputs of its own: the same recordings and backwards are wanted at the same time.
TEST_F(Recompile, TwoThreadsWantTheSameBackwards) {
  const auto body = [](Block&, const Tensor& x) {
    const Tensor h = ops::tanh(x) * 1.7;
    return Tensors{h, ops::exp(h) * x, ops::sigmoid(h), ops::sum(h * x, {1})};
  };
  Block eager(body), block(body);
  const compile::Regions regions = compile::compile_module(block, {.exact = true, .max_entries = 2});
  Tensors expected, results[2];
  std::vector<Tensor> inputs;
  for (unsigned mask = 15; mask > 0; --mask) {
    inputs.push_back(Tensor::randn({4 + mask % 3, 6}));
    expected.push_back(go(eager, mask, inputs.back().detach().requires_grad_()));
  }
  {
    std::jthread threads[2];
    for (int t = 0; t < 2; ++t)
      threads[t] = std::jthread([&, t] {
        for (unsigned mask = 15; mask > 0; --mask)
          results[t].push_back(go(block, mask, inputs[15 - mask].detach().requires_grad_()));
      });
  }
  for (const Tensors& list : results)
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(list[i], expected[i])) << i;
}

// ---- Errors

class Messages {
 public:
  Messages() {
    previous_ = compile::log::set_log_sink([this](std::string_view text) { all_ += text; });
  }
  ~Messages() { compile::log::set_log_sink(std::move(previous_)); }
  int count(std::string_view part) const {
    int n = 0;
    for (size_t at = 0; (at = all_.find(part, at)) != all_.npos; at += part.size()) ++n;
    return n;
  }
  const std::string& all() const { return all_; }

 private:
  std::string all_;
  compile::log::Sink previous_;
};

// Nothing runs a second time: what was complete has its value, and the rest says why it has none.
TEST_F(Recompile, BadDataIsThrownAtOnce) {
  Block block([](Block& b, const Tensor& x) {
    const Tensor before = x * 2.0;
    b.state.kept = {before, ops::index_select(before, 0, Tensor::from<int64_t>({b.state.step}, {1}))};
    b.state.kept.push_back(ops::exp(b.state.kept[1]));
    return Tensors{b.state.kept[2]};
  });
  const compile::Regions regions = compile::compile_module(block);
  block(input());
  const Messages messages;
  const std::string eager = error_of([&] {
    const Tensor x = input();
    ops::index_select(x, 0, Tensor::from<int64_t>({77}, {1}));
  });
  block.state.step = 77;
  for (int i = 0; i < 3; ++i) {
    const std::string error = error_of([&] { block(input()); });
    // The same words as eager execution, with the line of the body above.
    EXPECT_EQ(error.substr(0, error.find(" (")), eager.substr(0, eager.find(" ("))) << error;
    EXPECT_NE(error.find("recompile_test.cc:"), error.npos) << error;
    EXPECT_EQ(block.state.kept[0].to_vector<float>().size(), 24u);  // what stands before the error has its value
    for (int k : {1, 2}) {
      const std::string missing = error_of([&] { block.state.kept[static_cast<size_t>(k)].to_vector<float>(); });
      EXPECT_NE(missing.find("failed before it was computed"), missing.npos) << missing;
      EXPECT_NE(missing.find("77"), missing.npos) << missing;
      EXPECT_NE(error_of([&] { ops::exp(block.state.kept[static_cast<size_t>(k)]); }), "");
    }
  }
  const compile::RegionReport report = regions.report()[0];
  EXPECT_EQ(report.failed_runs, 3);
  EXPECT_NE(report.last_failure.find("77"), std::string::npos) << report.last_failure;
  EXPECT_EQ(report.eager_runs, 0);
  EXPECT_EQ(messages.all(), "");
  block.state.step = 1;
  EXPECT_EQ(error_of([&] { ops::sum(block(input())[0]).backward(); }), "");
}
// The op stands in a file of Rondo, and the module that called it has returned when the region runs.
struct LookUp : nn::Module<LookUp> {
  nn::Embedding table = child("table", 4, 6);
  uint32_t line = 0;
  Tensor forward(const Tensor& index) {
    line = std::source_location::current().line() + 1;
    const Tensor rows = table(index);
    return ops::tanh(rows) * 2.0;
  }
};
TEST_F(Recompile, BadDataInAModuleOfTheLibraryNamesTheUsersLine) {
  LookUp eager, compiled;
  const compile::Regions regions = compile::compile_module(compiled);
  const Tensor bad = Tensor::from<int64_t>({1, 9}, {2});
  const std::string expected = error_of([&] { eager(bad); }), error = error_of([&] { compiled(bad); });
  const std::string line = "recompile_test.cc:" + std::to_string(eager.line);
  EXPECT_NE(expected.find(line), std::string::npos) << expected;
  EXPECT_NE(error.find(line), std::string::npos) << error;
}
// An error at a graph break unwinds forward; the recording does not run a second time on the way.
TEST_F(Recompile, BadDataAtABreakRunsOnce) {
  int hooks = 0;
  Block block([&](Block& b, const Tensor& x) {
    const Tensor before = x * 2.0;
    b.state.kept = {before, ops::index_select(before, 0, Tensor::from<int64_t>({b.state.step}, {1}))};
    ++hooks;
    return Tensors{before * ops::sum(b.state.kept[1]).item()};
  });
  const compile::Regions regions = compile::compile_module(block);
  block.state.step = 55;
  const std::string error = error_of([&] { block(input()); });
  EXPECT_NE(error.find("55"), error.npos) << error;
  EXPECT_EQ(regions.report()[0].failed_runs, 1);
  EXPECT_EQ(hooks, 1);
  EXPECT_EQ(block.state.kept[0].to_vector<float>().size(), 24u);
  EXPECT_NE(error_of([&] { block.state.kept[1].to_vector<float>(); }), "");
  block.state.step = 1;
  EXPECT_EQ(error_of([&] { block(input()); }), "");
}
// An op whose rule for kernels fails: the region runs eagerly, says why once, and does not try again.
OpDef broken_op() {
  OpDef op = *find_op("relu");
  op.lower = [](LoopBuilder&) { throw_internal("a rule of the test is broken"); };
  return op;
}
TEST_F(Recompile, AStageThatFailsIsAFallbackThatIsTold) {
  const MeansToRun eagerly(Eagerly::kFailing, "a rule of the test throws");
  static const OpDef op = broken_op();
  const auto body = [](Block& b, const Tensor& x) { return Tensors{call(op, {x * b.bias}) + x}; };
  const Messages messages;
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 4; ++i)
      for (const Tensor& t : train_step(b, input())) all.push_back(t);
    return all;
  });
  EXPECT_EQ(report.failed_compilations, 1);
  EXPECT_EQ(report.eager_runs, 4);
  EXPECT_EQ(report.entries, 0);
  EXPECT_NE(report.last_failed_compilation.find("a rule of the test is broken"), std::string::npos);
  EXPECT_EQ(messages.count("a stage of the compiler failed"), 1) << messages.all();
}

TEST_F(Recompile, OutOfMemoryIsThrownAtOnce) {
  Block block([](Block&, const Tensor& x) { return Tensors{x.view({1, 24}).expand({int64_t{1} << 44, 24}) + 1.0}; });
  const compile::Regions regions = compile::compile_module(block);
  const Messages messages;
  EXPECT_NE(error_of<OutOfMemoryError>([&] { no_grad([&] { return block(input()); }); }), "");
  EXPECT_EQ(regions.report()[0].failed_runs, 1);
  EXPECT_EQ(messages.all(), "");
}

}  // namespace
}  // namespace rondo
