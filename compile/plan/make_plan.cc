#include "rondo/compile/plan/make_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/flatten.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/codegen/relax.h"
#include "rondo/compile/stages/dump.h"
#include "rondo/compile/stages/planted.h"
#include "rondo/compile/stages/reproducer.h"
#include "rondo/compile/stages/stages.h"
#include "rondo/compile/transform/passes.h"
#include "rondo/compile/transform/pipeline.h"

namespace rondo::compile {
namespace {

// True if the node is a concatenation, and its parts are already in their places in the result.
bool is_in_place(const Graph& graph, const GraphNode& node) {
  const auto* const trait = node.op->as<trait::SideBySide>();
  if (trait == nullptr) return false;
  const Value& whole = graph.value(node.outputs[0]);
  const int dim = trait->dim(node.attrs);
  int64_t offset = whole.offset;
  for (ValueId id : node.inputs) {
    const Value& part = graph.value(id);
    if (part.root != whole.root || part.offset != offset) return false;
    for (int d = 0; d < part.sizes.rank(); ++d)
      if (part.sizes[d] > 1 && part.strides[d] != whole.strides[d]) return false;
    offset += part.sizes[dim] * whole.strides[dim];
  }
  return true;
}

// True if the chain only widens the product's result to f32 and only the caller reads it, as for the gradient of a
// weight. The product may then write f32 itself.
bool only_widens(const Graph& graph, const std::vector<int32_t>& chain) {
  if (chain.size() != 1 || graph.node(chain[0]).op->epilogue != Epilogue::kWiden) return false;
  const ValueId result = graph.node(chain[0]).outputs[0];
  for (const GraphNode& node : graph.nodes)
    for (ValueId id : node.inputs)
      if (id != kNoValue && node.op->kind != OpKind::kView && graph.written(id) == result) return false;
  return true;
}

// Note [Tried and left out], n_embd 384, T 256, B 8:
// - Non-temporal stores, and one product per core.
// - A packed product of our own: it has 430-465 GFLOP/s, and oneDNN has 440-470.
// - Packing weights once per step: products are 4 to 7% faster, but a packing takes 1.5 to 20% of a product's time.
// - Epilogues everywhere. As a post-op of a product, GELU takes 320 us more, and in a kernel of its own 230 us. A
//   residual takes 57 us as a post-op and 27 us in a kernel, a gradient summed in place 320 us and 85 us. So epilogues
//   are used only where tuning chooses them.

// Chooses, for each product, the ops that it applies to its own result.
EpilogueChains choose_epilogues(const Graph& graph, const Target& target, const PlanOptions& options) {
  if (options.epilogues == Epilogues::kNever || !enabled(CompilerStage::kEpilogues)) return {};
  EpilogueChains chains = find_epilogues(graph, options.exact, target.absorbs);
  if (options.epilogues == Epilogues::kAlways) return chains;
  for (size_t n = 0; n < chains.size(); ++n) {
    std::vector<int32_t>& chain = chains[n];
    // A product that widens its result is as fast as one that does not. But a kernel that reads the result reads fewer
    // bytes if the product leaves it in 16 bits.
    if (chain.empty() || only_widens(graph, chain)) continue;
    const bool widens = graph.node(chain[0]).op->epilogue == Epilogue::kWiden;
    if (target.capabilities.epilogues_pay && (!widens || chain.size() > 1)) continue;
    if (widens || options.epilogues_pay == nullptr || !options.epilogues_pay(graph, static_cast<int32_t>(n), chain))
      chain.clear();
  }
  return chains;
}

// True if the kernel only copies bytes in order.
bool only_copies(const LoweredUnit& unit) {
  const LoopKernel& kernel = unit.kernel;
  if (kernel.operands.size() != 2 || kernel.instrs.size() != 2 || kernel.instrs[0].op != LoopOp::kLoad ||
      kernel.instrs[1].op != LoopOp::kStore || kernel.operands[0].dtype != kernel.operands[1].dtype)
    return false;
  LoopKernel flat = kernel;
  flatten(flat);
  return flat.split_columns && flat.operands[0].col_stride == 1 && flat.operands[1].col_stride == 1;
}

// Returns how many elements make it worthwhile to wake another thread: `grain`, the target's number, or fewer if an
// element takes many instructions.
int64_t grain_of(const LoopKernel& kernel, int64_t grain) {
  constexpr size_t kUsual = 16;  // instructions
  size_t instructions = 0;
  for (const Stage& stage : kernel.stages) instructions += stage.column.size();
  return grain * static_cast<int64_t>(kUsual) / static_cast<int64_t>(std::max(kUsual, instructions));
}

// For Capabilities::gathers_sums: delays the launches that add up partial sums, so that several run together. The
// waiting launches run before a launch that accesses one of their results, or after the last launch that writes a
// result of a seam.
void gather_sums(Plan& plan, const std::vector<PlannedSeam>& seams) {
  std::vector<Launch> order, waiting;
  ValueMap<bool> awaited(plan.graph, false);  // by root value: a waiting launch accesses it
  const auto root = [&](ValueId id) { return plan.graph.value(id).root; };
  ValueMap<int32_t> seam_of(plan.graph, -1);  // by root value: the seam that hands it over; -1: none
  for (size_t s = 0; s < seams.size(); ++s)
    for (int32_t output : seams[s].outputs)
      seam_of[root(plan.graph.outputs[static_cast<size_t>(output)])] = static_cast<int32_t>(s);
  std::vector<int> unwritten(seams.size(), 0);
  const auto for_each_seam = [&](const Launch& launch, auto visit) {
    for (ValueId id : written(plan, launch))
      if (id != kNoValue && seam_of[root(id)] >= 0) visit(static_cast<size_t>(seam_of[root(id)]));
  };
  for (const Launch& launch : plan.launches) for_each_seam(launch, [&](size_t s) { ++unwritten[s]; });
  const auto finish = [&] {
    for (Launch& launch : waiting) order.push_back(std::move(launch));
    waiting.clear();
    awaited.assign(awaited.size(), false);
  };
  for (Launch& launch : plan.launches) {
    const std::vector<ValueId> values = touched(plan, launch);
    if (std::any_of(values.begin(), values.end(), [&](ValueId id) { return id != kNoValue && awaited[root(id)]; }))
      finish();
    bool ends_part = false;
    for_each_seam(launch, [&](size_t s) { ends_part |= --unwritten[s] == 0; });
    if (launch.kind == Launch::Kind::kCombine) {
      for (const ValueId id : values) awaited[root(id)] = true;
      waiting.push_back(std::move(launch));
    } else {
      order.push_back(std::move(launch));
    }
    if (ends_part) finish();
  }
  finish();
  plan.launches = std::move(order);
}

}  // namespace

Plan plan_launches(Graph source, const Target& target, const PlanOptions& options) {
  Plan plan;
  plan.target = target.name();
  const bool relaxes = !options.exact && enabled(CompilerStage::kRelax);
  plan.graph = run_pipeline(std::move(source), {.exact = !relaxes, .gathers_sums = target.capabilities.gathers_sums});
  const Graph& graph = plan.graph;
  const EpilogueChains epilogues = choose_epilogues(graph, target, options);
  const std::vector<Unit> units = reproducible(
      {.stage = CompilerStage::kFuse, .text = [&] { return absl::StrCat(to_string(graph), to_string(epilogues)); }},
      [&] { return fuse(graph, epilogues, target.capabilities); });
  if (wants_dump(CompilerStage::kFuse)) dump(CompilerStage::kFuse, to_string(graph, units));
  const std::vector<bool> needed = values_needed(graph, units);
  for (const Unit& unit : units) {
    if (!unit.fused) {
      if (!is_in_place(graph, graph.node(unit.nodes[0])))
        plan.launches.push_back(library_call(graph, unit.nodes, target.capabilities.epilogues_pay));
      continue;
    }
    LoweredUnit lowered = reproducible(
        {.stage = CompilerStage::kLower, .text = [&] { return lower_input(graph, unit, needed); }},
        [&] { return lower(graph, unit, needed); });
    if (target.capabilities.copies && only_copies(lowered)) {
      Launch& copy = plan.launches.emplace_back(Launch{.kind = Launch::Kind::kCopy, .nodes = unit.nodes});
      copy.inputs.push_back(lowered.operands[0]);
      copy.outputs.push_back(lowered.operands[1]);
      continue;
    }
    enter_stage(CompilerStage::kSchedule);
    target.schedule(lowered.kernel);
    if (relaxes) lowered.kernel = relax(lowered.kernel, lowered.roundings);
    if (wants_dump(CompilerStage::kLower)) dump(CompilerStage::kLower, to_string(lowered.kernel));
    lowered.extents = extents(lowered.kernel);
    const auto kernel = static_cast<int32_t>(plan.kernels.size());
    plan.launches.push_back({.kind = Launch::Kind::kKernel,
                             .kernel = kernel,
                             .nodes = unit.nodes,
                             .grain = grain_of(lowered.kernel, target.capabilities.grain)});
    const bool combines = !lowered.column_results.empty();
    plan.kernels.push_back(std::move(lowered));
    plan.launches.back().checks = checks_of(plan, plan.launches.back());
    if (combines) plan.launches.push_back({.kind = Launch::Kind::kCombine, .kernel = kernel, .nodes = {}});
  }
  if (target.capabilities.gathers_sums) gather_sums(plan, options.seams);
  number_floats(plan);
  return plan;
}

Plan make_plan(Graph source, const Target& target, const PlanOptions& options) {
  Plan plan = plan_launches(std::move(source), target, options);
  enter_stage(CompilerStage::kPlan);
  plan_memory(plan, options.updates, options.donated, target.capabilities.alignment);
  place_seams(plan, options.seams);
  plan.keeps_arena = options.mode == Mode::kReduceOverhead;
  return plan;
}

Plan make_table_plan(LoopKernel kernel, const Target& target) {
  Plan plan;
  plan.target = target.name();
  LoweredUnit& unit = plan.kernels.emplace_back();
  unit.operands.assign(kernel.operands.size(), kNoValue);
  for (int32_t i = 0; i < kernel.n_scalars; ++i) unit.scalars.push_back({.kind = Scalar::Kind::kDevice, .position = i});
  unit.extents = extents(kernel);
  unit.kernel = std::move(kernel);
  plan.launches.push_back({.kind = Launch::Kind::kTable, .kernel = 0, .nodes = {}});
  return plan;
}

Launch library_call(const Graph& graph, const std::vector<int32_t>& nodes, bool wide_bias) {
  Launch launch{.kind = Launch::Kind::kLibraryCall, .nodes = nodes};
  launch.inputs = graph.node(nodes[0]).inputs;
  constexpr size_t kBias = 2;
  if (wide_bias && nodes.size() > 1 && launch.inputs.size() > kBias && launch.inputs[kBias] != kNoValue &&
      graph.node(nodes[1]).op->epilogue == Epilogue::kWiden) {
    const int32_t producer = graph.value(launch.inputs[kBias]).producer;
    if (producer >= 0 && is_parameter_copy(graph, graph.node(producer)))
      launch.inputs[kBias] = graph.node(producer).inputs[0];
  }
  for (size_t i = 1; i < nodes.size(); ++i) {
    const ValueId result = graph.node(nodes[i - 1]).outputs[0];
    for (ValueId id : graph.node(nodes[i]).inputs)
      if (graph.written(id) != result) launch.inputs.push_back(id);
  }
  launch.outputs = graph.node(nodes.back()).outputs;
  return launch;
}

std::vector<LoopKernel> kernels_of(const Plan& plan) {
  std::vector<LoopKernel> kernels;
  for (const LoweredUnit& unit : plan.kernels) kernels.push_back(unit.kernel);
  return kernels;
}

}  // namespace rondo::compile
