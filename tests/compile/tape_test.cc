// The tape around compiled regions: gradients that do not alias, views made under no_grad, checkpoints that replay
// their random numbers, and DetectAnomaly.
#include <gtest/gtest.h>

#include "rondo/runtime/autograd/anomaly.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using test::Block;
using test::BlockTest;
using test::error_of;
using test::Tensors;
using V = std::vector<double>;

#define EXPECT_MENTIONS(text, part) EXPECT_NE((text).find(part), std::string::npos) << "got: " << (text)

V values(const Tensor& t) { return t.defined() ? t.to_vector<double>() : V{}; }

class Tape : public BlockTest {
 protected:
  static compile::Regions compiled(Block& block) { return compile::compile_module(block, {.exact = true}); }
};

TEST_F(Tape, GradientsOfARegionDoNotAlias) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "gradients with a history");
  for (const bool create_graph : {false, true}) {
    Block block([](Block& b, const Tensor& x) { return Tensors{x + b.bias + b.norm.bias}; });
    compiled(block);
    Tensor x = Tensor::ones({6}).requires_grad_();
    const Tensor seed = Tensor::full({6}, 3.0);
    block(x)[0].backward(seed, false, create_graph);
    const Tensor grads[] = {x.grad(), block.bias.grad(), block.norm.bias.grad(), seed};
    for (size_t i = 0; i < 4; ++i)
      for (size_t j = 0; j < i; ++j) EXPECT_FALSE(grads[i].storage() == grads[j].storage()) << i << " and " << j;
    for (const Tensor& grad : grads) EXPECT_EQ(values(grad), V(6, 3.0));
  }
}

TEST_F(Tape, ALeafsOwnGradAsTheSeedOfARegion) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "gradients with a history");
  for (const bool create_graph : {false, true}) {
    Block block([](Block& b, const Tensor& x) { return Tensors{x + b.bias}; });
    compiled(block);
    Tensor x = Tensor::ones({6}).requires_grad_();
    x.set_grad(Tensor::full({6}, 2.0));
    block(x)[0].backward(x.grad(), false, create_graph);
    EXPECT_EQ(values(x.grad()), V(6, 4.0));
    EXPECT_EQ(values(block.bias.grad()), V(6, 2.0));
    block(x)[0].backward(x.grad(), false, create_graph);
    EXPECT_EQ(values(x.grad()), V(6, 8.0));
    EXPECT_EQ(values(block.bias.grad()), V(6, 6.0));
  }
}

TEST_F(Tape, ResultsOfGradThroughARegion) {
  Block block([](Block& b, const Tensor& x) { return Tensors{x + b.bias}; });
  compiled(block);
  Tensor x = Tensor::ones({6}).requires_grad_();
  const Tensor y = block(x)[0], seed = Tensor::full({6}, 2.0), inputs[] = {x, block.bias, y};
  const Tensors grads = autograd::grad({&y, 1}, inputs, {&seed, 1});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(grads[i].storage() == seed.storage()) << i;
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(grads[i].storage() == grads[j].storage()) << i << " and " << j;
  }
}

TEST_F(Tape, RetainedGradientsAndHooksOfARegion) {
  Block block([](Block& b, const Tensor& x) { return Tensors{x + b.bias}; });
  compiled(block);
  Tensor x = Tensor::ones({6}).requires_grad_(), mine = Tensor::full({6}, 4.0);
  x.register_hook([&](const Tensor&) { return mine; });
  block.bias.register_hook([&](const Tensor&) { return mine; });
  Tensor y = block(x)[0];
  y.retain_grad();
  const Tensor seed = Tensor::full({6}, 2.0);
  y.backward(seed);
  EXPECT_FALSE(y.grad().storage() == seed.storage());
  EXPECT_FALSE(x.grad().storage() == mine.storage());
  EXPECT_FALSE(block.bias.grad().storage() == mine.storage());
  EXPECT_FALSE(block.bias.grad().storage() == x.grad().storage());
}

TEST_F(Tape, EmptyBatches) {
  expect_as_eager([](Block& b, const Tensor& x) { return Tensors{ops::matmul(x * x, b.weight) + b.bias}; },
                  [](Block& b) {
                    Tensor x = Tensor::zeros({0, 6}).requires_grad_();
                    for (int i = 0; i < 2; ++i) ops::sum(b(x)[0]).backward();
                    return Tensors{x.grad(), b.bias.grad()};
                  });
}

