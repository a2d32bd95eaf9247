#include "rondo/compile/region/eager_backward.h"

#include <algorithm>

#include "rondo/compile/exec/run_eagerly.h"
#include "rondo/compile/transform/passed_ops.h"
#include "rondo/runtime/autograd_extras.h"
#include "rondo/runtime/backend.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/recorder.h"

namespace rondo::compile {
namespace {

// Stands between the results of an op that is replayed for a second derivative and what reads them. While the replay
// goes backward, the results' gradients pass through it to the op. Afterwards, those of the region's outputs lead to
// the region's own node: as in eager execution, an output has one history, where all its gradients meet and its hooks
// run.
class Passage final : public Node {
 public:
  explicit Passage(int results) {
    n_outputs = results;
    edges.resize(static_cast<size_t>(results));
  }
  const char* name() const override { return "compiled region"; }
  void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) override {
    for (size_t i = 0; i < grads_in.size(); ++i) grads_in[i] = grads_out[i];
  }
};

// Zeros in the layout of `like`.
Tensor zeros_like(const Value& like, Device device) {
  int64_t extent = like.sizes.numel() == 0 ? 0 : 1;
  for (int d = 0; d < like.sizes.rank() && extent > 0; ++d) extent += (like.sizes[d] - 1) * like.strides[d];
  const Tensor memory = Tensor::zeros({extent}, {like.dtype, device});
  return Tensor::over(memory.storage(), 0, like.sizes, like.strides, like.dtype);
}

// By value: whether something that requires a gradient is computed from it. Other values may be stale.
ValueMap<bool> leads_to_gradients(const Entry& entry) {
  const Graph& graph = entry.forward_graph;
  ValueMap<bool> needed(graph, false);
  for (ValueId id : graph.outputs) needed[id] = graph.value(id).requires_grad;
  for (int i : entry.backward.grad_inputs) needed[graph.inputs[static_cast<size_t>(i)]] = true;
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const GraphNode& node = graph.nodes[n];
    if (std::none_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) { return needed[id]; })) continue;
    for (ValueId id : node.inputs)
      if (id != kNoValue) needed[id] = true;
  }
  return needed;
}

// copy and fill read nothing of what they overwrite but its sizes.
bool reads_values(const GraphNode& node, size_t input) {
  return input > 0 || (node.op != &ops::kCopy && node.op != &ops::kFill);
}

// One replay. A replay has two differences to eager execution: it reads inputs that eager execution has no more use
// for, and it is another tape than the one on which the region's outputs stand.
class Replayed {
 public:
  Replayed(const RegionNode& region, const Binding& binding, const KeptValues::Tensors& saved, bool create_graph)
      : region_(region),
        binding_(binding),
        entry_(*binding.entry()),
        saved_(saved),
        create_graph_(create_graph),
        values_(graph()),
        kept_at_(graph(), -1),
        stale_(graph(), false) {
    const std::vector<ValueId> laid_out = entry_.lays_out ? entry_.layouts_of(graph()).needed() : entry_.saved;
    for (size_t i = 0; i < laid_out.size(); ++i) kept_at_[entry_.saved[i]] = entry_.partition->kept_index(laid_out[i]);
    const ValueMap<bool> needed = leads_to_gradients(entry_);
    for (size_t i = 0; i < graph().inputs.size(); ++i)
      if (const ValueId id = graph().inputs[i]; needed[id]) read_input(i, id);
    // Gradients stop at views of the inputs, not at the inputs: one input may be computed from another.
    for (int i : entry_.backward.grad_inputs) {
      const ValueId id = graph().inputs[static_cast<size_t>(i)];
      if (stale_[id]) continue;
      Dims same;
      for (int d = 0; d < value(id).rank(); ++d) same.push_back(d);
      value(id) = ops::permute(value(id), same);
    }
    compile::run_eagerly(
        graph(), values_, &needed, [this](const GraphNode& made) { after(made); },
        [this](const GraphNode& node, std::span<const TensorArg> operands, std::span<Tensor> results) {
          if (!node.op->traits.communicates) return false;
          give_sums(node, operands, results);
          return true;
        });
  }
  Tensor& value(ValueId id) { return values_[id]; }

