#include "rondo/compile/exec/program.h"

#include <algorithm>
#include <chrono>

#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/codegen/relax.h"
#include "rondo/compile/report/dump.h"
#include "rondo/compile/report/reproducer.h"
#include "rondo/compile/report/stages.h"
#include "rondo/compile/transform/passes.h"
#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::compile {
namespace {

int64_t bytes_of(const Value& v) { return v.sizes.numel() * static_cast<int64_t>(size_of(v.dtype)); }
int64_t aligned(int64_t bytes) {
  constexpr auto kStep = static_cast<int64_t>(kAlignment);
  return (bytes + kStep - 1) / kStep * kStep;
}

// First fit over blocks that are alive at the same time.
class ArenaPlanner {
 public:
  // Alive from launch `first` to launch `last`, both included.
  int64_t place(int64_t bytes, int first, int last) {
    std::vector<const Block*> rivals;
    for (const Block& b : blocks_)
      if (b.first <= last && first <= b.last) rivals.push_back(&b);
    std::sort(rivals.begin(), rivals.end(), [](const Block* a, const Block* b) { return a->offset < b->offset; });
    int64_t offset = 0;
    for (const Block* b : rivals) {
      if (offset + bytes <= b->offset) break;
      offset = std::max(offset, b->offset + b->bytes);
    }
    blocks_.push_back({offset, bytes, first, last});
    size_ = std::max(size_, offset + bytes);
    return offset;
  }
  int64_t size() const { return size_; }

 private:
  struct Block {
    int64_t offset, bytes;
    int first, last;
  };
  std::vector<Block> blocks_;
  int64_t size_ = 0;
};

// True if the parts that the node would assemble were written in their places already.
bool is_in_place(const Graph& graph, const GraphNode& node) {
  if (!node.op->assembles) return false;
  for (ValueId id : node.inputs)
    if (graph.value(id).root != node.outputs[0]) return false;
  return true;
}

// True if the kernel may write operand `out` over operand `in`: both address the same elements, and every load of an
// element comes before its store (loop_ir.h).
bool may_overwrite(const LoopKernel& kernel, size_t in, size_t out) {
  const Operand &a = kernel.operands[in], &b = kernel.operands[out];
  // Calls for parts of one row each read what is the same for all of it: the first to finish would change it for the
  // others.
  if (kernel.split_columns && a.col_stride == 0) return false;
  if (a.dtype != b.dtype || a.col_stride != b.col_stride || a.is_partial || b.is_partial ||
      a.axes.size() != b.axes.size())
    return false;
  for (size_t i = 0; i < a.axes.size(); ++i)
    if (a.axes[i].divisor != b.axes[i].divisor || a.axes[i].size != b.axes[i].size ||
        a.axes[i].stride != b.axes[i].stride)
      return false;
  bool stored = false;
  for (const Stage& stage : kernel.stages) {
    for (const std::vector<int32_t>* list : {&stage.row, &stage.column}) {
      for (int32_t id : *list) {
        const Instr& instr = kernel.instrs[static_cast<size_t>(id)];
        if (instr.op == LoopOp::kLoad && instr.index == static_cast<int32_t>(in) && stored) return false;
        stored = stored || (instr.op == LoopOp::kStore && instr.index == static_cast<int32_t>(out));
      }
    }
  }
  return stored;
}

// If a kernel is refused, each is compiled alone, so that the reproducer holds the one at fault.
CompiledKernels emit(const std::vector<LoopKernel>& kernels, Sizes sizes, std::span<const KernelHint> hints) {
  try {
    return find_or_compile(kernels, sizes, hints);
  } catch (const InternalError&) {
    for (LoopKernel kernel : kernels) {
      kernel.name = "kernel";
      run_reproducible({.stage = "emit", .kernel = &kernel}, [&] { compile_kernels({&kernel, 1}); });
    }
    throw;
  }
}

}  // namespace

