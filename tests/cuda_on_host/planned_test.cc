// Plans for the CUDA target, run: kernels and combines on fibers, library calls by the CPU's kernels. The seam between
// compiler and device is wide enough for grids and blocks.
#include <map>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/cuda/emit.h"
#include "rondo/compile/compiled_node.h"
#include "rondo/compile/exec/executor.h"
#include "rondo/compile/ir/parse.h"
#include "rondo/compile/jit/cuda/target.h"
#include "rondo/compile/jit/host_key.h"
#include "rondo/compile/report/check_units.h"
#include "rondo/compile/report/dump.h"
#include "rondo/runtime/autograd.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/cuda_on_host/emitted.h"
#include "rondo/tests/cuda_on_host/fuzz_kernels.h"

namespace rondo::compile::cuda {
namespace {

using cuda_on_host::Order;

struct Planned {
  Graph graph;
  Plan plan;
  std::vector<Tensor> inputs;
  std::vector<int32_t> code;  // by launch: of the sources; -1: a library call
};

// How the kernels of a plan run.
using RunKernel = std::function<void(const LoopKernel& kernel, const Launch& launch, size_t index, void** operands,
                                     const double* scalars)>;
using RunCombine = std::function<void(size_t index, const ColumnResult& result, const LoopKernel& kernel, void* partial,
                                      void* out, DType stored)>;
std::vector<Tensor> run(const Planned& p, const RunKernel& kernel, const RunCombine& combine) {
  NoGrad off;
  const Code code(p.plan, std::vector<CompiledKernel>(p.plan.kernels.size()), kCPU);
  const Floats floats = floats_for(p.plan, p.plan.graph);
  const Executor executor(p.plan, code, floats);
  const Frame frame = executor.make_frame(p.inputs, /*release=*/false);
  for (size_t i = 0; i < p.plan.launches.size(); ++i) {
    const Launch& launch = p.plan.launches[i];
    if (launch.kind == Launch::Kind::kLibraryCall) {
      executor.run_launch(i, frame);
      continue;
    }
    const LoweredUnit& unit = p.plan.kernels[static_cast<size_t>(launch.kernel)];
    std::vector<void*> operands;
    for (const Address& address : launch.addresses) operands.push_back(frame.at(address));
    if (launch.kind == Launch::Kind::kKernel) {
      kernel(unit.kernel, launch, i, operands.data(), floats.scalars.data() + unit.first_scalar);
    } else {
      const ColumnResult& result = unit.column_results[static_cast<size_t>(launch.result)];
      combine(i, result, unit.kernel, operands[0], operands[1], p.plan.graph.value(result.value).dtype);
    }
  }
  std::vector<Tensor> outputs;
  for (size_t i = 0; i < p.plan.outputs.size(); ++i)
    outputs.push_back(frame.tensor(p.plan.graph.value(p.plan.graph.outputs[i]), p.plan.outputs[i]));
  return outputs;
}

std::vector<Tensor> run_on_fibers(const Planned& p, const cuda_on_host::KernelFiles& files, Order order) {
  return run(
      p,
      [&](const LoopKernel& kernel, const Launch& launch, size_t index, void** operands, const double* scalars) {
        const Schedule s = schedule(kernel);
        std::vector<int64_t> integers = integer_arguments(kernel, s);
        std::vector<double> doubles(scalars, scalars + kernel.n_scalars);
        std::vector<void*> parameters;
        for (size_t i = 0; i < launch.addresses.size(); ++i) parameters.push_back(&operands[i]);
        for (double& d : doubles) parameters.push_back(&d);
        for (int64_t& i : integers) parameters.push_back(&i);
        const Grid g = grid(kernel, s);
        cuda_on_host::launch(files.kernel(static_cast<size_t>(p.code[index])), {g.x, g.y, g.threads}, parameters.data(),
                             order);
      },
      [&](size_t index, const ColumnResult&, const LoopKernel& kernel, void* partial, void* out, DType) {
        int64_t n_chunks = chunks(kernel, schedule(kernel)), cols = kernel.cols;
        void* parameters[] = {&partial, &out, &n_chunks, &cols};
        const Grid g = combine_grid(cols, 1);
        cuda_on_host::launch(files.kernel(static_cast<size_t>(p.code[index])), {g.x, g.y, g.threads}, parameters,
                             order);
      });
}
std::vector<Tensor> run_interpreted(const Planned& p) {
  return run(
      p,
      [](const LoopKernel& kernel, const Launch&, size_t, void** operands, const double* scalars) {
        interpret_in_order(kernel, schedule(kernel), operands, scalars);
      },
      [](size_t, const ColumnResult& result, const LoopKernel& kernel, void* partial, void* out, DType stored) {
        combine_in_order(partial, result.compute, chunks(kernel, schedule(kernel)), kernel.cols, stored, out);
      });
}

bool has_reductions(const Plan& plan) {
  for (const LoweredUnit& unit : plan.kernels)
    for (const Instr& instr : unit.kernel.instrs)
      if (instr.op == LoopOp::kReduceSum || instr.op == LoopOp::kReduceMax || instr.op == LoopOp::kColumnSum)
        return true;
  return false;
}

TEST(CudaPlans, ProgramsRunOnFibers) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM: programs are not compiled";
  const std::vector<std::string> graphs = fuzz_graphs(40000, 150);
  const DumpsOff quiet;
  std::vector<Planned> programs;
  std::vector<cuda_on_host::KernelFiles::Source> sources;
  std::map<std::string, int32_t> known;  // by text without the name
  const auto source = [&](const auto& text_of) {
    const auto [found, added] = known.try_emplace(text_of("kernel"), static_cast<int32_t>(sources.size()));
    const std::string name = absl::StrCat("k", sources.size());
    if (added) sources.push_back({name, text_of(name)});
    return found->second;
  };
  int with_reductions = 0, combines = 0;
  for (const std::string& text : graphs) {
    Planned p;
    p.graph = parse_graph(text);
    p.plan = make_plan(p.graph, kTarget, {.exact = true});
    EXPECT_EQ(p.plan.target, "cuda");
    p.inputs = made_up_inputs(p.plan.graph);
    for (const Launch& launch : p.plan.launches) {
      p.code.push_back(-1);
      if (launch.kind == Launch::Kind::kLibraryCall) continue;
      const LoweredUnit& unit = p.plan.kernels[static_cast<size_t>(launch.kernel)];
      p.code.back() = source([&](const std::string& name) {
        LoopKernel kernel = unit.kernel;
        kernel.name = name;
        if (launch.kind == Launch::Kind::kKernel) return emit(kernel, schedule(kernel));
        const ColumnResult& result = unit.column_results[static_cast<size_t>(launch.result)];
        const CombinedSum sum{result.compute, p.plan.graph.value(result.value).dtype};
        return emit_combine(name, {&sum, 1});
      });
      combines += launch.kind == Launch::Kind::kCombine;
    }
    with_reductions += has_reductions(p.plan);
    programs.push_back(std::move(p));
  }
  EXPECT_GT(with_reductions, 30);
  EXPECT_GT(combines, 20);
  const cuda_on_host::KernelFiles files(sources);
  int compared = 0;
  for (const Planned& p : programs) {
    SCOPED_TRACE(to_string(p.graph));
    std::vector<Tensor> expected;
    try {
      expected = run_interpreted(p);
    } catch (const Error&) {
      continue;  // a library call that refuses made-up indices
    }
    ++compared;
    for (Order order : {Order::kForward, Order::kReverse, Order::kRandom}) {
      const std::vector<Tensor> actual = run_on_fibers(p, files, order);
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_TRUE(test::same_bits(actual[i], expected[i])) << "output " << i;
    }
    // Without reductions, the bits are those of eager execution.
    if (has_reductions(p.plan)) continue;
    EXPECT_EQ(UnitCheck(p.plan.graph, {}, p.inputs, {.plan = {.exact = true}}).first_difference(expected), "");
  }
  EXPECT_GT(compared, 120);
}

TEST(CudaTarget, IsNoHost) {
  EXPECT_EQ(kTarget.name(), "cuda");
  EXPECT_TRUE(kTarget.key().complete());
  EXPECT_NE(kTarget.key().text(), target_of(kCPU).key().text());
  LoopKernel kernel = scale(2.0);
  kTarget.schedule(kernel);
  EXPECT_NE(kTarget.compile(kernel, {}).find("extern \"C\" __global__"), std::string::npos);
  EXPECT_EQ(kTarget.place("").status().code(), absl::StatusCode::kUnimplemented);
  // No device has it: nothing runs on a device that is not there.
  EXPECT_THROW(target_of({Backend::kCUDA, 0}), Error);
}

}  // namespace
}  // namespace rondo::compile::cuda
