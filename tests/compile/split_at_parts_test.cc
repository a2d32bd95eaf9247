// What is computed from values that lie side by side, and for slices: in how many kernels, and that it is the same.
#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/compile/exec/check_units.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/region/region.h"
#include "rondo/compile/transform/passes.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/compile/graph_fixture.h"

namespace rondo::compile {
namespace {

using Tensors = std::vector<Tensor>;

const Dims kSizes = {6, 4, 8};

class SplitAtParts : public testing::Test {
 protected:
  void SetUp() override {
    if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  }
};

template <class Body> Graph of_inputs(Body body) {
  const NoGrad off;
  const Tensors inputs = {Tensor::zeros(kSizes), Tensor::zeros(kSizes), Tensor::zeros(kSizes),
                          Tensor::zeros({6, 1, 8})};
  return record([&] { return body(inputs); });
}

struct Counts {
  int kernels = 0, calls = 0;
  friend bool operator==(const Counts&, const Counts&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Counts& c) {
    return out << c.kernels << " kernels and " << c.calls << " calls";
  }
};
// Counts of the graph as it is fused; parts that are written in place are no calls. Compiled, the graph computes what
// it does eagerly.
Counts counts(const Graph& graph, bool exact = true) {
  const Graph split = split_at_parts(graph, exact).value_or(graph);
  verify(split);
  EXPECT_EQ(check_graph(graph), "") << to_string(graph);
  const Graph made = assemble_in_place(split).value_or(split);
  Counts result;
  for (const Unit& unit : fuse(made)) {
    const GraphNode& node = made.node(unit.nodes[0]);
    const ValueId whole = node.outputs[0];
    const bool in_place = node.op->is<trait::SideBySide>() &&
                          std::all_of(node.inputs.begin(), node.inputs.end(),
                                      [&](ValueId id) { return made.value(id).root == made.value(whole).root; });
    if (unit.fused) ++result.kernels;
    else if (!in_place) ++result.calls;
  }
  return result;
}

constexpr Counts kOneKernel{.kernels = 1};

// Two halves of the last dimension, as a rotary embedding turns them.
Tensor turned(const Tensor& x, const Tensor& by) {
  const Tensor a = ops::slice(x, -1, {0, 4}), b = ops::slice(x, -1, {4, 8}), cos = ops::slice(by, -1, {0, 4}),
               sin = ops::slice(by, -1, {4, 8});
  return ops::cat({a * cos - b * sin, b * cos + a * sin}, -1);
}

TEST_F(SplitAtParts, WhatIsComputedFromPartsSideBySide) {
  EXPECT_EQ(counts(of_inputs([](const Tensors& x) { return Tensors{turned(x[0], x[3]) * x[1]}; })), kOneKernel);
  EXPECT_EQ(counts(of_inputs([](const Tensors& x) {
              const Tensor y = turned(x[0], x[3]) * x[1] + 1.0;  // a broadcast operand, and a sum with what was split
              return Tensors{ops::tanh(y) * x[3] + y};
            })),
            kOneKernel);
  // A library reads it from memory in any case.
  EXPECT_EQ(counts(of_inputs(
                [](const Tensors& x) { return Tensors{ops::matmul(turned(x[0], x[3]) * 2.0, x[1].transpose(1, 2))}; })),
            (Counts{.kernels = 1, .calls = 1}));
  // Along each dimension, and in parts of several sizes, whose kernels differ.
  for (const int dim : {0, 1, 2})
    EXPECT_EQ(counts(of_inputs([&](const Tensors& x) {
                return Tensors{ops::cat({ops::exp(x[0]), ops::slice(x[1], dim, {1, 3}) * 2.0}, dim) * 0.5 + 1.0};
              })),
              (Counts{.kernels = 2}))
        << dim;
}

// Sums over the parts are another order: in default mode only.
TEST_F(SplitAtParts, Sums) {
  const auto graph = [](const Dims& dims) {
    return of_inputs([&](const Tensors& x) { return Tensors{ops::sum(turned(x[0], x[3]) * x[1], dims)}; });
  };
  EXPECT_EQ(counts(graph({-1}), /*exact=*/false), kOneKernel);
  EXPECT_EQ(counts(graph({-1}), /*exact=*/true), (Counts{.kernels = 2}));
  EXPECT_EQ(counts(graph({1}), /*exact=*/false), (Counts{.kernels = 2}));
  const Graph maximum = of_inputs([](const Tensors& x) { return Tensors{ops::max(turned(x[0], x[3]) * x[1], {-1})}; });
  EXPECT_EQ(counts(maximum, /*exact=*/false), (Counts{.kernels = 2}));
}

// What goes on with the whole in a kernel of its own would have to read it from memory.
TEST_F(SplitAtParts, WhatReadsTheWholeIsNotSplit) {
  for (const bool reads_cat : {true, false}) {
    const Graph graph = of_inputs([&](const Tensors& x) {
      const Tensor whole = turned(x[0], x[3]), y = whole * x[1];
      return Tensors{y, ops::max(reads_cat ? whole : y, {-1})};
    });
    EXPECT_FALSE(split_at_parts(graph, true).has_value());
  }
  // The caller gets the whole.
  EXPECT_FALSE(split_at_parts(of_inputs([](const Tensors& x) {
                                const Tensor whole = turned(x[0], x[3]);
                                return Tensors{whole, whole * x[1]};
                              }),
                              true));
  // Two ways to cut.
  EXPECT_FALSE(split_at_parts(of_inputs([](const Tensors& x) {
                                const auto cut = [](const Tensor& t, int64_t at) {
                                  return ops::cat({ops::slice(t, -1, {at, 8}), ops::slice(t, -1, {0, at})}, -1);
                                };
                                return Tensors{cut(x[0], 3) * cut(x[1], 4)};
                              }),
                              true));
}

TEST_F(SplitAtParts, WhatIsComputedForSlices) {
  EXPECT_EQ(counts(of_inputs([](const Tensors& x) {
              const Tensor y = ops::exp(x[0] * x[1]) * x[3];
              return Tensors{ops::slice(y, -1, {0, 4}) * ops::slice(y, -1, {4, 8}) + 1.0};
            })),
            kOneKernel);
  EXPECT_EQ(counts(of_inputs([](const Tensors& x) {
              const Tensors y = ops::chunk(x[0] + x[1], 4, 1);
              return Tensors{ops::sigmoid(y[0]) * ops::tanh(y[1]) + ops::sigmoid(y[2]) * y[3]};
            })),
            kOneKernel);
  // More work than before, the whole wanted, memory of the caller's, a library's layout, steps, and another shape.
  using Body = Tensors (*)(const Tensors&);
  const Body whole[] = {
      [](const Tensors& x) {
        const Tensor y = ops::exp(x[0]);
        return Tensors{ops::slice(y, -1, {0, 5}) * ops::slice(y, -1, {3, 8})};
      },
      [](const Tensors& x) {
        const Tensor y = ops::exp(x[0]);
        return Tensors{ops::slice(y, -1, {0, 4}) * 2.0, y * 3.0};
      },
      [](const Tensors& x) {
        const Tensor y = ops::exp(x[0]);
        return Tensors{ops::slice(y, -1, {0, 4}), ops::slice(y, -1, {4, 8}) * 2.0};
      },
      [](const Tensors& x) {
        const Tensor y = ops::exp(x[0]);
        return Tensors{ops::matmul(ops::slice(y, -1, {0, 4}), ops::slice(y, -1, {4, 8}).transpose(1, 2))};
      },
      [](const Tensors& x) {
        const Tensor y = ops::exp(x[0]);
        return Tensors{ops::slice(y, -1, {0, 8, 2}) * ops::slice(y, -1, {1, 8, 2})};
      },
      [](const Tensors& x) {
        const Tensor y = ops::exp(x[0]).view({6, 32});
        return Tensors{ops::slice(y, -1, {0, 16}) * ops::slice(y, -1, {16, 32})};
      },
  };
  for (const Body body : whole) {
    const Graph graph = of_inputs(body);
    EXPECT_FALSE(split_at_parts(graph, true).has_value()) << to_string(graph);
  }
  // Its operands would be stored in its place, both of them.
  const Graph costly = of_inputs([](const Tensors& x) {
    const Tensor a = ops::exp(x[0]), b = ops::tanh(x[1]), y = a * b;
    return Tensors{ops::slice(y, -1, {0, 4}) * ops::slice(y, -1, {4, 8}), ops::softmax(a, -1), ops::softmax(b, -1)};
  });
  EXPECT_FALSE(split_at_parts(costly, true).has_value());
}

struct Rotary : nn::Module<Rotary> {
  Tensor by, k;
  Tensor forward(const Tensor& x) { return ops::sum(turned(x, by) * k); }
};

// A backward of slices without gaps is a kernel, too, and its zeros have eager's signs.
TEST_F(SplitAtParts, Gradients) {
  manual_seed(3);
  for (const DType dtype : {kF32, kBF16}) {
    const Tensor by = Tensor::randn({6, 1, 8}).to(dtype), x = Tensor::randn(kSizes).to(dtype),
                 k = ops::where(Tensor::rand(kSizes) > 0.5, Tensor::randn(kSizes), -0.0).to(dtype);
    const auto run = [&](std::optional<CompileOptions> options) {
      Rotary rotary;
      rotary.by = by;
      rotary.k = k;
      std::optional<Regions> regions;
      if (options) regions = compile_module(rotary, *options);
      const Tensor leaf = x.detach().requires_grad_(), loss = rotary(leaf);
      loss.backward();
      return Tensors{loss.detach(), leaf.grad()};
    };
    const Tensors eager = run(std::nullopt), exact = run(CompileOptions{.exact = true}),
                  relaxed = run(CompileOptions{});
    const test::Tolerance tolerance{.of_largest = dtype == kF32 ? 1e-6 : 1.0 / 64};
    for (size_t i = 0; i < eager.size(); ++i) {
      EXPECT_TRUE(test::same_bits(exact[i], eager[i])) << i;
      EXPECT_TRUE(test::is_close(relaxed[i], eager[i], tolerance)) << i;
    }
  }
}

// A view that only turns dimensions of size 1 shows no window.
TEST_F(SplitAtParts, PermutedViews) {
  EXPECT_EQ(check_graph(of_inputs([](const Tensors& x) {
              const Tensor y = ops::exp(ops::slice(ops::slice(x[0], 1, {0, 1}), 2, {0, 1}));
              return Tensors{y.permute({1, 0, 2}) * 2.0, y.permute({1, 2, 0}) + 1.0};
            })),
            "");
}

}  // namespace
}  // namespace rondo::compile
