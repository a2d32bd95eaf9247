// Backward through a part of what a region recorded, and later through another part: as on the eager tape, where each
// op frees what it saved by itself, and says so by its own name and line.
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "rondo/runtime/autograd/anomaly.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using namespace test;

class RegionParts : public BlockTest {
 protected:
  // As expect_as_eager; what went into `said` must agree, too.
  void expect_same(const Block::Body& body, const std::function<Tensors(Block&)>& use) {
    std::vector<std::string> eager_said;
    expect_as_eager(body, [&](Block& b) {
      eager_said = std::exchange(said, {});
      return use(b);
    });
    EXPECT_EQ(eager_said, said);
  }
  // Goes backward; notes the message if it throws. Returns whether it did not.
  bool back(const Tensor& y, bool retain_graph = false) {
    const std::string message = error_of([&] { ops::sum(y).backward(Tensor(), retain_graph); });
    said.push_back(message);
    return message.empty();
  }
  Tensor grad(const Tensor& y, const Tensor& x, bool create_graph = false) {
    const Tensor roots[] = {ops::sum(y)}, inputs[] = {x};
    Tensor result;
    said.push_back(error_of([&] { result = autograd::grad(roots, inputs, {}, create_graph, create_graph, true)[0]; }));
    return result;
  }
  std::vector<std::string> said;
};

constexpr const char* kFreed = "its saved tensors were freed by an earlier backward";
testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != text.npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << text << "\" has no \"" << part << "\"";
}

// Two outputs that share no op, but the input and a saved tensor.
Tensors independent(Block& b, const Tensor& x) {
  const Tensor scale = ops::exp(x.detach());
  return {ops::tanh(x * b.bias) * scale, ops::sigmoid(ops::matmul(x, b.weight)) * scale};
}
// Two outputs that share an op.
Tensors sharing(Block& b, const Tensor& x) {
  const Tensor h = ops::tanh(x * b.bias);
  return {h * h, ops::exp(h)};
}

TEST_F(RegionParts, BackwardInsideLeavesWhatTheOutputNeeds) {
  const auto body = [](const Tensor& x) {
    const Tensor w = Tensor::ones({4}).requires_grad_();
    const Tensor y = x * x;
    ops::sum(y.detach() * w).backward();
    return y * w.grad();
  };
  Tensor grads[2];
  for (const bool compiled : {false, true}) {
    const Tensor x = Tensor::from({1.0f, 2.0f, 3.0f, 4.0f}, {4}).requires_grad_();
    auto f = compile::compile(body, {.exact = true});
    if (compiled) ops::sum(f(x)).backward();
    else ops::sum(body(x)).backward();
    grads[compiled] = x.grad();
  }
  EXPECT_TRUE(same_bits(grads[0], grads[1]));
}

TEST_F(RegionParts, BackwardInsideThroughAPart) {
  expect_same(
      [this](Block& b, const Tensor& x) {
        Tensors y = sharing(b, x);
        const Tensor apart = ops::gelu(ops::matmul(x.detach(), b.weight)) * ops::exp(x);
        back(y[0]);
        back(y[1]);  // shares an op
        return Tensors{apart + x.grad()};
      },
      [&](Block& b) {
        const Tensor x = input(), y = b(x)[0];
        back(y);
        back(y);
        return Tensors{y, x.grad()};
      });
  EXPECT_TRUE(has(said[1], kFreed));
  EXPECT_TRUE(has(said[1], "region_parts_test.cc"));
  EXPECT_EQ(said[2], "");
}

TEST_F(RegionParts, OneOutputAfterTheOther) {
  for (const bool swap : {false, true})
    for (const bool retain : {false, true}) {
      SCOPED_TRACE(testing::Message() << swap << retain);
      expect_same(independent, [&](Block& b) {
        Tensors all;
        for (int step = 0; step < 2; ++step) {  // adds to the gradients in place
          const Tensor leaf = input(), x = leaf * 1.5;
          const Tensors y = b(x);
          // What is recorded of x outside is shared: its op saves nothing, but it is freed, too.
          EXPECT_TRUE(back(y[swap], true));
          EXPECT_TRUE(back(y[!swap], retain));
          back(y[swap], retain);
          back(y[!swap]);
          all.push_back(leaf.grad());
        }
        return all;
      });
    }
}

TEST_F(RegionParts, EachOutputIsFreedByItself) {
  for (const bool swap : {false, true})
    expect_same(independent, [&](Block& b) {
      const Tensor x = input();
      const Tensors y = b(x);
      EXPECT_TRUE(back(y[swap]));
      const Tensor first = x.grad().clone();
      EXPECT_FALSE(back(y[swap]));
      EXPECT_TRUE(back(y[!swap]));
      EXPECT_FALSE(back(y[!swap]));
      EXPECT_FALSE(back(y[swap]));
      EXPECT_TRUE(has(said.back(), kFreed));
      EXPECT_TRUE(has(said.back(), "region_parts_test.cc"));
      return Tensors{first, x.grad()};
    });
}

