#include "rondo/compile/region/eager_backward.h"

#include <algorithm>
#include <optional>

#include "rondo/compile/exec/run_eagerly.h"
#include "rondo/compile/transform/passed_ops.h"
#include "rondo/runtime/autograd/node_scope.h"
#include "rondo/runtime/autograd/op_node.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::compile {
namespace {

// Ends a replay's tape at an input that was overwritten, or, with an empty edge, at an output that does not depend on
// anything with a gradient.
class Passage final : public Node {
 public:
  explicit Passage(Edge to) { edges.push_back(std::move(to)); }
  const char* name() const override { return "compiled region"; }
  void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) override { grads_in[0] = grads_out[0]; }
};

// Returns zeros in the layout of `like`.
Tensor zeros_like(const Value& like, Device device) {
  int64_t extent = like.sizes.numel() == 0 ? 0 : 1;
  for (int d = 0; d < like.sizes.rank() && extent > 0; ++d) extent += (like.sizes[d] - 1) * like.strides[d];
  const Tensor memory = Tensor::zeros({extent}, {like.dtype, device});
  return Tensor::over(memory.storage(), 0, like.sizes, like.strides, like.dtype);
}

// Returns, for each value, whether something that requires a gradient is computed from it. Other values may be stale.
ValueMap<bool> leads_to_gradients(const Entry& entry) {
  const Graph& graph = entry.recording();
  ValueMap<bool> needed(graph, false);
  for (ValueId id : graph.outputs) needed[id] = graph.value(id).requires_grad;
  for (int i : entry.backward().grad_inputs) needed[graph.inputs[static_cast<size_t>(i)]] = true;
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const GraphNode& node = graph.nodes[n];
    if (std::none_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) { return needed[id]; })) continue;
    for (ValueId id : node.inputs)
      if (id != kNoValue) needed[id] = true;
  }
  return needed;
}

// True if `node` reads the elements of this input. False if it uses only the sizes: copy and fill do not read the
// tensor that they overwrite.
bool reads_values(const GraphNode& node, size_t input) {
  return input > 0 || (node.op != &ops::kCopy && node.op != &ops::kFill);
}

// One replay of a recording. It may also read inputs that eager execution would not need any more.
class Replayed {
 public:
  Replayed(const RegionNode& region, const Binding& binding, const KeptValues::Pass& pass)
      : region_(region),
        binding_(binding),
        entry_(*binding.entry()),
        saved_(*pass.saved),
        freed_(pass.freed),
        saving_(freed_.empty() ? OpSet() : ops_that_save(graph())),
        values_(graph()),
        kept_at_(graph(), -1),
        stale_(graph(), false) {
    const std::vector<ValueId>& laid_out = entry_.saved_as_laid_out();
    for (size_t i = 0; i < laid_out.size(); ++i)
      kept_at_[entry_.saved()[i]] = entry_.partition()->kept_index(laid_out[i]);
    const ValueMap<bool> needed = leads_to_gradients(entry_);
    for (size_t i = 0; i < graph().inputs.size(); ++i)
      if (const ValueId id = graph().inputs[i]; needed[id]) read_input(i, id);
    // Gradients stop at views of the inputs, not at the inputs: one input may be computed from another.
    for (int i : entry_.backward().grad_inputs) {
      const ValueId id = graph().inputs[static_cast<size_t>(i)];
      if (stale_[id]) continue;
      Dims same;
      for (int d = 0; d < value(id).rank(); ++d) same.push_back(d);
      value(id) = ops::permute(value(id), same);
    }
    compile::run_eagerly(
        graph(), values_, &needed, [this](const GraphNode& made) { after(made); },
        [this](const GraphNode& node, std::span<const TensorArg> operands, std::span<Tensor> results) {
          if (!node.op->is<trait::Exchange>()) return false;
          give_sums(node, operands, results);
          return true;
        });
  }
  Tensor& value(ValueId id) { return values_[id]; }

  // From now on, a gradient rule that reads an overwritten value throws.
  void mark_overwritten() {
    for (size_t i = 0; i < graph().inputs.size(); ++i)
      if (const ValueId id = graph().inputs[i]; stale_[id]) value(id).storage().bump_version();
    for (ValueId id : graph().outputs)
      if (const int32_t at = kept_value(id); at >= 0 && saved_.values[static_cast<size_t>(at)].overwritten())
        value(id).storage().bump_version();
  }
  // True if a value was computed from an overwritten one. After mark_stale(), a gradient rule that reads such a value
  // throws, too, although eager execution might still have that value.
  bool has_stale() const { return computed_stale_; }
  void mark_stale() {
    for (size_t id = 0; id < values_.size(); ++id)
      if (stale_[id] && values_[id].defined()) values_[id].storage().bump_version();
  }

 private:
  const Graph& graph() const { return binding_.graph(); }

