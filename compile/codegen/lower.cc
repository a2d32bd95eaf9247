#include "rondo/compile/codegen/lower.h"

#include <bit>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "rondo/compile/stages/planted.h"
#include "rondo/compile/transform/spaces.h"

namespace rondo::compile {
namespace {

// Where an instruction runs: once per row or for every column, and in which stage. The result of a row reduction can be
// read from stage `level` on; the reduction itself runs in the stage before.
struct Placement {
  bool row = true;
  int32_t level = 0;
};

// Returns how to address `value`, broadcast to `domain`. The domain's dimensions `columns` become the columns of the
// iteration space, the other dimensions become its rows.
Operand address(const Value& value, const Dims& domain, DimRange columns) {
  const Dims strides = broadcast_strides(value.sizes, value.strides, domain);
  Operand operand;
  operand.dtype = value.dtype;
  operand.col_stride = merged_stride(domain, strides, columns).value();
  int64_t divisor = 1;
  std::vector<OperandAxis> inner_first;
  for (int d = domain.rank() - 1; d >= 0; --d) {
    if (domain[d] == 1 || columns.contains(d)) continue;
    if (!inner_first.empty() && inner_first.back().stride * inner_first.back().size == strides[d]) {
      inner_first.back().size *= domain[d];
    } else {
      inner_first.push_back({divisor, domain[d], strides[d]});
    }
    divisor *= domain[d];
  }
  for (auto axis = inner_first.rbegin(); axis != inner_first.rend(); ++axis)
    if (axis->stride != 0) operand.axes.push_back(*axis);
  return operand;
}

class UnitLowering final : public LoopBuilder {
 public:
  UnitLowering(const Graph& graph, const Unit& unit, const std::vector<bool>& needed)
      : graph_(graph), unit_(unit), needed_(needed) {}

  LoweredUnit run() {
    result_.kernel.name = name();
    for (int32_t n : unit_.nodes) {
      index_ = n;
      node_ = &graph_.node(n);
      domain_ = domain_of(graph_, *node_);
      columns_ = columns_of(unit_, domain_).value();
      compute_ = compute_type();
      column_result_.reset();
      node_->op->lower(*this);
    }
    finish();
    return std::move(result_);
  }

  // Returns a name made of the unit's first ops, such as layer_norm_mul_gelu_and_3_more, for dumps, debuggers and
  // profilers.
  std::string name() const {
    std::string text;
    constexpr size_t kNamed = 4;
    for (size_t i = 0; i < std::min(kNamed, unit_.nodes.size()); ++i)
      absl::StrAppend(&text, i > 0 ? "_" : "", graph_.node(unit_.nodes[i]).op->name);
    if (unit_.nodes.size() > kNamed) absl::StrAppend(&text, "_and_", unit_.nodes.size() - kNamed, "_more");
    return text;
  }

  // Returns the dtype in which the node computes. With a float operand, it is f64 or f32; otherwise, it is the type of
  // the integers. It is f64 without operands, and f32 if all operands are bool.
  DType compute_type() const {
    if (node_->inputs.empty()) return kF64;
    DType type = kBool;
    for (ValueId id : node_->inputs) {
      const DType dtype = graph_.value(id).dtype;
      if (dtype != kBool) type = type == kBool ? compute_dtype(dtype) : promote(type, compute_dtype(dtype));
    }
    return type == kBool ? kF32 : type;
  }

  bool has_operand_of(DType dtype) const {
    return std::any_of(node_->inputs.begin(), node_->inputs.end(),
                       [&](ValueId id) { return id != kNoValue && graph_.value(id).dtype == dtype; });
  }