TEST_F(RegionParts, ASharedOpIsFreedOnce) {
  expect_same(sharing, [&](Block& b) {
    const Tensor x = input();
    const Tensors y = b(x);
    EXPECT_TRUE(back(y[1]));
    EXPECT_FALSE(back(y[0]));
    EXPECT_TRUE(has(said.back(), "backward of tanh: "));
    EXPECT_TRUE(has(said.back(), kFreed));
    return Tensors{x.grad()};
  });
  // With the graph retained, all of it may go twice.
  expect_same(sharing, [&](Block& b) {
    const Tensor x = input();
    const Tensors y = b(x);
    EXPECT_TRUE(back(y[0], true));
    EXPECT_TRUE(back(y[1], true));
    EXPECT_TRUE(back(y[0] + y[1]));
    EXPECT_FALSE(back(y[1]));
    return Tensors{x.grad()};
  });
}

// An output that is computed from another one.
TEST_F(RegionParts, AnOutputBelowAnother) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = ops::tanh(x * b.bias), k = ops::sigmoid(x);
    return Tensors{h, h * k, ops::exp(k)};
  };
  for (const auto& order : std::vector<std::vector<size_t>>{{0, 1, 2}, {2, 0, 1}, {1, 2, 0}, {2, 1, 0}, {0, 2, 2}})
    expect_same(body, [&](Block& b) {
      const Tensor x = input();
      const Tensors y = b(x);
      for (const size_t i : order) back(y[i]);
      return Tensors{};  // how far a gradient got before the error is not defined
    });
}

// autograd::grad() goes only where its inputs are.
TEST_F(RegionParts, GradOfAPart) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor a = b.bias * b.bias;
    return Tensors{a, ops::tanh(a * x)};
  };
  for (const bool inside : {false, true}) {
    SCOPED_TRACE(inside);
    Tensors results;
    const auto use = [&](Block& b, const Tensors& y, const Tensor& x) {
      const Tensor g = grad(y[1], x);
      EXPECT_TRUE(back(y[0]));
      EXPECT_FALSE(back(y[1]));
      EXPECT_FALSE(back(y[0]));
      return Tensors{g, b.bias.grad()};
    };
    expect_same(
        [&](Block& b, const Tensor& x) {
          const Tensors y = body(b, x);
          return inside ? use(b, y, x) : y;
        },
        [&](Block& b) {
          const Tensor x = input();
          const Tensors y = b(x);
          return inside ? y : use(b, y, x);
        });
  }
}

// What grad() leaves out may be freed already.
TEST_F(RegionParts, GradAboveWhatIsFreed) {
  const MeansToRun eagerly(Eagerly::kBackward, "gradients of outputs inside the region");
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor a = ops::tanh(b.bias);
    return Tensors{a, ops::exp(a * x), ops::sigmoid(x)};
  };
  for (const int target : {0, 1, 2}) {
    SCOPED_TRACE(target);
    expect_same(body, [&](Block& b) {
      const Tensor leaf = input();
      Tensor x = leaf * 2.0;
      const Tensors y = b(x);
      EXPECT_TRUE(back(y[0]));
      Tensors all;
      if (target == 0) all.push_back(grad(y[1], y[0]));
      if (target == 1) all.push_back(grad(y[1], x));
      if (target == 2) {
        all.push_back(grad(y[0], y[0]));
        all.push_back(grad(y[1], b.bias));
      }
      back(y[1]);
      back(y[2]);
      all.push_back(leaf.grad());
      return all;
    });
  }
}

TEST_F(RegionParts, GradUpToAnOutput) {
  const MeansToRun eagerly(Eagerly::kBackward, "gradients of outputs inside the region");
  expect_same(sharing, [&](Block& b) {
    const Tensor x = input();
    b.state.kept = b(x);
    return Tensors{};
  });
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = ops::tanh(x * b.bias);
    return Tensors{h, ops::exp(h) * h};
  };
  expect_same(body, [&](Block& b) {
    const Tensor x = input();
    const Tensors y = b(x);
    const Tensor g = grad(y[1], y[0]);
    EXPECT_FALSE(grad(y[1], y[0]).defined());
    EXPECT_TRUE(back(y[0]));
    EXPECT_FALSE(back(y[0]));
    return Tensors{g, x.grad()};
  });
}

