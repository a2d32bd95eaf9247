// Plans: what a graph becomes for a target, as data that a process can write and another one read.
#include "rondo/compile/plan/plan.h"

#include <gtest/gtest.h>

#include "rondo/compile/exec/executor.h"
#include "rondo/compile/exec/program.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/plan/make_plan.h"
#include "rondo/runtime/error.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/parallel.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compile/graph_fixture.h"

namespace rondo::compile {
namespace {

// Kernels of rows and of elements, a sum over rows, a product, a library call with a float, and a view.
struct Sample {
  Tensor x = Tensor::randn({40, 24}), w = Tensor::randn({24, 24}), b = Tensor::randn({24});

  std::vector<Tensor> run(double factor = 0.5) const {
    const Tensor h = ops::gelu(ops::layer_norm(x, b, b) * factor);
    const Tensor y = ops::matmul(h, w).reshape({8, 5, 24});
    return {ops::softmax(y * factor), ops::sum(h, {0}), h};
  }
  Graph graph(double factor = 0.5) const {
    return record([&] { return run(factor); });
  }
  // In the order in which the recording meets them.
  std::vector<Tensor> inputs() const { return {x, b, w}; }
};

const PlanOptions kExact{.exact = true};

std::vector<Tensor> run_plan(const Plan& plan, const std::vector<Tensor>& inputs, const Graph& floats) {
  const Device here = default_device();
  const Code code(plan, find_or_compile(kernels_of(plan), Sizes::kConstant, {}, {}, target_of(here)).kernels, here);
  const Floats bound = floats_for(plan, floats);
  std::vector<Tensor> results = Executor(plan, code, bound).run(inputs, false);
  synchronize(here);  // the plan, its code and the floats end here
  return results;
}

void expect_same(const std::vector<Tensor>& expected, const std::vector<Tensor>& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(test::same_bits(expected[i], actual[i])) << i;
}

TEST(PlanText, ReadsBackAndRunsTheSame) {
  const Sample sample;
  const Plan plan = make_plan(sample.graph(), target_of(default_device()), kExact);
  const std::string text = to_string(plan);
  const Plan read = parse_plan(text);
  EXPECT_EQ(to_string(read), text);
  EXPECT_EQ(text.find("plan cpu"), 0u);
  EXPECT_NE(text.find("launch combine"), std::string::npos) << text;
  EXPECT_NE(text.find("launch call"), std::string::npos) << text;
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  const std::vector<Tensor> expected = sample.run();
  expect_same(expected, run_plan(plan, sample.inputs(), plan.graph));
  expect_same(expected, run_plan(read, sample.inputs(), read.graph));
}

TEST(PlanText, OfAnotherObjectOfTheSameGraphIsTheSame) {
  const Sample one, other;
  EXPECT_EQ(to_string(make_plan(one.graph(), target_of(default_device()), kExact)),
            to_string(make_plan(other.graph(), target_of(default_device()), kExact)));
}

TEST(PlanText, DamageIsAnErrorThatNamesItsLine) {
  const std::string text = to_string(make_plan(Sample().graph(), target_of(default_device()), kExact));
  const auto fails = [&](const std::string& from, const std::string& to) {
    std::string damaged = text;
    const size_t at = damaged.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    damaged.replace(at, from.size(), to);
    try {
      parse_plan(damaged);
      FAIL() << from << " -> " << to;
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).find("line "), 0u) << e.what();
    }
  };
  fails("launch kernel 0", "launch kernel 99");
  fails("launch combine", "launch nothing");
  fails("nodes ", "nodes 9999 ");
  fails("results ", "results 77+0 ");
  fails("variant=0", "variant=-1");
  fails("place %0", "place %12345");
  fails("operands ", "operands none ");
  // Cut anywhere, and never a crash.
  for (size_t end = 0; end + 1 < text.size(); end += 7) EXPECT_THROW(parse_plan(text.substr(0, end)), Error) << end;
}

TEST(Floats, AreArgumentsOfARun) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  const Sample sample;
  const Plan plan = make_plan(sample.graph(), target_of(default_device()), kExact);
  for (double factor : {0.25, -1.0, 1e-3}) {
    const Plan other = make_plan(sample.graph(factor), target_of(default_device()), kExact);
    ASSERT_TRUE(same_but_floats(plan.graph, other.graph));
    expect_same(sample.run(factor), run_plan(plan, sample.inputs(), other.graph));
  }
  EXPECT_FALSE(same_but_floats(plan.graph, record([&] { return std::vector<Tensor>{sample.x * 2.0}; })));
}

TEST(Executor, RunsAtOtherThreadCountsThanItWasPreparedAt) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  const Sample sample;
  const int before = num_threads();
  const auto expected = sample.run();
  set_num_threads(1);
  const auto program = Program::compile(sample.graph(), {.plan = kExact, .device = default_device()});
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    expect_same(expected, program->run(sample.inputs(), program->floats()));
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace rondo::compile