  void read_input(size_t i, ValueId id) {
    const SavedTensor& saved = saved_.inputs[i];
    if (saved.defined() && !saved.overwritten()) {
      value(id) = saved.get("a compiled region", {});
      return;
    }
    // Zeros replace the overwritten input. That may be enough: values computed from it may be kept, and perhaps no
    // gradient rule reads the input itself.
    value(id) = zeros_like(graph().value(id), entry_.device());
    if (region_.edges[i].node != nullptr)
      autograd::set_history(value(id), std::make_shared<Passage>(region_.edges[i]), 0);
    stale_[id] = has_stale_inputs_ = true;
  }

  void after(const GraphNode& made) {
    bool reads_stale = false;
    for (size_t i = 0; i < made.inputs.size() && has_stale_inputs_; ++i)
      reads_stale |= made.inputs[i] != kNoValue && stale_[made.inputs[i]] && reads_values(made, i);
    if (reads_stale)
      for (ValueId id : made.outputs) {
        if (made.op->kind != OpKind::kView && restore(id)) continue;
        stale_[id] = computed_stale_ = true;
        // mark_stale() will change the version of this value. A view with a base would then renew its history.
        if (value(id).impl()->autograd != nullptr) value(id).impl()->autograd->base = Tensor();
      }
    if (const auto n = static_cast<size_t>(&made - graph().nodes.data()); !freed_.empty() && freed_[n] && saving_[n])
      for (ValueId id : made.outputs)
        if (value(id).requires_grad()) autograd::gradient_edge(value(id)).node->release_saved();
  }
  // Gives the results of a collective the values that they had in the forward, because a collective does not run again:
  // Note [Collectives are effects]. No gradient rule reads a result that was not kept, nor a value that is computed
  // from it (collectives_read()).
  void give_sums(const GraphNode& node, std::span<const TensorArg> operands, std::span<Tensor> results) {
    for (size_t i = 0; i < results.size(); ++i) {
      const ValueId id = node.outputs[i];
      const int32_t at = kept_value(id);
      const bool is_kept = at >= 0 && saved_.values[static_cast<size_t>(at)].defined() &&
                           !saved_.values[static_cast<size_t>(at)].overwritten();
      if (!is_kept) {
        results[i] = zeros_like(graph().value(id), entry_.device());
        stale_[id] = at >= 0;
        computed_stale_ = computed_stale_ || stale_[id];
        has_stale_inputs_ = has_stale_inputs_ || stale_[id];
        continue;
      }
      const NoGrad off;
      const Tensor& kept = saved_.values[static_cast<size_t>(at)].get("a compiled region", {});
      results[i] = kept.to(graph().value(id).dtype).contiguous().detach();
    }
    if (!grad_enabled()) return;
    absl::InlinedVector<const Tensor*, kUsualInputs> inputs;
    for (const TensorArg& operand : operands) inputs.push_back(&operand.tensor);
    autograd::record_call(*node.op, inputs, node.attrs, results, line_of(node));
  }
  // Replaces a value that was computed from zeros by the value that the region has kept for its backward. Returns false
  // if the region has kept no value that can be used.
  bool restore(ValueId id) {
    const int32_t at = kept_value(id);
    if (at < 0 || !saved_.values[static_cast<size_t>(at)].defined() ||
        saved_.values[static_cast<size_t>(at)].overwritten())
      return false;
    const Tensor& kept = saved_.values[static_cast<size_t>(at)].get("a compiled region", {});
    Tensor& result = value(id);
    if (kept.dtype() != result.dtype() || !(kept.sizes() == result.sizes()) || !result.is_contiguous()) return false;
    const Tensor dense = kept.contiguous();
    const auto size = static_cast<int64_t>(size_of(result.dtype()));
    // Copies the bytes without changing the version, because the op has saved this memory.
    copy_bytes(result.device(), result.storage().data() + result.storage_offset() * size, dense.device(),
               dense.storage().data() + dense.storage_offset() * size, static_cast<size_t>(result.numel() * size));
    return true;
  }

  // Returns the position at which the region keeps this value, unless it is an input; otherwise -1.
  int32_t kept_value(ValueId id) const {
    const int32_t at = kept_at_[id];
    return at < 0 || entry_.partition()->kept()[static_cast<size_t>(at)].is_input ? -1 : at;
  }

  const RegionNode& region_;
  const Binding& binding_;
  const Entry& entry_;
  const KeptValues::Tensors& saved_;
  const OpSet& freed_;  // the ops that have freed their saved tensors; empty: none
  const OpSet saving_;  // the ops that save something; empty if nothing was freed
  ValueMap<Tensor> values_;
  ValueMap<int32_t> kept_at_;  // by value: where the region keeps it; -1: it does not
  ValueMap<bool> stale_;       // by value: computed from an input that was overwritten
  bool has_stale_inputs_ = false, computed_stale_ = false;
};

