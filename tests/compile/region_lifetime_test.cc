// What a user may do around and inside a compiled region, against eager execution in every bit. Freed memory is
// poisoned with NaN: a buffer that is reused too early is a wrong number.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/compiled_runs.h"

namespace rondo {
namespace {

using namespace test;

class RegionLifetime : public BlockTest {};

// ---- Lifetimes (the line 8)

TEST_F(RegionLifetime, TwoForwardsBeforeOneBackward) {
  expect_as_eager(plain_body, [](Block& b) {
    const Tensor x = input(), y = input();
    const Tensor first = b(x)[0], second = b(y)[0];
    ops::sum(second * second).backward();
    Tensors results = {b.weight.grad().clone(), y.grad()};
    ops::sum(first * first).backward();
    results.push_back(x.grad());
    return results;
  });
}

TEST_F(RegionLifetime, RetainGraphTwice) {
  expect_as_eager(plain_body, [](Block& b) {
    const Tensor x = input();
    const Tensor loss = ops::sum(b(x)[0]);
    loss.backward({}, true);
    loss.backward({}, true);
    loss.backward();
    EXPECT_THROW(loss.backward(), Error);
    return Tensors{x.grad()};
  });
}

TEST_F(RegionLifetime, TwoModelsInterleaved) {
  auto run = [](bool compiled) {
    manual_seed(5);
    Block a(plain_body), b(plain_body);
    if (compiled) {
      compile::compile_module(a, {.exact = true});
      compile::compile_module(b, {.exact = true});
    }
    const Tensor x = input();
    const Tensor ya = a(x)[0], yb = b(x)[0], za = a(yb)[0], zb = b(ya)[0];
    ops::sum(za * 2.0).backward();
    ops::sum(zb).backward();
    return Tensors{za, zb, a.weight.grad(), b.weight.grad(), x.grad()};
  };
  const Tensors eager = run(false), compiled = run(true);
  for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(same_bits(eager[i], compiled[i])) << i;
}

TEST_F(RegionLifetime, AnIntermediateEscapes) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = ops::matmul(b.norm(x), b.weight);
    b.state.kept = {h, h.t(), h.slice(1, {1, 6, 2})};
    return Tensors{ops::gelu(h)};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor x = input();
    const Tensor y = b(x)[0];
    const Tensors kept = b.state.kept;
    ops::sum(y * kept[0] + kept[1].t()).backward({}, true);
    ops::sum(kept[2] * 3.0).backward();
    Tensors results = kept;
    results.push_back(x.grad());
    return results;
  });
  EXPECT_EQ(report.graph_breaks, 0);
}

TEST_F(RegionLifetime, AnEscapedIntermediateOutlivesTheModel) {
  Tensor kept;
  {
    Block block([](Block& b, const Tensor& x) {
      b.state.kept = {x * 2.0 + 1.0};
      return Tensors{b.state.kept[0] * b.bias};
    });
    compile::compile_module(block, {.exact = true});
    const Tensor x = Tensor::ones({2, 6});
    block(x);
    kept = block.state.kept[0];
  }
  for (int i = 0; i < 20; ++i) Tensor::zeros({2, 6});
  EXPECT_TRUE(same_bits(kept, Tensor::full({2, 6}, 3)));
}

TEST_F(RegionLifetime, AThrowHalfWay) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor h = ops::matmul(x, b.weight);
    b.state.kept = {h};
    if (b.state.step == 1) throw std::runtime_error("half way");
    return Tensors{ops::gelu(h)};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor x = input();
    b.state.step = 1;
    EXPECT_THROW(b(x), std::runtime_error);
    EXPECT_TRUE(grad_enabled());
    Tensor escaped = b.state.kept[0];
    ops::sum(escaped * escaped).backward();
    b.state.step = 0;
    Tensors results = train_step(b, x);
    results.push_back(escaped);
    return results;
  });
}

TEST_F(RegionLifetime, AThrowAfterAnInPlaceWrite) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor counter = b.state.kept[0], h = x * 2.0;
    counter.add_(1.0);
    h.add_(b.bias);
    b.state.kept.push_back(h);
    ops::matmul(h, Tensor::ones({5, 5}));  // throws
    return Tensors{h};
  };
  expect_as_eager(body, [](Block& b) {
    b.state.kept = {Tensor::zeros({1})};
    const Tensor x = input();
    EXPECT_THROW(b(x), Error);
    ops::sum(b.state.kept[1]).backward();
    EXPECT_EQ(b.state.kept[0].item(), 1);
    return Tensors{b.state.kept[1], x.grad()};
  });
}

