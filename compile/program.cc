#include "rondo/compile/program.h"

#include <algorithm>
#include <chrono>

#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/codegen/relax.h"
#include "rondo/compile/dump.h"
#include "rondo/compile/passes/passes.h"
#include "rondo/compile/reproducer.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/ops/reduction_order.h"
#include "rondo/runtime/ops/reuse.h"
#include "rondo/runtime/parallel.h"
#include "rondo/runtime/recorder.h"

namespace rondo::compile {
namespace {

// Elements of work that pay for waking a thread.
constexpr int64_t kGrain = 1 << 14;

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

// True if the kernel may write operand `out` over operand `in`: both address the same elements, and every load of an element
// comes before its store (loop_ir.h).
bool may_overwrite(const LoopKernel& kernel, size_t in, size_t out) {
  const Operand &a = kernel.operands[in], &b = kernel.operands[out];
  if (a.dtype != b.dtype || a.col_stride != b.col_stride || a.is_partial || b.is_partial || a.axes.size() != b.axes.size())
    return false;
  for (size_t i = 0; i < a.axes.size(); ++i)
    if (a.axes[i].divisor != b.axes[i].divisor || a.axes[i].size != b.axes[i].size || a.axes[i].stride != b.axes[i].stride)
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

// out[c] = sum over chunks, in order, onto the first: Note [Column order].
template <class C> void combine_chunks(C* partial, int64_t chunks, int64_t cols, const Value& value, std::byte* out) {
  for (int64_t k = 1; k < chunks; ++k)
    for (int64_t c = 0; c < cols; ++c) partial[c] = partial[c] + partial[k * cols + c];
  visit_floating(value.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t c = 0; c < cols; ++c) reinterpret_cast<T*>(out)[c] = static_cast<T>(partial[c]);
  });
}

}  // namespace

namespace {

// If a kernel is refused, each is compiled alone, so that the reproducer holds the one at fault.
CompiledKernels emit(const std::vector<LoopKernel>& kernels, Sizes sizes) {
  try {
    return find_or_compile(kernels, sizes);
  } catch (const InternalError&) {
    for (LoopKernel kernel : kernels) {
      kernel.name = "kernel";
      run_reproducible({.stage = "emit", .kernel = &kernel}, [&] { compile_kernels({&kernel, 1}); });
    }
    throw;
  }
}

}  // namespace

// The memory of one run.
struct Program::Frame {
  struct Buffer {
    Storage storage;
    int64_t byte_offset = 0;
    std::byte* data = nullptr;
  };
  std::vector<Buffer> buffers;  // by value; roots only
  Storage arena;
  const Graph& graph;

  std::byte* address(ValueId id) const {
    const Value& v = graph.value(id);
    return buffers[static_cast<size_t>(v.root)].data + v.offset * static_cast<int64_t>(size_of(v.dtype));
  }
  // The memory of a value, seen with the layout of `like`.
  Tensor tensor(const Value& like, ValueId id) const {
    const Value& v = graph.value(id);
    const Buffer& b = buffers[static_cast<size_t>(v.root)];
    return Tensor::from_storage(b.storage, b.byte_offset / static_cast<int64_t>(size_of(v.dtype)) + v.offset, like.sizes,
                                like.strides, v.dtype);
  }
};

