// A recording at other sizes must be what is recorded there.
#include "rondo/compile/capture/resize.h"

#include <gtest/gtest.h>

#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/compile/graph_fixture.h"

namespace rondo::compile {
namespace {

// Dimensions of input `input` with their present sizes as variables.
std::optional<Graph> resized(const Graph& graph, std::vector<VariableDim> dims, std::vector<int64_t> now,
                             std::vector<int64_t> then) {
  const auto resizing = Resizing::find(graph, dims, now);
  return resizing ? resizing->at(then) : std::nullopt;
}

TEST(Resize, AGptAtAnyLength) {
  nn::GPT2 model({.vocab_size = 31, .block_size = 256, .n_layer = 1, .n_head = 3, .n_embd = 36}, 1);  // heads of 12
  const auto at = [&](int64_t batch, int64_t length) {
    const Tensor tokens = Tensor::zeros({batch, length}, {kI64});
    return record([&] { return std::vector<Tensor>{model(tokens)}; });
  };
  // Also where the length equals the batch, a head, all heads, what is projected, and whole multiples of them.
  // (Not where it equals a batch of 8 or fewer: there, both are taken to change.)
  for (int64_t length : {3, 5, 7, 12, 24, 36, 72, 108, 144, 100, 256}) {
    const Graph graph = at(4, length);
    int32_t tokens = -1;
    for (size_t i = 0; i < graph.inputs.size(); ++i)
      if (graph.value(graph.inputs[i]).sizes == Dims{4, length} && graph.value(graph.inputs[i]).dtype == kI64)
        tokens = static_cast<int32_t>(i);
    ASSERT_GE(tokens, 0);
    for (int64_t other : {2, 5, 17, 36, 200, 256}) {
      const auto graph_there = resized(graph, {{tokens, 1, 0}}, {length}, {other});
      ASSERT_TRUE(graph_there.has_value()) << length;
      EXPECT_EQ(to_string(*graph_there), to_string(at(4, other))) << length << " -> " << other;
    }
  }
}

TEST(Resize, TwoVariablesAndProductsOfThem) {
  const auto at = [](int64_t batch, int64_t length) {
    const Tensor x = Tensor::zeros({batch, length, 6});
    return record([&] {
      const Tensor rows = x.view({batch * length, 6});
      return std::vector<Tensor>{ops::softmax(rows.view({batch, length, 2, 3}).transpose(1, 2)), rows * 2.0,
                                 x.view({batch * length * 6}) * 3.0};  // also a multiple of each of them
    });
  };
  for (auto [batch, length] : {std::pair<int64_t, int64_t>{9, 20}, {20, 9}, {12, 48}}) {
    const auto there = resized(at(batch, length), {{0, 0, 0}, {0, 1, 1}}, {batch, length}, {7, 31});
    ASSERT_TRUE(there.has_value());
    EXPECT_EQ(to_string(*there), to_string(at(7, 31))) << batch << " " << length;
  }
}

TEST(Resize, NeighboursInSlices) {
  for (const int64_t apart : {1, 2}) {
    const auto at = [&](int64_t length) {
      const Tensor x = Tensor::zeros({4, length});
      return record([&] { return std::vector<Tensor>{x.slice(1, {apart, length}) - x.slice(1, {0, length - apart})}; });
    };
    const auto there = resized(at(20), {{0, 1, 0}}, {20}, {90});
    ASSERT_TRUE(there.has_value()) << apart;
    EXPECT_EQ(to_string(*there), to_string(at(90))) << apart;
  }
}

// Rows of a longer tensor keep the gap between them.
TEST(Resize, StridedInputs) {
  const auto at = [](int64_t length) {
    const Tensor longer = Tensor::zeros({4, length + 3});
    return record([&] { return std::vector<Tensor>{longer.slice(1, {0, length}).detach() * 2.0}; });
  };
  const auto outside = [](int64_t length) {
    const Tensor part = Tensor::zeros({4, length + 3}).slice(1, {0, length});
    return record([&] { return std::vector<Tensor>{part * 2.0}; });
  };
  const auto there = resized(outside(20), {{0, 1, 0}}, {20}, {50});
  ASSERT_TRUE(there.has_value());
  EXPECT_EQ(to_string(*there), to_string(outside(50)));
  EXPECT_TRUE(resized(at(20), {{0, 1, 0}}, {23}, {53}).has_value());
}

// Parts of parts of what is transposed: offsets and strides follow from those of the operand.
TEST(Resize, ViewsOfViews) {
  const auto at = [](int64_t length) {
    const Tensor x = Tensor::zeros({6, length});
    return record([&] { return std::vector<Tensor>{x.t().slice(1, {1, 5}).slice(1, {2, 4}) * 2.0}; });
  };
  const auto there = resized(at(20), {{0, 1, 0}}, {20}, {50});
  ASSERT_TRUE(there.has_value());
  EXPECT_EQ(to_string(*there), to_string(at(50)));
}

// A mask without a mark follows. It has no gradient, as a parameter has.
TEST(Resize, AMaskFollowsWithoutAMark) {
  const auto at = [](int64_t length) {
    const Tensor x = Tensor::zeros({4, length}), mask = Tensor::zeros({length});
    return record([&] { return std::vector<Tensor>{x * mask}; });
  };
  const auto there = resized(at(20), {{0, 1, 0}}, {20}, {50});
  ASSERT_TRUE(there.has_value());
  EXPECT_EQ(to_string(*there), to_string(at(50)));
}

// Constants that are made inside have no operands whose sizes they could follow.
TEST(Resize, RecordedConstantsFollow) {
  const auto at = [](int64_t length) {
    const Tensor x = Tensor::zeros({4, length});
    return record([&] {
      return std::vector<Tensor>{x + Tensor::zeros({length}) + Tensor::full({4, 1}, 0.5), Tensor::ones({6, length})};
    });
  };
  const auto there = resized(at(20), {{0, 1, 0}}, {20}, {50});
  ASSERT_TRUE(there.has_value());
  EXPECT_EQ(there->inputs.size(), 1u) << "all three are recorded";
  EXPECT_EQ(to_string(*there), to_string(at(50)));
}

// A first state of zeros is as wide as a parameter, also where that is the length.
TEST(Resize, RecordedConstantsKeepSizesOfParameters) {
  const Tensor weight = Tensor::zeros({20, 20}).requires_grad_();
  const auto at = [&](int64_t length) {
    const Tensor x = Tensor::zeros({4, length, 20});
    return record([&] {
      const Tensor state = Tensor::zeros({4, 1, 20});
      return std::vector<Tensor>{ops::matmul(state, weight) + x};
    });
  };
  const auto there = resized(at(20), {{1, 1, 0}}, {20}, {50});  // input 0 is the weight
  ASSERT_TRUE(there.has_value());
  EXPECT_EQ(to_string(*there), to_string(at(50)));
}

TEST(Resize, WhatDoesNotFitTogetherIsNotGuessed) {
  const Tensor fixed = Tensor::zeros({20, 5}).requires_grad_();  // a parameter keeps its size
  const Tensor x = Tensor::zeros({4, 20}), few = Tensor::zeros({4, 2});
  const Graph graph = record([&] { return std::vector<Tensor>{ops::matmul(x, fixed)}; });
  EXPECT_FALSE(resized(graph, {{0, 1, 0}}, {20}, {30}).has_value());
  const Graph small = record([&] { return std::vector<Tensor>{few * 2.0}; });
  EXPECT_FALSE(resized(small, {{0, 1, 0}}, {2}, {30}).has_value());
}

}  // namespace
}  // namespace rondo::compile
