#include "rondo/compile/plan/bounds.h"

#include <algorithm>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "rondo/compile/plan/make_plan.h"

namespace rondo::compile {
namespace {

// Wide enough for any sum of products of two numbers below 2^60.
using Wide = absl::int128;

int64_t shown(Wide bytes) { return static_cast<int64_t>(std::clamp<Wide>(bytes, Wide(INT64_MIN), Wide(INT64_MAX))); }

// The bytes that are accessed: [begin, end), relative to an address. Empty if nothing is accessed.
struct Reach {
  Wide begin = 0, end = 0;
  void add_steps(Wide steps, Wide stride) { (stride < 0 ? begin : end) += steps * stride; }
};

// Returns the bytes that a value occupies, relative to its first element.
Reach reach_of(const Value& value, DType dtype) {
  const Wide size = static_cast<int64_t>(size_of(dtype));
  Reach reach;
  for (int d = 0; d < value.sizes.rank(); ++d) {
    if (value.sizes[d] == 0) return {};
    reach.add_steps(value.sizes[d] - 1, Wide(value.strides[d]) * size);
  }
  reach.end += size;
  return reach;
}
Wide dense_bytes(const Value& value, DType dtype) {
  return Wide(value.sizes.numel()) * static_cast<int64_t>(size_of(dtype));
}

Wide partial_bytes(const LoopKernel& kernel, DType dtype) {
  return Wide(chunks(kernel)) * kernel.cols * static_cast<int64_t>(size_of(dtype));
}

// Returns the bytes that a kernel accesses in an operand, over all rows and columns (Operand in loop_ir.h).
Reach reach_of(const LoopKernel& kernel, const Operand& operand) {
  if (operand.is_partial) return {0, partial_bytes(kernel, operand.dtype)};
  if (operand.is_random) return {0, 2 * static_cast<int64_t>(size_of(operand.dtype))};
  const Wide size = static_cast<int64_t>(size_of(operand.dtype));
  Reach reach;
  for (const OperandAxis& axis : operand.axes)
    reach.add_steps(is_picked(axis) ? axis.size - 1 : std::min(axis.size - 1, (kernel.rows - 1) / axis.divisor),
                    Wide(axis.stride) * size);
  reach.add_steps(kernel.cols - 1, Wide(operand.col_stride) * size);
  reach.end += size;
  return reach;
}

std::string name(ValueId id) { return id == kNoValue ? "none" : absl::StrCat("%", id); }

class Finder {
 public:
  explicit Finder(const Plan& plan) : plan_(plan), graph_(plan.graph) {}

  std::optional<OutOfBounds> run() {
    measure_slots();
    if (!fault_.empty()) return OutOfBounds{-1, fault_};
    for (size_t i = 0; i < plan_.launches.size(); ++i) {
      try {
        check(plan_.launches[i]);
      } catch (const std::exception& e) {  // the op of a library call cannot infer its results
        refuse(e.what());
      }
      if (!fault_.empty()) return OutOfBounds{static_cast<int32_t>(i), fault_};
    }
    check_views();
    check_placements();
    check_results();
    check_seams();
    return fault_.empty() ? std::nullopt : std::optional(OutOfBounds{-1, fault_});
  }

 private:
  void refuse(const std::string& what) {
    if (fault_.empty()) fault_ = what;
  }

  void measure_slots() {
    for (ValueId id : graph_.inputs) {
      const Reach reach = reach_of(graph_.value(id), graph_.value(id).dtype);
      if (reach.begin < 0) refuse(absl::StrCat("the input ", name(id), " begins before its first element"));
      slots_.push_back(reach.end);
    }
    for (const Plan::ParameterCopy& copy : plan_.copies) slots_.push_back(dense_bytes(input(copy.input), copy.dtype));
    for (const Plan::FreshBuffer& buffer : plan_.fresh) {
      if (buffer.donor >= 0 && slots_[static_cast<size_t>(buffer.donor)] < buffer.bytes)
        refuse(absl::StrCat("a buffer of ", buffer.bytes, " bytes cannot take the memory of input ", buffer.donor,
                            ", which has ", shown(slots_[static_cast<size_t>(buffer.donor)])));
      slots_.push_back(buffer.bytes);
    }
    slots_.push_back(plan_.arena_bytes);
  }
  const Value& input(int32_t position) const { return graph_.value(graph_.inputs[static_cast<size_t>(position)]); }

