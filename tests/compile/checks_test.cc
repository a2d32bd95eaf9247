// Note [Checks are effects] of runtime/op/op.h: an index out of range is an error where eager execution finds one, even
// if nothing reads what is looked up.
#include <gtest/gtest.h>

#include <functional>

#include "rondo/compile/compile.h"
#include "rondo/compile/ir/parse.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/transform/passes.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/pixel_loss.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

using compile::Capture;
using test::error_of;

// Calls `lookup` and returns something else, or nothing.
struct Forgetful : nn::Module<Forgetful> {
  std::function<void(const Tensor&)> lookup;
  bool computes = true;
  explicit Forgetful(std::function<void(const Tensor&)> lookup) : lookup(std::move(lookup)) {}
  Tensor forward(const Tensor& x, const Tensor& index) {
    lookup(index);
    return computes ? x * 2.0 : x;
  }
};

class Checks : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
};

struct Lookup {
  const char* name;
  std::function<void(const Tensor&)> call;
};
// Each throws for an index of 9.
std::vector<Lookup> lookups() {
  const Tensor table = Tensor::ones({4, 3}), row = Tensor::ones({4});
  return {{"embedding", [=](const Tensor& i) { ops::embedding(table, i); }},
          {"index_select", [=](const Tensor& i) { ops::index_select(table, 0, i); }},
          {"gather", [=](const Tensor& i) { ops::gather(row, 0, i); }},
          {"scatter", [=](const Tensor& i) { ops::scatter(row, 0, i, 1.0); }},
          {"scatter_add", [=](const Tensor& i) { ops::scatter_add(row, 0, i, Tensor::ones({2})); }},
          {"cross_entropy",
           [=](const Tensor& i) {
             ops::cross_entropy(Tensor::ones({2, 4}), i);
           }},
          {"pixel_cross_entropy",
           [=](const Tensor& i) {
             ops::pixel_cross_entropy(Tensor::ones({1, 4, 1, 2}), i.reshape({1, 1, 2}));
           }},
          {"linear_cross_entropy",
           [=](const Tensor& i) {
             ops::linear_cross_entropy(Tensor::ones({2, 3}), table, {}, i);
           }},
          {"index_select", [=](const Tensor& i) { ops::relu(ops::index_select(table, 0, i) * 2.0); }}};
}

TEST_F(Checks, OfWhatNothingReadsThrowAsInEager) {
  const Tensor x = Tensor::ones({3}), good = Tensor::from<int64_t>({1, 3}, {2}),
               bad = Tensor::from<int64_t>({1, 9}, {2});
  for (const Lookup& lookup : lookups()) {
    for (const bool computes : {true, false}) {
      SCOPED_TRACE(std::string(lookup.name) + (computes ? "" : ", nothing computed"));
      Forgetful eager(lookup.call), compiled(lookup.call);
      eager.computes = compiled.computes = computes;
      const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
      for (const Tensor& index : {good, bad, good, bad, good}) {
        const std::string expected = error_of([&] { eager(x, index); });
        const std::string found = error_of([&] { compiled(x, index); });
        EXPECT_EQ(expected.empty(), index.is_same(good)) << expected;
        EXPECT_EQ(found.empty(), expected.empty()) << found;
        if (!found.empty()) {
          EXPECT_NE(found.find("9 "), std::string::npos) << found;
          EXPECT_NE(found.find("checks_test.cc"), std::string::npos) << found;
        }
      }
      const compile::RegionReport report = regions.report()[0];
      EXPECT_EQ(report.failed_compilations, 0) << report.last_failed_compilation;
      EXPECT_EQ(report.eager_runs, 0);
      EXPECT_EQ(report.entries, 1);
      if (default_device() == kCPU) {
        EXPECT_EQ(report.failed_runs, 2);
      }
    }
  }
}

// With a backward: what is dropped in the forward, what only the backward reads, and what it computes again.
TEST_F(Checks, ThrowWithGradientsAndRecomputation) {
  for (const compile::Recompute recompute : {compile::Recompute::kNone, compile::Recompute::kFull}) {
    const Tensor table = Tensor::randn({4, 3}), data = Tensor::randn({2, 3});
    const auto lookup = [&](const Tensor& x, const Tensor& index) {
      ops::embedding(table * 1.5, index);                 // read by nothing
      return ops::sum(x * ops::embedding(table, index));  // the gradient of x reads it
    };
    struct Loss : nn::Module<Loss> {
      std::function<Tensor(const Tensor&, const Tensor&)> fn;
      Tensor forward(const Tensor& x, const Tensor& index) { return fn(x, index); }
    } eager, compiled;
    eager.fn = compiled.fn = lookup;
    const compile::Regions regions = compile::compile_module(compiled, {.exact = true, .recompute = recompute});
    const Tensor good = Tensor::from<int64_t>({1, 3}, {2}), bad = Tensor::from<int64_t>({-1, 3}, {2});
    for (const Tensor& index : {good, bad, good}) {
      std::vector<Tensor> grads;
      std::vector<std::string> errors;
      for (Loss* module : {&eager, &compiled}) {
        Tensor x = data.detach().requires_grad_();
        errors.push_back(error_of([&] { (*module)(x, index).backward(); }));
        grads.push_back(x.grad());
      }
      EXPECT_EQ(errors[0].empty(), index.is_same(good));
      EXPECT_EQ(errors[1].empty(), errors[0].empty()) << errors[1];
      // A device that finds the error late has gone on, with numbers that mean nothing.
      if (errors[0].empty() || default_device() == kCPU) {
        EXPECT_TRUE(test::same_bits(grads[0], grads[1]));
      }
    }
    const compile::RegionReport report = regions.report()[0];
    EXPECT_EQ(report.failed_compilations, 0) << report.last_failed_compilation;
    EXPECT_EQ(report.eager_runs, 0);
  }
}

