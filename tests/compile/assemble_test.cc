// Values that are laid side by side: when their producer writes them in place, and that all views of them follow.
// Producers are attention's gradient, generated kernels, and what lays values side by side itself.
#include <gtest/gtest.h>

#include "rondo/compile/exec/check_units.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/transform/passes.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/op.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/compile/graph_fixture.h"

namespace rondo::compile {
namespace {

using Tensors = std::vector<Tensor>;

constexpr int64_t kRow = 8;  // of 2 heads of 4
const Dims kParts = {2, 3, kRow};

// The result of `body` for the gradients of attention, each as (B, T, C): the parts that a producer can write anywhere.
template <class Body> Graph of_gradients(Body body) {
  const NoGrad off;
  const Tensor heads = Tensor::zeros({2, 2, 3, 4}), logsumexp = Tensor::zeros({2, 2, 3});
  return record([&] {
    Tensors grads(3), parts;
    call(*find_op("attention_grad"), {heads, heads, logsumexp, heads, heads, heads, Tensor()},
         {.ints = {0}, .floats = {0.5}}, grads);
    for (const Tensor& grad : grads) parts.push_back(grad.transpose(1, 2).view(kParts));
    return Tensors{body(parts)};
  });
}

// For each cat of the graph, whether its parts are written in place. Compiled, the graph computes what it does eagerly.
std::vector<bool> in_place(const Graph& graph) {
  const Graph made = assemble_in_place(graph).value_or(graph);
  verify(made);
  EXPECT_EQ(check_graph(graph), "") << to_string(graph);
  std::vector<bool> cats;
  for (const GraphNode& node : made.nodes)
    if (node.op->is<trait::SideBySide>())
      cats.push_back(std::all_of(node.inputs.begin(), node.inputs.end(),
                                 [&](ValueId id) { return made.value(id).root == made.value(node.outputs[0]).root; }));
  return cats;
}

class Assemble : public testing::Test {
 protected:
  void SetUp() override {
    if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  }
};

TEST_F(Assemble, PartsAreWrittenInTheirPlaces) {
  for (const int dim : {0, 1, 2}) {
    EXPECT_EQ(in_place(of_gradients([&](const Tensors& p) { return Tensors{ops::cat(p, dim)}; })), std::vector{true})
        << dim;
  }
}

TEST_F(Assemble, ViewsOfThePartsMoveWithThem) {
  const Graph graph = of_gradients([](const Tensors& p) {
    return Tensors{ops::cat(p, 2), p[1].slice(2, {1, 3}) * 2.0, p[2].select(1, 1) * 3.0,
                   p[0].view({2, 3, 4, 2}).select(2, 3) * 4.0, p[1].view({6, kRow}).slice(0, {1, 6, 2}) * 5.0};
  });
  EXPECT_EQ(in_place(graph), std::vector{true});
}

// The whole has other values between the rows of a part (or its batches): a view that goes on from one to the next has
// no place there.
TEST_F(Assemble, AViewMustStayInARow) {
  const auto with_all_rows = [](int dim) {
    return in_place(of_gradients([&](const Tensors& p) {
      return Tensors{ops::cat(p, dim), p[1].view({6 * kRow}).slice(0, {0, 3}) * 2.0};
    }));
  };
  EXPECT_EQ(with_all_rows(0), std::vector{true});
  EXPECT_EQ(with_all_rows(1), std::vector{false});
  EXPECT_EQ(with_all_rows(2), std::vector{false});
}

TEST_F(Assemble, AValueHasOnePlace) {
  EXPECT_EQ(in_place(of_gradients([](const Tensors& p) {
              return Tensors{ops::cat({p[0], p[1]}, 2), ops::cat({p[0], p[2]}, 2)};
            })),
            (std::vector{true, false}));
  EXPECT_EQ(in_place(of_gradients([](const Tensors& p) {
              return Tensors{ops::cat({p[0], p[0]}, 2)};
            })),
            std::vector{false});
  // The caller gets a part: it is no view of what else he gets.
  EXPECT_EQ(in_place(of_gradients([](const Tensors& p) {
              return Tensors{ops::cat({p[0], p[1]}, 2), p[1]};
            })),
            std::vector{false});
  // What could not be written in place for one may be for the next.
  const Tensor outside = Tensor::ones(kParts);
  EXPECT_EQ(in_place(of_gradients([&](const Tensors& p) {
              return Tensors{ops::cat({p[0], outside}, 2), ops::cat({p[0], p[1]}, 2)};
            })),
            (std::vector{false, true}));
}

// What `body` makes of three tensors of kParts.
template <class Body> Graph of_inputs(Body body) {
  const NoGrad off;
  const Tensors inputs = {Tensor::zeros(kParts), Tensor::zeros(kParts), Tensor::zeros(kParts)};
  return record([&] { return body(inputs); });
}

TEST_F(Assemble, GeneratedKernelsWriteParts) {
  for (const int dim : {0, 1, 2}) {
    SCOPED_TRACE(dim);
    EXPECT_EQ(in_place(of_inputs([&](const Tensors& x) {
                return Tensors{ops::cat({ops::exp(x[0]) * x[1], x[1] + x[2], ops::tanh(x[2])}, dim)};
              })),
              std::vector{true});
    // Parts of several sizes, and one that is a number for each row.
    EXPECT_EQ(in_place(of_inputs([&](const Tensors& x) {
                return Tensors{ops::cat({x[0].slice(dim, {0, 1}) * 2.0, x[1] * 3.0}, dim) + 1.0};
              })),
              std::vector{true});
  }
  // One kernel writes a part and, densely, what the caller gets; a sum over the rows goes on with the whole.
  EXPECT_EQ(in_place(of_inputs([](const Tensors& x) {
              const Tensor y = ops::exp(x[0]), whole = ops::cat({y * 2.0, y * x[1]}, 2);
              return Tensors{y, ops::sum(whole.view({6, 2 * kRow}), {0})};
            })),
            std::vector{true});
}

TEST_F(Assemble, APartThatOthersReadStays) {
  EXPECT_EQ(in_place(of_inputs([](const Tensors& x) {
              const Tensor y = x[0] * 2.0;
              return Tensors{ops::cat({y, x[1] * 3.0}, 2), y + 1.0};
            })),
            std::vector{false});
  EXPECT_EQ(in_place(of_inputs([](const Tensors& x) {
              const Tensor y = x[0] * 2.0;
              return Tensors{ops::cat({y, x[1] * 3.0}, 2), y};
            })),
            std::vector{false});
  EXPECT_EQ(in_place(of_inputs([](const Tensors& x) {
              const Tensor y = x[0] * 2.0;
              return Tensors{ops::cat({y, y}, 2)};
            })),
            std::vector{false});
  EXPECT_EQ(in_place(of_inputs([](const Tensors& x) {
              return Tensors{ops::cat({(x[0] * 2.0).view({kRow, 6}), x[1].view({kRow, 6}) * 2.0}, 1)};
            })),
            std::vector{false});
}

TEST_F(Assemble, WholesWithinAWhole) {
  const auto nested = [](int inner, int outer) {
    return in_place(of_inputs([&](const Tensors& x) {
      const auto whole = [&](const Tensor& y) { return ops::cat({y * 2.0, ops::exp(y)}, inner); };
      return Tensors{ops::cat({whole(x[0]), whole(x[1]), whole(x[2])}, outer)};
    }));
  };
  for (const int inner : {0, 1, 2})
    for (const int outer : {0, 1, 2}) EXPECT_EQ(nested(inner, outer), std::vector(4, true)) << inner << outer;
}

// A product sums in another order where its operand has gaps.
TEST_F(Assemble, WhatALibraryReadsStaysDense) {
  const auto read = [](int outer) {
    return in_place(of_inputs([&](const Tensors& x) {
      const Tensor first = ops::cat({x[0] * 2.0, ops::exp(x[0])}, 2), second = ops::cat({x[1] * 2.0, x[2] * 3.0}, 2);
      return Tensors{ops::cat({first, second}, outer), ops::matmul(first, first.transpose(1, 2))};
    }));
  };
  EXPECT_EQ(read(0), (std::vector{true, true, true}));
  EXPECT_EQ(read(2), (std::vector{true, true, false}));
}

}  // namespace
}  // namespace rondo::compile