// ---- Reading values

TEST_F(RegionLifetime, ItemInsideARegion) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = ops::matmul(x, b.weight);
    const double top = ops::max(h).item();
    return Tensors{h * top + b.bias};
  };
  expect_as_eager(body, one_step);
  EXPECT_EQ(report.graph_breaks, 1) << report.last_break;
  EXPECT_NE(report.last_break.find("region_lifetime_test.cc"), std::string::npos) << report.last_break;
}

TEST_F(RegionLifetime, ReadingATensorFromOutsideIsNoBreak) {
  const auto body = [](Block& b, const Tensor& x) {
    const double scale = b.state.kept[0].item();
    return Tensors{x * scale + b.bias.to_vector<float>()[0]};
  };
  expect_as_eager(body, [](Block& b) {
    b.state.kept = {Tensor::full({}, 3.5)};
    return one_step(b);
  });
  EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
}

TEST_F(RegionLifetime, PrintingAndCopyingOutInside) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = x * 2.0;
    const std::string text = h.to_string();
    const float first = (h + 1.0).data<float>()[0];
    EXPECT_TRUE(text.starts_with("tensor([")) << text;
    return Tensors{h * first + b.bias, h.detach() * b.bias};
  };
  expect_as_eager(body, one_step);
  EXPECT_GE(report.graph_breaks, 2);
}

TEST_F(RegionLifetime, ControlFlowOnAStepCounterAndOnValues) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor h = x;
    for (int64_t i = 0; i <= b.state.step % 3; ++i) h = ops::tanh(h * b.bias);
    if (ops::sum(h).item() > 0) h = h * 2.0;
    ++b.state.step;
    return Tensors{h};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 7; ++i)
      for (Tensor& t : one_step(b)) all.push_back(t);
    return all;
  });
}

// ---- Writing in place

TEST_F(RegionLifetime, InPlaceInsideARegion) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor h = ops::matmul(x, b.weight), k = h * 1.0;
    k.add_(b.bias);
    k.mul_(x);
    h.add_(1.0);
    Tensor fresh = Tensor::zeros({4, 6});
    fresh.copy_(k);
    fresh.mul_(fresh);
    return Tensors{k + h, fresh};
  };
  expect_as_eager(body, one_step);
  EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
}

TEST_F(RegionLifetime, InPlaceOnAViewInsideARegion) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor h = x * b.bias;
    h[1].copy_(b.bias * 3.0);
    h.slice(1, {0, 6, 2}).mul_(2.0);
    Tensor buffer = Tensor::zeros({4, 6});
    buffer[0].add_(b.bias);
    return Tensors{h, buffer};
  };
  expect_as_eager(body, one_step);
}

TEST_F(RegionLifetime, InPlaceOnAViewOfTheInput) {
  const auto body = [](Block& b, const Tensor& x) {
    x[1].copy_(b.bias);
    return Tensors{x * 2.0};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor leaf = input(), x = leaf * 1.0;
    const Tensor y = b(x)[0];
    ops::sum(y * y + x).backward();
    return Tensors{x, y, leaf.grad()};
  });
}

TEST_F(RegionLifetime, AStaleSavedTensorOfARegionIsAnError) {
  const MeansToRun eagerly(Eagerly::kBackward, "memory is overwritten before the backward");
  for (bool compiled : {false, true}) {
    Block block([](Block& b, const Tensor& x) { return Tensors{ops::exp(x * b.bias)}; });
    if (compiled) compile::compile_module(block, {.exact = true});
    Tensor y = block(input())[0];
    y.mul_(2.0);
    EXPECT_THROW(ops::sum(y).backward(), StaleTensorError) << compiled;
    no_grad([&] { y = block(input())[0]; });
    Tensor z = block(input())[0];
    no_grad([&] { block.bias.add_(1.0); });
    EXPECT_THROW(ops::sum(z).backward(), StaleTensorError) << compiled;
  }
}

