// Plans: what a graph becomes for a target, as data that a process can write and another one read.
#include "rondo/compile/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "rondo/compile/exec/executor.h"
#include "rondo/compile/exec/program.h"
#include "rondo/compile/exec/table_launch.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/plan/make_plan.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/ops.h"
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

// The target of the default device, with other capabilities.
Target with(const Capabilities& capabilities) {
  Target target = target_of(default_device());
  target.capabilities = capabilities;
  return target;
}
Graph copies() {
  const Tensor x = Tensor::ones({6, 50});
  return record([&] { return std::vector<Tensor>{x.clone(), ops::exp(x), x.t().clone()}; });
}

TEST(PlanCapabilities, DenseCopiesAreTheDevicesOwn) {
  const Tensor x = Tensor::randn({6, 50});
  const Plan plain = make_plan(copies(), with({}), kExact), plan = make_plan(copies(), with({.copies = true}), kExact);
  const auto count = [](const Plan& p, Launch::Kind kind) {
    return std::count_if(p.launches.begin(), p.launches.end(), [&](const Launch& l) { return l.kind == kind; });
  };
  EXPECT_EQ(count(plain, Launch::Kind::kCopy), 0);
  EXPECT_EQ(count(plan, Launch::Kind::kCopy) + count(plan, Launch::Kind::kKernel), count(plain, Launch::Kind::kKernel));
  // The transposed one moves elements. Where fusion puts the dense one into a kernel, that writes it.
  const Graph alone = record([&] { return std::vector<Tensor>{x.clone()}; });
  const Plan copy = make_plan(alone, with({.copies = true}), kExact);
  ASSERT_EQ(copy.launches.size(), 1u);
  EXPECT_EQ(copy.launches[0].kind, Launch::Kind::kCopy);
  EXPECT_TRUE(copy.kernels.empty());
  const std::string text = to_string(copy);
  EXPECT_EQ(to_string(parse_plan(text)), text);
  const std::vector<Tensor> result = run_plan(parse_plan(text), {x}, copy.graph);
  expect_same({x}, result);
  EXPECT_NE(result[0].address(), x.address());
  std::string damaged = text;
  damaged.replace(damaged.find("out %1"), 6, "out %0 %1");
  EXPECT_THROW(parse_plan(damaged), Error);
}

TEST(PlanCapabilities, BoundOpsAndOperandsOfAKernel) {
  std::vector<Tensor> inputs;
  for (int i = 0; i < 9; ++i) inputs.push_back(Tensor::randn({4, 30}));
  const auto sums = [&] {
    Tensor total = inputs[0];
    for (size_t i = 1; i < inputs.size(); ++i) total = ops::exp(total * 0.1) + inputs[i];
    return std::vector<Tensor>{total};
  };
  const Graph graph = record(sums);
  EXPECT_EQ(make_plan(graph, with({}), kExact).kernels.size(), 1u);
  const Plan narrow = make_plan(graph, with({.most_operands = 8}), kExact),
             low = make_plan(graph, with({.most_ops = 3}), kExact);
  EXPECT_GT(narrow.kernels.size(), 1u);
  for (const LoweredUnit& unit : narrow.kernels) EXPECT_LE(unit.operands.size(), 8u);
  EXPECT_GT(low.kernels.size(), 1u);
  for (const Launch& launch : low.launches) EXPECT_LE(launch.nodes.size(), 3u);
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  for (const Plan* plan : {&narrow, &low}) expect_same(sums(), run_plan(*plan, inputs, graph));
}

TEST(PlanCapabilities, AlignTheArena) {
  const Tensor x = Tensor::randn({40, 7}), w = Tensor::randn({7, 9});
  const Graph graph = record([&] {
    const Tensor a = ops::matmul(x, w), b = ops::matmul(x * 0.5, w);
    return std::vector<Tensor>{ops::matmul(a.t(), b), ops::sum(x * 2.0, {0})};
  });
  const Plan plan = make_plan(graph, with({.alignment = 512}), kExact);
  int placed = 0;
  for (const Plan::Placement& place : plan.placements) {
    if (place.kind != Plan::Placement::kArena) continue;
    ++placed;
    EXPECT_EQ(place.index % 512, 0);
  }
  for (const Launch& launch : plan.launches) {
    if (launch.kind != Launch::Kind::kCombine) continue;
    for (size_t i = 0; i < launch.addresses.size(); i += 2) EXPECT_EQ(launch.addresses[i].offset % 512, 0);
  }
  EXPECT_GT(placed, 0);
}

TEST(Targets, AreFoundByName) {
  for (const Target* target : targets()) EXPECT_EQ(&target_named(target->name()), target);
  EXPECT_EQ(&target_named(target_of(kCPU).name()), &target_of(kCPU));
  try {
    target_named("cuda sm_1");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("\"cuda sm_1\""), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find(target_of(kCPU).name()), std::string::npos) << e.what();
  }
}

TEST(Targets, APlanRunsOnItsOwnOnly) {
  Target other = target_of(kCPU);
  other.name = [] { return std::string("another"); };
  const Plan plan = make_plan(Sample().graph(), other, kExact);
  try {
    const Code code(plan, {}, kCPU);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("\"another\""), std::string::npos) << e.what();
  }
}

