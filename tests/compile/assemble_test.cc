// Values that are laid side by side: when their producer writes them in place, and that all views of them follow.
#include <gtest/gtest.h>

#include "rondo/compile/exec/check_units.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/transform/passes.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/op.h"
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
    if (node.op->traits.assembles)
      cats.push_back(std::all_of(node.inputs.begin(), node.inputs.end(),
                                 [&](ValueId id) { return made.value(id).root == node.outputs[0]; }));
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
  EXPECT_EQ(in_place(of_gradients([](const Tensors& p) {
              return Tensors{ops::cat({p[0], p[0] * 2.0}, 2), ops::cat({p[0], p[1]}, 2)};
            })),
            (std::vector{false, true}));
}

}  // namespace
}  // namespace rondo::compile