TEST_F(Checks, RunInAReplay) {
  const Tensor table = Tensor::ones({4, 3});
  Forgetful module([=](const Tensor& i) { ops::embedding(table, i); });
  const auto regions = compile::compile_module(module, {.exact = true, .capture = Capture::kReplay});
  const Tensor x = Tensor::ones({3}), good = Tensor::from<int64_t>({1, 3}, {2}),
               bad = Tensor::from<int64_t>({1, 9}, {2});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(error_of([&] { module(x, good); }), "");
    EXPECT_NE(error_of([&] { module(x, bad); }), "");
  }
}

// Note [Checks that wait] of fuse.cc. The error is eager's, whole: of several bad indices the first one in the program,
// its position, and the line.
TEST_F(Checks, ThatWaitFindTheFirstErrorOfTheProgram) {
  if (default_device() != kCPU) GTEST_SKIP() << "a device tells the first error that it meets, late";
  struct Messages : nn::Module<Messages> {
    Tensor& seen = buffer("seen", Tensor::zeros({1}));
    Tensor forward(const Tensor& x, const Tensor& edges) {
      seen.add_(ops::sum(x).reshape({1}));
      const Tensor sent = ops::embedding(x, edges.select(0, 0));
      seen.add_(1.0);
      return ops::index_add(x * 0.5, 0, edges.select(0, 1), ops::relu(sent));
    }
  };
  constexpr int64_t kEdges = 3000, kNodes = 40;
  manual_seed(3);
  const Tensor x = Tensor::randn({kNodes, 8}), good = Tensor::randint(0, kNodes, {2, kEdges});
  const auto with = [&](std::vector<std::pair<int64_t, int64_t>> bad) {  // place, index
    std::vector<int64_t> edges = good.to_vector<int64_t>();
    for (const auto& [place, index] : bad) edges[static_cast<size_t>(place)] = index;
    return Tensor::from<int64_t>(edges, {2, kEdges});
  };
  const Tensor all[] = {good,
                        with({{0, kNodes}}),
                        with({{kEdges - 1, -1}, {1234, INT64_MIN}}),
                        with({{kEdges + 17, kNodes}}),
                        with({{kEdges, -5}, {kEdges - 1, 77}}),
                        good};
  for (const compile::Capture capture : {Capture::kRecord, Capture::kReplay}) {
    Messages eager, compiled;
    const compile::Regions regions = compile::compile_module(compiled, {.exact = true, .capture = capture});
    for (const Tensor& edges : all) {
      Tensor expected, found;
      const std::string error = error_of([&] { expected = eager(x, edges); });
      EXPECT_EQ(error_of([&] { found = compiled(x, edges); }), error);
      EXPECT_EQ(error.empty(), edges.is_same(good)) << error;
      EXPECT_TRUE(test::same_bits(compiled.seen, eager.seen));
      if (error.empty()) {
        EXPECT_TRUE(test::same_bits(found, expected));
      }
    }
    const compile::RegionReport report = regions.report()[0];
    EXPECT_EQ(report.failed_compilations, 0) << report.last_failed_compilation;
    EXPECT_EQ(report.eager_runs, 0);
    EXPECT_EQ(report.failed_runs, 4);
    EXPECT_EQ(report.library_calls, 2);  // the sum of all, and the sort of the targets
  }
}