// Returns a tensor of this kind with this history. All its elements share the memory of a single element.
Tensor with_history(const Value& kind, Device device, const Edge& history) {
  Dims none;
  for (int d = 0; d < kind.sizes.rank(); ++d) none.push_back(0);
  Tensor tensor = Tensor::over(Tensor::zeros({1}, {kind.dtype, device}).storage(), 0, kind.sizes, none, kind.dtype);
  autograd::set_history(tensor, history.node, history.output);
  return tensor;
}

}  // namespace

EagerTape::EagerTape(std::shared_ptr<const Binding> binding, std::vector<Edge> outputs, std::vector<Edge> inputs)
    : binding_(std::move(binding)), outputs_(std::move(outputs)), inputs_(std::move(inputs)) {}

void EagerTape::add(std::span<const Node::OutputExtras> extras) const {
  for (const Node::OutputExtras& extra : extras) {
    const Edge& at = output(extra.output);
    Node::OutputExtras& own = at.node->extras_of(at.output);
    own.hooks.insert(own.hooks.end(), extra.hooks.begin(), extra.hooks.end());
    if (!extra.retained.expired()) own.retained = extra.retained;
  }
}

void EagerTape::backward(std::span<const Tensor> grads_out, std::span<Tensor> grads_in, bool retain_graph) const {
  const Entry& entry = *binding_->entry();
  const Graph& graph = entry.recording();
  const RecorderScope eager(nullptr);
  std::vector<Tensor> roots, seeds, targets;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (!grads_out[i].defined()) continue;
    roots.push_back(with_history(graph.value(graph.outputs[i]), entry.device(), outputs_[i]));
    seeds.push_back(grads_out[i]);
  }
  // Collects the requested gradients: those of inputs, then those of outputs, for their hooks. Ops that lead to none of
  // them do not run, nor do their hooks.
  const autograd::RequestedGradients* requested = autograd::RequestedGradients::now();
  std::vector<size_t> requested_inputs;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].node == nullptr || (requested != nullptr && !requested->edges[i])) continue;
    const Tensor input = with_history(graph.value(graph.inputs[i]), entry.device(), inputs_[i]);
    if (!grads_in.empty() && grads_in[i].defined()) {
      // The gradient from later consumers comes first in the sum.
      roots.push_back(input);
      seeds.push_back(grads_in[i]);
    }
    requested_inputs.push_back(i);
    targets.push_back(input);
  }
  const auto ask_for_output = [&](int i) {
    targets.push_back(with_history(graph.value(graph.outputs[static_cast<size_t>(i)]), entry.device(), output(i)));
  };
  if (requested != nullptr) {
    for (int i : requested->outputs) ask_for_output(i);
  } else {  // hooks on a result see its gradient, even if the result depends on no input
    for (int i = 0; i < static_cast<int>(outputs_.size()); ++i)
      if (!output(i).node->extras.empty()) ask_for_output(i);
  }
  const std::vector<Tensor> grads = autograd::grad(roots, targets, seeds, retain_graph, grad_enabled(), true);
  for (size_t i = 0; i < requested_inputs.size() && !grads_in.empty(); ++i)
    if (grads[i].defined()) grads_in[requested_inputs[i]] = grads[i];
}

std::shared_ptr<const EagerTape> replay(const RegionNode& region, std::shared_ptr<const Binding> binding,
                                        const KeptValues::Pass& pass, std::span<const Tensor> grads_out) {
  const Entry& entry = *binding->entry();
  const Graph& graph = entry.recording();
  const RecorderScope eager(nullptr);
  const GradMode on(true);
  std::optional<autograd::ReplacementScope> place(region);
  Replayed replayed(region, *binding, pass);
  place.reset();
  const auto end_of = [&](ValueId id) {
    const Tensor& value = replayed.value(id);
    return value.defined() && value.requires_grad() ? autograd::gradient_edge(value) : Edge();
  };
  std::vector<Edge> outputs, inputs(graph.inputs.size());
  for (ValueId id : graph.outputs)
    if (outputs.push_back(end_of(id)); outputs.back().node == nullptr)
      outputs.back().node = std::make_shared<Passage>(Edge());
  for (int i : entry.backward().grad_inputs)
    inputs[static_cast<size_t>(i)] = end_of(graph.inputs[static_cast<size_t>(i)]);
  auto tape = std::make_shared<const EagerTape>(std::move(binding), std::move(outputs), std::move(inputs));
  replayed.mark_overwritten();
  if (replayed.has_stale()) {
    // Goes backward before mark_stale(), so that an error of eager execution is thrown first. Does not do so if there
    // are collectives, because those of the backward must run only once.
    if (!entry.communicates()) {
      const GradMode off(false);
      std::vector<Tensor> unused(graph.inputs.size());
      tape->backward(grads_out, unused, /*retain_graph=*/true);
    }
    replayed.mark_stale();
  }
  return tape;
}

}  // namespace rondo::compile