std::vector<LoopKernel> Program::make_launches(Graph source, const ProgramOptions& options) {
  graph_ = simplify(std::move(source));
  const Graph& graph = graph_;
  const EpilogueChains epilogues = choose_epilogues(options);
  const std::vector<Unit> units = reproducible({.stage = "fuse", .graph = &graph},
                                               [&] { return fuse(graph, epilogues); });
  if (wants_dump("fuse")) dump("fuse", to_string(graph, units));
  // A value is stored if another unit or the caller reads it, through whatever view.
  std::vector<int> unit_of(graph.nodes.size(), -1);
  for (size_t u = 0; u < units.size(); ++u)
    for (int32_t n : units[u].nodes) unit_of[static_cast<size_t>(n)] = static_cast<int>(u);
  std::vector<bool> needed(graph.values.size(), false);
  for (ValueId id : graph.outputs) needed[static_cast<size_t>(graph.written(id))] = true;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].op->kind == OpKind::kView) continue;
    for (ValueId id : graph.nodes[n].inputs) {
      if (id == kNoValue) continue;
      const ValueId source = graph.written(id);
      const int32_t producer = graph.value(source).producer;
      if (producer >= 0 && unit_of[static_cast<size_t>(producer)] != unit_of[n])
        needed[static_cast<size_t>(source)] = true;
    }
  }
  std::vector<LoopKernel> code;
  for (const Unit& unit : units) {
    if (!unit.fused) {
      add_library_call(unit);
      continue;
    }
    LoweredUnit lowered = reproducible({.stage = "lower", .graph = &graph, .unit = &unit, .needed = &needed},
                                       [&] { return lower(graph, unit, needed); });
    if (!options.exact && enabled(CompilerStage::kRelax)) lowered.kernel = relax(lowered.kernel);
    if (wants_dump("lower")) dump("lower", to_string(lowered.kernel));
    lowered.extents = extents(lowered.kernel);
    launches_.push_back({.kernel = static_cast<int32_t>(code.size()), .node = unit.nodes[0], .nodes = unit.nodes});
    code.push_back(lowered.kernel);
    kernels_.push_back(std::move(lowered));
  }
  return code;
}