  // From now on, a gradient rule that reads what was overwritten says so.
  void mark_overwritten() {
    for (size_t i = 0; i < graph().inputs.size(); ++i)
      if (const ValueId id = graph().inputs[i]; stale_[id]) value(id).storage().bump_version();
    for (ValueId id : graph().outputs)
      if (const int32_t at = kept_value(id); at >= 0 && saved_.values[static_cast<size_t>(at)].overwritten())
        value(id).storage().bump_version();
  }
  // And one that reads what is computed from it, which eager execution might still have.
  bool has_stale() const { return computed_stale_; }
  void mark_stale() {
    for (size_t id = 0; id < values_.size(); ++id)
      if (stale_[id] && values_[id].defined()) values_[id].storage().bump_version();
  }

  // After the replay went backward: see Passage.
  void lead_outputs_to(RegionNode& region) {
    for (const auto& [passage, result, output] : passages_) {
      passage->extras.clear();
      passage->edges[static_cast<size_t>(result)] = {region.history(output), output};
    }
  }

 private:
  const Graph& graph() const { return binding_.graph(); }

  void read_input(size_t i, ValueId id) {
    const SavedTensor& saved = saved_.inputs[i];
    if (saved.defined() && !saved.overwritten()) {
      value(id) = saved.get("a compiled region", {});
      return;
    }
    // What was computed from it may still be there, and its own values may be of no further use.
    value(id) = zeros_like(graph().value(id), entry_.device);
    if (region_.edges[i].node != nullptr) {
      const auto passage = std::make_shared<Passage>(1);
      passage->edges[0] = region_.edges[i];
      autograd::set_history(value(id), passage, 0);
    }
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
        // Its version will change, which is no reason to look at its base again.
        if (value(id).impl()->autograd != nullptr) value(id).impl()->autograd->base = Tensor();
      }
    if (create_graph_) put_passage(made);
  }
  // A collective does not run again (Note [Collectives are effects]): its results are those of the forward. No rule
  // reads one that was not kept, nor anything that is computed from it (collectives_read()).
  void give_sums(const GraphNode& node, std::span<const TensorArg> operands, std::span<Tensor> results) {
    for (size_t i = 0; i < results.size(); ++i) {
      const ValueId id = node.outputs[i];
      const int32_t at = kept_value(id);
      const bool is_kept = at >= 0 && saved_.values[static_cast<size_t>(at)].defined() &&
                           !saved_.values[static_cast<size_t>(at)].overwritten();
      if (!is_kept) {
        results[i] = zeros_like(graph().value(id), entry_.device);
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
  // The value that the region has kept for its backward, instead of one computed from zeros.
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
    // The op has saved this memory, so its version must stay.
    copy_bytes(result.device(), result.storage().data() + result.storage_offset() * size, dense.device(),
               dense.storage().data() + dense.storage_offset() * size, static_cast<size_t>(result.numel() * size));
    return true;
  }

  // Where the region keeps this value, unless it is an input; otherwise -1.
  int32_t kept_value(ValueId id) const {
    const int32_t at = kept_at_[id];
    return at < 0 || entry_.partition->kept()[static_cast<size_t>(at)].is_input ? -1 : at;
  }

  void put_passage(const GraphNode& made) {
    std::shared_ptr<Passage> passage;
    for (size_t i = 0; i < made.outputs.size(); ++i) {
      Tensor& result = value(made.outputs[i]);
      const auto at = std::find(graph().outputs.begin(), graph().outputs.end(), made.outputs[i]);
      if (at == graph().outputs.end() || !result.requires_grad()) continue;
      if (passage == nullptr) passage = std::make_shared<Passage>(static_cast<int>(made.outputs.size()));
      passages_.push_back({passage, static_cast<int>(i), static_cast<int>(at - graph().outputs.begin())});
    }
    if (passage == nullptr) return;
    for (size_t i = 0; i < made.outputs.size(); ++i) {
      Tensor& result = value(made.outputs[i]);
      if (!result.requires_grad()) continue;
      passage->edges[i] = autograd::gradient_edge(result);
      autograd::set_history_of_saved_results(*passage->edges[i].node, passage);
      autograd::set_history(result, passage, static_cast<int>(i));
    }
  }

  struct Led {
    std::shared_ptr<Passage> passage;
    int result, output;  // of the op and of the region
  };
  const RegionNode& region_;
  const Binding& binding_;
  const Entry& entry_;
  const KeptValues::Tensors& saved_;
  const bool create_graph_;
  ValueMap<Tensor> values_;
  ValueMap<int32_t> kept_at_;  // by value: where the region keeps it; -1: it does not
  ValueMap<bool> stale_;       // by value: computed from an input that was overwritten
  bool has_stale_inputs_ = false, computed_stale_ = false;
  std::vector<Led> passages_;
};

}  // namespace

