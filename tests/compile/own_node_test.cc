// Tape nodes of a program's own inside of regions, and other changes of a tensor's history: graph breaks, with the
// gradients of eager execution.
#include <gtest/gtest.h>

#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using test::Block;
using test::BlockTest;
using test::Tensors;

// The gradient of each edge is `factor` times what arrives.
class Times final : public Node {
 public:
  explicit Times(double factor) : factor_(factor) {}
  const char* name() const override { return "times"; }
  void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) override {
    for (Tensor& grad : grads_in) grad = grads_out[0] * factor_;
  }

 private:
  const double factor_;
};

// y = x, whose gradient is the node's.
Tensor through(const std::shared_ptr<Node>& node, const Tensor& x) {
  Tensor y = no_grad([&] { return x * 1.0; });
  node->edges.push_back(autograd::gradient_edge(x));
  autograd::set_history(y, node, 0);
  return y;
}
Tensor times(double factor, const Tensor& x) { return through(std::make_shared<Times>(factor), x); }

// x^2 with the formula of a textbook: it saves its operand, and has a second derivative.
class Square final : public Node {
 public:
  explicit Square(const Tensor& x) : x_(x, false) { edges.push_back(autograd::gradient_edge(x)); }
  const char* name() const override { return "own square"; }
  void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) override {
    grads_in[0] = grads_out[0] * x_.get("own square", {}) * 2.0;
  }

 private:
  SavedTensor x_;
};
Tensor square(const Tensor& x) {
  Tensor y = no_grad([&] { return x * x; });
  autograd::set_history(y, std::make_shared<Square>(x), 0);
  return y;
}

class OwnNode : public BlockTest {
 protected:
  void expect_breaks_as_eager(const Block::Body& body, const std::function<Tensors(Block&)>& use = &test::one_step) {
    expect_as_eager(body, use);
    EXPECT_GT(report.graph_breaks, 0);
    EXPECT_NE(report.last_break.find("own_node_test.cc:"), std::string::npos) << report.last_break;
  }
};

TEST_F(OwnNode, OfARecordedValueKeepsTheGradient) {
  expect_breaks_as_eager([](Block& b, const Tensor& x) {
    const Tensor h = ops::tanh(ops::matmul(x, b.weight));
    return Tensors{times(3, h) * b.bias};
  });
}

TEST_F(OwnNode, OfAnInputKeepsTheGradient) {
  expect_breaks_as_eager([](Block& b, const Tensor& x) { return Tensors{times(3, x) * b.bias + x}; });
}

TEST_F(OwnNode, WhoseResultIsTheResult) {
  expect_breaks_as_eager([](Block& b, const Tensor& x) { return Tensors{times(3, b.norm(x) + b.bias)}; });
}

// Made before the call, so that nothing but the history says that it is used.
TEST_F(OwnNode, ThatIsOlderThanTheRecording) {
  const auto body = [](std::shared_ptr<Node>& node) {
    return [&node](Block& b, const Tensor& x) { return Tensors{through(node, ops::tanh(x * b.bias)) * b.bias}; };
  };
  std::shared_ptr<Node> node;
  expect_breaks_as_eager(body(node), [&](Block& b) {
    node = std::make_shared<Times>(3);
    return test::one_step(b);
  });
}

// More than two gradients meet at x and at the bias, of ops before, at and after the node: the order of a sum is seen
// in its bits.
TEST_F(OwnNode, GradientsMeetInEagersOrder) {
  for (const bool of_input : {false, true})
    expect_breaks_as_eager([of_input](Block& b, const Tensor& x) {
      const Tensor h = of_input ? x : x * b.bias;
      const Tensor before = ops::exp(h * 0.3) * b.bias + h * b.bias;
      const Tensor own = times(0.7, h) + times(1.3, b.bias);
      return Tensors{before + own * h + ops::sin(h) * b.bias};
    });
}

TEST_F(OwnNode, SeveralAndInABranchThatAnotherOpJoins) {
  expect_breaks_as_eager([](Block& b, const Tensor& x) {
    Tensor h = b.norm(x);
    for (int i = 0; i < 3; ++i) h = h + times(0.5 + i, ops::matmul(h, b.weight));
    return Tensors{h, times(2, h)};
  });
}

TEST_F(OwnNode, SavesItsOperand) {
  expect_breaks_as_eager([](Block& b, const Tensor& x) { return Tensors{square(ops::tanh(x) * b.bias) + square(x)}; });
}

TEST_F(OwnNode, ASecondDerivative) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "gradients with a history");
  expect_breaks_as_eager([](Block& b, const Tensor& x) { return Tensors{square(x * b.bias)}; },
                         [](Block& b) {
                           const Tensor x = test::input(), y = ops::sum(b(x)[0]), inputs[] = {x};
                           const Tensors g = autograd::grad({&y, 1}, inputs, {}, true, true);
                           ops::sum(g[0] * g[0]).backward();
                           return Tensors{x.grad(), g[0].detach()};
                         });
}

