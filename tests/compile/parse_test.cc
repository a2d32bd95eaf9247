// Graphs as text and back: every op's recording, and a transformer block's forward and backward after every pass.
#include "rondo/compile/ir/parse.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "rondo/compile/capture/trace.h"
#include "rondo/compile/transform/joint.h"
#include "rondo/compile/transform/passes.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/compile/graph_fixture.h"
#include "rondo/tests/op_samples.h"

namespace rondo::compile {
namespace {

void expect_equal(const Graph& a, const Graph& b) {
  ASSERT_EQ(a.inputs, b.inputs);
  ASSERT_EQ(a.outputs, b.outputs);
  ASSERT_EQ(a.values.size(), b.values.size());
  for (size_t i = 0; i < a.values.size(); ++i) {
    const Value &x = a.values[i], &y = b.values[i];
    EXPECT_EQ(x.dtype, y.dtype) << i;
    EXPECT_EQ(x.sizes, y.sizes) << i;
    EXPECT_EQ(x.strides, y.strides) << i;
    EXPECT_EQ(x.requires_grad, y.requires_grad) << i;
    EXPECT_EQ(x.leaf, y.leaf) << i;
    EXPECT_EQ(x.producer, y.producer) << i;
    EXPECT_EQ(x.root, y.root) << i;
    EXPECT_EQ(x.offset, y.offset) << i;
  }
  ASSERT_EQ(a.nodes.size(), b.nodes.size());
  for (size_t i = 0; i < a.nodes.size(); ++i) {
    const GraphNode &x = a.nodes[i], &y = b.nodes[i];
    EXPECT_EQ(x.op, y.op) << i;
    EXPECT_EQ(x.inputs, y.inputs) << i;
    EXPECT_EQ(x.outputs, y.outputs) << i;
    EXPECT_EQ(x.attrs.ints, y.attrs.ints) << i;
    ASSERT_EQ(x.attrs.floats.size(), y.attrs.floats.size()) << i;
    for (size_t k = 0; k < x.attrs.floats.size(); ++k)
      EXPECT_EQ(std::bit_cast<uint64_t>(x.attrs.floats[k].value()), std::bit_cast<uint64_t>(y.attrs.floats[k].value()))
          << i;
  }
}

void expect_round_trip(const Graph& graph) {
  const std::string text = to_string(graph, Locations::kAsComments);
  SCOPED_TRACE(text);
  expect_equal(parse_graph(text), graph);
  EXPECT_EQ(to_string(parse_graph(text)), to_string(graph));
}

TEST(ParseGraph, EveryOp) {
  int graphs = 0;
  for (const OpDef* op : all_ops()) {
    const test::OpSpec* spec = test::find_spec(op->name);
    if (spec == nullptr || op->overwrites >= 0) continue;
    for (const test::OpSample& sample : test::samples_of(*spec)) {
      SCOPED_TRACE(std::string(op->name) + ": " + sample.label);
      const std::vector<Tensor> inputs = sample.inputs_as(kBF16);
      expect_round_trip(record([&] { return test::apply_op(*op, inputs, sample.attrs, sample.n_outputs); }));
      ++graphs;
    }
  }
  EXPECT_GT(graphs, 100);
}

TEST(ParseGraph, BlockAfterEveryPass) {
  nn::GPT2 model({.vocab_size = 31, .block_size = 8, .n_layer = 1, .n_head = 2, .n_embd = 16}, 1);
  const Tensor tokens = Tensor::zeros({2, 8}, {kI64});
  const Graph forward = record([&] { return std::vector<Tensor>{model(tokens)}; });
  expect_round_trip(forward);
  for (Graph graph : {forward, derive_backward(forward).graph}) {
    expect_round_trip(graph);
    for (auto* pass : {&decompose, &sort_scattered_rows, &eliminate_common_subexpressions, &eliminate_dead_code,
                       &join_chains, &assemble_in_place}) {
      graph = pass(graph).value_or(graph);
      expect_round_trip(graph);
      verify(parse_graph(to_string(graph)));
    }
  }
}

TEST(ParseGraph, TextOfEveryPart) {
  Tensor x = Tensor::zeros({2, 3});
  x.requires_grad_();
  const Graph graph = record([&] {
    const Tensor turned = ops::transpose(x, 0, 1);
    return std::vector<Tensor>{turned + 1.0, turned * 0.1};
  });
  EXPECT_EQ(to_string(graph), R"(input %0: f32[2, 3] grad leaf
%1: f32[3, 2] strides[1, 3] of %0 grad = permute(%0, 1, 0)
%2: f32[3, 2] grad = add_scalar(%1, 1.0)
%3: f32[3, 2] grad = mul_scalar(%1, 0.1)
return %2 %3
)");
  EXPECT_NE(to_string(graph, Locations::kAsComments).find("parse_test.cc:"), std::string::npos);
}

TEST(ParseGraph, FloatsKeepTheirBits) {
  for (double value : {0.0, -0.0, 1e20, -1e-300, std::nan("7"), -std::numeric_limits<double>::infinity()}) {
    const Tensor x = Tensor::zeros({2});
    expect_round_trip(record([&] { return std::vector<Tensor>{ops::add(x, value)}; }));
  }
}

TEST(ParseGraph, ErrorsNameTheLine) {
  auto complaint = [](const std::string& text) -> std::string {
    try {
      parse_graph(text);
    } catch (const Error& e) {
      return e.what();
    }
    return "none";
  };
  EXPECT_EQ(complaint("input %0: f32[2]\n%1: f32[2] = relu(%0)\nreturn %1\n"), "none");
  EXPECT_EQ(complaint(" # nothing\n"), "line 2: no graph");
  EXPECT_EQ(complaint("input %0: f32[2]\n%1: f32[2] = relax(%0)\nreturn %1\n"), "line 2: no op \"relax\"");
  EXPECT_EQ(complaint("input %0: f32[2]\n\n%1: f32[2] = relu(%2)\nreturn %1\n"), "line 3: %2 is not defined");
  EXPECT_EQ(complaint("input %0: f32[2]\ninput %0: f32[2]\nreturn %0\n"), "line 2: %0 is defined twice");
  EXPECT_EQ(complaint("input %0: f32[2] of %7\nreturn %0\n"), "line 3: %7 is not defined");
  EXPECT_EQ(complaint("input %0: f32[2] strides[1, 2]\nreturn %0\n"), "line 1: as many strides as sizes are needed");
  EXPECT_EQ(complaint("input %0: f32[1, 1, 1, 1, 1, 1, 1, 1, 1]\nreturn %0\n"), "line 1: too many dimensions");
  EXPECT_EQ(complaint("input %99999999999: f32[2]\nreturn %0\n"), "line 1: a value's number is out of range");
  EXPECT_EQ(complaint("input %0: f32[2]\n%1: f32[2] = relu(%0, 1.0, 2.0, 3.0)\nreturn %1\n"),
            "line 2: too many attributes");
  EXPECT_EQ(complaint("input %0: f32[2]\n%1: f32[2] = relu(%0, x)\nreturn %1\n"), "line 2: expected a number");
  EXPECT_EQ(complaint("input %0: f32[2]\nreturn %0\nreturn %0\n"), "line 3: nothing more was expected");
  EXPECT_EQ(complaint("input %0: f32[2]\n%0: f32[2] = relu(%0)\nreturn %0\n"), "line 2: %0 is defined twice");
  EXPECT_EQ(complaint("inputs %0: f32[2]\nreturn %0\n"), "line 1: expected \"%\", found \"inputs %0: f32[2]\"");
  // 2^48 is the first number that no size, stride or offset may have.
  EXPECT_EQ(complaint("input %0: f32[2] strides[281474976710655]\nreturn %0\n"), "none");
  for (const std::string number : {"281474976710656", "-281474976710656"})
    EXPECT_EQ(complaint("input %0: f32[2] strides[" + number + "]\nreturn %0\n"),
              "line 1: " + number + " is out of range");
}

// A damaged file is an error, or another graph; nothing worse.
TEST(ParseGraph, DamagedText) {
  const std::string whole =
      "input %0: f32[2, 3] grad leaf\ninput %4: f32[3]\n%1: f32[3, 2] strides[1, 3] of %0 grad = permute(%0, 1, 0)\n"
      "%2: f32[3, 2] grad = add_scalar(%1, 1.0)\n%3: f32[1, 2] at 3 = sum(%2, none, 1, -5, nan)\nreturn %2 %3\n";
  const std::string letters = "%[]:, \n=()0123456789-.#adefgilnoprstu";
  std::mt19937 random(7);
  int graphs = 0, errors = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = whole;
    for (unsigned k = 0; k <= random() % 3; ++k) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0: text.erase(at, 1 + random() % 6); break;
        case 1: text.insert(at, 1, letters[random() % letters.size()]); break;
        default: text[at] = letters[random() % letters.size()];
      }
    }
    try {
      const std::string read = to_string(parse_graph(text));
      ASSERT_EQ(to_string(parse_graph(read)), read) << text;
      ++graphs;
    } catch (const Error&) {
      ++errors;
    }
  }
  EXPECT_GT(graphs, 500);
  EXPECT_GT(errors, 1000);
}

}  // namespace
}  // namespace rondo::compile