// ---- Views under no_grad: the same outcome as eager, error or gradient.

// The result of `use`, or its error's first words.
std::string outcome(bool compile, const Block::Body& body, const std::function<Tensors(Block&)>& use) {
  manual_seed(3);
  Block block(body);
  if (compile) compile::compile_module(block, {.exact = true});
  std::string text;
  const std::string error = error_of([&] {
    for (const Tensor& t : use(block)) text += (t.defined() ? t.to_string() : "undefined") + "\n";
  });
  return error.empty() ? text : error.substr(0, error.find(" ("));
}

TEST_F(Tape, NoGradViewsInsideARegion) {
  const Block::Body bodies[] = {
      // Made and written inside.
      [](Block&, const Tensor& x) {
        Tensor h = x * 2.0, v = no_grad([&] { return h.slice(1, {1, 3}); });
        v.mul_(3.0);
        return Tensors{h * h};
      },
      [](Block&, const Tensor& x) {
        Tensor h = x * 2.0, v = no_grad([&] { return h.slice(1, {1, 3}); });
        no_grad([&] { v.mul_(3.0); });
        return Tensors{h * h};
      },
      // Read after the write.
      [](Block&, const Tensor& x) {
        Tensor h = x * 2.0, v = no_grad([&] { return h.slice(1, {1, 3}); });
        no_grad([&] { h.mul_(3.0); });
        return Tensors{v * 2.0};
      },
      [](Block&, const Tensor& x) {
        Tensor h = x * 2.0, d = h.detach();
        d.mul_(3.0);
        return Tensors{h * d};
      },
      [](Block&, const Tensor& x) {
        Tensor h = x * 2.0, d = h.detach().slice(1, {1, 3});
        d.mul_(3.0);
        return Tensors{h * h};
      },
      // Made with gradients on; the region breaks under no_grad.
      [](Block&, const Tensor& x) {
        Tensor h = x * 2.0, v = h.slice(1, {1, 3});
        no_grad([&] { return ops::sum(h).item(); });
        v.mul_(3.0);
        return Tensors{h * h};
      },
      // A view of the input.
      [](Block&, const Tensor& x) {
        Tensor v = no_grad([&] { return x.slice(1, {1, 3}).slice(0, {0, 1}); });
        v.mul_(3.0);
        return Tensors{x * x};
      },
      // Made with gradients on, of one that was not.
      [](Block&, const Tensor& x) {
        Tensor h = x * 2.0, u = no_grad([&] { return h.slice(1, {0, 4}); }), v = u.slice(1, {1, 3});
        v.mul_(3.0);
        return Tensors{h * h};
      },
  };
  const auto use = [](Block& b) {
    Tensor w = Tensor::randn({2, 6}).requires_grad_();
    Tensor x = w * 1.0;
    ops::sum(b(x)[0]).backward();
    return Tensors{w.grad()};
  };
  for (size_t i = 0; i < std::size(bodies); ++i)
    EXPECT_EQ(outcome(true, bodies[i], use), outcome(false, bodies[i], use)) << i;
}

TEST_F(Tape, NoGradViewsThatEscapeARegion) {
  const Block::Body views[] = {
      [](Block&, const Tensor& x) {
        const Tensor h = x * 2.0, v = no_grad([&] { return h.slice(1, {1, 3}); });
        return Tensors{h, v};
      },
      [](Block&, const Tensor& x) {
        const Tensor h = x * 2.0, v = no_grad([&] { return h.view({6, 2}); }), s = v.slice(0, {0, 2});
        return Tensors{h, s};
      },
      [](Block&, const Tensor& x) {
        const Tensor h = x * 2.0, v = h.detach();
        return Tensors{h, v};
      },
      [](Block&, const Tensor& x) {
        const Tensor v = no_grad([&] { return x.slice(1, {1, 3}); });
        return Tensors{x * 2.0, v};
      },
      [](Block&, const Tensor& x) {
        const Tensor v = x.detach().slice(1, {1, 3});
        return Tensors{x * 2.0, v};
      },
  };
  const std::function<Tensors(const Tensors&)> writes[] = {
      [](const Tensors& y) {
        Tensor v = y[1];
        v.mul_(3.0);
        return Tensors{y[0]};
      },
      [](const Tensors& y) {
        Tensor v = y[1];
        no_grad([&] { v.mul_(3.0); });
        return Tensors{y[0]};
      },
      [](const Tensors& y) {
        Tensor h = y[0];
        no_grad([&] { h.mul_(3.0); });
        return Tensors{y[1] * 2.0 + ops::sum(h)};
      },
      [](const Tensors& y) { return Tensors{y[1] * ops::sum(y[0])}; },
  };
  for (size_t i = 0; i < std::size(views); ++i)
    for (size_t j = 0; j < std::size(writes); ++j) {
      const auto use = [&](Block& b) {
        Tensor w = Tensor::randn({2, 6}).requires_grad_();
        const Tensor x = w * 1.0;
        const Tensor y = writes[j](b(x))[0];
        ops::sum(y * y).backward();
        return Tensors{w.grad(), y.detach()};
      };
      EXPECT_EQ(outcome(true, views[i], use), outcome(false, views[i], use)) << i << " " << j;
    }
}

