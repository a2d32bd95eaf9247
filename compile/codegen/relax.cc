#include "rondo/compile/codegen/relax.h"

#include "rondo/compile/transform/passes.h"

namespace rondo::compile {
namespace {

// Returns the kernel without these casts: readers of a cast read its operand instead.
LoopKernel without(const LoopKernel& kernel, std::span<const int32_t> casts) {
  std::vector<bool> gone(kernel.instrs.size(), false);
  for (int32_t id : casts) gone[static_cast<size_t>(id)] = true;
  std::vector<int32_t> new_id(kernel.instrs.size(), -1);
  LoopKernel made = kernel;
  made.instrs.clear();
  const auto copy = [&](const std::vector<int32_t>& from, std::vector<int32_t>& list) {
    list.clear();
    for (int32_t id : from) {
      Instr instr = kernel.instrs[static_cast<size_t>(id)];
      for (int32_t* arg : {&instr.a, &instr.b, &instr.c})
        if (*arg >= 0) *arg = new_id[static_cast<size_t>(*arg)];
      int32_t& now = new_id[static_cast<size_t>(id)];
      if (gone[static_cast<size_t>(id)]) {
        now = instr.a;
        continue;
      }
      now = static_cast<int32_t>(made.instrs.size());
      made.instrs.push_back(instr);
      list.push_back(now);
    }
  };
  for (size_t s = 0; s < kernel.stages.size(); ++s) {
    copy(kernel.stages[s].row, made.stages[s].row);
    copy(kernel.stages[s].column, made.stages[s].column);
    copy(kernel.stages[s].reductions, made.stages[s].reductions);
  }
  return made;
}

class Contraction {
 public:
  explicit Contraction(const LoopKernel& kernel)
      : old_(kernel),
        uses_(kernel.instrs.size(), 0),
        once_a_row_(kernel.instrs.size(), false),
        joins_(kernel.instrs.size(), false),
        new_id_(kernel.instrs.size(), -1) {}

  LoopKernel run() {
    for (const Instr& i : old_.instrs)
      for (int32_t arg : {i.a, i.b, i.c})
        if (arg >= 0) ++uses_[static_cast<size_t>(arg)];
    for (const Stage& stage : old_.stages)
      for (int32_t id : stage.row) once_a_row_[static_cast<size_t>(id)] = true;
    for (size_t id = 0; id < old_.instrs.size(); ++id)
      if (const int32_t product = product_in(static_cast<int32_t>(id)); product >= 0)
        joins_[static_cast<size_t>(product)] = true;
    new_ = old_;
    new_.instrs.clear();
    for (size_t s = 0; s < old_.stages.size(); ++s) {
      new_.stages[s] = {};
      copy(old_.stages[s].row, new_.stages[s].row);
      copy(old_.stages[s].column, new_.stages[s].column);
      copy(old_.stages[s].reductions, new_.stages[s].reductions);
    }
    return std::move(new_);
  }

 private:
  const Instr& at(int32_t id) const { return old_.instrs[static_cast<size_t>(id)]; }

  // True for a kIndex, or for a cast of one. A number that is computed from such a value may become an index, so it
  // keeps the bits of eager execution.
  bool is_place(int32_t id) const {
    const Instr& i = at(id);
    return i.op == LoopOp::kIndex || (i.op == LoopOp::kCast && is_place(i.a));
  }

  // Returns the product to fuse with this sum or difference; -1 if there is none.
  int32_t product_in(int32_t id) const {
    const Instr& sum = at(id);
    if ((sum.op != LoopOp::kAdd && sum.op != LoopOp::kSub) || is_integer(sum.type)) return -1;
    for (int32_t arg : {sum.a, sum.b}) {
      // A product that is computed once per row is not fused with a sum that is computed for every column.
      const bool same_place = once_a_row_[static_cast<size_t>(arg)] == once_a_row_[static_cast<size_t>(id)];
      if (at(arg).op == LoopOp::kMul && (is_place(at(arg).a) || is_place(at(arg).b))) continue;
      if (at(arg).op == LoopOp::kMul && at(arg).type == sum.type && uses_[static_cast<size_t>(arg)] == 1 && same_place)
        return arg;
    }
    return -1;
  }

  int32_t add(const Instr& instr, std::vector<int32_t>& list) {
    new_.instrs.push_back(instr);
    list.push_back(static_cast<int32_t>(new_.instrs.size()) - 1);
    return list.back();
  }
  int32_t renamed(int32_t id) const { return id < 0 ? id : new_id_[static_cast<size_t>(id)]; }

