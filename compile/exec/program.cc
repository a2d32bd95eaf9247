#include "rondo/compile/exec/program.h"

#include <chrono>

#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/exec/tune.h"
#include "rondo/compile/stages/dump.h"
#include "rondo/compile/stages/reproducer.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::compile {
namespace {

// If the compiler refuses the kernels, compiles each kernel alone, so that the reproducer contains the one at fault.
CompiledKernels emit(const std::vector<LoopKernel>& kernels, Sizes sizes, std::span<const KernelHint> hints,
                     const Target& target) {
  try {
    return find_or_compile(kernels, sizes, hints, {}, target);
  } catch (const InternalError&) {
    for (LoopKernel kernel : kernels) {
      kernel.name = "kernel";
      run_reproducible({.stage = CompilerStage::kEmit, .text = [&] { return to_string(kernel); }}, [&] {
        compile_kernels({&kernel, 1}, {}, target);
      });
    }
    throw;
  }
}

// Makes hints for the kernels of a plan by comparing them with the kernels of the same graph at other sizes.
std::vector<KernelHint> compare(const std::vector<LoopKernel>& kernels, OtherSizes other, const Target& target,
                                const PlanOptions& options) {
  const auto at = [&](std::optional<Graph>& graph) {
    const DumpsOff quiet;
    std::vector<LoopKernel> there;
    try {
      if (graph.has_value()) there = kernels_of(plan_launches(*std::move(graph), target, options));
    } catch (const std::exception&) {
      there.clear();  // these sizes may never occur, so errors are ignored
    }
    if (there.size() != kernels.size()) there.clear();
    return there;
  };
  const std::vector<LoopKernel> next = at(other.next), smallest = at(other.smallest), largest = at(other.largest);
  const auto pick = [](const std::vector<LoopKernel>& list, size_t i) { return list.empty() ? nullptr : &list[i]; };
  std::vector<KernelHint> hints;
  for (size_t i = 0; i < kernels.size(); ++i)
    hints.push_back(compare_sizes(kernels[i], pick(next, i), pick(smallest, i), pick(largest, i)));
  return hints;
}

CompiledKernels code_for(const Plan& plan, const Target& target, const PlanOptions& plan_options,
                         const ProgramOptions& options) {
  const std::vector<LoopKernel> kernels = kernels_of(plan);
  const SizeMarks* marks = options.marks;
  if (marks == nullptr || kernels.empty()) return emit(kernels, options.sizes, {}, target);
  if (marks->ranges_met)
    if (std::optional<CompiledKernels> there = find_kernels(kernels, target)) return *std::move(there);
  return emit(kernels, options.sizes, compare(kernels, marks->graph_at(), target, plan_options), target);
}

Program::Source keep_source(Graph graph) {
  std::vector<SymFloat> numbers;
  for (const GraphNode& node : graph.nodes)
    numbers.insert(numbers.end(), node.attrs.floats.begin(), node.attrs.floats.end());
  FloatFormulas formulas = formulas_of(numbers);
  forget_symbols(graph);
  return {std::move(graph), std::move(formulas)};
}

}  // namespace

Program::Program(Plan plan, Code code, FloatFormulas formulas, std::optional<Source> source, ProgramStats stats,
                 PlanOptions how)
    : plan_(std::move(plan)),
      code_(std::move(code)),
      formulas_(std::move(formulas)),
      source_(std::move(source)),
      floats_vary_(formulas_.vary() || (source_ && source_->formulas.vary())),
      floats_([this] {
        Floats floats = floats_for(plan_, plan_.graph);
        if (source_) floats.source = std::make_shared<const Graph>(source_->graph);
        return std::make_shared<const Floats>(std::move(floats));
      }()),
      stats_(stats),
      how_(std::move(how)) {}

std::shared_ptr<const Program> Program::compile(Graph source, const ProgramOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const Target& target = target_of(options.device);
  PlanOptions plan_options = options.plan;
  const bool tunes = plan_options.mode == Mode::kMaxAutotune;
  if (tunes)
    plan_options.epilogues_pay = [&](const Graph& graph, int32_t product, const std::vector<int32_t>& epilogues) {
      return epilogues_pay(options.device, graph, product, epilogues);
    };
  std::optional<Program::Source> kept;
  if (options.keeps_source) kept = keep_source(source);
  Plan plan = make_plan(std::move(source), target, plan_options);
  FloatFormulas formulas = formulas_for(plan);
  forget_symbols(plan.graph);
  CompiledKernels found = code_for(plan, target, plan_options, options);
  Code code(plan, std::move(found.kernels), options.device);
  if (tunes) tune(plan, code, plan_options.exact);
  ProgramStats stats{.kernels = static_cast<int>(plan.kernels.size()),
                     .compiled = found.compiled,
                     .fresh = found.fresh,
                     .arena_bytes = plan.arena_bytes};
  for (const Launch& launch : plan.launches) stats.library_calls += launch.kind == Launch::Kind::kLibraryCall;
  stats.compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  const PlanOptions how{.exact = plan_options.exact, .epilogues = plan_options.epilogues};
  return std::make_shared<const Program>(std::move(plan), std::move(code), std::move(formulas), std::move(kept), stats,
                                         how);
}

std::shared_ptr<const Floats> Program::floats_at(std::span<const double> recorded) const {
  if (!floats_vary_) return floats_;
  Floats floats = compile::floats_at(plan_, formulas_, recorded);
  if (source_) {
    FloatFormulas::Registers registers;
    source_->formulas.evaluate(recorded, registers);
    std::vector<double> numbers;
    for (int32_t result : source_->formulas.results) numbers.push_back(registers[static_cast<size_t>(result)]);
    floats.source = std::make_shared<const Graph>(with_recorded_floats(source_->graph, numbers));
  }
  return std::make_shared<const Floats>(std::move(floats));
}

std::shared_ptr<const void> Program::keep(const std::shared_ptr<const Floats>& floats) const {
  if (runs_at_once(code_.device()) || !code_.target().launch.keeps_owner) return nullptr;
  return std::make_shared<std::pair<std::shared_ptr<const Program>, std::shared_ptr<const Floats>>>(shared_from_this(),
                                                                                                    floats);
}

std::vector<Tensor> Program::run(std::span<const Tensor> inputs, const std::shared_ptr<const Floats>& floats,
                                 std::vector<Tensor>* finished, std::span<const Tensor> homes,
                                 const TakeResults& take) const {
  return Executor(plan_, code_, *floats, keep(floats)).run(inputs, /*release=*/false, finished, homes, take);
}
std::vector<Tensor> Program::run_and_release(std::vector<Tensor> inputs, const std::shared_ptr<const Floats>& floats,
                                             std::span<const Tensor> homes, const TakeResults& take) const {
  return Executor(plan_, code_, *floats, keep(floats)).run(inputs, /*release=*/true, nullptr, homes, take);
}

}  // namespace rondo::compile
