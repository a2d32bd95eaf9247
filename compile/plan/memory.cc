#include "rondo/compile/plan/memory.h"

#include <algorithm>

#include "rondo/compile/stages/stages.h"

namespace rondo::compile {
namespace {

int64_t bytes_of(const Value& v) { return v.sizes.numel() * static_cast<int64_t>(size_of(v.dtype)); }

// Places blocks in the arena by first fit: each block takes the lowest offset at which it overlaps no block that is
// alive at the same time.
class ArenaPlanner {
 public:
  // Places a block that is alive from launch `first` to launch `last`, both included.
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

// True if the kernel may write operand `out` over operand `in`: both address the same elements, and every load of an
// element comes before its store (loop_ir.h).
bool may_overwrite(const LoopKernel& kernel, size_t in, size_t out) {
  const Operand &a = kernel.operands[in], &b = kernel.operands[out];
  // Several calls compute the parts of a row. All of them read a value that is the same for all columns, so the first
  // call that stores to it would change it for the others.
  if (kernel.split_columns && a.col_stride == 0) return false;
  if (a.dtype != b.dtype || a.col_stride != b.col_stride || a.is_partial || b.is_partial || is_picked(a) ||
      !has_elements(a) || a.axes.size() != b.axes.size())
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

class MemoryPlanner {
 public:
  MemoryPlanner(Plan& plan, const std::vector<Update>& updates, const std::vector<bool>& donated, int64_t alignment)
      : plan_(plan),
        graph_(plan.graph),
        updates_(updates),
        alignment_(alignment),
        first_(graph_, n_launches()),
        last_(graph_, -1),
        donated_(graph_, false),
        returned_(graph_, false) {
    for (size_t i = 0; i < donated.size(); ++i) donated_[graph_.inputs[i]] = donated[i];
    for (ValueId id : graph_.outputs) returned_[graph_.value(id).root] = true;
  }

  void run() {
    place_what_the_caller_has();
    for (int i = 0; i < n_launches(); ++i) {
      for (ValueId id : touched(plan_, launch(i))) {
        if (id == kNoValue) continue;
        const ValueId root = graph_.value(id).root;
        first_[root] = std::min(first_[root], i);
        last_[root] = std::max(last_[root], i);
      }
    }
    for (int i = 0; i < n_launches(); ++i)
      if (may_throw(launch(i))) last_throwing_ = i;
    if (enabled(CompilerStage::kReuse)) {
      share_in_place();
      write_over_inputs();
      drop_unused_fresh();
    }
    ArenaPlanner arena;
    for (ValueId v = 0; v < std::ssize(graph_.values); ++v) {
      if (graph_.value(v).root != v || last_[v] < 0 || plan_.placements[v].kind != Placement::kNone) continue;
      const int64_t bytes = aligned(std::max<int64_t>(bytes_of(graph_.value(v)), 1), alignment_);
      plan_.placements[v] = {Placement::kArena, arena.place(bytes, first_[v], last_[v])};
    }
    // Partial sums live from their kernel to the launch that adds them up. Consecutive launches of this kind run as
    // one, so the sums live until the last of these.
    std::vector<int> combined(plan_.kernels.size(), -1);
    for (int i = n_launches() - 1, last = i; i >= 0; --i) {
      if (launch(i).kind != Launch::Kind::kCombine) last = i - 1;
      else combined[static_cast<size_t>(launch(i).kernel)] = last;
    }
    std::vector<int64_t> partials(plan_.kernels.size(), 0);
    for (int i = 0; i < n_launches(); ++i) {
      if (launch(i).kind != Launch::Kind::kKernel) continue;
      const LoweredUnit& unit = kernel_of(launch(i));
      if (unit.column_results.empty()) continue;
      partials[static_cast<size_t>(launch(i).kernel)] = arena.place(partial_bytes(unit, alignment_), i,
                                                                    combined[static_cast<size_t>(launch(i).kernel)]);
    }
    plan_.arena_bytes = arena.size();
    resolve_addresses(partials);
  }

 private:
  using Placement = Plan::Placement;

  int n_launches() const { return static_cast<int>(plan_.launches.size()); }
  Launch& launch(int i) const { return plan_.launches[static_cast<size_t>(i)]; }
  const LoweredUnit& kernel_of(const Launch& launch) const { return plan_.kernel_of(launch); }
  const OpDef& op_of(const Launch& launch) const { return *graph_.node(launch.op()).op; }

  void place_what_the_caller_has() {
    plan_.placements.resize(graph_.values.size());
    for (size_t i = 0; i < graph_.inputs.size(); ++i)
      plan_.placements[graph_.inputs[i]] = {Placement::kInput, static_cast<int64_t>(i)};
    ValueMap<bool> used(graph_, false);  // by root value: a launch accesses it
    for (int i = 0; i < n_launches(); ++i)
      for (ValueId id : touched(plan_, launch(i)))
        if (id != kNoValue) used[graph_.value(id).root] = true;
    for (const GraphNode& node : graph_.nodes) {
      if (!is_parameter_copy(graph_, node) || !used[node.outputs[0]]) continue;
      const int64_t input = plan_.placements[node.inputs[0]].index;
      plan_.placements[node.outputs[0]] = {Placement::kCopy, std::ssize(plan_.copies)};
      plan_.copies.push_back({static_cast<int32_t>(input), graph_.value(node.outputs[0]).dtype});
    }
    for (ValueId id : graph_.outputs) {
      const ValueId root = graph_.value(id).root;
      if (plan_.placements[root].kind == Placement::kNone) place_fresh(root);
    }
  }
  void place_fresh(ValueId root) {
    plan_.placements[root] = {Placement::kOutput, std::ssize(plan_.fresh)};
    plan_.fresh.push_back({bytes_of(graph_.value(root))});
  }

  // Returns the pairs (read, written) of a launch such that the written value may take the memory of the read one.
  std::vector<std::pair<ValueId, ValueId>> overwritable(const Launch& launch) const {
    std::vector<std::pair<ValueId, ValueId>> pairs;
    if (launch.kind == Launch::Kind::kCombine || launch.kind == Launch::Kind::kCopy) return pairs;
    const std::vector<ValueId> operands = touched(plan_, launch);
    // True if the launch accesses the whole root value, and only through this operand.
    const auto whole = [&](ValueId id) {
      const Value& value = graph_.value(id);
      return value.offset == 0 && value.sizes.numel() == graph_.value(value.root).sizes.numel() &&
             std::count_if(operands.begin(), operands.end(), [&](ValueId other) {
               return other != kNoValue && graph_.value(other).root == value.root;
             }) == 1;
    };
    const auto offer = [&](ValueId in, ValueId out) {
      if (bytes_of(graph_.value(graph_.value(in).root)) == bytes_of(graph_.value(graph_.value(out).root)) &&
          whole(in) && whole(out))
        pairs.emplace_back(in, out);
    };
    if (launch.kind == Launch::Kind::kLibraryCall) {
      // A product may add to the values that are already in its result's memory.
      const GraphNode& node = graph_.node(launch.op());
      const size_t own = node.inputs.size();
      for (size_t i = own; i < launch.inputs.size(); ++i) offer(launch.inputs[i], launch.outputs[0]);
      if (node.op->kind == OpKind::kElementwise)  // eager execution, too, runs the op's kernel in place
        for (const ValueId in : node.inputs) {
          const Value &from = graph_.value(in), &to = graph_.value(launch.outputs[0]);
          if (is_update(from.root, to.root) && from.dtype == to.dtype && from.sizes == to.sizes &&
              is_contiguous(from.sizes, from.strides) && is_contiguous(to.sizes, to.strides))
            offer(in, launch.outputs[0]);
        }
      const int reusable = node.op->reuses;
      if (reusable < 0 || static_cast<size_t>(reusable) >= own ||
          node.inputs[static_cast<size_t>(reusable)] == kNoValue)
        return pairs;
      const ValueId in = node.inputs[static_cast<size_t>(reusable)];
      const Value &from = graph_.value(in), &to = graph_.value(launch.outputs[0]);
      if (from.dtype == to.dtype && is_contiguous(from.sizes, from.strides) && is_contiguous(to.sizes, to.strides))
        offer(in, launch.outputs[0]);
      return pairs;
    }
    const LoweredUnit& unit = kernel_of(launch);
    for (size_t out = 0; out < unit.operands.size(); ++out) {
      if (!unit.kernel.operands[out].is_output || unit.operands[out] == kNoValue) continue;
      for (size_t in = 0; in < unit.operands.size(); ++in)
        if (!unit.kernel.operands[in].is_output && unit.operands[in] != kNoValue && may_overwrite(unit.kernel, in, out))
          offer(unit.operands[in], unit.operands[out]);
    }
    return pairs;
  }

  // If a launch is the last reader of a value, one of the launch's results takes the value's memory. So the processor
  // reads and writes the same cache lines.
  void share_in_place() {
    for (int i = 0; i < n_launches(); ++i) {
      std::vector<std::pair<ValueId, ValueId>> pairs = overwritable(launch(i));
      // Updates come first: if a kernel adds a value to an input, the sum should take the input's memory. In the memory
      // of the other operand, it would have to be copied to the input's memory later.
      std::stable_partition(pairs.begin(), pairs.end(), [&](const auto& pair) {
        return is_update(graph_.value(pair.first).root, graph_.value(pair.second).root);
      });
      for (const auto& [in, out] : pairs) {
        const ValueId source = graph_.value(in).root, result = graph_.value(out).root;
        if (first_[result] != i || last_[source] != i || plan_.placements[result].kind == Placement::kInput) continue;
        if (const Update* update = update_of(source, result); update != nullptr && may_write(*update, i))
          plan_.placements[result] = plan_.placements[source];
        else if (plan_.placements[source].kind == Placement::kNone) share_transient(source, result);
        else if (donated_[source] && !returned_[source] && takes_donations(launch(i))) take_donation(source, result);
        else hand_on(source, result);
      }
    }
    for (Placement& p : plan_.placements)
      while (p.kind == Placement::kShared && plan_.placements[static_cast<ValueId>(p.index)].kind == Placement::kShared)
        p.index = plan_.placements[static_cast<ValueId>(p.index)].index;
  }

  // Handles updates that share_in_place() cannot: the input's last reader runs before the launch that makes its new
  // value, or nothing reads the input.
  void write_over_inputs() {
    for (const Update& update : updates_) {
      const ValueId source = graph_.inputs[static_cast<size_t>(update.input)],
                    result = graph_.outputs[static_cast<size_t>(update.output)];
      const Value &from = graph_.value(source), &to = graph_.value(result);
      if (to.root == result && plan_.placements[result].kind == Placement::kOutput && !returned_by_view(source) &&
          last_[source] < first_[result] && may_write(update, first_[result]) && from.dtype == to.dtype &&
          from.sizes == to.sizes && is_contiguous(from.sizes, from.strides) && is_contiguous(to.sizes, to.strides) &&
          plan_.fresh[static_cast<size_t>(plan_.placements[result].index)].donor < 0)
        plan_.placements[result] = plan_.placements[source];
    }
  }
  bool returned_by_view(ValueId source) const {
    return std::any_of(graph_.outputs.begin(), graph_.outputs.end(),
                       [&](ValueId id) { return graph_.value(id).root == source; });
  }

  // True if the launch may fail, because it checks values of its operands, or because other processes take part in it.
  bool may_throw(const Launch& launch) const {
    return std::any_of(launch.nodes.begin(), launch.nodes.end(),
                       [&](int32_t n) { return graph_.node(n).op->has_effects(); });
  }
  // True if launch number `i` may write the input.
  bool may_write(const Update& update, int i) const { return !update.visible || i > last_throwing_; }

  // Returns the Update that writes this result over this input; null if there is none.
  const Update* update_of(ValueId source, ValueId result) const {
    const auto found = std::find_if(updates_.begin(), updates_.end(), [&](const Update& update) {
      return graph_.inputs[static_cast<size_t>(update.input)] == source &&
             graph_.outputs[static_cast<size_t>(update.output)] == result;
    });
    return found == updates_.end() ? nullptr : &*found;
  }
  bool is_update(ValueId source, ValueId result) const { return update_of(source, result) != nullptr; }

  // False for most library calls: a product is prepared either for memory that it adds to or for memory that it
  // overwrites, but whether an input is donated differs from run to run.
  bool takes_donations(const Launch& launch) const {
    return launch.kind == Launch::Kind::kKernel || op_of(launch).reuses >= 0;
  }

  // Makes two values that are not placed yet share one block. The block is in use from the first launch of `source` on.
  void share_transient(ValueId source, ValueId result) {
    plan_.placements[source] = {Placement::kShared, result};
    first_[result] = first_[source];
  }

  // Places the result in a fresh buffer. The buffer takes the memory of the input `source` if the caller gives that
  // input away.
  void take_donation(ValueId source, ValueId result) {
    if (plan_.placements[result].kind == Placement::kNone) place_fresh(result);
    plan_.fresh[static_cast<size_t>(plan_.placements[result].index)].donor = static_cast<int32_t>(
        plan_.placements[source].index);
    first_[result] = -1;  // the memory exists before any transient
    donated_[source] = false;
    plan_.reuses_inputs = true;
  }

  // If `source` is a transient in donated memory, `result` takes over that memory. A value passes its memory on once.
  void hand_on(ValueId source, ValueId result) {
    if (plan_.placements[source].kind != Placement::kOutput || returned_[source] ||
        plan_.placements[result].kind != Placement::kNone)
      return;
    plan_.placements[result] = plan_.placements[source];
    first_[result] = -1;
    returned_[source] = true;
  }

  // Drops the fresh buffers of results that are written over inputs instead.
  void drop_unused_fresh() {
    std::vector<int64_t> place(plan_.fresh.size(), -1);
    for (const Placement& p : plan_.placements)
      if (p.kind == Placement::kOutput) place[static_cast<size_t>(p.index)] = 0;
    int64_t kept = 0;
    for (size_t i = 0; i < place.size(); ++i) {
      if (place[i] < 0) continue;
      plan_.fresh[static_cast<size_t>(kept)] = plan_.fresh[i];
      place[i] = kept++;
    }
    plan_.fresh.resize(static_cast<size_t>(kept));
    for (Placement& p : plan_.placements)
      if (p.kind == Placement::kOutput) p.index = place[static_cast<size_t>(p.index)];
  }

  Address address_of(ValueId id) const {
    if (id == kNoValue) return {};
    const Value& value = graph_.value(id);
    const Placement* p = &plan_.placements[value.root];
    if (p->kind == Placement::kShared) p = &plan_.placements[static_cast<ValueId>(p->index)];
    const int64_t offset = value.offset * static_cast<int64_t>(size_of(value.dtype));
    const auto inputs = static_cast<int32_t>(graph_.inputs.size()), copies = static_cast<int32_t>(plan_.copies.size());
    switch (p->kind) {
      case Placement::kInput: return {static_cast<int32_t>(p->index), offset};
      case Placement::kCopy: return {inputs + static_cast<int32_t>(p->index), offset};
      case Placement::kOutput: return {inputs + copies + static_cast<int32_t>(p->index), offset};
      case Placement::kArena: return {plan_.arena_slot(), p->index + offset};
      default: return {};
    }
  }

  void resolve_addresses(const std::vector<int64_t>& partials) {
    const auto sums = [&](int32_t kernel, size_t result) {
      return Address{
          plan_.arena_slot(),
          partials[static_cast<size_t>(kernel)] +
              static_cast<int64_t>(result) * partial_stride(plan_.kernels[static_cast<size_t>(kernel)], alignment_)};
    };
    for (Launch& launch : plan_.launches) {
      if (launch.kind == Launch::Kind::kCombine) {
        const std::vector<ColumnResult>& results = kernel_of(launch).column_results;
        for (size_t i = 0; i < results.size(); ++i) {
          launch.addresses.push_back(sums(launch.kernel, i));
          launch.addresses.push_back(address_of(results[i].value));
        }
        continue;
      }
      for (ValueId id : touched(plan_, launch)) launch.addresses.push_back(address_of(id));
      if (launch.kind != Launch::Kind::kKernel) continue;
      const std::vector<ColumnResult>& results = kernel_of(launch).column_results;
      for (size_t i = 0; i < results.size(); ++i)
        launch.addresses[static_cast<size_t>(results[i].operand)] = sums(launch.kernel, i);
    }
    for (ValueId id : graph_.outputs) plan_.outputs.push_back(address_of(id));
  }

  Plan& plan_;
  const Graph& graph_;
  const std::vector<Update>& updates_;
  const int64_t alignment_;
  // By root value:
  ValueMap<int> first_, last_;  // the first and the last launch that accesses it
  ValueMap<bool> donated_;      // the caller gives its memory away, and no result has taken it yet
  ValueMap<bool> returned_;     // it is returned to the caller, or its memory was passed on
  int last_throwing_ = -1;      // the last launch that may throw
};

}  // namespace

void plan_memory(Plan& plan, const std::vector<Update>& updates, const std::vector<bool>& donated, int64_t alignment) {
  MemoryPlanner(plan, updates, donated, alignment).run();
}

}  // namespace rondo::compile