  void copy(const std::vector<int32_t>& from, std::vector<int32_t>& list) {
    for (int32_t id : from) {
      if (joins_[static_cast<size_t>(id)]) continue;
      Instr instr = at(id);
      if (const int32_t product = product_in(id); product >= 0) {
        const bool first = product == instr.a;
        int32_t a = renamed(at(product).a), other = renamed(first ? instr.b : instr.a);
        if (instr.op == LoopOp::kSub) {
          int32_t& subtracted = first ? other : a;
          subtracted = add({.op = LoopOp::kNeg, .type = instr.type, .a = subtracted}, list);
        }
        instr = {.op = LoopOp::kFma, .type = instr.type, .a = a, .b = renamed(at(product).b), .c = other};
      } else {
        for (int32_t* arg : {&instr.a, &instr.b, &instr.c}) *arg = renamed(*arg);
      }
      new_id_[static_cast<size_t>(id)] = add(instr, list);
    }
  }

  const LoopKernel& old_;
  LoopKernel new_;
  // By instruction of the old kernel.
  std::vector<int> uses_;
  std::vector<bool> once_a_row_, joins_;
  std::vector<int32_t> new_id_;
};

// True if the graph compares two computed floats. `computed`: by value of the graph.
bool compares(const Graph& graph, const std::vector<bool>& computed) {
  for (const GraphNode& node : graph.nodes) {
    if (node.op->kind != OpKind::kElementwise || graph.value(node.outputs[0]).dtype != kBool) continue;
    int floats = 0;
    for (ValueId id : node.inputs)
      if (id != kNoValue && is_floating(graph.value(id).dtype) && computed[static_cast<size_t>(graph.written(id))])
        ++floats;
    if (floats > 1) return true;
  }
  return false;
}

// Runs an op's `lower` rule to learn whether the rule takes a maximum or minimum.
class MaximumProbe final : public LoopBuilder {
 public:
  explicit MaximumProbe(const GraphNode& node) : node_(node) {}
  bool found = false;

 private:
  LoopValue input(int) override { return value(); }
  bool has_input(int i) const override { return node_.inputs[static_cast<size_t>(i)] != kNoValue; }
  LoopValue scalar(int) override { return value(); }
  int64_t integer(int i) const override { return node_.attrs.ints[static_cast<size_t>(i)]; }
  LoopValue constant(double, DType type) override { return value(type); }
  LoopValue emit(LoopOp, DType type, LoopValue, LoopValue, LoopValue) override { return value(type); }
  LoopValue reduce(LoopOp op, LoopValue v) override {
    found = found || (op != LoopOp::kReduceSum && v.type != kBool);
    return v;
  }
  void output(int, LoopValue) override {}
  LoopValue pick(int, int) override { return value(); }
  LoopValue index(int) override { return value(kI64); }
  LoopValue value(DType type = kF32) { return {this, 0, type}; }

  const GraphNode& node_;
};

// True if the graph takes the maximum of a row of computed values. REQUIRES: `graph` is decomposed.
bool takes_maximum(const Graph& graph) {
  for (const GraphNode& node : graph.nodes) {
    if (node.op->kind != OpKind::kReduction || node.op->lower == nullptr) continue;
    MaximumProbe probe(node);
    node.op->lower(probe);
    const Value& row = graph.value(graph.written(node.inputs[0]));
    if (probe.found && row.producer >= 0 && graph.node(row.producer).op->kind == OpKind::kElementwise) return true;
  }
  return false;
}

}  // namespace

LoopKernel relax(const LoopKernel& kernel, std::span<const int32_t> roundings) {
  return Contraction(roundings.empty() ? kernel : without(kernel, roundings)).run();
}

bool may_relax(const Graph& forward, const BackwardGraph* backward) {
  const auto computed_in = [](const Graph& graph) {
    std::vector<bool> computed;
    for (const Value& value : graph.values) computed.push_back(value.producer >= 0);
    return computed;
  };
  const std::vector<bool> computed = computed_in(forward);
  if (compares(forward, computed) || takes_maximum(decompose(forward).value_or(forward))) return false;
  if (backward == nullptr) return true;
  const Graph& graph = backward->graph;
  std::vector<bool> again = computed_in(graph);
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const BackwardInput& source = backward->inputs[i];
    if (source.kind == BackwardInput::kSaved && source.index >= 0)
      again[static_cast<size_t>(graph.inputs[i])] = computed[static_cast<size_t>(forward.written(source.index))];
  }
  return !compares(graph, again) && !takes_maximum(decompose(graph).value_or(graph));
}

}  // namespace rondo::compile