  // ---- LoopBuilder
  LoopValue input(int i) override {
    const ValueId id = node_->inputs[static_cast<size_t>(i)];
    const auto made = made_.find(shown_elements(graph_, id));
    LoopValue v = made != made_.end() ? made->second : load(id);
    if (v.type != kBool && v.type != compute_) v = emit(LoopOp::kCast, compute_, v, {}, {});
    return v;
  }
  LoopValue pick(int table, int index) override {
    const ValueId id = node_->inputs[static_cast<size_t>(table)], at = node_->inputs[static_cast<size_t>(index)];
    const auto made = made_.find(shown_elements(graph_, at));
    const LoopValue where = made != made_.end() ? made->second : load(at);
    Value seen = graph_.value(id);
    const int dim = static_cast<int>(integer(0));
    const OperandAxis axis{0, seen.sizes[dim], seen.strides[dim]};
    seen.strides = strides_over(graph_, *node_, static_cast<size_t>(table), domain_);
    seen.sizes = domain_;
    Operand operand = address(seen, domain_, columns_);
    operand.axes.insert(operand.axes.begin(), axis);
    const DType held = operand.dtype == kBool ? kBool : compute_dtype(operand.dtype);
    const Placement place = placement(where.id);
    return append(
        {.op = LoopOp::kPick, .type = held, .a = where.id, .index = add_operand(operand, same_elements(graph_, id))},
        {.row = place.row && operand.col_stride == 0, .level = place.level});
  }
  bool has_input(int i) const override {
    return static_cast<size_t>(i) < node_->inputs.size() && node_->inputs[static_cast<size_t>(i)] != kNoValue;
  }
  LoopValue scalar(int i) override { return scalar_of(i, compute_); }
  int64_t integer(int i) const override { return node_->attrs.ints[static_cast<size_t>(i)]; }
  LoopValue random(LoopOp op, int state, int64_t increment, int p) override {
    const int32_t a = p < 0 ? -1 : scalar_of(p, kF64).id;
    Operand numbers = address({.sizes = domain_, .strides = contiguous_strides(domain_)}, domain_, columns_);
    numbers.dtype = kI64;
    numbers.is_random = true;
    numbers.increment = increment;
    const int32_t operand = add_operand(numbers, node_->inputs[static_cast<size_t>(state)]);
    return append({.op = op, .type = op == LoopOp::kRandomKeep ? kBool : kF32, .a = a, .index = operand},
                  {.row = numbers.col_stride == 0, .level = 0});
  }
  LoopValue constant(double value, DType type) override {
    return append({.op = LoopOp::kConst, .type = type, .value = value}, {});
  }
  LoopValue emit(LoopOp op, DType type, LoopValue a, LoopValue b, LoopValue c) override {
    Placement place = placement(a.id);
    for (LoopValue v : {b, c}) {
      if (v.id < 0) continue;
      place.row = place.row && placement(v.id).row;
      place.level = std::max(place.level, placement(v.id).level);
    }
    return append({.op = op, .type = type, .a = a.id, .b = b.id, .c = c.id}, place);
  }
  LoopValue reduce(LoopOp op, LoopValue v) override {
    if (node_->op->is<trait::SumSegments>()) return sum_segments(v);
    if (!node_->op->is<trait::Fold>() || !sums_rows(unit_, domain_, node_->attrs.ints[0]))
      return append({.op = op, .type = v.type, .a = v.id}, {.row = true, .level = placement(v.id).level + 1});
    if (!is_floating(v.type)) v = emit(LoopOp::kCast, kI64, v, {}, {});
    Operand partial;
    partial.dtype = v.type;
    partial.is_partial = true;
    const LoopOp of_rows = op == LoopOp::kReduceSum   ? LoopOp::kColumnSum
                           : op == LoopOp::kReduceMax ? LoopOp::kColumnMax
                                                      : LoopOp::kColumnMin;
    column_result_ = {add_operand(partial, kNoValue), kNoValue, v.type, of_rows};
    sinks_.push_back(append({.op = of_rows, .type = v.type, .a = v.id, .index = column_result_->operand},
                            {.row = false, .level = placement(v.id).level})
                         .id);
    return v;
  }
  LoopValue index(int dim) override {
    Value along{.dtype = kI64, .sizes = domain_, .strides = Dims::filled(domain_.rank(), 0)};
    if (!domain_.empty()) along.strides[dim] = 1;
    Operand place = address(along, domain_, columns_);
    place.is_index = true;
    const bool row = place.col_stride == 0;
    return append({.op = LoopOp::kIndex, .type = kI64, .index = add_operand(place, kNoValue)},
                  {.row = row, .level = 0});
  }
  void check_index(int index, int64_t size) override {
    const ValueId id = node_->inputs[static_cast<size_t>(index)];
    const LoopValue v = input(index);
    Operand check = address({.sizes = domain_, .strides = contiguous_strides(domain_)}, domain_, columns_);
    check.dtype = kI64;
    check.axes.insert(check.axes.begin(), OperandAxis{0, size, 0});
    check.is_check = true;
    sinks_.push_back(
        append({.op = LoopOp::kCheckIndex, .type = kI64, .a = v.id, .index = add_operand(check, id)}, placement(v.id))
            .id);
  }
  LoopValue scan(LoopValue v) override {
    if (unit_.cols == 1) return emit(LoopOp::kAdd, v.type, constant(0, v.type), v, {});
    return append({.op = LoopOp::kScan, .type = v.type, .a = v.id}, {.row = false, .level = placement(v.id).level});
  }
  void output(int i, LoopValue v) override {
    const ValueId id = node_->outputs[static_cast<size_t>(i)];
    const Value& value = graph_.value(id);
    if (unit_.starts != kNoValue && node_->op->is<trait::SumSegments>()) return;  // reduce() has already added the sums
    if (column_result_) {
      column_result_->value = id;
      result_.column_results.push_back(*column_result_);
      return;
    }
    if (value.dtype == kBool) {
      // Other ops in this kernel read the boolean, not the number that it is made from.
      if (v.type != kBool) v = emit(LoopOp::kNe, kBool, v, constant(0.0, v.type), {});
    } else {
      const DType held = compute_dtype(value.dtype);
      if (v.type != held) v = emit(LoopOp::kCast, held, v, {}, {});
      if (is_low_precision(value.dtype)) {
        v = emit(LoopOp::kCast, value.dtype, v, {}, {});
        v.type = kF32;  // rounded, and held in an f32 register
        const bool may_stay = has_operand_of(value.dtype) && !needed_[static_cast<size_t>(id)];
        (may_stay ? rounds_ : asked_for_).insert(v.id);
      }
    }
    made_[id] = v;
    if (needed_[static_cast<size_t>(id)]) store(id, v);
  }

