// Second derivatives, hooks and overwritten inputs of compiled regions. All three make a region run its recording
// again, op by op.
#include <gtest/gtest.h>

#include <optional>

#include "rondo/runtime/autograd/anomaly.h"
#include "rondo/tests/compile/block_fixture.h"

namespace rondo {
namespace {

using namespace test;

class SecondOrder : public BlockTest {
 protected:
  const MeansToRun eagerly_{Eagerly::kBackward, "second derivatives, or a hook inside the region"};
};

Tensor gradient(const Tensor& root, const Tensor& input) {
  const Tensor roots[] = {root}, inputs[] = {input};
  return autograd::grad(roots, inputs, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
}
// Not linear: two calls with a part each differ from one with the sum.
void watch(Tensor tensor, Block& b) {
  tensor.retain_grad();
  tensor.register_hook([&b](const Tensor& g) { return ++b.state.hook_calls, g * g + g * 0.5; });
}
Tensor calls(const Block& b) { return Tensor::full({1}, b.state.hook_calls); }

// The hook comes after the gradient was computed, and sees what the gradient's own derivative sends.
TEST_F(SecondOrder, AHookThatComesAfterTheFirstGradient) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = x * b.bias, g = gradient(ops::sum(ops::tanh(h)), h);
    watch(h, b);
    b.state.kept = {h};
    return Tensors{g * 0.5};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all = one_step(b);
    all.push_back(b.state.kept[0].grad());
    all.push_back(calls(b));
    return all;
  });
}

TEST_F(SecondOrder, AHookSeesTheWholeGradientOnce) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = ops::sigmoid(x * b.bias), column = h.slice(1, {0, 3});
    return Tensors{h, column, ops::exp(column) * ops::sum(h), h.t()};
  };
  for (const size_t watched : {0, 1, 2, 3}) {
    SCOPED_TRACE(watched);
    expect_as_eager(body, [&](Block& b) {
      const Tensor leaf = input(), x = leaf * 0.5;
      const Tensors y = b(x);
      watch(y[watched], b);
      const Tensor loss = ops::sum(y[1] * y[2]) + ops::sum(ops::tanh(y[0] * y[3].t()));
      const Tensor g = gradient(loss, x), before = calls(b);
      (ops::sum(g * g) + loss).backward();
      return Tensors{g.detach(), leaf.grad(), y[watched].grad().detach(), before, calls(b)};
    });
  }
}

// What a copy or a fill overwrites is not read: values computed from the new contents are as good as any. A value of
// the contents before is stale, as in eager execution.
TEST_F(SecondOrder, OfABufferThatWasOverwritten) {
  const auto written = [](bool fills) {
    return [fills](Block& b, const Tensor& x) {
      {
        const NoGrad off;
        if (b.state.kept.empty()) b.state.kept = {Tensor::zeros({1, x.size(1)})};
        if (fills) b.state.kept[0].fill_(0.75);
        else b.state.kept[0].copy_(x.mean({0}, true));
      }
      const Tensor y = x - b.state.kept[0];
      return Tensors{y * y * y};
    };
  };
  for (const bool fills : {false, true})
    expect_as_eager(written(fills), [](Block& b) {
      Tensors all;
      for (int call = 0; call < 3; ++call) {
        const Tensor leaf = input(), g = gradient(ops::sum(b(leaf)[0]), leaf);
        ops::sum(g * g).backward();
        all.push_back(g.detach());
        all.push_back(leaf.grad());
      }
      return all;
    });
}

TEST_F(SecondOrder, AHookThatIsRemovedBeforeTheSecondDerivative) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = ops::tanh(x * b.bias);
    return Tensors{h, h * h};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor x = input();
    Tensors y = b(x);
    const int64_t id = y[0].register_hook([&b](const Tensor& g) { return ++b.state.hook_calls, g * 3.0; });
    const Tensor g = gradient(ops::sum(y[1]), x);
    y[0].remove_hook(id);
    ops::sum(g * g).backward();
    return Tensors{g.detach(), x.grad(), calls(b)};
  });
}

TEST_F(SecondOrder, ThirdDerivatives) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = ops::tanh(x * b.bias);
    return Tensors{h, ops::sum(h * h * x)};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor x = input();
    Tensors y = b(x);
    watch(y[0], b);
    const Tensor first = gradient(y[1], x), second = gradient(ops::sum(first), x);
    ops::sum(second * second).backward();
    return Tensors{first.detach(), second.detach(), x.grad(), calls(b)};
  });
}

