#include "rondo/compile/transform/joint.h"

#include <optional>

#include "rondo/compile/capture/trace.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/autograd/backward.h"
#include "rondo/runtime/base/hash_map.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/window.h"
#include "rondo/runtime/tensor/memory_order.h"

namespace rondo::compile {
namespace {

// Takes the rows that the rule of a lookup offers while it is traced.
class RowsTaker final : public autograd::GradientParts {
 public:
  bool wants_part() override { return false; }
  void part_added() override {}
  bool take_rows(const Tensor& rows, const Tensor& indices) override {
    this->rows = rows;
    this->indices = indices;
    return true;
  }
  Tensor rows, indices;
};

// True if the op's gradient rule offers rows.
bool looks_up(const OpDef& op) { return op.grad_adds && op.checks; }

class Deriver {
 public:
  Deriver(const Graph& forward, const Arriving& arriving, Device device)
      : forward_(forward),
        arriving_(arriving),
        grads_(forward),
        symbols_(forward),
        contributions_(forward),
        variables_(variables(forward)) {
    trace_.device = device;
  }

  BackwardGraph run() {
    NoGrad off;
    amp::Autocast as_recorded(
        std::nullopt);  // backward runs in the dtypes that the forward chose, as the eager tape does
    const DeviceScope device(trace_.device);  // for calls without operands
    RecorderScope record(&trace_);
    trace_.first_call = 1 << 20;  // no numbers of the forward: its nodes may be added to this graph
    for (size_t i = 0; i < arriving_.totals.size(); ++i) {
      if (!arriving_.totals[i]) continue;
      const ValueId id = forward_.inputs[i];
      // A total to which backward adds in place is contiguous.
      const bool in_place = i < arriving_.owned.size() && arriving_.owned[i];
      grads_[id] = bind({BackwardInput::kTotal, static_cast<int32_t>(i), {}},
                        dense_like(forward_.value(id), !in_place && lies_channels_last(forward_.value(id))));
    }
    for (size_t i = 0; i < forward_.outputs.size(); ++i) {
      const Value& value = forward_.value(forward_.outputs[i]);
      if (!value.requires_grad || (!arriving_.gradients.empty() && !arriving_.gradients[i])) continue;
      const bool other = !arriving_.in_other_layout.empty() && arriving_.in_other_layout[i];
      accumulate(forward_.outputs[i], bind({BackwardInput::kGradient, static_cast<int32_t>(i), {}},
                                           dense_like(value, lies_channels_last(value) != other)));
    }
    for (visited_ = static_cast<int32_t>(forward_.nodes.size()); visited_-- > 0;) visit(forward_.node(visited_));
    for (size_t i = 0; i < forward_.inputs.size(); ++i) {
      const Tensor& grad = grads_[forward_.inputs[i]];
      result_.contributions.push_back(contributions_[forward_.inputs[i]]);
      if (!forward_.value(forward_.inputs[i]).requires_grad || !grad.defined()) continue;
      result_.grad_inputs.push_back(static_cast<int>(i));
      trace_.graph.outputs.push_back(trace_.value_of(grad));
    }
    for (const auto& [input, taker] : rows_) {
      const auto at = static_cast<int32_t>(trace_.graph.outputs.size());
      trace_.graph.outputs.push_back(trace_.value_of(taker.rows));
      trace_.graph.outputs.push_back(trace_.value_of(taker.indices));
      result_.rows.push_back({input, at, at + 1});
    }
    // Inputs that were not bound are tensors that a rule made itself.
    size_t next_constant = 0;
    for (ValueId id : trace_.graph.inputs) {
      const auto bound = bindings_.find(id);
      result_.inputs.push_back(bound != bindings_.end()
                                   ? bound->second
                                   : BackwardInput{BackwardInput::kConstant, -1, trace_.external()[next_constant++]});
    }
    result_.graph = std::move(trace_.graph);
    return std::move(result_);
  }

 private:
  Tensor bind(BackwardInput source, const Value& like) {
    const Tensor placeholder = trace_.placeholder(like);
    bindings_[trace_.value_of(placeholder)] = std::move(source);
    return placeholder;
  }

  static Value dense_like(const Value& value, bool channels_last) {
    Value dense = value;
    dense.requires_grad = false;
    dense.strides = channels_last ? channels_last_strides(value.sizes) : contiguous_strides(value.sizes);
    return dense;
  }

  // Returns, by value, the first value that is the same variable of the tape (ops::is_same_variable).
  static ValueMap<ValueId> variables(const Graph& forward) {
    ValueMap<ValueId> first(forward, kNoValue);
    for (size_t id = 0; id < forward.values.size(); ++id) first[id] = static_cast<ValueId>(id);
    for (const GraphNode& node : forward.nodes)
      if (ops::is_same_variable(*node.op)) first[node.outputs[0]] = first[node.inputs[0]];
    return first;
  }

  // Adds `grad` to the gradient of a value. `is_total`: `grad` already includes the earlier contributions.
  void accumulate(ValueId id, const Tensor& grad, bool is_total = false) {
    ++contributions_[variables_[id]].parts;
    Tensor& total = grads_[variables_[id]];
    total = total.defined() && !is_total ? ops::add(total, grad) : grad;
  }