 private:
  LoopValue sum_segments(LoopValue v) {
    LoopKernel& kernel = result_.kernel;
    const ValueId out = node_->outputs[0];
    Operand sums{.dtype = v.type, .axes = {}, .is_output = true, .is_partial = true};
    if (node_->inputs.size() > 2)
      sums.onto = add_operand({.dtype = v.type, .axes = {}}, same_elements(graph_, node_->inputs[2]));
    sinks_.push_back(append({.op = LoopOp::kColumnSum, .type = v.type, .a = v.id, .index = add_operand(sums, out)},
                            {.row = false, .level = placement(v.id).level})
                         .id);
    kernel.starts = add_operand({.dtype = kI64, .axes = {}}, same_elements(graph_, unit_.starts));
    kernel.segments = graph_.value(out).sizes[0];
    return v;
  }

  using InstrKey = std::tuple<LoopOp, DType, int32_t, int32_t, int32_t, int32_t, uint64_t>;  // a constant by its bits

  LoopValue scalar_of(int i, DType type) {
    const auto index = static_cast<int32_t>(result_.scalars.size());
    result_.scalars.push_back({.node = index_, .position = i});
    return append({.op = LoopOp::kScalar, .type = type, .index = index}, {});
  }

  Placement placement(int32_t id) const { return placements_[static_cast<size_t>(id)]; }

  // Appends an instruction and returns its value. If the instruction is no effect and equals an earlier one, appends
  // nothing and returns the value of the earlier one.
  LoopValue append(Instr instr, Placement place) {
    const InstrKey key{
        instr.op, instr.type, instr.a, instr.b, instr.c, instr.index, std::bit_cast<uint64_t>(instr.value)};
    const bool effect = is_effect(instr.op);
    const auto [found, added] = numbering_.try_emplace(key, static_cast<int32_t>(instrs_.size()));
    if (added || effect) {
      found->second = static_cast<int32_t>(instrs_.size());
      instrs_.push_back(instr);
      placements_.push_back(place);
    }
    const DType held = is_low_precision(instr.type) ? kF32 : instr.type;
    return {this, found->second, held};
  }