TEST_F(SecondOrder, TrianglesOfMatrices) {
  const auto body = [](Block&, const Tensor& x) { return Tensors{ops::tril(x * x, 1) * x, ops::triu(x, -1)}; };
  expect_as_eager(body, [](Block& b) {
    const Tensor x = input({2, 5, 6});
    const Tensors y = b(x);
    const Tensor g = gradient(ops::sum(y[0] * y[1]), x);
    ops::sum(g * g).backward();
    return Tensors{y[0].detach(), y[1].detach(), g.detach(), x.grad()};
  });
}

// A second backward that frees the tape frees the region's part of it, too.
TEST_F(SecondOrder, TheSecondBackwardFreesTheTape) {
  const auto body = [](Block& b, const Tensor& x) { return Tensors{ops::tanh(x * b.bias)}; };
  const auto use = [](Block& b) {
    const Tensor x = input(), y = b(x)[0], g = gradient(ops::sum(y * y), x);
    ops::sum(g * g).backward();
    EXPECT_THROW(ops::sum(y).backward(), Error);
    return Tensors{};
  };
  run(body, use, false);
  run(body, use, true);
}

// The gradient of the result leads on to the input's history, whatever became of the input's values.
TEST_F(SecondOrder, AnInputThatIsOverwrittenBefore) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = ops::log_softmax(x);
    return Tensors{h, h * b.bias, ops::tanh(h)};
  };
  for (const int used : {1, 2})
    expect_as_eager(body, [used](Block& b) {
      const Tensor leaf = input();
      Tensor x = leaf * 1.5;
      const Tensors y = b(x);
      x.mul_(2.0);
      const Tensor g = gradient(ops::sum(y[static_cast<size_t>(used)] * y[0]), leaf);
      ops::sum(g * g).backward();
      return Tensors{g.detach(), leaf.grad()};
    });
}

// Hooks on outputs of which others are made, or DetectAnomaly; then inputs are overwritten that no gradient reads.
class Overwritten : public SecondOrder, public testing::WithParamInterface<bool> {
 protected:
  std::function<Tensors(Block&)> use() {
    return [anomaly = GetParam()](Block& b) {
      const Tensor leaf = input();
      Tensor x = leaf * 1.5;
      Tensors y = b(x);
      std::optional<autograd::DetectAnomaly> detect;
      if (anomaly) detect.emplace();
      if (!anomaly) watch(y[0], b);
      x.mul_(2.0);
      Tensor loss;
      for (const Tensor& t : y) loss = loss.defined() ? loss + ops::sum(t * t) : ops::sum(t * t);
      loss.backward();
      return Tensors{leaf.grad(), y[0].grad(), calls(b)};
    };
  }
};
INSTANTIATE_TEST_SUITE_P(, Overwritten, testing::Bool());

TEST_P(Overwritten, AnInputThatNoGradientReads) {
  const auto body = [](Block&, const Tensor& x) {
    const Tensor h = x * 0.3;
    return Tensors{h, ops::matmul(h.t(), h) * 0.5, ops::tanh(h.slice(1, {0, 3}) + ops::sum(h))};
  };
  expect_as_eager(body, use());
}
TEST_P(Overwritten, AnOpThatHasSavedItsResult) {
  const auto body = [](Block&, const Tensor& x) {
    const Tensor h = ops::tanh(x);
    return Tensors{h, ops::exp(h * 0.5), ops::softmax(x + 1.0)};
  };
  expect_as_eager(body, use());
}
TEST_P(Overwritten, AViewOfIt) {
  const auto body = [](Block&, const Tensor& x) {
    const Tensor turned = x.t(), h = turned * 0.3;
    return Tensors{h, ops::matmul(h, h.t()) * 0.5, turned.slice(0, {0, 2}) * 2.0};
  };
  expect_as_eager(body, use());
}
TEST_P(Overwritten, WhatAGradientReads) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = x * 0.3;
    return Tensors{h, h * ops::matmul(x, b.weight)};
  };
  for (const bool compiled : {false, true}) {
    SCOPED_TRACE(compiled);
    EXPECT_THROW(run(body, use(), compiled), StaleTensorError);
  }
}

}  // namespace
}  // namespace rondo
