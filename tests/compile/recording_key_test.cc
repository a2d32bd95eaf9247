// Every fact that shapes a plan is in the key of a recording, or is asked for when the plan runs.
#include <gtest/gtest.h>

#include "rondo/compile/region/region.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using namespace test;

class RecordingKeys : public BlockTest {};

// What the backward of a leaf may compute again from the leaf itself must be kept for any other tensor: the caller may
// write to that before the backward runs.
TEST_F(RecordingKeys, ALeafAndThenTheResultOfAnOp) {
  const auto body = [](Block&, const Tensor& x) { return Tensors{ops::tanh(ops::exp(x)) * 2.0}; };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (bool leaf : {true, false, true, false}) {
      const Tensor source = input();
      Tensor x = leaf ? source : source * 1.0;
      const Tensor y = b(x)[0];
      if (leaf) no_grad([&] { return x.detach(); });
      else x.mul_(3.0);
      ops::sum(y).backward();
      all.push_back(y);
      all.push_back(source.grad());
    }
    return all;
  });
  EXPECT_EQ(report.entries, 2);
}
// The second entry does not take over what the first one keeps.
TEST_F(RecordingKeys, ALeafOfOneSizeAndTheResultOfAnOpOfAnother) {
  const auto body = [](Block&, const Tensor& x) { return Tensors{ops::tanh(ops::exp(x)) * 2.0}; };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int64_t rows : {4, 5, 4}) {
      const Tensor source = input({rows, 6});
      Tensor x = rows == 4 ? source : source * 1.0;
      const Tensor y = b(x)[0];
      if (rows == 5) x.mul_(3.0);
      ops::sum(y).backward();
      all.push_back(source.grad());
    }
    return all;
  });
}
TEST_F(RecordingKeys, AReplayOfALeafIsNotOneOfAResult) {
  struct Model : nn::Module<Model> {
    Tensor forward(const Tensor& x) { return ops::tanh(ops::exp(x)) * 2.0; }
  };
  Model model;
  compile::compile_module(model, {.exact = true, .capture = compile::Capture::kReplay});
  for (bool leaf : {true, true, false, false}) {
    const Tensor source = input(), twin = source.detach().requires_grad_();
    Tensor x = leaf ? source : source * 1.0;
    const Tensor y = model(x);
    if (!leaf) x.mul_(3.0);
    ops::sum(y).backward();
    ops::sum(ops::tanh(ops::exp(twin * 1.0)) * 2.0).backward();
    EXPECT_TRUE(same_bits(source.grad(), twin.grad())) << leaf;
  }
}

// Nor is an input without a gradient: it is a leaf as autograd counts, and the caller may write to it all the same.
TEST_F(RecordingKeys, AnInputWithoutAGradientMayBeOverwritten) {
  const auto body = [](Block& b, const Tensor& x) { return Tensors{ops::tanh(ops::exp(x)) * b.bias}; };
  expect_as_eager(body, [](Block& b) {
    Tensor x = Tensor::randn({4, 6});
    const Tensor y = b(x)[0];
    x.mul_(3.0);
    ops::sum(y).backward();
    return Tensors{y};
  });
}

// Fact by fact.
TEST_F(RecordingKeys, HoldEveryFact) {
  Block block([](Block& b, const Tensor& x) {
    const Tensor h = ops::leaky_relu(x, 0.1), view = h.t();
    return Tensors{ops::sum(h.slice(0, {0, 2}) * b.bias, {1}), view};
  });
  const compile::Regions regions = compile::compile_module(block);
  block(input());
  const compile::Graph graph = regions.regions()[0]->entries()[0]->recording();
  const compile::RecordingKey key = compile::pack(graph);
  EXPECT_EQ(key, compile::pack(graph));
  const auto differs = [&](const char* what, const std::function<void(compile::Graph&)>& change) {
    compile::Graph other = graph;
    change(other);
    EXPECT_NE(compile::pack(other), key) << what;
  };
  differs("dtype", [](compile::Graph& g) { g.value(g.inputs[0]).dtype = kBF16; });
  differs("sizes", [](compile::Graph& g) { g.value(g.inputs[0]).sizes[0] = 8; });
  differs("strides", [](compile::Graph& g) { g.value(g.inputs[0]).strides[0] = 12; });
  differs("requires_grad", [](compile::Graph& g) { g.value(g.inputs[0]).requires_grad ^= true; });
  differs("leaf", [](compile::Graph& g) { g.value(g.inputs[0]).leaf ^= true; });
  differs("an input more", [](compile::Graph& g) { g.inputs.push_back(g.inputs[0]); });
  differs("gradients of a result", [](compile::Graph& g) { g.value(g.nodes[0].outputs[0]).requires_grad ^= true; });
  differs("an operand", [](compile::Graph& g) { g.nodes[1].inputs[0] = g.inputs[0]; });
  differs("an integer", [](compile::Graph& g) {
    for (compile::GraphNode& node : g.nodes)
      if (node.attrs.ints.size() > 0) ++node.attrs.ints[0];
  });
  differs("a float", [](compile::Graph& g) { g.nodes[0].attrs.floats[0] = -g.nodes[0].attrs.floats[0]; });
  differs("an output", [](compile::Graph& g) { g.outputs.pop_back(); });
  differs("the order of outputs", [](compile::Graph& g) { std::swap(g.outputs[0], g.outputs[1]); });
  differs("a hidden output", [](compile::Graph& g) { g.value(g.outputs[0]).hidden ^= true; });
  differs("a node", [](compile::Graph& g) { g.nodes.pop_back(); });
}

// Who else holds an operand is asked for at run time: a graph that is kept, a second handle, a second input.
TEST_F(RecordingKeys, MemoryIsGivenAwayOnlyByItsOnlyHolder) {
  const auto body = [](Block& b, const Tensor& x) { return Tensors{ops::tanh(ops::exp(x) * b.bias) * x}; };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 4; ++i) {
      const Tensor source = input();
      Tensor x = source * 1.0, held = i % 2 == 0 ? x : Tensor();
      const Tensor y = b(x)[0];
      x = Tensor();
      ops::sum(y).backward(Tensor(), /*retain_graph=*/i == 2);
      if (i == 2) ops::sum(y * 2.0).backward();
      all.push_back(source.grad());
      all.push_back(held);
    }
    return all;
  });
}
TEST_F(RecordingKeys, TwoHandlesOfOneMemory) {
  const auto body = [](Block& b, const Tensor& x) { return Tensors{ops::tanh(x) * b.state.kept[0] + x}; };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 4; ++i) {
      const Tensor memory = Tensor::randn({60});
      const auto part = [&](int64_t offset) {
        return Tensor::from_storage(memory.storage(), offset, {4, 6}, {6, 1}, kF32).requires_grad_();
      };
      const Tensor x = part(0);
      b.state.kept = {i == 0 ? part(30) : i == 1 ? part(0) : i == 2 ? x : part(7)};
      for (Tensor& t : train_step(b, x)) all.push_back(t);
      all.push_back(b.state.kept[0].grad());
    }
    return all;
  });
}
TEST_F(RecordingKeys, TheThreadCountChanges) {
  const int before = num_threads();
  const auto body = [](Block& b, const Tensor& x) { return Tensors{x + mlp(b, x)}; };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int threads : {1, 3, 2, 1}) {
      set_num_threads(threads);
      for (Tensor& t : train_step(b, input({700, 6}))) all.push_back(t);
    }
    return all;
  });
  set_num_threads(before);
}

}  // namespace
}  // namespace rondo