void backward_eagerly(RegionNode& region, const Binding& binding, const KeptValues::Tensors& saved,
                      std::span<const Tensor> grads_out, std::span<Tensor> grads_in) {
  const Entry& entry = *binding.entry();
  RecorderScope eager(nullptr);
  const bool create_graph = grad_enabled();
  GradMode on(true);
  const Graph& graph = entry.forward_graph;
  Replayed replayed(region, binding, saved, create_graph);
  std::vector<Tensor> roots, seeds;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    if (!grads_out[i].defined()) continue;
    roots.push_back(replayed.value(graph.outputs[i]));
    seeds.push_back(grads_out[i]);
  }
  // What is asked for: gradients of inputs, then of outputs, for the hooks there. Nothing else runs, nor do its
  // hooks.
  const autograd::Asked* asked = autograd::Asked::now();
  std::vector<int> asked_inputs;
  std::vector<Tensor> targets;
  for (int i : entry.backward.grad_inputs) {
    if (asked != nullptr && !asked->edges[static_cast<size_t>(i)]) continue;
    asked_inputs.push_back(i);
    targets.push_back(replayed.value(graph.inputs[static_cast<size_t>(i)]));
  }
  if (asked != nullptr)
    for (int i : asked->outputs) targets.push_back(replayed.value(graph.outputs[static_cast<size_t>(i)]));
  replayed.mark_overwritten();
  if (replayed.has_stale()) {
    // First without the others, so that the error is that of eager execution, if there is one. Collectives of the
    // backward run once.
    if (!communicates(graph)) autograd::grad(roots, targets, seeds, true, false, true);
    replayed.mark_stale();
  }
  for (const Node::OutputExtras& extra : region.extras) {
    Tensor& value = replayed.value(graph.outputs[static_cast<size_t>(extra.output)]);
    if (!value.defined() || !value.requires_grad()) continue;
    for (const Hook& hook : extra.hooks) value.register_hook(hook.fn);
    if (const auto slot = extra.retained.lock())
      value.register_hook([slot](const Tensor& grad) {
        autograd::retain(*slot, grad);
        return Tensor();
      });
  }
  for (int i : entry.backward.grad_inputs) {
    if (grads_in.empty() || !grads_in[static_cast<size_t>(i)].defined()) continue;
    // The gradient from later consumers comes first in the sum.
    roots.push_back(replayed.value(graph.inputs[static_cast<size_t>(i)]));
    seeds.push_back(grads_in[static_cast<size_t>(i)]);
  }
  const std::vector<Tensor> grads = autograd::grad(roots, targets, seeds, true, create_graph, true);
  replayed.lead_outputs_to(region);
  for (size_t i = 0; i < asked_inputs.size() && !grads_in.empty(); ++i)
    if (grads[i].defined()) grads_in[static_cast<size_t>(asked_inputs[i])] = grads[i];
}

}  // namespace rondo::compile
