// compile::reset(), is_compiling(), EagerScope, disable() inside of regions, and options of their own for parts.
#include <atomic>
#include <thread>

#include "rondo/compile/explain.h"
#include "rondo/compile/region/region.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/small_modules.h"

namespace rondo {
namespace {

using test::Block;
using test::BlockTest;
using test::Tensors;

class Controls : public BlockTest {
 protected:
  // A training step of a block, so that its next one has other weights.
  static Tensors step(Block& block, optim::Optimizer& optimizer, const Tensor& x) {
    block.zero_grad();
    const Tensor y = block(x)[0];
    ops::sum(y * y).backward();
    Tensors all = {y.detach(), block.weight.grad().clone()};
    optimizer.step();
    return all;
  }
};

// ---- reset()

TEST_F(Controls, AResetForgetsAndChangesNoBit) {
  Block eager(test::plain_body), compiled(test::plain_body);
  compiled.load_state_dict(eager.state_dict());
  const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
  optim::AdamW a(eager.parameters(), {.lr = 0.1}), b(compiled.parameters(), {.lr = 0.1});
  optim::compile(b);
  compile::reset();  // of what other tests of this process have left
  const int64_t misses = compile::cache_report().misses;
  int64_t missed = 0;
  for (int i = 0; i < 4; ++i) {
    const Tensor x = Tensor::randn({i < 2 ? 4 : 5, 6});
    const Tensors expected = step(eager, a, x), got = step(compiled, b, x);
    for (size_t k = 0; k < expected.size(); ++k) EXPECT_TRUE(test::same_bits(expected[k], got[k])) << i << " " << k;
    if (i != 1 && i != 3) continue;
    const compile::RegionReport before = regions.report()[0];
    EXPECT_EQ(before.entries, 1) << "one size since the latest reset";
    EXPECT_EQ(before.resets, i == 1 ? 1 : 2);
    EXPECT_EQ(before.last_recompile, "");
    if (i == 1) missed = compile::cache_report().misses - misses;
    const compile::ResetReport report = compile::reset();
    EXPECT_GE(report.regions, 1);
    EXPECT_EQ(report.recordings, 1);
    EXPECT_GT(report.kernels, 0);
    const compile::RegionReport after = regions.report()[0];
    EXPECT_EQ(after.entries + after.calls + after.compilations, 0);
    EXPECT_EQ(after.layers, 1);
    EXPECT_EQ(after.name, before.name);
    EXPECT_TRUE(compile::explain(regions).regions[0].entries.empty());
  }
  EXPECT_GT(compile::cache_report().misses - misses, missed) << "the code was forgotten, too";
}

TEST_F(Controls, AResetFreesWhatRegionsHold) {
  Block block(test::plain_body);
  const compile::Regions regions = compile::compile_module(block);
  block(test::input());
  std::weak_ptr<const compile::Entry> entry = regions.regions()[0]->entries()[0];
  compile::reset();
  EXPECT_TRUE(entry.expired());
}

// A backward of before the reset runs with the code that it has.
TEST_F(Controls, AResetBetweenForwardAndBackward) {
  expect_as_eager(test::plain_body, [](Block& block) {
    const Tensor x = test::input();
    const Tensor y = block(x)[0];
    compile::reset();
    ops::sum(y * y).backward();
    const Tensor again = block(x)[0];
    ops::sum(again).backward();
    return Tensors{y, x.grad(), again};
  });
}

TEST_F(Controls, AResetInsideARegionIsAnError) {
  Block block([](Block& b, const Tensor& x) {
    if (b.state.step++ == 1) compile::reset();
    return Tensors{x * b.bias};
  });
  const compile::Regions regions = compile::compile_module(block);
  const Tensor x = test::input(), y = block(x)[0];
  EXPECT_EQ(test::error_of([&] { block(x); }),
            "compile::reset: a compiled module is being recorded on this thread; call it between steps");
  EXPECT_TRUE(test::same_bits(block(x)[0], y));
  EXPECT_EQ(regions.report()[0].entries, 1) << "nothing was forgotten";
}

TEST_F(Controls, AResetReplaysNothingOfBefore) {
  struct Counted : nn::Module<Counted> {
    int forwards = 0;
    Tensor forward(const Tensor& x) {
      ++forwards;
      return ops::gelu(x) * 2.0;
    }
  } module;
  compile::compile_module(module, {.capture = compile::Capture::kReplay});
  const Tensor x = Tensor::ones({8});
  for (int i = 0; i < 3; ++i) module(x);
  EXPECT_EQ(module.forwards, 1);
  compile::reset();
  for (int i = 0; i < 3; ++i) module(x);
  EXPECT_EQ(module.forwards, 2);
}

// Threads train while another one resets again and again.
TEST_F(Controls, ResetsBesideThreadsThatTrain) {
  std::atomic<int> left = 2;
  std::vector<std::thread> threads;
  const Device device = default_device();
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&left, device, t] {
      const DeviceScope scope(device);
      manual_seed(100 + t);
      Block eager(test::plain_body), compiled(test::plain_body);
      compiled.load_state_dict(eager.state_dict());
      compile::compile_module(compiled, {.exact = true});
      for (int i = 0; i < 30; ++i) {
        const Tensor x = test::input({1 + i % 3, 6});
        const Tensor y = eager(x)[0], z = compiled(x)[0];
        EXPECT_TRUE(test::same_bits(y, z)) << t << " " << i;
        ops::sum(y).backward();
        ops::sum(z).backward();
      }
      EXPECT_TRUE(test::same_bits(eager.weight.grad(), compiled.weight.grad()));
      --left;
    });
  while (left > 0) compile::reset();
  for (std::thread& thread : threads) thread.join();
}