std::shared_ptr<const Program> Program::compile(Graph source, const ProgramOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  auto program = std::make_shared<Program>();
  program->graph_ = simplify(std::move(source));
  const Graph& graph = program->graph_;
  const std::vector<Unit> units = reproducible({.stage = "fuse", .graph = &graph}, [&] { return fuse(graph, options.exact); });
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
      if (producer >= 0 && unit_of[static_cast<size_t>(producer)] != unit_of[n]) needed[static_cast<size_t>(source)] = true;
    }
  }
  std::vector<LoopKernel> code;
  for (const Unit& unit : units) {
    if (!unit.fused) {
      program->add_library_call(unit);
      continue;
    }
    LoweredUnit lowered = reproducible({.stage = "lower", .graph = &graph, .unit = &unit, .needed = &needed},
                                       [&] { return lower(graph, unit, needed); });
    if (!options.exact) lowered.kernel = relax(lowered.kernel);
    if (wants_dump("lower")) dump("lower", to_string(lowered.kernel));
    lowered.extents = extents(lowered.kernel);
    program->launches_.push_back({.kernel = static_cast<int32_t>(code.size()), .node = unit.nodes[0], .nodes = unit.nodes});
    code.push_back(lowered.kernel);
    program->kernels_.push_back(std::move(lowered));
  }
  CompiledKernels found = emit(code, options.sizes);
  program->code_ = std::move(found.kernels);
  program->stats_.compiled = found.compiled;
  program->plan(options);
  program->prepare_library_calls();
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
  for (ValueId id : graph_.outputs) {
    Placement& p = placements_[static_cast<size_t>(graph_.value(id).root)];
    if (p.kind == Placement::kNone) p = {Placement::kOutput, fresh_buffers_++, bytes_of(graph_.value(graph_.value(id).root))};
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
  share_in_place(options, first, last);
  ArenaPlanner arena;
  for (size_t v = 0; v < graph_.values.size(); ++v) {
    if (graph_.values[v].root != static_cast<ValueId>(v) || last[v] < 0 || placements_[v].kind != Placement::kNone) continue;
    placements_[v] = {Placement::kArena, arena.place(aligned(std::max<int64_t>(bytes_of(graph_.values[v]), 1)), first[v], last[v]), 0};
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
           std::count_if(operands.begin(), operands.end(),
                         [&](ValueId other) { return other != kNoValue && graph_.value(other).root == value.root; }) == 1;
  };
  const auto offer = [&](ValueId in, ValueId out) {
    if (bytes_of(graph_.value(graph_.value(in).root)) == bytes_of(graph_.value(graph_.value(out).root)) && whole(in) && whole(out))
      pairs.emplace_back(in, out);
  };
  if (launch.kernel < 0) {
    // A product may add to what it finds where its result goes.
    const GraphNode& node = graph_.nodes[static_cast<size_t>(launch.node)];
    const size_t own = node.inputs.size();
    for (size_t i = own; i < launch.inputs.size(); ++i) offer(launch.inputs[i], launch.outputs[0]);
    const int reusable = ops::reusable_input(*node.op);
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

// What a launch reads for the last time gives its memory to a result of that launch, so that the processor reads and writes the
// same cache lines: transients, inputs that the caller wants updated, and inputs that he gives away.
void Program::share_in_place(const ProgramOptions& options, std::vector<int>& first, const std::vector<int>& last) {
  std::vector<bool> donated(graph_.values.size(), false);
  for (size_t i = 0; i < options.donated.size(); ++i) donated[static_cast<size_t>(graph_.inputs[i])] = options.donated[i];
  std::vector<bool> returned(graph_.values.size(), false);
  for (ValueId id : graph_.outputs) returned[static_cast<size_t>(graph_.value(id).root)] = true;
  const auto is_update = [&](size_t source, size_t result) {
    return std::any_of(options.updates.begin(), options.updates.end(), [&](const ProgramOptions::Update& update) {
      return static_cast<size_t>(graph_.inputs[static_cast<size_t>(update.input)]) == source &&
             static_cast<size_t>(graph_.outputs[static_cast<size_t>(update.output)]) == result;
    });
  };
  for (int i = 0; i < static_cast<int>(launches_.size()); ++i) {
    // A product is prepared for memory that it adds to, or for memory that it does not: that must not depend on the call.
    const Launch& launch = launches_[static_cast<size_t>(i)];
    const bool takes_donations = launch.kernel >= 0 || ops::reusable_input(*graph_.nodes[static_cast<size_t>(launch.node)].op) >= 0;
    for (const auto& [in, out] : overwritable(launch)) {
      const auto source = static_cast<size_t>(graph_.value(in).root), result = static_cast<size_t>(graph_.value(out).root);
      if (first[result] != i || last[source] != i || placements_[result].kind == Placement::kInput) continue;
      if (is_update(source, result)) {
        placements_[result] = placements_[source];
      } else if (placements_[source].kind == Placement::kNone) {
        placements_[source] = {Placement::kShared, static_cast<int64_t>(result), 0};
        first[result] = first[source];
      } else if (donated[source] && !returned[source] && takes_donations) {
        placements_[result] = {Placement::kDonated, placements_[source].index, bytes_of(graph_.values[result])};
        first[result] = -1;  // taken: nothing else shares it
        reuses_inputs_ = true;
      } else if (placements_[source].kind == Placement::kDonated && !returned[source]) {
        placements_[result] = placements_[source];
        placements_[source] = {Placement::kShared, static_cast<int64_t>(result), 0};
        first[result] = -1;
      }
    }
  }
  for (Placement& p : placements_)
    while (p.kind == Placement::kShared && placements_[static_cast<size_t>(p.index)].kind == Placement::kShared)
      p.index = placements_[static_cast<size_t>(p.index)].index;
}

namespace {

// The epilogues of a library call, given the tensors that its launch reads.
absl::InlinedVector<EpilogueCall, kMaxEpilogues> epilogue_calls(const Graph& graph, const Program::Launch& launch,
                                                                std::span<const Tensor> inputs) {
  absl::InlinedVector<EpilogueCall, kMaxEpilogues> calls;
  size_t next = graph.nodes[static_cast<size_t>(launch.node)].inputs.size();
  for (size_t i = 1; i < launch.nodes.size(); ++i) {
    const GraphNode& node = graph.nodes[static_cast<size_t>(launch.nodes[i])];
    calls.push_back({node.op->epilogue, node.inputs.size() > 1 ? &inputs[next++] : nullptr});
  }
  return calls;
}

// Calls `use` with the kernel's view of a library call; `tensor(id)` gives the value's tensor, `result(like, id)` one of
// `like`'s layout in the memory of `id`.
template <class MakeTensor, class MakeResult, class Use>
void with_context(const Graph& graph, const Program::Launch& launch, MakeTensor tensor, MakeResult result, Use use) {
  const GraphNode& node = graph.nodes[static_cast<size_t>(launch.node)];
  Tensor inputs[kMaxOpInputs + kMaxEpilogues], outputs[kMaxOpOutputs];
  const Tensor* pointers[kMaxOpInputs];
  for (size_t i = 0; i < launch.inputs.size(); ++i)
    if (launch.inputs[i] != kNoValue) inputs[i] = tensor(launch.inputs[i]);
  for (size_t i = 0; i < node.inputs.size(); ++i) pointers[i] = &inputs[i];
  // The product's own result, written where the last epilogue's belongs.
  for (size_t i = 0; i < node.outputs.size(); ++i) outputs[i] = result(graph.value(node.outputs[i]), launch.outputs[i]);
  const auto epilogues = epilogue_calls(graph, launch, inputs);
  use(KernelContext{*node.op, {pointers, node.inputs.size()}, {outputs, node.outputs.size()}, node.attrs, node.where, epilogues});
}

}  // namespace

void Program::prepare_library_calls() {
  NoGrad off;
  RecorderScope eager(nullptr);
  // Stand-ins for the memory of each root: only who shares with whom matters.
  std::vector<Storage> memory(graph_.values.size());
  const auto memory_of = [&](ValueId id) -> Storage& {
    auto root = static_cast<size_t>(graph_.value(id).root);
    const Placement& p = placements_[root];
    if (p.kind == Placement::kShared) root = static_cast<size_t>(p.index);
    if (placements_[root].kind == Placement::kInput) root = static_cast<size_t>(graph_.inputs[static_cast<size_t>(placements_[root].index)]);
    if (!memory[root]) memory[root] = Storage::allocate(1);
    return memory[root];
  };
  const auto stand_in = [&](const Value& like, ValueId id) {
    return Tensor::from_storage(memory_of(id), graph_.value(id).offset, like.sizes, like.strides, like.dtype);
  };
  for (Launch& launch : launches_) {
    if (launch.kernel >= 0) continue;
    const OpDef& op = *graph_.nodes[static_cast<size_t>(launch.node)].op;
    if (op.prepare == nullptr) continue;
    with_context(graph_, launch, [&](ValueId id) { return stand_in(graph_.value(id), id); }, stand_in,
                 [&](const KernelContext& context) { launch.prepared = op.prepare(context, 0); });
  }
}

void Program::run_kernel(const LoweredUnit& unit, int32_t index, Frame& frame) const {
  const LoopKernel& kernel = unit.kernel;
  absl::InlinedVector<void*, 24> operands(unit.operands.size());
  for (size_t i = 0; i < operands.size(); ++i)
    if (unit.operands[i] != kNoValue) operands[i] = frame.address(unit.operands[i]);
  const KernelEntry entry = code_[static_cast<size_t>(index)].entry;
  const double* scalars = unit.scalars.data();
  const int64_t* extents = unit.extents.data();
  if (kernel.split_columns) {
    parallel_for((kernel.cols + kSplitGrain - 1) / kSplitGrain, kGrain / kSplitGrain, [&](int64_t begin, int64_t end) {
      entry(operands.data(), scalars, extents, begin * kSplitGrain, std::min(end * kSplitGrain, kernel.cols));
    });
    return;
  }
  if (unit.column_results.empty()) {
    parallel_for(kernel.rows, std::max<int64_t>(1, kGrain / kernel.cols),
                 [&](int64_t begin, int64_t end) { entry(operands.data(), scalars, extents, begin, end); });
    return;
  }
  const int64_t chunks = (kernel.rows + kernel.chunk_rows - 1) / kernel.chunk_rows;
  const int64_t stride = aligned(chunks * kernel.cols * 8);
  std::byte* partial = frame.arena.data() + partial_offsets_[static_cast<size_t>(index)];
  for (size_t i = 0; i < unit.column_results.size(); ++i)
    operands[static_cast<size_t>(unit.column_results[i].operand)] = partial + static_cast<int64_t>(i) * stride;
  parallel_for(chunks, std::max<int64_t>(1, kGrain / (kernel.cols * kernel.chunk_rows)), [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k)
      entry(operands.data(), scalars, extents, k * kernel.chunk_rows, std::min((k + 1) * kernel.chunk_rows, kernel.rows));
  });
  for (size_t i = 0; i < unit.column_results.size(); ++i) {
    const ColumnResult& result = unit.column_results[i];
    std::byte* sums = partial + static_cast<int64_t>(i) * stride;
    const Value& value = graph_.value(result.value);
    if (result.compute == kF64)
      combine_chunks(reinterpret_cast<double*>(sums), chunks, kernel.cols, value, frame.address(result.value));
    else
      combine_chunks(reinterpret_cast<float*>(sums), chunks, kernel.cols, value, frame.address(result.value));
  }
}

void Program::run_library_call(const Launch& launch, Frame& frame) const {
  if (launch.prepared != nullptr) {
    absl::InlinedVector<std::byte*, kMaxOpInputs + 1> addresses;
    for (ValueId id : launch.inputs) addresses.push_back(id == kNoValue ? nullptr : frame.address(id));
    for (ValueId id : launch.outputs) addresses.push_back(frame.address(id));
    return launch.prepared->run(addresses);
  }
  with_context(graph_, launch, [&](ValueId id) { return frame.tensor(graph_.value(id), id); },
               [&](const Value& like, ValueId id) { return frame.tensor(like, id); },
               [](const KernelContext& context) { context.op.kernel[static_cast<int>(Backend::kCPU)](context); });
}

std::vector<Tensor> Program::run(std::span<const Tensor> inputs, bool release) const {
  NoGrad off;
  RecorderScope eager(nullptr);
  Frame frame{.buffers = {}, .arena = {}, .graph = graph_};
  frame.buffers.resize(graph_.values.size());
  std::vector<bool> given;  // before the frame holds them, too
  if (release && reuses_inputs_)
    for (const Tensor& input : inputs)
      given.push_back(input.defined() && input.impl()->refs.load() == 1 && input.storage().is_unique() && !input.storage().is_borrowed());
  if (stats_.arena_bytes > 0) frame.arena = Storage::allocate(static_cast<size_t>(stats_.arena_bytes));
  for (size_t v = 0; v < placements_.size(); ++v) {
    const Placement& p = placements_[v];
    Frame::Buffer& b = frame.buffers[v];
    switch (p.kind) {
      case Placement::kNone: continue;
      case Placement::kInput: {
        const Tensor& input = inputs[static_cast<size_t>(p.index)];
        if (!input.defined()) continue;  // the caller knows that nothing reads it
        b = {input.storage(), input.storage_offset() * static_cast<int64_t>(size_of(input.dtype())), input.impl()->data()};
        break;
      }
      case Placement::kOutput: {
        Storage storage = Storage::allocate(static_cast<size_t>(p.bytes));
        std::byte* data = storage.data();
        b = {std::move(storage), 0, data};
        break;
      }
      case Placement::kDonated: {
        const auto at = static_cast<size_t>(p.index);
        if (at < given.size() && given[at]) {
          const Tensor& input = inputs[at];
          b = {input.storage(), input.storage_offset() * static_cast<int64_t>(size_of(input.dtype())), input.impl()->data()};
          break;
        }
        Storage storage = Storage::allocate(static_cast<size_t>(p.bytes));
        std::byte* data = storage.data();
        b = {std::move(storage), 0, data};
        break;
      }
      case Placement::kShared: continue;
      case Placement::kArena: b = {frame.arena, p.index, frame.arena.data() + p.index}; break;
    }
  }
  for (size_t v = 0; v < placements_.size(); ++v)
    if (placements_[v].kind == Placement::kShared) frame.buffers[v] = frame.buffers[static_cast<size_t>(placements_[v].index)];
  for (const Launch& launch : launches_) {
    if (launch.kernel >= 0) run_kernel(kernels_[static_cast<size_t>(launch.kernel)], launch.kernel, frame);
    else run_library_call(launch, frame);
  }
  std::vector<Tensor> outputs;
  outputs.reserve(graph_.outputs.size());
  for (ValueId id : graph_.outputs) outputs.push_back(frame.tensor(graph_.value(id), id));
  return outputs;
}

}  // namespace rondo::compile