TEST_F(RegionLifetime, OutputsDoNotShareMemoryUnlessEagerOnesDo) {
  const auto body = [](Block& b, const Tensor& x) {
    // The compiler sees that these are equal; writing to one must not change the other.
    return Tensors{x * 2.0, x * 2.0, ops::tanh(x + b.bias), ops::tanh(x + b.bias)};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors y = b(input());
    y[0].add_(1.0);
    no_grad([&] { y[2].fill_(7); });
    return y;
  });
}

TEST_F(RegionLifetime, EqualValuesWrittenInside) {
  const auto body = [](Block&, const Tensor& x) {
    Tensor a = x * 2.0, b = x * 2.0;
    a.add_(1.0);
    return Tensors{a, b, a * b};
  };
  expect_as_eager(body, one_step);
}

// ---- Constants

TEST_F(RegionLifetime, ConstantsDifferInEveryBit) {
  const auto body = [](Block&, const Tensor& x) {
    const Tensor zero = x * 0.0;
    return Tensors{x * 3.0, x * std::numeric_limits<double>::quiet_NaN(), x * -0.0, zero, 1.0 / zero, 1.0 / (x * -0.0),
                   x * 4.0};
  };
  expect_as_eager(body, [](Block& b) { return no_grad([&] { return b(input()); }); });
}

TEST_F(RegionLifetime, ChangedHyperParameters) {
  const auto body = [](Block& b, const Tensor& x) {
    return Tensors{b.norm(x) * (0.5 + static_cast<double>(b.state.step))};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 4; ++i) {
      b.state.step = i % 2;
      b.norm.eps = i < 2 ? 1e-5 : 0.5;
      for (Tensor& t : one_step(b)) all.push_back(t);
    }
    return all;
  });
}

TEST_F(RegionLifetime, ChangingBatchSizes) {
  expect_as_eager(plain_body, [](Block& b) {
    Tensors all;
    for (int64_t rows : {4, 7, 1, 4, 0, 33, 7})
      for (Tensor& t : train_step(b, input({rows, 6}))) all.push_back(t);
    for (Tensor& t : train_step(b, input({2, 3, 6}))) all.push_back(t);
    return all;
  });
  EXPECT_EQ(report.entries, 6);
}

TEST_F(RegionLifetime, OtherStridesOffsetsAndDtypes) {
  expect_as_eager(plain_body, [](Block& b) {
    Tensors all;
    const Tensor wide = Tensor::randn({9, 13});
    for (const Tensor& x :
         {wide.slice(1, {3, 9}), wide.slice(0, {1, 7}).t().slice(0, {0, 6}), wide.slice(1, {0, 12, 2}),
          wide[0].slice(0, {1, 7}).expand({5, 6}), wide.slice(1, {4, 10})}) {
      Tensor leaf = x.detach();
      if (x.strides()[0] != 0) leaf.requires_grad_();
      for (Tensor& t : train_step(b, leaf)) all.push_back(t);
    }
    return all;
  });
}

// ---- Modes

TEST_F(RegionLifetime, TrainAndEval) {
  const auto body = [](Block& b, const Tensor& x) { return Tensors{b.dropout(mlp(b, x)) + b.dropout(x)}; };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (bool on : {true, false, true, true}) {
      b.train(on);
      for (Tensor& t : one_step(b)) all.push_back(t);
    }
    all.push_back(Tensor::rand({3}));  // the random stream is where eager leaves it
    return all;
  });
  EXPECT_EQ(report.entries, 2);
}

TEST_F(RegionLifetime, FrozenParametersAndInputs) {
  expect_as_eager(plain_body, [](Block& b) {
    Tensors all;
    for (int mask = 0; mask < 8; ++mask) {
      b.weight.requires_grad_(mask & 1);
      b.bias.requires_grad_(mask & 2);
      b.norm.requires_grad_(mask & 2);
      Tensor x = Tensor::randn({4, 6});
      if (mask & 4) x.requires_grad_();
      for (Tensor& t : train_step(b, x)) all.push_back(t);
      all.push_back(b.weight.grad().defined() ? b.weight.grad().clone() : Tensor());
    }
    return all;
  });
}