  // Checks an access named `what` to the bytes `reach` around the address.
  void check(const Address& address, const Reach& reach, DType dtype, const std::string& what) {
    if (address.slot < 0) return refuse(absl::StrCat(what, " has no address"));
    if (address.slot >= std::ssize(slots_)) return refuse(absl::StrCat("there is no slot ", address.slot));
    if (address.offset % static_cast<int64_t>(size_of(dtype)) != 0)
      return refuse(absl::StrCat(what, " begins at byte ", address.offset, ", within an element"));
    const Wide begin = reach.begin + address.offset, end = reach.end + address.offset,
               bytes = slots_[static_cast<size_t>(address.slot)];
    if (reach.begin == reach.end || (begin >= 0 && end <= bytes)) return;
    refuse(absl::StrCat(what, " touches bytes ", shown(begin), " to ", shown(end), " of slot ", address.slot,
                        ", which has ", shown(bytes)));
  }

  void check(const Launch& launch) {
    switch (launch.kind) {
      case Launch::Kind::kKernel: return check_kernel(launch);
      case Launch::Kind::kLibraryCall: return check_library_call(launch);
      case Launch::Kind::kCopy:
        for (size_t i = 0; i < 2; ++i) {
          const ValueId id = i == 0 ? launch.inputs[0] : launch.outputs[0];
          const Value& value = graph_.value(id);
          check(launch.addresses[i], {0, dense_bytes(value, value.dtype)}, value.dtype, name(id));
        }
        return;
      case Launch::Kind::kCombine: return check_combine(launch);
      case Launch::Kind::kTable: return;
    }
  }

  void check_kernel(const Launch& launch) {
    const LoopKernel& kernel = plan_.kernel_of(launch).kernel;
    std::vector<bool> used(kernel.operands.size(), false);
    for (const Instr& instr : kernel.instrs)
      if (is_random(instr.op) || instr.op == LoopOp::kLoad || instr.op == LoopOp::kPick || instr.op == LoopOp::kStore ||
          is_column_reduction(instr.op))
        used[static_cast<size_t>(instr.index)] = true;
    if (kernel.starts >= 0) {
      check(launch.addresses[static_cast<size_t>(kernel.starts)],
            {0, (Wide(kernel.segments) + 1) * static_cast<int64_t>(size_of(kI64))}, kI64, "starts of segments");
      for (const Operand& operand : kernel.operands)
        if (operand.onto >= 0)
          check(launch.addresses[static_cast<size_t>(operand.onto)], {0, partial_bytes(kernel, operand.dtype)},
                operand.dtype, absl::StrCat("operand @", operand.onto));
    }
    for (const Launch::Check& c : launch.checks) {  // if a check fails, its error message reads the indices again
      const GraphNode& node = graph_.node(c.node);
      if (const std::string what = difference_from_inferred(graph_, node); !what.empty()) return refuse(what);
      const Value& indices = graph_.value(node.inputs[0]);
      check(launch.addresses[static_cast<size_t>(c.operand)], reach_of(indices, indices.dtype), indices.dtype,
            name(node.inputs[0]));
    }
    for (size_t i = 0; i < used.size(); ++i)
      if (used[i])
        check(launch.addresses[i], reach_of(kernel, kernel.operands[i]), kernel.operands[i].dtype,
              absl::StrCat("operand @", i));
  }