// The write comes after the node has saved the value: an error, as in eager execution, and no wrong gradient.
TEST_F(OwnNode, AWriteToWhatItSavedIsAnError) {
  const auto outcome = [](bool compiled, bool recorded) {
    Block block([recorded](Block& b, const Tensor& x) {
      Tensor h = recorded ? x.detach() * 2.0 : b.state.kept[0];
      const Tensor y = square(h * 1.0) + no_grad([&] { return h * 1.0; });
      Tensor z = no_grad([&] { return h * h; });
      autograd::set_history(z, std::make_shared<Square>(h), 0);
      no_grad([&] { h.mul_(3.0); });
      return Tensors{y + z + x};
    });
    block.state.kept = {Tensor::ones({4, 6})};
    if (compiled) compile::compile_module(block, {.exact = true});
    const Tensor x = test::input();
    return test::error_of([&] { ops::sum(block(x)[0]).backward(); });
  };
  for (const bool recorded : {false, true}) {
    const std::string eager = outcome(false, recorded);
    EXPECT_NE(eager.find("was overwritten in place"), std::string::npos) << eager;
    EXPECT_EQ(outcome(true, recorded), eager) << recorded;
  }
}

// ---- Other histories for tensors that recorded ops have read

TEST_F(OwnNode, AReadTensorGetsAHistory) {
  expect_breaks_as_eager(
      [](Block& b, const Tensor& x) {
        Tensor constant = b.state.kept[0].detach();
        const Tensor before = constant * x;  // constant here
        autograd::set_history(constant, std::make_shared<Times>(2), 0);
        const auto node = std::make_shared<Times>(3);
        node->edges.push_back(autograd::gradient_edge(b.bias));
        autograd::set_history(constant, node, 0);
        return Tensors{before + constant * b.norm(x)};
      },
      [](Block& b) {
        b.state.kept = {Tensor::randn({6})};
        return test::one_step(b);
      });
}

TEST_F(OwnNode, AReadTensorIsMadeALeaf) {
  for (const bool on : {true, false})
    expect_breaks_as_eager(
        [on](Block& b, const Tensor& x) {
          Tensor leaf = b.state.kept[0];
          const Tensor before = leaf * x;
          leaf.requires_grad_(on);
          return Tensors{before + leaf * b.norm(x)};
        },
        [on](Block& b) {
          b.state.kept = {Tensor::randn({6}).requires_grad_(!on)};
          Tensors all = test::one_step(b);
          all.push_back(b.state.kept[0].grad());
          return all;
        });
}

TEST_F(OwnNode, ALeafThatNothingHasReadBreaksNothing) {
  expect_as_eager(
      [](Block& b, const Tensor& x) {
        Tensor leaf = b.state.kept[0].detach();
        const Tensor y = x * b.bias;
        leaf.requires_grad_();
        b.state.kept.push_back(leaf);
        return Tensors{y * leaf};
      },
      [](Block& b) {
        b.state.kept = {Tensor::randn({6})};
        Tensors all = test::one_step(b);
        all.push_back(b.state.kept[1].grad());
        return all;
      });
  EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
}

// ---- What a break is counted and named as

TEST_F(OwnNode, IsCountedAndExplained) {
  Block block([](Block& b, const Tensor& x) { return Tensors{times(3, x * b.bias)}; });
  const compile::Regions regions = compile::compile_module(block);
  test::one_step(block);
  const compile::RegionReport report = regions.report()[0];
  EXPECT_GT(report.graph_breaks, 0);
  EXPECT_NE(report.last_break.find("the history of a value"), std::string::npos) << report.last_break;
}

TEST_F(OwnNode, IsAnErrorOfFullgraph) {
  Block block([](Block& b, const Tensor& x) {
    const Tensor h = x * b.bias;
    return Tensors{b.state.step++ == 0 ? h : times(3, h)};
  });
  compile::compile_module(block, {.fullgraph = true});
  test::one_step(block);
  const std::string error = test::error_of([&] { test::one_step(block); });
  EXPECT_NE(error.find("graph break"), std::string::npos) << error;
  EXPECT_NE(error.find("a tape node is made"), std::string::npos) << error;
  EXPECT_NE(error.find("own_node_test.cc:"), std::string::npos) << error;
}

// A replay would leave the history out.
TEST_F(OwnNode, IsNotReplayed) {
  for (const auto capture : {compile::Capture::kReplay, compile::Capture::kVerify}) {
    struct Layer : nn::Module<Layer> {
      Tensor& weight = parameter("weight", Tensor::ones({6}));
      std::shared_ptr<Node> node;
      Tensor forward(const Tensor& x) { return node ? through(node, x) * weight : times(3, x * weight) * weight; }
    } layer;
    const compile::Regions regions = compile::compile_module(layer, {.capture = capture});
    for (int call = 0; call < 3; ++call) {
      layer.weight.zero_grad();
      Tensor x = Tensor::full({6}, 2.0).requires_grad_();
      ops::sum(layer(x)).backward();
      EXPECT_EQ(x.grad().to_vector<double>(), std::vector<double>(6, 3.0)) << call;
      EXPECT_EQ(layer.weight.grad().to_vector<double>(), std::vector<double>(6, 8.0)) << call;
    }
    EXPECT_EQ(regions.report()[0].replays, 0);
    EXPECT_NE(regions.report()[0].why_not_replayed, "");
  }
}

// The steps of a loop run in pieces.
TEST_F(OwnNode, InALoopOverTime) {
  const auto use = [](Block& b) {
    Tensors all;
    for (int call = 0; call < 2; ++call)
      for (Tensor& t : test::one_step(b)) all.push_back(t.defined() ? t.clone() : t);
    return all;
  };
  expect_breaks_as_eager(
      [](Block& b, const Tensor& x) {
        Tensor h = x;
        for (int t = 0; t < 70; ++t) h = ops::tanh(ops::matmul(h, b.weight) + b.bias);
        h = times(3, h) + h;
        for (int t = 0; t < 40; ++t) h = ops::tanh(ops::matmul(h, b.weight) + b.bias);
        return Tensors{h};
      },
      use);
}

}  // namespace
}  // namespace rondo