// Read with gradients off, such a view is as any other.
TEST_F(Tape, ANoGradViewOfALeafThatWasWrittenIsReadUnderNoGrad) {
  Tensor leaf = Tensor::ones({4, 3}).requires_grad_();
  auto f = compile::compile([](const Tensor& x) { return ops::erf(x) * 2.0; }, {.exact = true});
  const NoGrad off;
  const Tensor view = leaf.slice(0, {1, 3});
  leaf.fill_(0.5);
  EXPECT_TRUE(test::same_bits(f(view), ops::erf(Tensor::full({2, 3}, 0.5)) * 2.0));
  EXPECT_EQ(f.regions().report()[0].eager_runs, 0);
}

// A buffer's slices, written and read under no_grad as a cache is, break no region.
TEST_F(Tape, ViewsOfAPlainBufferBreakNothing) {
  Tensor buffer = Tensor::zeros({2, 6});
  Block block([&](Block& b, const Tensor& x) {
    return Tensors{x * b.bias + no_grad([&] { return buffer.slice(0, {1, 2}); })};
  });
  const compile::Regions regions = compiled(block);
  Tensor x = Tensor::ones({1, 6}), slice = no_grad([&] { return buffer.slice(0, {1, 2}); });
  for (int i = 0; i < 3; ++i) {
    no_grad([&] { slice.add_(1.0); });
    ops::sum(block(x)[0] + slice).backward();
  }
  EXPECT_EQ(regions.report()[0].graph_breaks, 0);
}

// ---- Checkpoints

TEST_F(Tape, CheckpointsInsideAndAroundARegion) {
  for (const bool inside : {false, true}) {
    Generator generator(7);
    const auto drop = [&](const Tensor& x) { return ops::dropout(ops::dropout(x, 0.3, &generator), 0.3); };
    Block block([&](Block&, const Tensor& x) {
      if (!inside) return Tensors{drop(x)};
      const Tensor in[] = {x};
      return autograd::checkpoint([&](std::span<const Tensor> t) { return Tensors{drop(t[0])}; }, in);
    });
    compiled(block);
    Tensor x = Tensor::ones({8, 16}).requires_grad_();
    for (int step = 0; step < 3; ++step) {
      const Tensor in[] = {x};
      const Tensor y = inside ? block(x)[0]
                              : autograd::checkpoint([&](std::span<const Tensor> t) { return block(t[0]); }, in)[0];
      const uint64_t offset = generator.next_offset();
      x.zero_grad();
      ops::sum(y).backward();
      EXPECT_TRUE(test::same_bits(y.detach(), x.grad())) << step;
      EXPECT_EQ(generator.offset(), offset + 1);
    }
  }
}

// ---- DetectAnomaly

TEST_F(Tape, AnomalyInARegion) {
  const test::MeansToRun eagerly(test::Eagerly::kAll, "DetectAnomaly checks each op by itself");
  int line = 0;
  Block block([&](Block& b, const Tensor& x) {
    const Tensor h = b.norm(x);
    line = __LINE__ + 1;
    return Tensors{ops::sqrt(h) * b.bias};
  });
  const compile::Regions regions = compiled(block);
  Tensor x = Tensor::randn({2, 6}).requires_grad_();
  EXPECT_EQ(error_of([&] { block(x); }), "");
  const autograd::DetectAnomaly detect;
  const std::string error = error_of([&] { block(x); });
  EXPECT_MENTIONS(error, "sqrt: the result, f32[2, 6], has a NaN");
  EXPECT_MENTIONS(error, "tape_test.cc:" + std::to_string(line));
}