// What is known of the kernels of one program from those of the same one at other sizes.
std::vector<KernelHint> Program::compare(const std::vector<LoopKernel>& kernels, OtherSizes other,
                                         const ProgramOptions& options) {
  const auto at = [&](std::optional<Graph>& graph) {
    const DumpsOff quiet;
    std::vector<LoopKernel> there;
    try {
      if (graph.has_value()) there = Program().make_launches(*std::move(graph), options);
    } catch (const std::exception&) {
      there.clear();  // sizes that nobody asked for need not compile
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

std::shared_ptr<const Program> Program::compile(Graph source, const ProgramOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  auto program = std::make_shared<Program>();
  const std::vector<LoopKernel> code = program->make_launches(std::move(source), options);
  CompiledKernels found;
  std::optional<CompiledKernels> there;
  if (options.marks != nullptr && options.marks->ranges_met) there = find_kernels(code);
  if (there.has_value()) found = *std::move(there);
  else if (options.marks != nullptr && !code.empty())
    found = emit(code, options.sizes, compare(code, options.marks->graph_at(), options));
  else found = emit(code, options.sizes, {});
  program->code_ = std::move(found.kernels);
  program->stats_.compiled = found.compiled;
  program->plan(options);
  program->resolve_addresses();
  program->exact_ = options.exact;
  program->epilogues_ = options.epilogues;
  program->keeps_arena_ = options.mode == Mode::kReduceOverhead;
  for (Launch& launch : program->launches_)
    if (launch.kernel < 0) launch.prepared = program->prepare(launch, 0);
  if (options.mode == Mode::kMaxAutotune) program->tune(options.exact);
  program->stats_.kernels = static_cast<int>(code.size());
  program->stats_.library_calls = static_cast<int>(program->launches_.size() - code.size());
  program->stats_.compile_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return program;
}

void Program::add_library_call(const Unit& unit) {
  const GraphNode& node = graph_.nodes[static_cast<size_t>(unit.nodes[0])];
  if (is_in_place(graph_, node)) return;
  Launch launch{.node = unit.nodes[0], .nodes = unit.nodes, .inputs = node.inputs};
  for (size_t i = 1; i < unit.nodes.size(); ++i) {
    const ValueId result = graph_.nodes[static_cast<size_t>(unit.nodes[i - 1])].outputs[0];
    for (ValueId id : graph_.nodes[static_cast<size_t>(unit.nodes[i])].inputs)
      if (graph_.written(id) != result) launch.inputs.push_back(id);
  }
  launch.outputs = graph_.nodes[static_cast<size_t>(unit.nodes.back())].outputs;
  launches_.push_back(std::move(launch));
}

std::vector<ValueId> Program::touched(const Launch& launch) const {
  std::vector<ValueId> values(launch.inputs.begin(), launch.inputs.end());
  values.insert(values.end(), launch.outputs.begin(), launch.outputs.end());
  if (launch.kernel < 0) return values;
  const LoweredUnit& unit = kernels_[static_cast<size_t>(launch.kernel)];
  values = unit.operands;
  for (const ColumnResult& r : unit.column_results) values.push_back(r.value);
  return values;
}

void Program::plan(const ProgramOptions& options) {
  const int n = static_cast<int>(launches_.size());
  placements_.resize(graph_.values.size());
  for (size_t i = 0; i < graph_.inputs.size(); ++i)
    placements_[static_cast<size_t>(graph_.inputs[i])] = {Placement::kInput, static_cast<int64_t>(i), 0};
  for (const GraphNode& node : graph_.nodes) {
    if (!is_parameter_copy(graph_, node)) continue;
    const size_t input = static_cast<size_t>(placements_[static_cast<size_t>(node.inputs[0])].index);
    placements_[static_cast<size_t>(node.outputs[0])] = {Placement::kCopy, std::ssize(copies_), 0};
    copies_.push_back({input, graph_.value(node.outputs[0]).dtype});
  }
  for (ValueId id : graph_.outputs) {
    Placement& p = placements_[static_cast<size_t>(graph_.value(id).root)];
    if (p.kind == Placement::kNone) {
      p = {Placement::kOutput, std::ssize(fresh_), 0};
      fresh_.push_back({bytes_of(graph_.value(graph_.value(id).root))});
    }
  }
  // First and last launch that touch each root.
  std::vector<int> first(graph_.values.size(), n), last(graph_.values.size(), -1);
  for (int i = 0; i < n; ++i) {
    for (ValueId id : touched(launches_[static_cast<size_t>(i)])) {
      if (id == kNoValue) continue;
      const auto root = static_cast<size_t>(graph_.value(id).root);
      first[root] = std::min(first[root], i);
      last[root] = std::max(last[root], i);
    }
  }
  if (enabled(CompilerStage::kReuse)) share_in_place(options, first, last);
  ArenaPlanner arena;
  for (size_t v = 0; v < graph_.values.size(); ++v) {
    if (graph_.values[v].root != static_cast<ValueId>(v) || last[v] < 0 || placements_[v].kind != Placement::kNone)
      continue;
    placements_[v] = {Placement::kArena,
                      arena.place(aligned(std::max<int64_t>(bytes_of(graph_.values[v]), 1)), first[v], last[v]), 0};
  }
  partial_offsets_.assign(kernels_.size(), 0);
  for (int i = 0; i < n; ++i) {
    const int32_t k = launches_[static_cast<size_t>(i)].kernel;
    if (k < 0 || kernels_[static_cast<size_t>(k)].column_results.empty()) continue;
    partial_offsets_[static_cast<size_t>(k)] = arena.place(partial_bytes(k), i, i);
  }
  stats_.arena_bytes = arena.size();
}

int64_t Program::partial_bytes(int32_t kernel) const {
  const LoweredUnit& unit = kernels_[static_cast<size_t>(kernel)];
  if (unit.column_results.empty()) return 0;
  const int64_t chunks = (unit.kernel.rows + unit.kernel.chunk_rows - 1) / unit.kernel.chunk_rows;
  return static_cast<int64_t>(unit.column_results.size()) * aligned(chunks * unit.kernel.cols * 8);
}

std::vector<std::pair<ValueId, ValueId>> Program::overwritable(const Launch& launch) const {
  std::vector<std::pair<ValueId, ValueId>> pairs;
  const std::vector<ValueId> operands = touched(launch);
  // Both in full, and each known to the launch by this one operand.
  const auto whole = [&](ValueId id) {
    const Value& value = graph_.value(id);
    return value.offset == 0 && value.sizes.numel() == graph_.value(value.root).sizes.numel() &&
           std::count_if(operands.begin(), operands.end(), [&](ValueId other) {
             return other != kNoValue && graph_.value(other).root == value.root;
           }) == 1;
  };
  const auto offer = [&](ValueId in, ValueId out) {
    if (bytes_of(graph_.value(graph_.value(in).root)) == bytes_of(graph_.value(graph_.value(out).root)) && whole(in) &&
        whole(out))
      pairs.emplace_back(in, out);
  };
  if (launch.kernel < 0) {
    // A product may add to what it finds where its result goes.
    const GraphNode& node = graph_.nodes[static_cast<size_t>(launch.node)];
    const size_t own = node.inputs.size();
    for (size_t i = own; i < launch.inputs.size(); ++i) offer(launch.inputs[i], launch.outputs[0]);
    const int reusable = node.op->reuses;
    if (reusable < 0) return pairs;
    const ValueId in = node.inputs[static_cast<size_t>(reusable)];
    const Value &from = graph_.value(in), &to = graph_.value(launch.outputs[0]);
    if (from.dtype == to.dtype && is_contiguous(from.sizes, from.strides) && is_contiguous(to.sizes, to.strides))
      offer(in, launch.outputs[0]);
    return pairs;
  }
  const LoweredUnit& unit = kernels_[static_cast<size_t>(launch.kernel)];
  for (size_t out = 0; out < unit.operands.size(); ++out) {
    if (!unit.kernel.operands[out].is_output || unit.operands[out] == kNoValue) continue;
    for (size_t in = 0; in < unit.operands.size(); ++in)
      if (!unit.kernel.operands[in].is_output && unit.operands[in] != kNoValue && may_overwrite(unit.kernel, in, out))
        offer(unit.operands[in], unit.operands[out]);
  }
  return pairs;
}

// Who may take over whose memory, while launches are visited in order. By root value.
struct Program::Sharing {
  const ProgramOptions& options;
  std::vector<int>& first;       // launch that touches it
  const std::vector<int>& last;  // as first
  std::vector<bool> donated;     // the caller gives its memory away, and nobody has taken it yet
  std::vector<bool> returned;    // the caller gets it, or its memory was handed on
};

// What a launch reads for the last time gives its memory to a result of that launch, so that the processor reads and
// writes the same cache lines.
void Program::share_in_place(const ProgramOptions& options, std::vector<int>& first, const std::vector<int>& last) {
  Sharing sharing{options, first, last, std::vector<bool>(graph_.values.size(), false),
                  std::vector<bool>(graph_.values.size(), false)};
  for (size_t i = 0; i < options.donated.size(); ++i)
    sharing.donated[static_cast<size_t>(graph_.inputs[i])] = options.donated[i];
  for (ValueId id : graph_.outputs) sharing.returned[static_cast<size_t>(graph_.value(id).root)] = true;
  for (int i = 0; i < static_cast<int>(launches_.size()); ++i) {
    const Launch& launch = launches_[static_cast<size_t>(i)];
    for (const auto& [in, out] : overwritable(launch)) {
      const auto source = static_cast<size_t>(graph_.value(in).root),
                 result = static_cast<size_t>(graph_.value(out).root);
      if (first[result] != i || last[source] != i || placements_[result].kind == Placement::kInput) continue;
      if (is_update(options, source, result)) placements_[result] = placements_[source];
      else if (placements_[source].kind == Placement::kNone) share_transient(source, result, sharing);
      else if (sharing.donated[source] && !sharing.returned[source] && takes_donations(launch))
        take_donation(source, result, sharing);
      else hand_on(source, result, sharing);
    }
  }
  for (Placement& p : placements_)
    while (p.kind == Placement::kShared && placements_[static_cast<size_t>(p.index)].kind == Placement::kShared)
      p.index = placements_[static_cast<size_t>(p.index)].index;
}

// The caller wants this result written over this input.
bool Program::is_update(const ProgramOptions& options, size_t source, size_t result) const {
  return std::any_of(options.updates.begin(), options.updates.end(), [&](const ProgramOptions::Update& update) {
    return static_cast<size_t>(graph_.inputs[static_cast<size_t>(update.input)]) == source &&
           static_cast<size_t>(graph_.outputs[static_cast<size_t>(update.output)]) == result;
  });
}

// A product is prepared either for memory that it adds to or for memory that it overwrites. Whether an input is donated
// differs from call to call, so most products take none.
bool Program::takes_donations(const Launch& launch) const {
  return launch.kernel >= 0 || graph_.nodes[static_cast<size_t>(launch.node)].op->reuses >= 0;
}

// Neither is placed yet: both are one block, which is in use from the source's first launch on.
void Program::share_transient(size_t source, size_t result, Sharing& sharing) {
  placements_[source] = {Placement::kShared, static_cast<int64_t>(result), 0};
  sharing.first[result] = sharing.first[source];
}

// The result is a fresh buffer whose memory is, if the caller lets go of it, that of an input.
void Program::take_donation(size_t source, size_t result, Sharing& sharing) {
  if (placements_[result].kind == Placement::kNone) {
    placements_[result] = {Placement::kOutput, std::ssize(fresh_), 0};
    fresh_.push_back({bytes_of(graph_.values[result])});
  }
  fresh_[static_cast<size_t>(placements_[result].index)].donor = static_cast<int32_t>(placements_[source].index);
  sharing.first[result] = -1;  // that memory was there before any transient
  sharing.donated[source] = false;
  reuses_inputs_ = true;
}

// A transient in donated memory hands it on, once.
void Program::hand_on(size_t source, size_t result, Sharing& sharing) {
  if (placements_[source].kind != Placement::kOutput || sharing.returned[source] ||
      placements_[result].kind != Placement::kNone)
    return;
  placements_[result] = placements_[source];
  sharing.first[result] = -1;
  sharing.returned[source] = true;
}

Program::Address Program::address_of(ValueId id) const {
  if (id == kNoValue) return {};
  const Value& value = graph_.value(id);
  const Placement* p = &placements_[static_cast<size_t>(value.root)];
  if (p->kind == Placement::kShared) p = &placements_[static_cast<size_t>(p->index)];
  const int64_t offset = value.offset * static_cast<int64_t>(size_of(value.dtype));
  const auto inputs = static_cast<int32_t>(graph_.inputs.size());
  const auto given = inputs + static_cast<int32_t>(copies_.size()), fresh = static_cast<int32_t>(fresh_.size());
  switch (p->kind) {
    case Placement::kInput: return {static_cast<int32_t>(p->index), offset};
    case Placement::kCopy: return {inputs + static_cast<int32_t>(p->index), offset};
    case Placement::kOutput: return {given + static_cast<int32_t>(p->index), offset};
    case Placement::kArena: return {given + fresh, p->index + offset};
    default: return {};
  }
}

void Program::resolve_addresses() {
  for (Launch& launch : launches_) {
    if (launch.kernel >= 0) {
      const LoweredUnit& unit = kernels_[static_cast<size_t>(launch.kernel)];
      for (ValueId id : unit.operands) launch.addresses.push_back(address_of(id));
      for (size_t i = 0; i < unit.column_results.size(); ++i) {
        const int64_t stride = partial_bytes(launch.kernel) / std::ssize(unit.column_results);
        launch.addresses[static_cast<size_t>(unit.column_results[i].operand)] = {
            static_cast<int32_t>(graph_.inputs.size() + copies_.size() + fresh_.size()),
            partial_offsets_[static_cast<size_t>(launch.kernel)] + static_cast<int64_t>(i) * stride};
      }
      for (const ColumnResult& result : unit.column_results) launch.addresses.push_back(address_of(result.value));
    } else {
      for (const ValueIds* list : {&launch.inputs, &launch.outputs})
        for (ValueId id : *list) launch.addresses.push_back(address_of(id));
    }
  }
}

}  // namespace rondo::compile