// The tape outside: what a backward through one output does not reach stays as it is.
TEST_F(RegionParts, OpsBelowTheOtherOutput) {
  expect_same(
      [](Block& b, const Tensor& x) {
        return Tensors{ops::tanh(x), b.state.kept[0] * b.bias};
      },
      [&](Block& b) {
        const Tensor leaf = input(), other = input();
        b.state.kept = {ops::exp(other)};
        const Tensors y = b(ops::sigmoid(leaf));
        EXPECT_TRUE(back(y[0]));
        EXPECT_TRUE(back(y[1]));
        EXPECT_FALSE(back(y[0]));
        EXPECT_FALSE(back(y[1]));
        return Tensors{leaf.grad(), other.grad()};
      });
}
TEST_F(RegionParts, OpsAboveTheOtherOutput) {
  expect_same(
      [](Block& b, const Tensor& x) {
        return Tensors{ops::tanh(x), b.state.kept[0] * b.bias};
      },
      [&](Block& b) {
        const Tensor leaf = input(), other = input();
        b.state.kept = {other};
        const Tensors y = b(leaf);
        const Tensor above = ops::exp(y[1]);
        const Tensor g = grad(ops::sum(y[0]) + ops::sum(above), leaf);
        EXPECT_TRUE(back(above));
        EXPECT_FALSE(back(above));
        EXPECT_FALSE(back(y[0]));
        return Tensors{g, other.grad()};
      });
}

TEST_F(RegionParts, ThroughTwoRegions) {
  const auto body = [](Block& b, const Tensor& x) {
    if (b.state.step++ % 2 == 0) return independent(b, x);
    return Tensors{ops::exp(x), ops::tanh(b.state.kept[0]) * b.bias};
  };
  expect_same(body, [&](Block& b) {
    const Tensor x = input();
    const Tensors y = b(x);
    b.state.kept = {y[1]};
    const Tensors z = b(y[0]);
    EXPECT_TRUE(back(z[1]));
    EXPECT_TRUE(back(z[0]));
    EXPECT_FALSE(back(z[0]));
    EXPECT_FALSE(back(y[1]));
    return Tensors{x.grad()};
  });
}

TEST_F(RegionParts, HooksAndRetainedGradients) {
  const MeansToRun eagerly(Eagerly::kBackward, "a hook inside the region");
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = ops::tanh(x * b.bias), k = ops::sigmoid(x);
    return Tensors{h, h * h, k, ops::exp(k)};
  };
  for (const bool anomaly : {false, true})
    expect_same(body, [&](Block& b) {
      const Tensor x = input();
      Tensors y = b(x);
      std::optional<autograd::DetectAnomaly> detect;
      if (anomaly) detect.emplace();
      y[0].retain_grad();
      y[2].register_hook([&b](const Tensor& g) { return ++b.state.hook_calls, g * 0.5; });
      EXPECT_TRUE(back(y[3]));
      EXPECT_TRUE(back(y[1]));
      const Tensors got{x.grad(), y[0].grad().clone(), Tensor::full({1}, b.state.hook_calls)};
      EXPECT_FALSE(back(y[3]));
      EXPECT_FALSE(back(y[0]));
      return got;  // on the eager tape, hooks run before the error
    });
}

TEST_F(RegionParts, SecondDerivativesOfOneOutput) {
  const MeansToRun eagerly(Eagerly::kBackward, "gradients with a history");
  for (const bool first : {false, true}) {
    SCOPED_TRACE(first);
    expect_same(independent, [&](Block& b) {
      const Tensor x = input();
      const Tensors y = b(x);
      if (first) {
        EXPECT_TRUE(back(y[1]));
      }
      const Tensor g = grad(y[0], x, /*create_graph=*/true);
      EXPECT_TRUE(
          back(g * g));  // its way leads over tanh, which frees it on the eager tape, but over a tape of its own
      if (!first) {
        EXPECT_TRUE(back(y[1]));
      }
      EXPECT_FALSE(back(y[1]));
      return Tensors{x.grad()};
    });
  }
}
// The second derivative leads to an output whose handle is gone.
TEST_F(RegionParts, SecondDerivativesThroughAnOutputThatNobodyHolds) {
  const MeansToRun eagerly(Eagerly::kBackward, "gradients with a history");
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = ops::tanh(x * b.bias);
    return Tensors{h, ops::exp(x), h * h * h};
  };
  expect_same(body, [&](Block& b) {
    const Tensor x = input();
    Tensors y = b(x);
    const Tensor g = grad(y[2], y[0], /*create_graph=*/true);
    y[2] = y[0] = Tensor();
    EXPECT_TRUE(back(y[1]));
    EXPECT_TRUE(back(g * g));
    return Tensors{g.detach(), x.grad()};
  });
}

