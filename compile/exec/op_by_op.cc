#include "rondo/compile/exec/op_by_op.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "rondo/compile/exec/run_eagerly.h"
#include "rondo/compile/ir/scanner.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::compile {
namespace {

constexpr int kNudgedRuns = 3;

// Returns a copy of the tensor, with the same layout and its own memory.
Tensor copy_of(const Tensor& t) {
  int64_t extent = t.numel() == 0 ? 0 : 1;
  for (int d = 0; extent > 0 && d < t.rank(); ++d) extent += (t.sizes()[d] - 1) * t.strides()[d];
  const Tensor memory = Tensor::over(t.storage(), t.storage_offset(), {extent}, {1}, t.dtype()).clone();
  return Tensor::over(memory.storage(), memory.storage_offset(), t.sizes(), t.strides(), t.dtype());
}

// Returns the distance from 1 to the next larger number of the dtype.
double unit_of(DType dtype) {
  return dtype == kF64 ? 0x1p-52 : dtype == kF32 ? 0x1p-23 : dtype == kF16 ? 0x1p-10 : 0x1p-7;
}
// Changes numbers by up to a unit in the last place, up or down.
void nudge(Tensor& t, uint32_t& random) {
  if (!is_floating(t.dtype()) || t.numel() == 0) return;
  std::vector<double> numbers = t.to_vector<double>();
  for (double& number : numbers) {
    random = random * 1664525 + 1013904223;  // Numerical Recipes
    number *= 1 + (static_cast<double>(random >> 8) * 0x1p-23 - 1) * unit_of(t.dtype());
  }
  t.copy_(Tensor::from(numbers, t.sizes()).to(t.dtype()).to(t.device()));
}

bool same(double a, double b) { return (a == b && std::signbit(a) == std::signbit(b)) || (a != a && b != b); }

}  // namespace

OpByOp::OpByOp(Graph graph, std::span<const Tensor> inputs, bool exact)
    : graph_(std::move(graph)), exact_(exact), values_(graph_) {
  const NoGrad off;
  const RecorderScope eager(nullptr);
  for (const Tensor& input : inputs) inputs_.push_back(input.defined() ? copy_of(input) : Tensor());
}

void OpByOp::run(CollectiveLog* sums) {
  const NoGrad off;
  const RecorderScope eager(nullptr);
  sums_ = sums;
  values_ = values_of_run(nullptr);
}

// Runs the graph once and returns all values. `random`: the state from which nudges are drawn; null: nothing is nudged.
ValueMap<Tensor> OpByOp::values_of_run(uint32_t* random) const {
  std::optional<CollectiveScope> known_sums;
  if (sums_ != nullptr) known_sums.emplace(CollectiveScope::kReplayOnly, *sums_);
  ValueMap<Tensor> values(graph_);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!inputs_[i].defined()) continue;
    Tensor input = inputs_[i];
    // An element that is repeated by a stride of 0 is nudged only once.
    if (random != nullptr) {
      input = copy_of(input);
      Tensor memory = input;
      for (int d = 0; d < memory.rank(); ++d)
        if (memory.strides()[d] == 0 && memory.sizes()[d] > 1) memory = memory.slice(d, {0, 1});
      nudge(memory, *random);
    }
    values[graph_.inputs[i]] = input;
  }
  Graph plain = graph_;
  for (Value& value : plain.values) value.requires_grad = false;
  // Nodes that depend on a missing input are skipped; nothing reads their results.
  ValueMap<bool> there(graph_);
  for (size_t v = 0; v < there.size(); ++v) there[v] = values[v].defined();
  std::erase_if(plain.nodes, [&](const GraphNode& node) {
    for (ValueId id : node.inputs)
      if (id != kNoValue && !there[id]) return true;
    for (ValueId id : node.outputs) there[id] = true;
    return false;
  });
  if (random == nullptr) {
    run_eagerly(plain, values);
    return values;
  }
  run_eagerly(plain, values, nullptr, [&](const GraphNode& node) {
    if (node.op->kind == OpKind::kView) return;
    // The logged sum contains the operand without nudges, so the difference is added.
    if (node.op->is<trait::Exchange>() && sums_ != nullptr)
      values[node.outputs[0]].add_(values[node.inputs[0]] - values_[node.inputs[0]]);
    for (ValueId id : node.outputs) nudge(values[id], *random);
  });
  return values;
}

double OpByOp::moved(ValueId id) const {
  if (!moved_) {
    const NoGrad off;
    const RecorderScope eager(nullptr);
    moved_.emplace(graph_, 0.0);
    uint32_t random = 1;
    for (int i = 0; i < kNudgedRuns; ++i) {
      const ValueMap<Tensor> nudged = values_of_run(&random);
      for (size_t v = 0; v < nudged.size(); ++v) {
        if (!nudged[v].defined()) continue;
        const std::vector<double> a = values_[v].to_vector<double>(), b = nudged[v].to_vector<double>();
        for (size_t k = 0; k < a.size(); ++k)
          if (std::isfinite(a[k]) && std::isfinite(b[k])) (*moved_)[v] = std::max((*moved_)[v], std::abs(a[k] - b[k]));
      }
    }
  }
  return (*moved_)[id];
}

std::string OpByOp::difference(ValueId id, const Tensor& actual) const {
  const Tensor& expected = values_[id];
  const std::vector<double> e = expected.to_vector<double>(), a = actual.to_vector<double>();
  double bound = 0;
  if (!exact_ && is_floating(expected.dtype())) {
    for (double value : e)
      if (std::isfinite(value)) bound = std::max(bound, std::abs(value));
    bound *= is_low_precision(expected.dtype()) ? kRelaxedLowPrecision : kRelaxed;
  }
  bool nudged = exact_;
  for (size_t i = 0; i < e.size(); ++i) {
    if (same(e[i], a[i]) || (!exact_ && std::abs(e[i] - a[i]) <= bound)) continue;
    if (!nudged) {
      nudged = true;
      bound = std::max(bound, kTimesMoved * moved(id));
      if (std::abs(e[i] - a[i]) <= bound) continue;
    }
    return absl::StrCat("element ", i, " of ", rondo::to_string(expected.sizes()), ": eager ", exact_text(e[i]),
                        ", compiled ", exact_text(a[i]));
  }
  return "";
}

std::string OpByOp::first_difference(std::span<const Tensor> outputs) const {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const ValueId id = graph_.outputs[i];
    if (!values_[id].defined()) continue;
    if (std::string what = difference(id, outputs[i]); !what.empty()) return what;
  }
  return "";
}

std::string OpByOp::first_difference_in(const CollectiveLog& sums) const {
  const NoGrad off;
  const RecorderScope eager(nullptr);
  CollectiveReader sent(sums);
  for (const GraphNode& node : graph_.nodes) {
    if (!node.op->is<trait::Exchange>()) continue;
    const Tensor& operand = values_[node.inputs[0]];
    if (!operand.defined()) continue;
    std::vector<Tensor> parts;
    for (int64_t left = operand.numel(); left > 0; left -= parts.back().numel()) {
      parts.push_back(sent.next(node.attrs.ints[0], operand.dtype(), left).operand);
      invariant(parts.back().defined(), "the log of a run has fewer collectives than the run");
    }
    if (parts.empty()) continue;
    const std::string what = difference(node.inputs[0], ops::reshape(ops::cat(parts, 0), operand.sizes()));
    if (!what.empty()) return absl::StrCat("the operand of ", node.op->name, describe_location(node.where), ": ", what);
  }
  return "";
}

}  // namespace rondo::compile