TEST_F(RegionLifetime, NoGradOutsideAndInside) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor free = mlp(b, x), fixed = no_grad([&] { return mlp(b, x); });
    return Tensors{free * fixed, fixed, x.detach() * b.bias, (x * 2.0).detach() + free};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor x = input();
    Tensors all = no_grad([&] { return b(x); });
    for (const Tensor& t : all) EXPECT_FALSE(t.requires_grad());
    const Tensors step = train_step(b, x);
    EXPECT_TRUE(step[0].requires_grad());
    EXPECT_FALSE(step[1].requires_grad());
    all.insert(all.end(), step.begin(), step.end());
    return all;
  });
}

TEST_F(RegionLifetime, HooksAndRetainedGradientsInside) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor h = x * b.bias;
    h.register_hook([&b](const Tensor& g) {
      ++b.state.hook_calls;
      return g * 2.0;
    });
    Tensor k = ops::tanh(h);
    k.retain_grad();
    b.state.kept = {k};
    return Tensors{k * k};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors results = one_step(b);
    EXPECT_EQ(b.state.hook_calls, 1);
    EXPECT_TRUE(b.state.kept[0].grad().defined());
    results.push_back(b.state.kept[0].grad());
    return results;
  });
}

TEST_F(RegionLifetime, ALeafMadeInside) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor h = x.detach() * 2.0;
    h.requires_grad_();
    b.state.kept = {h};
    return Tensors{ops::tanh(h) * b.bias};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors results = one_step(b);
    results.push_back(b.state.kept[0].grad());
    return results;
  });
}

TEST_F(RegionLifetime, AnUnusedOutputSendsNoGradient) {
  const auto body = [](Block& b, const Tensor& x) {
    return Tensors{x * 2.0, 1.0 / (x * 0.0) + b.bias, ops::sum(ops::matmul(x, b.weight))};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor x = input();
    const Tensors y = b(x);
    ops::sum(y[0]).backward({}, true);
    EXPECT_FALSE(b.weight.grad().defined());
    EXPECT_FALSE(b.bias.grad().defined());
    Tensors results = {x.grad().clone()};
    y[2].backward();
    results.push_back(x.grad());
    return results;
  });
}

// ---- Shapes of use

TEST_F(RegionLifetime, TheSameTensorTwice) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor& again = b.state.kept[0];
    return Tensors{x * again + ops::matmul(x, b.weight) * again, again};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor x = input();
    b.state.kept = {x};
    Tensors all = train_step(b, x);
    b.state.kept = {x.slice(0, {0, 4})};  // the same memory, another handle
    for (Tensor& t : train_step(b, x)) all.push_back(t);
    return all;
  });
}

TEST_F(RegionLifetime, TheInputAndViewsOfItAreReturned) {
  const auto body = [](Block& b, const Tensor& x) {
    return Tensors{x, x.t(), x[1], x.reshape({2, 12}), b.weight, b.weight[0]};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor leaf = input(), x = leaf * 1.0;
    Tensors y = b(x);
    EXPECT_TRUE(y[0].is_same(x));
    EXPECT_TRUE(y[4].is_same(b.weight));
    for (int i = 1; i < 4; ++i) EXPECT_TRUE(y[static_cast<size_t>(i)].storage() == x.storage()) << i;
    Tensor loss = ops::sum(y[0]);
    for (size_t i = 1; i < y.size(); ++i) loss = loss + ops::sum(y[i] * static_cast<double>(i + 1));
    loss.backward();
    // A later write through a returned view reaches the base and its history.
    Tensor fresh = leaf * 3.0;
    Tensors z = b(fresh);
    z[2].copy_(b.bias);
    ops::sum(fresh * fresh).backward();
    y.push_back(fresh);
    y.push_back(leaf.grad());
    return y;
  });
}

TEST_F(RegionLifetime, NothingIsRecorded) {
  const MeansToRun eagerly(Eagerly::kNothing, "the region computes nothing");
  expect_as_eager([](Block&, const Tensor& x) { return Tensors{x, Tensor()}; }, [](Block& b) { return b(input()); });
}

TEST_F(RegionLifetime, ATensorMadeInside) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor mask = ops::less(Tensor::arange(6).to(kF32),
                                  Tensor::full({}, 3.0 + static_cast<double>(b.state.step++)));
    return Tensors{ops::where(mask, x, 0.0) + Tensor::randn({4, 6}) * b.bias, mask};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 3; ++i)
      for (Tensor& t : one_step(b)) all.push_back(t);
    return all;
  });
  EXPECT_EQ(report.entries, 1);
}