// Indices of a row and of each element; strided, repeated and sliced; vectors and what is left of them.
TEST_F(Checks, OfIndicesInAnyLayout) {
  struct Lookup : nn::Module<Lookup> {
    int64_t dim = 0;
    Tensor forward(const Tensor& x, const Tensor& index) { return ops::gather(ops::exp(x), dim, index) * 2.0; }
  };
  manual_seed(3);
  const Tensor x = Tensor::randn({23, 70});
  for (const int64_t dim : {0, 1})
    for (const int64_t place : {-1, 0, 33, 69, 70 * 22, 70 * 23 - 1}) {
      const int64_t size = x.sizes()[static_cast<int>(dim)];
      std::vector<int64_t> indices(23 * 70);
      for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int64_t>(i) % size;
      if (place >= 0) indices[static_cast<size_t>(place)] = size;
      const Tensor index = Tensor::from<int64_t>(indices, {23, 70});
      for (const Tensor& seen :
           {index, index.t().contiguous().t(), index.slice(1, {0, 70, 3}), index.slice(1, {69, 70}).expand({23, 70}),
            index.slice(0, {22, 23}).expand({23, 70})}) {
        Lookup eager, compiled;
        eager.dim = compiled.dim = dim;
        const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
        Tensor expected, found;
        const std::string error = error_of([&] { expected = eager(x, seen); });
        const std::string compiled_error = error_of([&] { found = compiled(x, seen); });
        EXPECT_EQ(compiled_error.empty(), error.empty());
        if (default_device() != kCPU) continue;
        EXPECT_EQ(compiled_error, error);
        if (error.empty()) {
          EXPECT_TRUE(test::same_bits(found, expected));
        }
        const compile::RegionReport report = regions.report()[0];
        EXPECT_EQ(report.failed_compilations, 0) << report.last_failed_compilation;
        EXPECT_EQ(report.eager_runs, 0);
      }
    }
}

// Which checks wait: of the graph's own inputs, with a kernel that reads them, where no process talks to another.
TEST(ChecksInAGraph, JoinAKernelThatReadsTheirIndices) {
  const auto calls = [](const std::string& text) {
    std::string names;
    const compile::Graph graph = compile::parse_graph(text);
    for (const compile::Unit& unit : compile::fuse(graph))
      if (!unit.fused) names += std::string(graph.node(unit.nodes[0]).op->name) + " ";
    return names;
  };
  const std::string lookup =
      "input %0: f32[40, 3]\n"
      "input %1: i64[20, 3]\n"
      "%2: bool[] = check_indices(%1, 40, 2)\n"
      "%3: f32[20, 3] = pick(%0, %1, 0)\n"
      "%4: f32[20, 3] = exp(%3)\n";
  EXPECT_EQ(calls(lookup + "return %4\n"), "");
  EXPECT_EQ(calls(lookup + "%5: f32[20, 3] = all_reduce_sum(%4, 0)\nreturn %5\n"), "check_indices all_reduce_sum ");
  EXPECT_EQ(calls("input %0: f32[40, 3]\n"
                  "input %1: i64[20, 3]\n"
                  "%2: bool[] = check_indices(%1, 40, 2)\n"
                  "%3: f32[40, 3] = exp(%0)\n"
                  "return %3\n"),
            "check_indices ");
  EXPECT_EQ(calls("input %0: f32[40, 3]\n"
                  "input %1: i64[20, 3]\n"
                  "%2: i64[20, 3] = neg(%1)\n"
                  "%3: bool[] = check_indices(%2, 40, 2)\n"
                  "%4: f32[20, 3] = pick(%0, %2, 0)\n"
                  "return %4\n"),
            "check_indices ");
}

// The rule, on a graph: what checks stays, what feeds it stays, and the rest goes.
TEST(ChecksInAGraph, StayInDeadCodeElimination) {
  const compile::Graph graph = compile::parse_graph(
      "input %0: f32[4, 3]\n"
      "input %1: i64[2]\n"
      "%2: f32[4, 3] = neg(%0)\n"
      "%3: f32[2, 3] = embedding(%2, %1)\n"
      "%4: f32[2, 3] = exp(%3)\n"
      "%5: f32[4, 3] = exp(%0)\n"
      "return %5\n");
  const auto live = compile::eliminate_dead_code(graph);
  ASSERT_TRUE(live.has_value());
  ASSERT_EQ(live->nodes.size(), 3u);
  EXPECT_STREQ(live->nodes[0].op->name, "neg");
  EXPECT_STREQ(live->nodes[1].op->name, "embedding");
}

// An op that throws for a bad index says so in its entry; the others do not.
TEST(ChecksInAGraph, EveryOpThatThrowsForItsDataSaysSo) {
  for (const OpDef* op : all_ops()) {
    const test::OpSpec* spec = test::find_spec(op->name);
    // The op before it has looked at the indices.
    if (spec == nullptr || op->is<trait::Pick>() || op->is<trait::SumSegments>()) continue;
    bool throws = false;
    for (const test::OpSample& sample : test::samples_of(*spec)) {
      // Every integer operand, in turn, full of an index that nothing has.
      for (size_t i = 0; i < sample.inputs.size(); ++i) {
        std::vector<Tensor> inputs = sample.inputs_as(kF32);
        if (!inputs[i].defined() || inputs[i].dtype() != kI64 || sample.role(i) != test::Role::kFixed) continue;
        if (inputs[i].numel() == 0) continue;
        inputs[i] = Tensor::full(inputs[i].sizes(), int64_t{1} << 40, {kI64, inputs[i].device()});
        throws |= !error_of([&] { test::apply_op(*op, inputs, sample.attrs, sample.n_outputs); }).empty();
      }
    }
    EXPECT_EQ(op->checks, throws) << op->name;
  }
}

}  // namespace
}  // namespace rondo
