// The first difference of two recordings, in the user's words.
#include "rondo/compile/transform/difference.h"

#include <gtest/gtest.h>

#include "rondo/compile/capture/trace.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/compile/graph_fixture.h"

namespace rondo::compile {
namespace {

// The text with every "(...difference_test.cc:LINE)" replaced by "(here)".
std::string without_places(std::string text) {
  for (size_t end; (end = text.find("difference_test.cc:")) != text.npos;) {
    const size_t begin = text.rfind('(', end), close = text.find(')', end);
    text.replace(begin, close - begin + 1, "(here)");
  }
  return text;
}
std::string first(const Graph& before, const Graph& now, std::vector<std::string> names = {}) {
  return without_places(difference(before, now, names).text);
}

Tensor zeros(const Dims& sizes) { return Tensor::zeros(sizes); }

// relu(x + b) * factor
Graph sample(const Tensor& x, const Tensor& b, double factor = 2.0) {
  return record([&] { return std::vector<Tensor>{ops::relu(x + b) * factor}; });
}

TEST(Difference, EqualRecordingsHaveNone) {
  const Tensor x = zeros({2, 64}), b = zeros({64});
  const Difference d = difference(sample(x, b), sample(x.clone(), b.clone()));
  EXPECT_EQ(d.text, "");
  EXPECT_EQ(d.count, 0);
}

TEST(Difference, Sizes) {
  const Graph before = sample(zeros({2, 64}), zeros({64}));
  EXPECT_EQ(first(before, sample(zeros({2, 96}), zeros({96})), {"input \"x\""}), "dim 1 of input \"x\": 64 -> 96");
  EXPECT_EQ(first(before, sample(zeros({5, 64}), zeros({64}))), "dim 0 of input #0 (read by add (here)): 2 -> 5");
  EXPECT_EQ(first(before, sample(zeros({2, 64}), zeros({1})), {"", "parameter \"b\""}),
            "dim 0 of parameter \"b\": 64 -> 1");
  EXPECT_EQ(first(before, sample(zeros({1, 2, 64}), zeros({64})), {"x"}), "shape of x: [2, 64] -> [1, 2, 64]");
}

TEST(Difference, OtherMetadataOfInputs) {
  const Tensor x = zeros({4, 4}), b = zeros({4});
  const Graph before = sample(x, b);
  EXPECT_EQ(first(before, sample(ops::transpose(x, 0, 1), b), {"x"}), "strides of x: [4, 1] -> [1, 4]");
  EXPECT_EQ(first(before, sample(x.to(kF64), b.to(kF64)), {"x"}), "dtype of x: f32 -> f64");
  Tensor trained = zeros({4});
  trained.requires_grad_();
  EXPECT_EQ(first(before, sample(x, trained), {"", "parameter \"b\""}),
            "requires_grad of parameter \"b\": false -> true");
  EXPECT_EQ(first(sample(x, trained), before, {"", "parameter \"b\""}),
            "requires_grad of parameter \"b\": true -> false");
}

TEST(Difference, Ops) {
  const Tensor x = zeros({4});
  auto chain = [&](auto last) { return record([&] { return std::vector<Tensor>{last(x + 1.0)}; }); };
  const Graph relu = chain([](const Tensor& t) { return ops::relu(t); });
  EXPECT_EQ(first(relu, chain([](const Tensor& t) { return ops::tanh(t); })), "op 1 is tanh (here), was relu (here)");
  EXPECT_EQ(first(relu, chain([](const Tensor& t) { return ops::exp(ops::relu(t)); })), "op 2 is new: exp (here)");
  EXPECT_EQ(first(relu, chain([](const Tensor& t) { return t; })),
            "the recording ends after 1 ops; before, relu (here) came next");
}

TEST(Difference, ScalarsAndIntegers) {
  const Tensor x = zeros({2, 6}), b = zeros({6});
  EXPECT_EQ(first(sample(x, b, 0.1), sample(x, b, 0.2)), "scalar 0 of op 2, mul_scalar (here): 0.1 -> 0.2");
  auto sliced = [&](int64_t begin) {
    return record([&] { return std::vector<Tensor>{ops::exp(x.slice(1, {begin, begin + 2}))}; });
  };
  const std::string text = first(sliced(1), sliced(3));
  EXPECT_TRUE(text.starts_with("integer ")) << text;
  EXPECT_NE(text.find("of op 0, slice (here): 1 -> 3"), text.npos) << text;
}

TEST(Difference, SharedTensors) {
  const Tensor x = zeros({4}), y = zeros({4});
  auto sum = [](const Tensor& a, const Tensor& b) { return record([&] { return std::vector<Tensor>{a + b}; }); };
  EXPECT_EQ(first(sum(x, y), sum(x, x)),
            "operand 1 of op 0, add (here) is input #0 (read by add (here)), was input #1");
  EXPECT_EQ(first(sum(x, x), sum(x, y), {"", "parameter \"w\""}),
            "operand 1 of op 0, add (here) is parameter \"w\", was input #0");
}

TEST(Difference, LiveOutputs) {
  const Tensor x = zeros({4});
  auto run = [&](bool keep) {
    return record([&] {
      const Tensor hidden = ops::exp(x), result = hidden * 2.0;
      return keep ? std::vector<Tensor>{hidden, result} : std::vector<Tensor>{result};
    });
  };
  EXPECT_EQ(first(run(false), run(true)), "outputs alive differ: the result of op 0, exp (here) is kept, and was not");
  EXPECT_EQ(first(run(true), run(false)), "outputs alive differ: the result of op 0, exp (here) is not kept any more");
}

TEST(Difference, GradMode) {
  Tensor x = zeros({4});
  x.requires_grad_();
  auto run = [&](bool grad) {
    GradMode mode(grad);
    return record([&] { return std::vector<Tensor>{ops::exp(x)}; });
  };
  EXPECT_EQ(first(run(true), run(false)), "the result of op 0, exp (here) requires no gradient, and did");
}

TEST(Difference, NearestRecordingIsTheOneCompared) {
  const Graph small = sample(zeros({2, 8}), zeros({8}));
  const Graph other = record([&] { return std::vector<Tensor>{ops::exp(ops::tanh(zeros({3})))}; });
  const Graph now = sample(zeros({2, 8}), zeros({8}), 3.0);
  for (std::vector<const Graph*> before : {std::vector{&small, &other}, std::vector{&other, &small}})
    EXPECT_EQ(without_places(nearest_difference(before, now)), "scalar 0 of op 2, mul_scalar (here): 2.0 -> 3.0");
  EXPECT_EQ(nearest_difference({}, now), "");
  EXPECT_GT(difference(other, now).count, difference(small, now).count);
}

struct Block : nn::Module<Block> {
  nn::Linear fc = child("fc", 4, 4);
  Tensor forward(const Tensor& x) { return fc(x); }
};

TEST(Difference, InputsAreNamedByTheirModule) {
  const Block block;
  const Tensor inputs[] = {zeros({4}), block.fc.bias, block.fc.weight};
  EXPECT_EQ(name_inputs(block, inputs),
            (std::vector<std::string>{"", "parameter \"fc.bias\"", "parameter \"fc.weight\""}));
}

// An op that a module of Rondo calls is placed at the user's line.
TEST(Difference, PlacesAreTheUsers) {
  Block block;
  Tensor x = zeros({2, 4});
  const Graph graph = record([&] { return std::vector<Tensor>{block(x)}; });
  ASSERT_FALSE(graph.nodes.empty());
  EXPECT_NE(std::string(graph.nodes[0].origin.user.file_name()).find("difference_test.cc"), std::string::npos);
  EXPECT_NE(std::string(graph.nodes[0].origin.where.file_name()).find("modules/layers"), std::string::npos);
  EXPECT_NE(location_of(graph.nodes[0].origin).find(", via "), std::string::npos);
}

}  // namespace
}  // namespace rondo::compile
