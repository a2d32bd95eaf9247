// Plans for the CUDA target, run: kernels and combines on fibers, library calls by the CPU's kernels. The seam between
// compiler and device is wide enough for grids and blocks.
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rondo/compile/codegen/cuda/emit.h"
#include "rondo/compile/exec/check_units.h"
#include "rondo/compile/exec/executor.h"
#include "rondo/compile/ir/parse.h"
#include "rondo/compile/jit/cuda/target.h"
#include "rondo/compile/region/compiled_node.h"
#include "rondo/compile/stages/dump.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cuda/status.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/cuda_on_host/emitted.h"
#include "rondo/tests/cuda_on_host/fuzz_kernels.h"

namespace rondo::compile::cuda {
namespace {

using cuda_on_host::Order;

// The code of one kernel of a plan: what a KernelHandle of these targets points to.
struct Loaded {
  const cuda_on_host::KernelFiles* files = nullptr;
  size_t kernel = 0, combine = 0;  // of the files
};
struct Planned {
  Graph graph;
  Plan plan;
  std::vector<Tensor> inputs;
  std::vector<Loaded> code;  // by kernel
};

// Grids of fibers, in this order of threads.
Order order_of_threads = Order::kForward;
int gathered = 0;  // launches that combine the sums of several kernels

void kernel_on_fibers(Device, const KernelCall& call, const LaunchFunctions::Owner&) {
  const auto& loaded = *static_cast<const Loaded*>(call.code);
  const LoopKernel& kernel = *call.kernel;
  const Schedule s = schedule(kernel);
  std::vector<int64_t> integers = integer_arguments(kernel, s);
  std::vector<void*> operands(call.operands, call.operands + kernel.operands.size());
  std::vector<double> scalars(call.scalars, call.scalars + kernel.n_scalars);
  std::vector<void*> parameters;
  unsigned number = 1;
  cuda_on_host::DeviceBuffer status(sizeof(rondo::cuda::DeviceStatus), cuda_on_host::DeviceBuffer::Side::kEnd);
  std::memcpy(status.data(), &rondo::cuda::kNothingFailed, sizeof(rondo::cuda::DeviceStatus));
  for (size_t i = 0; i < operands.size(); ++i) {
    parameters.push_back(&operands[i]);
    if (!kernel.operands[i].is_check) continue;
    operands[i] = status.data();
    parameters.push_back(&number);
  }
  for (double& scalar : scalars) parameters.push_back(&scalar);
  for (int64_t& integer : integers) parameters.push_back(&integer);
  const Grid g = grid(kernel, s);
  cuda_on_host::launch(loaded.files->kernel(loaded.kernel), {g.x, g.y, g.threads}, parameters.data(), order_of_threads);
  EXPECT_EQ(std::memcmp(status.data(), &rondo::cuda::kNothingFailed, sizeof(rondo::cuda::DeviceStatus)), 0);
}
void combine_on_fibers(Device, std::span<const CombineCall> calls, const LaunchFunctions::Owner&) {
  const auto& loaded = *static_cast<const Loaded*>(calls[0].code);
  RondoSums sums;
  int32_t n = 0;
  int64_t most_cols = 0;
  for (const CombineCall& call : calls)
    for (const CombineCall::Sum& sum : call.sums) {
      sums.at[n++] = {sum.partial,
                      sum.out,
                      chunks(*call.kernel, schedule(*call.kernel)),
                      call.kernel->cols,
                      static_cast<int>(sum.compute),
                      static_cast<int>(sum.result),
                      combine_code(sum.op)};
      most_cols = std::max(most_cols, call.kernel->cols);
    }
  gathered += calls.size() > 1;
  void* parameters[] = {&sums};
  const Grid g = combine_grid(most_cols, n);
  cuda_on_host::launch(loaded.files->kernel(loaded.combine), {g.x, g.y, g.threads}, parameters, order_of_threads);
}

void interpret_kernel(Device, const KernelCall& call, const LaunchFunctions::Owner&) {
  std::vector<void*> operands(call.operands, call.operands + call.kernel->operands.size());
  int64_t bad = 0;
  for (const IndexCheck& check : call.checks) operands[static_cast<size_t>(check.operand)] = &bad;
  interpret_in_order(*call.kernel, schedule(*call.kernel), operands.data(), call.scalars);
  if (bad != 0) throw Error("an index is out of range");  // as a library call does
}
void interpret_combine(Device, std::span<const CombineCall> calls, const LaunchFunctions::Owner&) {
  for (const CombineCall& call : calls) {
    const int64_t n_chunks = chunks(*call.kernel, schedule(*call.kernel));
    for (const CombineCall::Sum& sum : call.sums)
      combine_in_order(sum.partial, sum.op, sum.compute, n_chunks, call.kernel->cols, sum.result, sum.out);
  }
}

// The CUDA target with launch functions of ours: the executor knows no other difference.
Target launching(void (*kernel)(Device, const KernelCall&, const LaunchFunctions::Owner&),
                 void (*combine)(Device, std::span<const CombineCall>, const LaunchFunctions::Owner&)) {
  Target target = kSm80;
  target.launch = {
      .kernel = kernel, .combine = combine, .table = nullptr, .library_call = target_of(kCPU).launch.library_call};
  return target;
}
std::vector<Tensor> run(const Planned& p, const Target& target) {
  std::vector<CompiledKernel> kernels;
  for (const Loaded& loaded : p.code) kernels.push_back({&loaded, nullptr});
  const Code code(p.plan, std::move(kernels), kCPU, target);
  const Floats floats = floats_for(p.plan, p.plan.graph);
  return Executor(p.plan, code, floats).run(p.inputs, /*release=*/false);
}

bool has_reductions(const Plan& plan) {
  for (const LoweredUnit& unit : plan.kernels)
    for (const Instr& instr : unit.kernel.instrs)
      if (is_reduction(instr.op) || is_column_reduction(instr.op)) return true;
  return false;
}

// Few random programs have sums of several kernels that can wait for each other. In these, all can: `count` sums of
// columns, each of other sizes, and what is made of them.
std::string sums_of_several_kernels(int count) {
  constexpr DType kTypes[] = {kF32, kBF16, kF64, kI64, kF16};
  std::string inputs, sums, readers, returned = "return";
  for (int i = 0; i < count; ++i) {
    const int cols = 3 + 17 * i, sum = count + i, reader = 2 * count + i;
    const std::string_view type = name_of(kTypes[static_cast<size_t>(i) % std::size(kTypes)]);
    inputs += absl::StrFormat("input %%%d: %s[%d, %d]\n", i, type, 5 + 40 * i, cols);
    sums += absl::StrFormat("%%%d: %s[%d] = sum(%%%d, 1, 0)\n", sum, type, cols, i);
    readers += absl::StrFormat("%%%d: %s[%d] = neg(%%%d)\n", reader, type, cols, sum);
    returned += absl::StrFormat(" %%%d", reader);
  }
  return inputs + sums + readers + returned + "\n";
}

TEST(CudaPlans, ProgramsRunOnFibers) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "some of the programs ask for it");
  if (!jit_available()) GTEST_SKIP() << "built without LLVM: programs are not compiled";
  std::vector<std::string> graphs = fuzz_graphs(40000, 300);
  const DumpsOff quiet;
  constexpr int kMostSums = 6;
  for (int count = 2; count <= kMostSums; ++count) graphs.push_back(sums_of_several_kernels(count));
  std::vector<Planned> programs;
  std::vector<cuda_on_host::KernelFiles::Source> sources;
  std::map<std::string, size_t> known;  // by text without the name
  const auto source = [&](const auto& text_of) {
    const auto [found, added] = known.try_emplace(text_of("kernel"), sources.size());
    const std::string name = absl::StrCat("k", sources.size());
    if (added) sources.push_back({name, text_of(name)});
    return found->second;
  };
  int with_reductions = 0, combines = 0;
  for (const std::string& text : graphs) {
    Planned p;
    p.graph = parse_graph(text);
    p.plan = make_plan(p.graph, kSm80, {.exact = true});
    EXPECT_EQ(p.plan.target, "cuda sm_80");
    p.inputs = made_up_inputs(p.plan.graph);
    for (const LoweredUnit& unit : p.plan.kernels) {
      Loaded& loaded = p.code.emplace_back();
      loaded.kernel = source([&](const std::string& name) {
        LoopKernel kernel = unit.kernel;
        kernel.name = name;
        return emit(kernel, schedule(kernel));
      });
      if (unit.column_results.empty()) continue;
      loaded.combine = source([&](const std::string& name) { return emit_combine(name); });
      combines += static_cast<int>(unit.column_results.size());
    }
    with_reductions += has_reductions(p.plan);
    programs.push_back(std::move(p));
  }
  EXPECT_GT(with_reductions, 30);
  EXPECT_GT(combines, 20);
  const cuda_on_host::KernelFiles files(sources);
  const Target on_fibers = launching(&kernel_on_fibers, &combine_on_fibers),
               interpreted = launching(&interpret_kernel, &interpret_combine);
  int compared = 0;
  for (Planned& p : programs) {
    for (Loaded& loaded : p.code) loaded.files = &files;
    SCOPED_TRACE(to_string(p.graph));
    std::vector<Tensor> expected;
    try {
      expected = run(p, interpreted);
    } catch (const Error&) {
      continue;  // made-up indices are refused
    }
    ++compared;
    for (Order order : cuda_on_host::kEveryOrder) {
      order_of_threads = order;
      const std::vector<Tensor> actual = run(p, on_fibers);
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_TRUE(test::same_bits(actual[i], expected[i])) << "output " << i;
    }
    // Without reductions, the bits are those of eager execution.
    if (has_reductions(p.plan)) continue;
    OpByOp eager(p.plan.graph, p.inputs, /*exact=*/true);
    eager.run();
    EXPECT_EQ(eager.first_difference(expected), "");
  }
  EXPECT_GT(compared, 120);
  EXPECT_GE(gathered, (kMostSums - 1) * std::ssize(cuda_on_host::kEveryOrder));
}

}  // namespace
}  // namespace rondo::compile::cuda