  const Tensor& symbol(ValueId id) {
    Tensor& symbol = symbols_[id];
    if (!symbol.defined()) {
      Value value = forward_.value(id);
      value.requires_grad = false;
      const bool stale = forward_.value(value.root).overwritten;
      symbol = bind({BackwardInput::kSaved, id, {}, stale ? visited_ : -1}, value);
    }
    return symbol;
  }

  void visit(const GraphNode& node) {
    const OpDef& op = *node.op;
    if (ops::is_same_variable(op)) return;
    const size_t n_in = std::max<size_t>(node.inputs.size(), kUsualInputs),
                 n_out = std::max<size_t>(node.outputs.size(), kUsualOutputs);
    absl::InlinedVector<Tensor, kUsualInputs> inputs(n_in), grads_in(n_in);
    absl::InlinedVector<Tensor, kUsualOutputs> outputs(n_out), grads_out(n_out);
    bool any = false;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (!forward_.value(node.outputs[i]).requires_grad) continue;
      grads_out[i] = grads_[variables_[node.outputs[i]]];
      any = any || grads_out[i].defined();
    }
    if (!any) return;
    absl::InlinedVector<InputMeta, kUsualInputs> metas(node.inputs.size());
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      if (id == kNoValue) continue;
      const Value& value = forward_.value(id);
      metas[i] = {value.dtype, value.sizes, value.requires_grad && is_floating(value.dtype)};
      if (op.saved.input(i)) inputs[i] = symbol(id);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i)
      if (op.saved.output(i)) outputs[i] = symbol(node.outputs[i]);
    Origin origin = node.origin;
    origin.gradient = true;
    origin.call = -1;  // each op of a rule gets its own number
    trace_.origin = &origin;
    if (op.grad == nullptr)
      throw Error(std::string("backward of ") + op.name + ": it has no gradient" + describe_location(node.where));
    if (op.grad_adds && metas[0].needs_grad) {
      grads_in[0] = grads_[variables_[node.inputs[0]]];
      contributions_[variables_[node.inputs[0]]].adds_onto = true;
    }
    const bool onto = grads_in[0].defined();
    const int32_t in_parts = onto && looks_up(op) ? input_in_parts(node.inputs[0]) : -1;
    RowsTaker taker;
    {
      std::optional<autograd::RowsOfLeaf> rows;
      if (in_parts >= 0) rows.emplace(taker);
      op.grad(GradContext(node.attrs, inputs, outputs, {grads_out.data(), node.outputs.size()}, metas,
                          {grads_in.data(), grads_in.size()}));
    }
    if (in_parts >= 0) {
      invariant(taker.rows.defined(), "a lookup whose rule offers no rows");
      rows_.emplace_back(in_parts, std::move(taker));
    }
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (grads_in[i].defined() && metas[i].needs_grad) accumulate(node.inputs[i], grads_in[i], onto && i == 0);
    trace_.origin = nullptr;
  }

  // Returns the position of the input that is the same variable as `id`, if its gradient is wanted in parts; otherwise
  // -1.
  int32_t input_in_parts(ValueId id) const {
    for (size_t i = 0; i < arriving_.in_parts.size(); ++i)
      if (arriving_.in_parts[i] && forward_.inputs[i] == variables_[id]) return static_cast<int32_t>(i);
    return -1;
  }

  const Graph& forward_;
  const Arriving& arriving_;
  int32_t visited_ = -1;                             // the node whose gradient rule runs now
  std::vector<std::pair<int32_t, RowsTaker>> rows_;  // each input with the rows of its gradient
  Trace trace_;
  BackwardGraph result_;
  HashMap<ValueId, BackwardInput> bindings_;
  ValueMap<Tensor> grads_;                // of each variable, in the trace
  ValueMap<Tensor> symbols_;              // of each forward value that a rule reads
  ValueMap<Contribution> contributions_;  // by variable
  const ValueMap<ValueId> variables_;
};

}  // namespace

bool lies_channels_last(const Value& value) {
  return value.sizes.rank() == 4 && !is_contiguous(value.sizes, value.strides) &&
         is_channels_last(value.sizes, value.strides);
}

std::vector<int32_t> inputs_in_parts(const Graph& forward) {
  enum Use : uint8_t { kUnused, kLookedUp, kInParts, kOtherwise };
  ValueMap<Use> uses(forward, kUnused);
  for (const GraphNode& node : forward.nodes)
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kNoValue) continue;
      Use& use = uses[node.inputs[i]];
      const bool looked_up = i == 0 && looks_up(*node.op);
      if (looked_up) use = use == kUnused || use == kLookedUp ? kLookedUp : kOtherwise;
      else use = use == kLookedUp || use == kInParts ? kInParts : kOtherwise;
    }
  std::vector<int32_t> inputs;
  for (size_t i = 0; i < forward.inputs.size(); ++i)
    if (const ValueId id = forward.inputs[i]; uses[id] == kInParts && forward.value(id).leaf)
      inputs.push_back(static_cast<int32_t>(i));
  return inputs;
}

BackwardGraph derive_backward(const Graph& forward, const Arriving& arriving, Device device) {
  return Deriver(forward, arriving, device).run();
}

}  // namespace rondo::compile