// What a region may still compile is counted anew.
TEST_F(Controls, AResetRestartsTheRecompileLimit) {
  Block block(test::plain_body);
  const compile::Regions regions = compile::compile_module(block,
                                                           {.shapes = compile::Shapes::kStatic, .recompile_limit = 2});
  for (int64_t rows = 1; rows < 7; ++rows) {
    block(test::input({rows, 6}));
    if (rows % 2 == 0) compile::reset();
  }
  EXPECT_EQ(regions.report()[0].eager_runs, 0);
}

// ---- is_compiling()

TEST_F(Controls, IsCompilingIsTrueWhileARegionRecords) {
  std::vector<bool> seen;
  Block block([&](Block& b, const Tensor& x) {
    seen.push_back(compile::is_compiling());
    const Tensor y = x * b.bias;
    {
      const compile::EagerScope eager;
      seen.push_back(compile::is_compiling());
    }
    seen.push_back(compile::is_compiling());
    return Tensors{y};
  });
  block(test::input());
  const compile::Regions regions = compile::compile_module(block);
  block(test::input());
  EXPECT_EQ(seen, (std::vector<bool>{false, false, false, true, false, true}));
  EXPECT_FALSE(compile::is_compiling());
}

// ---- EagerScope and disable()

// Two segments are compiled, one stays eager: the bits, gradients and random numbers of eager execution.
TEST_F(Controls, AnEagerSegmentHasItsGradients) {
  const Block::Body body = [](Block& b, const Tensor& x) {
    Tensor h = b.dropout(test::mlp(b, x));
    {
      const compile::EagerScope eager;
      EXPECT_FALSE(compile::is_compiling());
      h = b.dropout(ops::tanh(h) * b.bias) + h.to_vector<float>()[0];  // a host read costs nothing more here
    }
    return Tensors{b.dropout(h * x + b.bias), h};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 3; ++i)
      for (Tensor& t : test::one_step(b)) all.push_back(t);
    return all;
  });
  EXPECT_EQ(report.graph_breaks, 3) << "one in each call";
  EXPECT_TRUE(report.last_break.starts_with("an EagerScope begins (")) << report.last_break;
  EXPECT_NE(report.last_break.find("controls_test.cc:"), std::string::npos) << report.last_break;
}

TEST_F(Controls, AnEagerSegmentAtTheBeginningAndNestedOnes) {
  expect_as_eager(
      [](Block& b, const Tensor& x) {
        Tensor h = x;
        {
          const compile::EagerScope outer, inner;
          h = ops::sin(x) * b.bias;
        }
        return Tensors{test::mlp(b, h)};
      },
      test::one_step);
  EXPECT_EQ(report.graph_breaks, 1);
}

TEST_F(Controls, AnEagerSegmentIsNamedByExplainAndForbiddenByFullgraph) {
  const Block::Body body = [](Block& b, const Tensor& x) {
    const Tensor h = x * b.bias;
    const compile::EagerScope eager("an experiment");
    return Tensors{ops::tanh(h)};
  };
  Block block(body);
  const compile::Regions regions = compile::compile_module(block);
  block(test::input());
  const compile::Explanation explained = compile::explain(regions);
  ASSERT_EQ(explained.regions[0].breaks.size(), 1u);
  EXPECT_NE(compile::to_text(explained).find("graph break: an experiment ("), std::string::npos);

  Block whole(body);
  compile::compile_module(whole, {.fullgraph = true});
  EXPECT_NE(test::error_of([&] { whole(test::input()); }).find("fullgraph forbids them): an experiment"),
            std::string::npos);
  EXPECT_FALSE(compile::is_compiling());
}