  int32_t add_operand(const Operand& operand, ValueId value) {
    for (size_t i = 0; i < result_.operands.size(); ++i) {
      const Operand& other = result_.kernel.operands[i];
      if (operand.is_partial || result_.operands[i] != value || other.is_output != operand.is_output ||
          other.col_stride != operand.col_stride || other.axes.size() != operand.axes.size() ||
          other.is_random != operand.is_random || other.is_index != operand.is_index ||
          other.is_check != operand.is_check || other.increment != operand.increment)
        continue;
      bool equal = true;
      for (size_t k = 0; k < operand.axes.size(); ++k)
        equal = equal && operand.axes[k].divisor == other.axes[k].divisor &&
                operand.axes[k].size == other.axes[k].size && operand.axes[k].stride == other.axes[k].stride;
      if (equal) return static_cast<int32_t>(i);
    }
    result_.kernel.operands.push_back(operand);
    result_.operands.push_back(value);
    return static_cast<int32_t>(result_.operands.size()) - 1;
  }

  LoopValue load(ValueId id) {
    // Values with the same bytes but different shapes share an operand.
    const ValueId same = same_elements(graph_, id);
    const Operand operand = address(graph_.value(id), domain_, columns_);
    const DType held = operand.dtype == kBool ? kBool : compute_dtype(operand.dtype);
    return append({.op = LoopOp::kLoad, .type = held, .index = add_operand(operand, same)},
                  {.row = operand.col_stride == 0, .level = 0});
  }

  void store(ValueId id, LoopValue v) {
    const Value& value = graph_.value(id);
    const bool per_row = unit_.cols > 1 && value.sizes.numel() == unit_.rows;
    const int64_t outer = unit_.rows / unit_.inner;
    Operand operand;
    operand.dtype = value.dtype;
    operand.is_output = true;
    operand.col_stride = per_row ? 0 : unit_.inner;
    if (value.root != id) {  // a part of a larger value
      operand = address(value, domain_, columns_);
      operand.is_output = true;
    } else if (per_row || unit_.inner == 1) {
      if (unit_.rows > 1) operand.axes = {{1, unit_.rows, per_row ? 1 : unit_.cols}};
    } else {
      if (outer > 1) operand.axes = {{unit_.inner, outer, unit_.cols * unit_.inner}};
      operand.axes.push_back({1, unit_.inner, 1});
    }
    Placement place = placement(v.id);
    place.row = per_row;
    sinks_.push_back(
        append({.op = LoopOp::kStore, .type = v.type, .a = v.id, .index = add_operand(operand, id)}, place).id);
  }

  // ---- Makes the kernel's stages from the list of instructions

  void finish() {
    LoopKernel& kernel = result_.kernel;
    kernel.rows = unit_.rows;
    kernel.cols = unit_.cols;
    kernel.inner = unit_.inner;
    kernel.n_scalars = static_cast<int32_t>(result_.scalars.size());
    std::vector<int32_t> live_reductions;
    int32_t last_level = 0;
    for (int32_t id : sinks_) last_level = std::max(last_level, placement(id).level);
    kernel.stages.resize(static_cast<size_t>(last_level) + 1);
    row_copy_.assign(instrs_.size(), -1);
    // Only instructions that a sink (a store or another effect) needs are emitted. A reduction belongs to the stage
    // before its level.
    mark_needed();
    for (int32_t stage = 0; stage <= last_level; ++stage) {
      column_copy_.assign(instrs_.size(), -1);
      for (size_t i = 0; i < instrs_.size(); ++i)
        if (used_[i] && placements_[i].row && placements_[i].level == stage && !is_reduction(instrs_[i].op))
          copy_row(static_cast<int32_t>(i), stage);
      for (size_t i = 0; i < instrs_.size(); ++i) {
        if (!used_[i]) continue;
        const Instr& instr = instrs_[i];
        if (is_reduction(instr.op) && placements_[i].level == stage + 1) {
          Instr reduction = instr;
          reduction.a = operand_copy(instr.a, stage);
          row_copy_[i] = add(reduction);
          kernel.stages[static_cast<size_t>(stage)].reductions.push_back(row_copy_[i]);
        } else if (!placements_[i].row && placements_[i].level == stage && is_effect(instr.op)) {
          copy_column(static_cast<int32_t>(i), stage);
        }
      }
    }
  }

  void mark_needed() {
    used_.assign(instrs_.size(), false);
    for (int32_t id : sinks_) used_[static_cast<size_t>(id)] = true;
    for (size_t i = instrs_.size(); i-- > 0;) {
      if (!used_[i]) continue;
      for (int32_t arg : {instrs_[i].a, instrs_[i].b, instrs_[i].c})
        if (arg >= 0) used_[static_cast<size_t>(arg)] = true;
    }
  }