// y = x * scalar 0 + scalar 1, on every item.
LoopKernel scale_and_shift() {
  LoopKernel kernel;
  kernel.name = "scale_and_shift";
  kernel.cols = 1 << 20;
  kernel.split_columns = kernel.per_item = true;
  kernel.n_scalars = 2;
  kernel.operands.resize(2);
  kernel.operands[1].is_output = true;
  kernel.instrs = {{.op = LoopOp::kLoad, .index = 0},
                   {.op = LoopOp::kScalar, .index = 0},
                   {.op = LoopOp::kScalar, .index = 1},
                   {.op = LoopOp::kFma, .a = 0, .b = 1, .c = 2},
                   {.op = LoopOp::kStore, .a = 3, .index = 1}};
  kernel.stages = {{.row = {}, .column = {0, 1, 2, 3, 4}, .reductions = {}}};
  return kernel;
}

TEST(PlanTable, ReadsBackAndRunsOnDeviceValues) {
  const Plan plan = make_table_plan(scale_and_shift(), target_of(default_device()));
  const std::string text = to_string(plan);
  EXPECT_NE(text.find("scalars item:0 item:1"), std::string::npos) << text;
  EXPECT_NE(text.find("launch table 0\n"), std::string::npos) << text;
  EXPECT_EQ(to_string(parse_plan(text)), text);
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"launch table 0", "launch table 1"},
           {"launch table 0", "launch kernel 0 grain=1 nodes at none none"},
           {"item:1", "item:2"},
           {" per_item", ""}}) {
    std::string damaged = text;
    damaged.replace(damaged.find(from), from.size(), to);
    EXPECT_THROW(parse_plan(damaged), Error) << from << " -> " << to;
  }
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  const auto pass = std::make_shared<TableLaunch>(parse_plan(text));
  pass->compile(default_device());
  // 1, 70 and 40,000 elements, of which the last two share their scalars.
  std::vector<Tensor> x, y;
  for (int64_t n : {1, 70, 40000}) {
    x.push_back(Tensor::randn({n}));
    y.push_back(Tensor::zeros({n}));
  }
  Tensor scalars = Tensor::full({4}, 0.5, kF64), go = Tensor::ones({}, kF64);
  const auto run = [&](double wanted) {
    Table table;
    for (size_t i = 0; i < x.size(); ++i) {
      const auto* row = reinterpret_cast<const double*>(scalars.address()) + (i == 0 ? 0 : 2);
      const std::span<void*> operands = table.add({1, x[i].numel(), x[i].numel(), row}, 2);
      operands[0] = const_cast<std::byte*>(x[i].address());
      operands[1] = y[i].mutable_address();
    }
    pass->run(table, {reinterpret_cast<const double*>(go.address()), wanted});
  };
  const auto expect = [&](double first, double others) {
    for (size_t i = 0; i < x.size(); ++i) {
      const double s = i == 0 ? first : others;
      const std::vector<float> in = x[i].to_vector<float>(), out = y[i].to_vector<float>();
      for (size_t k = 0; k < in.size(); ++k)
        ASSERT_EQ(out[k], std::fma(in[k], static_cast<float>(s), static_cast<float>(s))) << i << ", " << k;
    }
  };
  run(0);  // the device says otherwise
  for (const Tensor& t : y) EXPECT_EQ(ops::sum(ops::abs(t)).item(), 0);
  run(1);
  // Computed on the device after the pass was enqueued, and before the next one.
  scalars.slice(0, {2, 4}).mul_(-6.0);
  expect(0.5, 0.5);
  run(1);
  expect(0.5, -3);
  synchronize(default_device());
}

// y = x * v + v, with one v for each column of an item.
TEST(PlanTable, ALastShorterRowReadsTheSameColumns) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  constexpr int64_t kWidth = 48;
  LoopKernel kernel;
  kernel.name = "columns";
  kernel.rows = 2;
  kernel.cols = kWidth;
  kernel.per_item = true;
  kernel.operands.resize(3);
  kernel.operands[0].axes = kernel.operands[2].axes = {{1, kernel.rows, kernel.cols}};
  kernel.operands[2].is_output = true;
  kernel.instrs = {{.op = LoopOp::kLoad, .index = 0},
                   {.op = LoopOp::kLoad, .index = 1},
                   {.op = LoopOp::kFma, .a = 0, .b = 1, .c = 1},
                   {.op = LoopOp::kStore, .a = 2, .index = 2}};
  kernel.stages = {{.row = {}, .column = {0, 1, 2, 3}, .reductions = {}}};
  const auto pass = std::make_shared<TableLaunch>(make_table_plan(kernel, target_of(default_device())));
  pass->compile(default_device());
  const int64_t n = 3 * kWidth + 20;
  const Tensor x = Tensor::randn({n}), v = Tensor::randn({kWidth + 3});
  Tensor y = Tensor::zeros({n});
  Table table;
  const std::span<void*> operands = table.add({3, kWidth, n, nullptr}, 3);
  operands[0] = const_cast<std::byte*>(x.address());
  operands[1] = const_cast<std::byte*>(v.address());
  operands[2] = y.mutable_address();
  pass->run(table, {});
  const std::vector<float> in = x.to_vector<float>(), by = v.to_vector<float>(), out = y.to_vector<float>();
  for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], std::fma(in[i], by[i % kWidth], by[i % kWidth])) << i;
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