// The tape that replaces a region adds up what the region's ops send to an input, before that meets what others send to
// it. So second derivatives equal eager execution's within rounding. The first ones are equal in every bit.
TEST_F(RegionLifetime, DoubleBackward) {
  const MeansToRun eagerly(Eagerly::kBackward, "gradients with a history");
  const auto body = [](Block& b, const Tensor& x) {
    return Tensors{ops::gelu(ops::matmul(b.norm(x), b.weight)) * b.bias, ops::softmax(x)};
  };
  const auto use = [](Block& b) {
    const Tensor leaf = input(), x = leaf * 1.5;
    const Tensors y = b(b(x)[0]);
    const Tensor loss = ops::sum(y[0] * y[0] + y[1]);
    const Tensor inputs[] = {leaf, b.weight};
    const auto grads = autograd::grad({&loss, 1}, inputs, {}, false, true);
    (ops::sum(grads[0] * grads[0]) + ops::sum(grads[1] * grads[1])).backward();
    return Tensors{grads[0].detach(), grads[1].detach(), leaf.grad()};
  };
  const Tensors eager = run(body, use, false), compiled = run(body, use, true);
  ASSERT_EQ(eager.size(), compiled.size());
  for (size_t i = 0; i < eager.size(); ++i) {
    if (i < 2) {
      EXPECT_TRUE(same_bits(eager[i], compiled[i])) << i;
    } else {
      const double scale = ops::max(ops::abs(eager[i])).item();
      EXPECT_GT(scale, 0) << i;
      EXPECT_LE(ops::max(ops::abs(eager[i] - compiled[i])).item(), 1e-5 * scale) << i;
    }
  }
}

TEST_F(RegionLifetime, CheckpointOfARegionAndARegionOfCheckpoints) {
  expect_as_eager(plain_body, [](Block& b) {
    const Tensor x = input();
    const Tensor in[] = {x};
    const auto call = [&](std::span<const Tensor> t) { return Tensors{b(b(t[0])[0])[0]}; };
    const Tensor y = autograd::checkpoint(call, in)[0];
    ops::sum(y * y).backward();
    return Tensors{y, x.grad()};
  });
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor in[] = {x * 2.0};
    return autograd::checkpoint([&b](std::span<const Tensor> t) { return Tensors{mlp(b, t[0])}; }, in);
  };
  expect_as_eager(body, one_step);
}

TEST_F(RegionLifetime, OptimiserStepsBetweenCalls) {
  expect_as_eager(plain_body, [](Block& b) {
    Tensors all;
    const Tensor x = input();
    for (int step = 0; step < 5; ++step) {
      b.zero_grad();
      for (Tensor& t : train_step(b, x)) all.push_back(t.clone());
      no_grad([&] {
        for (Tensor p : b.parameters()) p.sub_(p.grad() * 0.1);
      });
    }
    return all;
  });
  EXPECT_EQ(report.entries, 1);
}

TEST_F(RegionLifetime, AFunctionThatWasMovedFromIsAnError) {
  auto twice = compile::compile([](const Tensor& x) { return x * 2.0; });
  auto taken = std::move(twice);
  EXPECT_EQ(taken(Tensor::ones({})).item(), 2);
  EXPECT_THROW(twice(Tensor::ones({})), Error);
}

// The result of a new block and its gradient.
Tensors forward_and_backward(bool compiled) {
  manual_seed(5);
  Block b(plain_body);
  if (compiled) compile::compile_module(b, {.exact = true});
  const Tensor x = input(), y = b(x)[0];
  ops::sum(y * y).backward();
  return {y, x.grad()};
}

// In destructors of global objects, when the main thread's thread_local objects are gone.
using RegionLifetimeDeathTest = RegionLifetime;
TEST_F(RegionLifetimeDeathTest, CallsAfterMain) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer knows no threads in a child process";
#endif
  EXPECT_EXIT(
      {
        std::atexit([] {
          const Tensors eager = forward_and_backward(false), compiled = forward_and_backward(true);
          _exit(same_bits(eager[0], compiled[0]) && same_bits(eager[1], compiled[1]) ? 7 : 1);
        });
        forward_and_backward(true);
        std::exit(1);
      },
      testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace rondo