  int32_t add(const Instr& instr) {
    result_.kernel.instrs.push_back(instr);
    return static_cast<int32_t>(result_.kernel.instrs.size()) - 1;
  }
  void note_rounding(int32_t id, int32_t copy) {
    if (rounds_.contains(id) && !asked_for_.contains(id)) result_.roundings.push_back(copy);
  }
  int32_t operand_copy(int32_t id, int32_t stage) {
    if (id < 0) return id;
    return placements_[static_cast<size_t>(id)].row ? copy_row(id, stage) : copy_column(id, stage);
  }
  // Row instructions are emitted once, in the stage of their level.
  int32_t copy_row(int32_t id, int32_t stage) {
    int32_t& copy = row_copy_[static_cast<size_t>(id)];
    if (copy >= 0) return copy;
    Instr instr = instrs_[static_cast<size_t>(id)];
    invariant(!is_reduction(instr.op), "lowering: a reduction is read before its sweep");
    const int32_t level = placements_[static_cast<size_t>(id)].level;
    for (int32_t* arg : {&instr.a, &instr.b, &instr.c}) *arg = operand_copy(*arg, stage);
    const int32_t made = add(instr);
    result_.kernel.stages[static_cast<size_t>(level)].row.push_back(made);
    note_rounding(id, made);
    return row_copy_[static_cast<size_t>(id)] = made;
  }
  // Column instructions are emitted in each sweep that needs them: recomputing a value costs less than storing a row.
  int32_t copy_column(int32_t id, int32_t stage) {
    if (column_copy_[static_cast<size_t>(id)] >= 0) return column_copy_[static_cast<size_t>(id)];
    Instr instr = instrs_[static_cast<size_t>(id)];
    for (int32_t* arg : {&instr.a, &instr.b, &instr.c}) *arg = operand_copy(*arg, stage);
    const int32_t made = add(instr);
    result_.kernel.stages[static_cast<size_t>(stage)].column.push_back(made);
    note_rounding(id, made);
    return column_copy_[static_cast<size_t>(id)] = made;
  }

  const Graph& graph_;
  const Unit& unit_;
  const std::vector<bool>& needed_;
  LoweredUnit result_;

  int32_t index_ = -1;  // index of node_
  const GraphNode* node_ = nullptr;
  Dims domain_;
  DimRange columns_;  // of domain_
  DType compute_ = kF32;
  std::optional<ColumnResult> column_result_;  // of the node being lowered

  std::vector<Instr> instrs_;
  std::vector<Placement> placements_;
  std::map<InstrKey, int32_t> numbering_;
  std::map<ValueId, LoopValue> made_;
  // Casts to 16 bits. rounds_: casts that default mode may drop; eager execution rounds because the operands have 16
  // bits. asked_for_: casts that stay, because the user names the type (a conversion, a range), or because the kernel
  // stores the result and all kernels must see the same number.
  std::set<int32_t> rounds_, asked_for_;
  std::vector<int32_t> sinks_;
  std::vector<bool> used_;
  std::vector<int32_t> row_copy_, column_copy_;
};

}  // namespace

LoweredUnit lower(const Graph& graph, const Unit& unit, const std::vector<bool>& needed) {
  LoweredUnit lowered = UnitLowering(graph, unit, needed).run();
  if (miscompile_for_tests != nullptr) miscompile_for_tests(lowered.kernel);
  return lowered;
}

std::string lower_input(const Graph& graph, const Unit& unit, const std::vector<bool>& needed) {
  std::string text = to_string(graph);
  absl::StrAppend(&text, "unit ", unit.fused ? "fused " : "", "rows=", unit.rows, " cols=", unit.cols,
                  " inner=", unit.inner, unit.starts != kNoValue ? absl::StrCat(" starts=", unit.starts) : "",
                  " nodes");
  for (int32_t node : unit.nodes) absl::StrAppend(&text, " ", node);
  text += "\nneeded";
  for (size_t id = 0; id < needed.size(); ++id)
    if (needed[id]) absl::StrAppend(&text, " ", id);
  return text + "\n";
}

}  // namespace rondo::compile