TEST_F(RegionParts, ViewsWhoseBaseNobodyHolds) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = ops::tanh(x * b.bias);
    return Tensors{h.slice(1, {0, 3}), ops::exp(x).t()};
  };
  expect_same(body, [&](Block& b) {
    const Tensor x = input();
    const Tensors y = b(x);
    EXPECT_TRUE(back(y[1]));
    EXPECT_TRUE(back(y[0] * 2.0));
    EXPECT_FALSE(back(y[1]));
    EXPECT_FALSE(back(y[0]));
    return Tensors{x.grad()};
  });
}

// An output that nobody holds any more keeps nothing alive: the first backward may free, and write over, all of it.
TEST_F(RegionParts, AnOutputThatIsGoneKeepsNothing) {
  const auto body = [](Block& b, const Tensor& x) {
    return Tensors{ops::tanh(x * b.bias), ops::exp(ops::tanh(x * 2.0))};
  };
  int64_t used[2];  // while the tape is there, by whether it is compiled
  for (const bool compiled : {false, true, true})
    run(
        body,
        [&](Block& b) {
          Tensor x = input({256, 6});
          const int64_t before = allocator::stats().bytes_in_use;
          Tensors y = b(x);
          const Tensor loss = ops::sum(y[0]);
          y.clear();
          loss.backward();
          x.set_grad({});
          b.zero_grad();
          used[compiled] = allocator::stats().bytes_in_use - before;
          return Tensors{};
        },
        compiled);
  EXPECT_LE(used[1], used[0] + 2000);
}

TEST_F(RegionParts, TwoThreadsTwoOutputs) {
  const auto body = [](Block& b, const Tensor& x) {
    return Tensors{ops::tanh(x * b.bias), ops::exp(ops::matmul(b.state.kept[0], b.weight))};
  };
  Block block(body);
  const auto regions = compile::compile_module(block, {.exact = true});
  const auto step = [&](bool together) {
    const Tensor x = Tensor::full({4, 6}, 0.5).requires_grad_(), other = Tensor::full({4, 6}, 0.25).requires_grad_();
    block.state.kept = {other};
    block.zero_grad();
    const Tensors y = block(x);
    std::thread second([&] { ops::sum(y[1]).backward(); });
    if (!together) second.join();
    ops::sum(y[0]).backward();
    if (together) second.join();
    return Tensors{x.grad(), other.grad(), block.weight.grad().clone(), block.bias.grad().clone()};
  };
  const Tensors expected = step(false);
  for (int i = 0; i < 50; ++i) {
    const Tensors got = step(true);
    for (size_t k = 0; k < got.size(); ++k) EXPECT_TRUE(same_bits(expected[k], got[k]));
  }
}

// ---- A saved tensor that was overwritten: the error names the op that reads it, and its line.

TEST_F(RegionParts, AnOverwrittenInputIsNamedByItsReader) {
  const MeansToRun eagerly(Eagerly::kBackward, "memory is overwritten before the backward");
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = x * b.state.kept[0];
    return Tensors{ops::tanh(h) + b.bias};
  };
  expect_same(body, [&](Block& b) {
    const Tensor leaf = input();
    Tensor other = Tensor::randn({4, 6});
    b.state.kept = {other};
    const Tensor y = b(leaf)[0];
    other.mul_(2.0);
    EXPECT_FALSE(back(y));
    EXPECT_TRUE(has(said.back(), "backward of mul: a tensor of shape [4, 6] "));
    EXPECT_TRUE(has(said.back(), "region_parts_test.cc"));
    b.zero_grad();  // the eager tape has got as far as the bias
    return Tensors{};
  });
}
TEST_F(RegionParts, AnOverwrittenOutputIsNamedByItsReader) {
  const MeansToRun eagerly(Eagerly::kBackward, "memory is overwritten before the backward");
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = ops::tanh(x * b.bias);
    return Tensors{h, ops::exp(h)};
  };
  for (const size_t written : {0, 1})
    for (const bool anomaly : {false, true})
      expect_same(body, [&](Block& b) {
        const Tensor x = input();
        Tensors y = b(x);
        const Tensor loss = ops::sum(y[1]);
        std::optional<autograd::DetectAnomaly> detect;
        if (anomaly) detect.emplace();
        no_grad([&] { y[written].mul_(2.0); });
        EXPECT_FALSE(back(loss));
        EXPECT_TRUE(has(said.back(), written == 0 ? "backward of tanh: " : "backward of exp: "));
        EXPECT_TRUE(has(said.back(), "region_parts_test.cc"));
        return Tensors{};
      });
}

}  // namespace
}  // namespace rondo