struct Inner : nn::Module<Inner> {
  nn::Linear fc = child("fc", 6, 6);
  bool was_recorded = false;
  Tensor forward(const Tensor& x) {
    was_recorded = compile::is_compiling();
    return ops::gelu(fc(x));
  }
};
struct Outer : nn::Module<Outer> {
  nn::LayerNorm norm = child("norm", 6);
  Inner inner = child("inner");
  nn::Linear head = child("head", 6, 6);
  Tensor forward(const Tensor& x) { return head(inner(norm(x)) + x); }
};

TEST_F(Controls, APartThatIsDisabledStaysEagerInsideARegion) {
  const Tensor x = Tensor::randn({4, 6});
  Outer eager, compiled;
  compiled.load_state_dict(eager.state_dict());
  const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
  compiled(x);
  EXPECT_TRUE(compiled.inner.was_recorded);
  compile::disable(compiled.inner);
  const Tensor y = eager(x), z = compiled(x);
  EXPECT_FALSE(compiled.inner.was_recorded);
  EXPECT_TRUE(test::same_bits(y, z));
  ops::sum(y * y).backward();
  ops::sum(z * z).backward();
  EXPECT_TRUE(test::same_bits(eager.inner.fc.weight.grad(), compiled.inner.fc.weight.grad()));
  EXPECT_TRUE(test::same_bits(eager.norm.weight.grad(), compiled.norm.weight.grad()));
  const compile::RegionReport report = regions.report()[0];
  EXPECT_EQ(report.graph_breaks, 1);
  EXPECT_NE(report.last_break.find("Inner was disabled"), std::string::npos) << report.last_break;
}

TEST_F(Controls, ADisabledModelIsCompiledAgain) {
  Outer model;
  compile::compile_module(model);
  compile::disable(model);
  const Tensor x = Tensor::randn({4, 6});
  model(x);
  EXPECT_FALSE(model.inner.was_recorded);
  const compile::Regions part = compile::compile_module(model.inner);  // below the disabled one
  model(x);
  EXPECT_TRUE(model.inner.was_recorded);
  const compile::Regions regions = compile::compile_module(model);
  model(x);
  EXPECT_EQ(regions.report()[0].calls, 1);
}

// ---- Options of their own for parts of one program

TEST_F(Controls, PartsHaveOptionsOfTheirOwn) {
  struct Pair : nn::Module<Pair> {
    Inner encoder = child("encoder");
    test::Gate decoder = child("decoder", 6);
    Tensor forward(const Tensor& x) { return decoder(encoder(x)); }
  } eager, compiled;
  compiled.load_state_dict(eager.state_dict());
  const compile::Regions encoder = compile::compile_module(
      compiled.encoder, {.exact = true, .mode = compile::Mode::kMaxAutotune, .shapes = compile::Shapes::kStatic});
  const compile::Regions decoder = compile::compile_module(compiled.decoder,
                                                           {.exact = true, .shapes = compile::Shapes::kDynamic});
  const auto formula = [](const Tensor& y) { return ops::mean(ops::square(y)); };
  auto loss = compile::compile(formula, {.exact = true, .mode = compile::Mode::kReduceOverhead});
  for (const int64_t rows : {4, 5, 6}) {
    const Tensor x = Tensor::randn({rows, 6}), a = formula(eager(x)), b = loss(compiled(x));
    EXPECT_TRUE(test::same_bits(a, b));
    a.backward();
    b.backward();
  }
  EXPECT_TRUE(test::same_bits(eager.encoder.fc.weight.grad(), compiled.encoder.fc.weight.grad()));
  EXPECT_EQ(encoder.report()[0].entries, 3);
  EXPECT_EQ(encoder.report()[0].fresh_programs, 3) << "code for each size";
  EXPECT_LT(decoder.report()[0].fresh_programs, 3) << "code for all sizes";
  EXPECT_EQ(loss.regions().report()[0].calls, 3);
}

// ---- Names

TEST_F(Controls, ModesHaveNames) {
  EXPECT_EQ(compile::name_of(compile::Mode::kDefault), "default");
  EXPECT_EQ(compile::name_of(compile::Mode::kReduceOverhead), "reduce-overhead");
  EXPECT_EQ(compile::name_of(compile::Mode::kMaxAutotune), "max-autotune");
  for (size_t i = 0; i < std::size(compile::kModes); ++i) EXPECT_EQ(static_cast<size_t>(compile::kModes[i]), i);
}

}  // namespace
}  // namespace rondo