TEST_F(Tape, AnomalyInTheBackwardOfARegion) {
  const test::MeansToRun eagerly(test::Eagerly::kAll, "DetectAnomaly checks each op by itself");
  const test::MeansToRun by_the_tape(test::Eagerly::kBackward, "DetectAnomaly checks each op by itself");
  int line = 0;
  Block block([&](Block& b, const Tensor& x) {
    const Tensor h = x * 2.0;
    line = __LINE__ + 1;
    return Tensors{ops::sqrt(h) * b.bias};
  });
  compiled(block);
  Tensor x = Tensor::zeros({2, 6}).requires_grad_();
  // The forward ran compiled, outside of the scope.
  const Tensor y = block(x)[0];
  const autograd::DetectAnomaly detect;
  for (const Tensor& loss : {ops::sum(y), ops::sum(block(x)[0])}) {
    const std::string error = error_of([&] { loss.backward(); });
    EXPECT_MENTIONS(error, "backward of sqrt: the gradient of operand 0, f32[2, 6], has");
    EXPECT_MENTIONS(error, "tape_test.cc:" + std::to_string(line));
  }
}

TEST_F(Tape, AnomalyNamesTheModule) {
  struct Outer : nn::Module<Outer> {
    nn::Linear fc = child("fc", 6, 6);
    Tensor forward(const Tensor& x) { return fc(x); }
  };
  Outer outer;
  compile::compile_module(outer);
  ops::sum(outer(test::input())).backward();  // compiled; not so what comes
  const test::MeansToRun eagerly(test::Eagerly::kAll, "DetectAnomaly checks each op by itself");
  Tensor x = Tensor::full({1, 6}, 1e30).requires_grad_();
  no_grad([&] { outer.fc.weight.fill_(1e30); });
  const autograd::DetectAnomaly detect;
  const int line = __LINE__ + 1;
  const std::string error = error_of([&] { outer(x); });
  EXPECT_MENTIONS(error, "in fc");
  EXPECT_MENTIONS(error, "tape_test.cc");
  (void)line;
  no_grad([&] { outer.fc.weight.fill_(1e-30); });
  const Tensor y = outer(x);
  const std::string backward = error_of([&] { y.backward(Tensor::full({1, 6}, 1e30)); });
  EXPECT_MENTIONS(backward, "backward of linear");
  EXPECT_MENTIONS(backward, "in fc");
}

// A scope that is opened inside: each op runs at once.
TEST_F(Tape, AnomalyScopeInsideARegion) {
  Block block([&](Block& b, const Tensor& x) {
    const Tensor h = x * b.bias;
    const autograd::DetectAnomaly detect;
    return Tensors{ops::log(h - h)};
  });
  const compile::Regions regions = compiled(block);
  EXPECT_MENTIONS(error_of([&] {
                    block(Tensor::ones({2, 6}).requires_grad_());
                  }),
                  "log: the result, f32[2, 6], has an infinity");
  EXPECT_GT(regions.report()[0].graph_breaks, 0);
}

TEST_F(Tape, WithoutAnAnomalyTheScopeChangesNothing) {
  const test::MeansToRun eagerly(test::Eagerly::kAll, "DetectAnomaly checks each op by itself");
  const auto run = [&](bool detect) {
    manual_seed(31);
    Block block(
        [](Block& b, const Tensor& x) { return Tensors{ops::gelu(ops::matmul(b.norm(x), b.weight) + b.bias)}; });
    compiled(block);
    Tensor x = Tensor::randn({4, 6}).requires_grad_();
    const autograd::DetectAnomaly scope(detect);
    ops::sum(block(x)[0]).backward();
    return Tensors{x.grad(), block.weight.grad(), block.bias.grad()};
  };
  const Tensors with = run(true), without = run(false);
  for (size_t i = 0; i < with.size(); ++i) EXPECT_TRUE(test::same_bits(with[i], without[i])) << i;
}

}  // namespace
}  // namespace rondo