  void check_combine(const Launch& launch) {
    const LoweredUnit& unit = plan_.kernel_of(launch);
    for (size_t i = 0; i < unit.column_results.size(); ++i) {
      const ColumnResult& result = unit.column_results[i];
      const Operand& operand = unit.kernel.operands[static_cast<size_t>(result.operand)];
      if (!operand.is_partial || operand.dtype != result.compute)
        return refuse(absl::StrCat("operand @", result.operand, " holds no partial sums of ",
                                   std::string(name_of(result.compute))));
      check(launch.addresses[2 * i], {0, partial_bytes(unit.kernel, result.compute)}, result.compute, "partial sums");
      const DType dtype = graph_.value(result.value).dtype;
      check(launch.addresses[2 * i + 1], {0, Wide(unit.kernel.cols) * static_cast<int64_t>(size_of(dtype))}, dtype,
            name(result.value));
    }
  }

  void check_library_call(const Launch& launch) {
    const auto node = [&](int32_t n) -> const GraphNode& { return graph_.node(n); };
    const GraphNode& op = node(launch.op());
    if (op.op->kind == OpKind::kView) return refuse(absl::StrCat(op.op->name, " is a view: nothing is to be called"));
    if (launch.nodes.size() > kMaxEpilogues + 1) return refuse(absl::StrCat(op.op->name, " has too many epilogues"));
    if (op.op->n_outputs >= 0 && std::ssize(op.outputs) != op.op->n_outputs)
      return refuse(absl::StrCat(op.op->name, " has ", op.op->n_outputs, " results"));
    for (size_t i = 0; i < launch.nodes.size(); ++i) {
      const GraphNode& called = node(launch.nodes[i]);
      if (const std::string what = difference_from_inferred(graph_, called); !what.empty()) return refuse(what);
      if (i > 0 && !is_epilogue(called, node(launch.nodes[i - 1])))
        return refuse(absl::StrCat(called.op->name, " is no epilogue of ", node(launch.nodes[i - 1]).op->name));
    }
    const Launch wanted = library_call(graph_, launch.nodes),
                 with_wide_bias = library_call(graph_, launch.nodes, /*wide_bias=*/true);
    if ((launch.inputs != wanted.inputs && launch.inputs != with_wide_bias.inputs) || launch.outputs != wanted.outputs)
      return refuse(absl::StrCat("the operands and results are not those of ", op.op->name));
    for (size_t i = 0; i < launch.addresses.size(); ++i) {
      const bool is_input = i < launch.inputs.size();
      const size_t at = is_input ? i : i - launch.inputs.size();
      const ValueId id = is_input ? launch.inputs[at] : launch.outputs[at];
      if (id == kNoValue) continue;
      const Value& value = graph_.value(id);
      // The memory has the layout of the op's own result, but the dtype of the last epilogue's.
      Reach reach = reach_of(is_input ? value : graph_.value(op.outputs[at]), value.dtype);
      // A kernel may assume that its result is dense, and write all of it.
      if (!is_input) reach.end = std::max(reach.end, dense_bytes(value, value.dtype));
      check(launch.addresses[i], reach, value.dtype, name(id));
    }
  }
  // True if `node` can be an epilogue of `before`, by the rules of transform/epilogue.cc.
  bool is_epilogue(const GraphNode& node, const GraphNode& before) const {
    if (node.op->epilogue == Epilogue::kNone || node.outputs.size() != 1 || before.outputs.size() != 1) return false;
    const Value &result = graph_.value(before.outputs[0]), &out = graph_.value(node.outputs[0]);
    const bool widens = node.op->epilogue == Epilogue::kWiden;
    if (out.dtype != (widens ? kF32 : result.dtype) || out.sizes.numel() != result.sizes.numel()) return false;
    int reads = 0;
    for (ValueId id : node.inputs) {
      if (id == kNoValue) return false;
      const Value& in = graph_.value(id);
      if (!(in.sizes == out.sizes) || !is_contiguous(in.sizes, in.strides)) return false;
      reads += graph_.written(id) == before.outputs[0];
    }
    return reads == 1 && node.inputs.size() == (node.op->epilogue == Epilogue::kAdd ? 2 : 1);
  }

  void check_views() {
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const Value& value = graph_.values[v];
      if (value.root == static_cast<ValueId>(v)) continue;
      const Value& root = graph_.value(value.root);
      if (root.root != value.root) refuse(absl::StrCat("the root of %", v, " is itself a view"));
      const Reach reach = reach_of(value, value.dtype), whole = reach_of(root, root.dtype);
      const Wide offset = Wide(value.offset) * static_cast<int64_t>(size_of(value.dtype));
      if (reach.begin != reach.end && (offset + reach.begin < whole.begin || offset + reach.end > whole.end))
        refuse(absl::StrCat("%", v, " reaches beyond %", value.root, ", which it is a view of"));
    }
  }

  void check_placements() {
    for (size_t v = 0; v < plan_.placements.size(); ++v) {
      const Plan::Placement& place = plan_.placements[v];
      int64_t end = INT64_MAX;
      switch (place.kind) {
        case Plan::Placement::kNone: break;
        case Plan::Placement::kInput: end = std::ssize(graph_.inputs); break;
        case Plan::Placement::kCopy: end = std::ssize(plan_.copies); break;
        case Plan::Placement::kOutput: end = std::ssize(plan_.fresh); break;
        case Plan::Placement::kArena: end = plan_.arena_bytes; break;
        case Plan::Placement::kShared: end = std::ssize(graph_.values); break;
      }
      if (place.index >= end) refuse(absl::StrCat("the place of %", v, " is outside of the plan"));
    }
  }

  void check_results() {
    for (size_t i = 0; i < plan_.outputs.size(); ++i) {
      const ValueId id = graph_.outputs[i];
      const Value& value = graph_.value(id);
      if (plan_.outputs[i].slot == plan_.arena_slot())
        refuse(absl::StrCat("the result ", name(id), " lies in the arena, which the next run writes over"));
      check(plan_.outputs[i], reach_of(value, value.dtype), value.dtype, absl::StrCat("the result ", name(id)));
    }
  }

  // No launch may access a result after it was handed over.
  void check_seams() {
    std::vector<bool> handed_over(plan_.outputs.size(), false);
    for (size_t s = 0; s < plan_.seams.size(); ++s) {
      const Plan::Seam& seam = plan_.seams[s];
      const auto next = static_cast<size_t>(seam.launch);
      if (s > 0 && seam.launch < plan_.seams[s - 1].launch) refuse("the seams are not in order");
      if (next > 0 && next < plan_.launches.size() && plan_.launches[next].kind == Launch::Kind::kCombine &&
          plan_.launches[next - 1].kind == Launch::Kind::kCombine)
        refuse(absl::StrCat("the seam before launch ", next, " parts launches that run as one"));
      for (int32_t output : seam.outputs) {
        const auto at = static_cast<size_t>(output);
        if (handed_over[at]) refuse(absl::StrCat("result ", output, " is handed over twice"));
        handed_over[at] = true;
        for (size_t i = next; i < plan_.launches.size(); ++i)
          for (const Address& address : plan_.launches[i].addresses)
            if (address.slot == plan_.outputs[at].slot)
              refuse(absl::StrCat("launch ", i, " touches result ", output, ", which was handed over before launch ",
                                  next));
      }
    }
  }

  const Plan& plan_;
  const Graph& graph_;
  std::vector<Wide> slots_;  // size of each slot, in bytes
  std::string fault_;        // the first fault; empty: none
};

}  // namespace

std::optional<OutOfBounds> find_out_of_bounds(const Plan& plan) { return Finder(plan).run(); }

}  // namespace rondo::compile
