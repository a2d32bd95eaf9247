#include "rondo/compile/region/compiled_node.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "absl/strings/str_cat.h"
#include "rondo/compile/exec/run_eagerly.h"
#include "rondo/compile/stages/outcomes.h"
#include "rondo/compile/transform/passed_ops.h"
#include "rondo/runtime/amp.h"
#include "rondo/runtime/anomaly.h"
#include "rondo/runtime/autograd_extras.h"
#include "rondo/runtime/backend.h"
#include "rondo/runtime/gradient_memory.h"
#include "rondo/runtime/memory.h"
#include "rondo/runtime/ops/ops.h"
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

// The tape's node for one run of an entry.
//
// Note [Freed in parts]. The ops of the recording free what they saved as on the eager tape: those through which a
// backward goes, and no others. So another output, or a part that grad() left out, may go backward later; an op that
// has freed already throws, by its own name and line. An op that saves nothing, such as a view, never throws. The
// memory goes when no output that somebody may still use leads to an op that has something to free. For that, each
// output has a port: its history owns the port, and the port owns the node.
class CompiledNode final : public RegionNode {
 public:
  CompiledNode(std::shared_ptr<const Binding> binding, std::span<const Tensor> inputs, std::span<const Tensor> results)
      : binding_(std::move(binding)), entry_(binding_->entry().get()) {
    n_outputs = entry_->n_outputs;
    edges.resize(inputs.size());
    for (int i : entry_->backward.grad_inputs)
      edges[static_cast<size_t>(i)] = autograd::gradient_edge(inputs[static_cast<size_t>(i)]);
    auto saved = std::make_shared<Saved>();
    saved->inputs.reserve(inputs.size());
    for (const Tensor& input : inputs) saved->inputs.emplace_back(input, false);
    for (const Partition::Kept& kept : entry_->partition->kept())
      if (!kept.is_input) saved->values.emplace_back(results[static_cast<size_t>(kept.index)], false);
      else saved->values.emplace_back();
    saved_ = std::move(saved);
    const Graph& graph = entry_->forward_graph;
    for (ValueId id : graph.outputs) differentiable_.push_back(graph.value(id).requires_grad);
    if (std::count(differentiable_.begin(), differentiable_.end(), true) > 1) ports_.resize(graph.outputs.size());
  }
  bool adds_to_totals() const override { return true; }
  std::vector<bool> leads_to(const std::vector<bool>& edges_asked, const std::vector<int>& outputs) const override {
    if (ports_.empty() && outputs.empty()) return {};
    return outputs_leading_to(entry_->forward_graph, edges_asked, outputs);
  }
  // The node, by the output's port.
  std::shared_ptr<Node> history(int output) override {
    std::shared_ptr<CompiledNode> node = self.lock();
    if (ports_.empty()) return node;
    std::lock_guard lock(mutex_);
    std::weak_ptr<Port>& port = ports_[static_cast<size_t>(output)];
    std::shared_ptr<Port> owner = port.lock();
    if (owner == nullptr) port = owner = std::make_shared<Port>(Port{std::move(node)});
    return {owner, this};
  }
  void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) override {
    std::vector<LeafGrad> none(grads_in.size());
    backward_onto(grads_out, grads_in, none);
  }
  void backward_onto(std::span<Tensor> grads_out, std::span<Tensor> grads_in, std::span<LeafGrad> leaf_grads) override {
    const memory::Cause cause(
        "backward of ", name(),
        entry_->forward_graph.nodes.empty() ? std::source_location() : entry_->forward_graph.nodes[0].where);
    Arriving arriving;
    for (const Tensor& grad : grads_out) arriving.gradients.push_back(grad.defined());
    Pass pass = begin(arriving.gradients);
    run(grads_out, grads_in, leaf_grads, arriving, pass);
    if (autograd::LastRead::now() && !pass.released) free(pass);
  }

 private:
  // What one run of the entry keeps for its backward. Other values than inputs stand in `values`, by position in
  // Partition::kept().
  struct Saved {
    std::vector<SavedTensor> inputs, values;
  };
  struct Port {
    std::shared_ptr<CompiledNode> node;
  };
  // One backward through the node.
  struct Pass {
    std::shared_ptr<const Saved> saved;
    std::optional<OpSet> ops;  // that it goes through; nothing: all that anybody may still use
    bool is_last = false;      // nothing is left for another one, unless the graph is retained
    bool released = false;     // from the node, before the run that writes over it
  };

  // Throws Error if an op in the way has freed what it saved. As on the eager tape, those before it free, too.
  Pass begin(const std::vector<bool>& outputs) {
    std::lock_guard lock(mutex_);
    const autograd::Asked* asked = autograd::Asked::now();
    Pass pass;
    pass.saved = saved_;
    const bool any_freed = all_freed_ || !freed_.empty();
    bool all = asked == nullptr;
    for (size_t i = 0; i < outputs.size(); ++i) all = all && (outputs[i] || !is_in_use(i));
    if (!all || any_freed)
      pass.ops = asked == nullptr ? ops_passed(entry_->forward_graph, outputs)
                                  : ops_passed(entry_->forward_graph, outputs, &asked->edges, asked->outputs);
    if (any_freed) {
      const OpSet saving = ops_that_save(entry_->forward_graph);
      for (size_t n = pass.ops->size(); n-- > 0;) {
        if (!(*pass.ops)[n] || !saving[n] || !(all_freed_ || freed_[n])) continue;
        if (autograd::LastRead::now())
          for (size_t before = n + 1; before < freed_.size(); ++before)
            freed_[before] = freed_[before] || (*pass.ops)[before];
        throw_freed(entry_->forward_graph.nodes[n]);
      }
    }
    pass.is_last = !pass.ops || !leaves_any(freed_and(*pass.ops));
    return pass;
  }
  // The ops in its way free what they saved.
  void free(const Pass& pass) {
    std::lock_guard lock(mutex_);
    if (pass.ops) freed_ = freed_and(*pass.ops);
    if (all_freed_ || (pass.ops && leaves_any(freed_))) return;
    auto nothing = std::make_shared<Saved>();
    nothing->inputs.resize(saved_->inputs.size());
    nothing->values.resize(saved_->values.size());
    saved_ = std::move(nothing);
    all_freed_ = true;
  }
  // A gradient may still come from this output.
  bool is_in_use(size_t output) const {
    return differentiable_[output] && (ports_.empty() || !ports_[output].expired());
  }
  OpSet freed_and(OpSet ops) const {
    for (size_t n = 0; n < freed_.size(); ++n) ops[n] = ops[n] || freed_[n];
    return ops;
  }
  // An output that is in use leads to an op that saves something and is not in `freed`.
  bool leaves_any(const OpSet& freed) const {
    std::vector<bool> in_use;
    for (size_t i = 0; i < differentiable_.size(); ++i) in_use.push_back(is_in_use(i));
    const OpSet useful = ops_passed(entry_->forward_graph, in_use), saving = ops_that_save(entry_->forward_graph);
    for (size_t n = 0; n < useful.size(); ++n)
      if (useful[n] && saving[n] && !freed[n]) return true;
    return false;
  }
  [[noreturn]] static void throw_freed(const GraphNode& node) {
    throw Error(absl::StrCat("backward of ", node.op->name,
                             ": its saved tensors were freed by an earlier backward; pass retain_graph = true to that "
                             "one",
                             describe_location(node.where)));
  }

  void run(std::span<Tensor> grads_out, std::span<Tensor> grads_in, std::span<LeafGrad> leaf_grads, Arriving& arriving,
           Pass& pass) {
    if (const char* why = why_replayed(); why != nullptr) {
      count(Outcome::kReplayed, why);
      return replay(*pass.saved, grads_out, grads_in);
    }
    // Several contributions are added one by one to what later consumers sent, as on the eager tape; so is that of an
    // op that adds onto it, as an embedding does. Another single one is added afterwards, or, for a leaf, added to its
    // .grad in place.
    std::vector<Tensor> leaves;
    const std::vector<bool> reached = pass.ops ? inputs_reached(entry_->forward_graph, *pass.ops) : std::vector<bool>();
    for (size_t i = 0; i < leaf_grads.size(); ++i)
      leaves.push_back(reached.empty() || reached[i] ? leaf_grads[i].grad() : Tensor());
    for (size_t i = 0; i < grads_in.size(); ++i) {
      const int contributions = entry_->backward.contributions[i];
      const bool adds_onto = entry_->backward.adds_onto[i];
      arriving.owned.push_back(leaves[i].defined() && contributions == 1 && !(adds_onto && entry_->options.exact) &&
                               like(leaves[i], entry_->forward_graph.value(entry_->forward_graph.inputs[i])) &&
                               overlaps(leaves[i], leaves) <= 1);
      arriving.totals.push_back(arriving.owned[i] || (grads_in[i].defined() && (contributions > 1 || adds_onto)));
    }
    const Binding::Backward bound = grads_in.empty() ? Binding::Backward() : binding_->backward_for(arriving);
    const std::shared_ptr<const CompiledBackward>& compiled = bound.compiled;
    const auto is_gone = [&](const BackwardInput& source) {
      if (source.kind != BackwardInput::kSaved || source.index < 0) return false;
      const SavedTensor& saved = kept(*pass.saved, static_cast<size_t>(source.index));
      return !saved.defined() || saved.overwritten();
    };
    if (!grads_in.empty() && compiled == nullptr) {
      count(Outcome::kEager, "a backward");
      return replay(*pass.saved, grads_out, grads_in);
    }
    // Replayed, the op that needs what was overwritten says so, by its own name and line. What was freed is needed only
    // by ops that this backward does not go through.
    if (!grads_in.empty() && std::any_of(compiled->inputs.begin(), compiled->inputs.end(), is_gone)) {
      count(Outcome::kReplayed, "overwritten or freed memory");
      return replay(*pass.saved, grads_out, grads_in);
    }
    autograd::apply_extras(*this, grads_out);
    if (grads_in.empty()) return;
    const CompiledBackward& backward = *compiled;
    std::vector<Tensor> inputs;
    inputs.reserve(backward.inputs.size());
    for (const BackwardInput& source : backward.inputs) {
      switch (source.kind) {
        case BackwardInput::kConstant: inputs.push_back(source.constant); break;
        case BackwardInput::kGradient:
          inputs.push_back(grads_out[static_cast<size_t>(source.index)].contiguous());
          break;
        case BackwardInput::kTotal: {
          const auto at = static_cast<size_t>(source.index);
          inputs.push_back(arriving.owned[at] ? leaves[at] : grads_in[at].contiguous());
          break;
        }
        case BackwardInput::kSaved:
          inputs.push_back(source.index < 0 ? Tensor()
                                            : kept(*pass.saved, static_cast<size_t>(source.index)).get(name(), {}));
          break;
      }
    }
    // The user may have passed a leaf's .grad as another input of this run, too; that input must keep its values.
    for (size_t k = 0; k < inputs.size(); ++k) {
      const BackwardInput& source = backward.inputs[k];
      if (source.kind == BackwardInput::kTotal && arriving.owned[static_cast<size_t>(source.index)] &&
          overlaps(inputs[k], inputs) > 1)
        inputs[k] = inputs[k].clone();
    }
    // Released before the run, which overwrites saved tensors: if it throws, no later backward may read them.
    if (backward.program->reuses_inputs() && autograd::LastRead::now() && pass.is_last) {
      free(pass);
      pass.released = true;
      pass.saved = nullptr;
    }
    count(Outcome::kCompiled);
    const std::vector<Tensor> grads = pass.released ? backward.program->run_and_release(std::move(inputs), bound.floats)
                                                    : backward.program->run(inputs, bound.floats);
    for (size_t i = 0; i < grads.size(); ++i) {
      const auto at = static_cast<size_t>(backward.grad_inputs[i]);
      if (arriving.owned[at]) {
        if (grads[i].storage() == leaves[at].storage()) leaves[at].storage().bump_version();
        else leaves[at].copy_(grads[i]);
        leaf_grads[at].added = true;
        continue;
      }
      grads_in[at] = grads_in[at].defined() && !arriving.totals[at] ? grads_in[at] + grads[i] : grads[i];
    }
  }

  static bool like(const Tensor& tensor, const Value& value) {
    return tensor.dtype() == value.dtype && tensor.sizes() == value.sizes;
  }
  // How many of `others` reach into the memory of a dense tensor, itself among them.
  static int64_t overlaps(const Tensor& tensor, std::span<const Tensor> others) {
    const auto extent = [](const Tensor& t) {
      int64_t last = 0;
      for (int d = 0; d < t.rank(); ++d) last += (t.sizes()[d] - 1) * t.strides()[d];
      const int64_t size = static_cast<int64_t>(size_of(t.dtype())), begin = t.storage_offset() * size;
      return std::pair(begin, t.numel() == 0 ? begin : begin + (last + 1) * size);
    };
    const auto [begin, end] = extent(tensor);
    return std::count_if(others.begin(), others.end(), [&, begin = begin, end = end](const Tensor& other) {
      if (!other.defined() || !(other.storage() == tensor.storage())) return false;
      const auto [from, to] = extent(other);
      return from < end && begin < to;
    });
  }
  const SavedTensor& kept(const Saved& saved, size_t i) const {
    const Partition::Kept& kept = entry_->partition->kept()[i];
    return kept.is_input ? saved.inputs[static_cast<size_t>(kept.index)] : saved.values[i];
  }

  // The reason to replay this backward op by op, which does not depend on what arrives; null: run it compiled.
  const char* why_replayed() const {
    if (grad_enabled()) return "gradients with a history";
    if (watches_inside()) return "a hook inside the region";
    if (autograd::detecting_anomaly()) return "DetectAnomaly";
    return nullptr;
  }
  // True if a hook or retain_grad() asks for the gradient of an output from which other outputs are computed.
  bool watches_inside() const {
    for (const OutputExtras& extra : extras) {
      if (extra.hooks.empty() && extra.retained.expired()) continue;
      const ValueId watched = entry_->forward_graph.outputs[static_cast<size_t>(extra.output)];
      for (const GraphNode& node : entry_->forward_graph.nodes)
        if (std::count(node.inputs.begin(), node.inputs.end(), watched) > 0) return true;
    }
    return false;
  }

  // By value: whether something that requires a gradient is computed from it. Other values may be stale.
  std::vector<bool> leads_to_gradients() const {
    const Graph& graph = entry_->forward_graph;
    std::vector<bool> needed(graph.values.size(), false);
    for (ValueId id : graph.outputs) needed[static_cast<size_t>(id)] = graph.value(id).requires_grad;
    for (int i : entry_->backward.grad_inputs) needed[static_cast<size_t>(graph.inputs[static_cast<size_t>(i)])] = true;
    for (size_t n = graph.nodes.size(); n-- > 0;) {
      const GraphNode& node = graph.nodes[n];
      if (std::none_of(node.outputs.begin(), node.outputs.end(),
                       [&](ValueId id) { return needed[static_cast<size_t>(id)]; }))
        continue;
      for (ValueId id : node.inputs)
        if (id != kNoValue) needed[static_cast<size_t>(id)] = true;
    }
    return needed;
  }

  // One replay. A replay has two differences to eager execution: it reads inputs that eager execution has no more use
  // for, and it is another tape than the one on which the region's outputs stand.
  class Replayed {
   public:
    Replayed(const CompiledNode& node, const Saved& saved, bool create_graph)
        : node_(node),
          saved_(saved),
          create_graph_(create_graph),
          values_(graph().values.size()),
          stale_(graph().values.size(), false) {
      const std::vector<bool> needed = node.leads_to_gradients();
      for (size_t i = 0; i < graph().inputs.size(); ++i)
        if (const ValueId id = graph().inputs[i]; needed[static_cast<size_t>(id)]) read_input(i, id);
      // Gradients stop at views of the inputs, not at the inputs: one input may be computed from another.
      for (int i : node.entry_->backward.grad_inputs) {
        const ValueId id = graph().inputs[static_cast<size_t>(i)];
        if (stale_[static_cast<size_t>(id)]) continue;
        Dims same;
        for (int d = 0; d < value(id).rank(); ++d) same.push_back(d);
        value(id) = ops::permute(value(id), same);
      }
      compile::run_eagerly(graph(), values_, &needed, [this](const GraphNode& made) { after(made); });
    }
    Tensor& value(ValueId id) { return values_[static_cast<size_t>(id)]; }

    // From now on, a gradient rule that reads what was overwritten says so.
    void mark_overwritten() {
      for (size_t i = 0; i < graph().inputs.size(); ++i)
        if (const ValueId id = graph().inputs[i]; stale_[static_cast<size_t>(id)]) value(id).storage().bump_version();
      for (ValueId id : graph().outputs)
        if (const int32_t at = kept_value(id); at >= 0 && saved_.values[static_cast<size_t>(at)].overwritten())
          value(id).storage().bump_version();
    }
    // And one that reads what is computed from it, which eager execution might still have.
    bool has_stale() const { return any_stale_; }
    void mark_stale() {
      for (size_t id = 0; id < values_.size(); ++id)
        if (stale_[id] && values_[id].defined()) values_[id].storage().bump_version();
    }

    // After the replay went backward: see Passage.
    void lead_outputs_to(CompiledNode& region) {
      for (const auto& [passage, result, output] : passages_) {
        passage->extras.clear();
        passage->edges[static_cast<size_t>(result)] = {region.history(output), output};
      }
    }

   private:
    const Graph& graph() const { return node_.binding_->graph(); }

    void read_input(size_t i, ValueId id) {
      const SavedTensor& saved = saved_.inputs[i];
      if (saved.defined() && !saved.overwritten()) {
        value(id) = saved.get("a compiled region", {});
        return;
      }
      // What was computed from it may still be there, and its own values may be of no further use.
      value(id) = zeros_like(graph().value(id), node_.entry_->device);
      if (node_.edges[i].node != nullptr) {
        const auto passage = std::make_shared<Passage>(1);
        passage->edges[0] = node_.edges[i];
        autograd::set_history(value(id), passage, 0);
      }
      stale_[static_cast<size_t>(id)] = any_stale_ = true;
    }

    void after(const GraphNode& made) {
      const auto is_stale = [this](ValueId id) { return id != kNoValue && stale_[static_cast<size_t>(id)]; };
      if (any_stale_ && std::any_of(made.inputs.begin(), made.inputs.end(), is_stale))
        for (ValueId id : made.outputs) {
          if (made.op->kind != OpKind::kView && restore(id)) continue;
          stale_[static_cast<size_t>(id)] = true;
          // Its version will change, which is no reason to look at its base again.
          if (value(id).impl()->autograd != nullptr) value(id).impl()->autograd->base = Tensor();
        }
      if (create_graph_) put_passage(made);
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
      const int32_t at = node_.entry_->partition->kept_index(id);
      return at < 0 || node_.entry_->partition->kept()[static_cast<size_t>(at)].is_input ? -1 : at;
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
    const CompiledNode& node_;
    const Saved& saved_;
    const bool create_graph_;
    std::vector<Tensor> values_;
    std::vector<bool> stale_;  // by value: computed from an input that was overwritten
    bool any_stale_ = false;
    std::vector<Led> passages_;
  };

  // For second derivatives, hooks inside the region and DetectAnomaly: the recording runs again, op by op, on the eager
  // tape.
  void replay(const Saved& saved, std::span<const Tensor> grads_out, std::span<Tensor> grads_in) {
    RecorderScope eager(nullptr);
    const bool create_graph = grad_enabled();
    GradMode on(true);
    const Graph& graph = entry_->forward_graph;
    Replayed replayed(*this, saved, create_graph);
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
    for (int i : entry_->backward.grad_inputs) {
      if (asked != nullptr && !asked->edges[static_cast<size_t>(i)]) continue;
      asked_inputs.push_back(i);
      targets.push_back(replayed.value(graph.inputs[static_cast<size_t>(i)]));
    }
    if (asked != nullptr)
      for (int i : asked->outputs) targets.push_back(replayed.value(graph.outputs[static_cast<size_t>(i)]));
    replayed.mark_overwritten();
    if (replayed.has_stale()) {
      // First without the others, so that the error is that of eager execution, if there is one.
      autograd::grad(roots, targets, seeds, true, false, true);
      replayed.mark_stale();
    }
    for (const OutputExtras& extra : extras) {
      Tensor& value = replayed.value(graph.outputs[static_cast<size_t>(extra.output)]);
      if (!value.defined() || !value.requires_grad()) continue;
      for (const Hook& hook : extra.hooks) value.register_hook(hook.fn);
      if (const auto slot = extra.retained.lock())
        value.register_hook([slot](const Tensor& grad) {
          autograd::retain(*slot, grad);
          return Tensor();
        });
    }
    for (int i : entry_->backward.grad_inputs) {
      if (grads_in.empty() || !grads_in[static_cast<size_t>(i)].defined()) continue;
      // The gradient from later consumers comes first in the sum.
      roots.push_back(replayed.value(graph.inputs[static_cast<size_t>(i)]));
      seeds.push_back(grads_in[static_cast<size_t>(i)]);
    }
    const std::vector<Tensor> grads = autograd::grad(roots, targets, seeds, true, create_graph, true);
    replayed.lead_outputs_to(*this);
    for (size_t i = 0; i < asked_inputs.size() && !grads_in.empty(); ++i)
      if (grads[i].defined()) grads_in[static_cast<size_t>(asked_inputs[i])] = grads[i];
  }

  std::shared_ptr<const Binding> binding_;
  const Entry* entry_;                // of binding_
  std::vector<bool> differentiable_;  // by output
  std::mutex mutex_;                  // guards the rest: two threads may go backward through two outputs
  std::shared_ptr<const Saved> saved_;
  bool all_freed_ = false;                  // nothing in `saved_` is defined any more
  OpSet freed_;                             // empty: none
  std::vector<std::weak_ptr<Port>> ports_;  // by output; empty: there is but one to go backward from

 public:
  std::weak_ptr<CompiledNode> self;
};

}  // namespace

std::shared_ptr<RegionNode> make_compiled_node(std::shared_ptr<const Binding> binding, std::span<const Tensor> inputs,
                                               std::span<const Tensor> results) {
  auto node = std::make_shared<CompiledNode>(std::move(binding), inputs, results);
  node->self = node;
  return node;
}

namespace {
class FailedRun final : public RegionNode, public std::enable_shared_from_this<FailedRun> {
 public:
  FailedRun(std::shared_ptr<const Binding> binding, std::span<const Tensor> inputs) : binding_(std::move(binding)) {
    const Graph& graph = binding_->graph();
    n_outputs = static_cast<int>(graph.outputs.size());
    edges.resize(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      saved_.emplace_back(inputs[i], false);
      if (graph.value(graph.inputs[i]).requires_grad) edges[i] = autograd::gradient_edge(inputs[i]);
    }
  }
  std::shared_ptr<Node> history(int) override { return shared_from_this(); }

  void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) override {
    autograd::apply_extras(*this, grads_out);
    if (grads_in.empty()) return;
    count(Outcome::kReplayed, "a run that failed");
    const Graph& graph = binding_->graph();
    RecorderScope eager(nullptr);
    const bool create_graph = grad_enabled();
    GradMode on(true);
    std::vector<bool> wanted(graph.values.size(), false);  // by value
    for (size_t i = 0; i < grads_out.size(); ++i)
      if (grads_out[i].defined()) wanted[static_cast<size_t>(graph.outputs[i])] = true;
    const auto is_wanted = [&](ValueId id) { return wanted[static_cast<size_t>(id)]; };
    for (size_t n = graph.nodes.size(); n-- > 0;) {
      const GraphNode& node = graph.nodes[n];
      if (std::none_of(node.outputs.begin(), node.outputs.end(), is_wanted)) continue;
      for (ValueId id : node.inputs)
        if (id != kNoValue) wanted[static_cast<size_t>(id)] = true;
    }
    std::vector<Tensor> values(graph.values.size()), targets, roots, seeds;
    std::vector<size_t> positions;  // of the targets, among the inputs
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      if (!is_wanted(graph.inputs[i])) continue;
      Tensor& value = values[static_cast<size_t>(graph.inputs[i])] = saved_[i].get(name(), {});
      if (edges[i].node == nullptr) continue;
      // Gradients stop at views of the inputs: one input may be computed from another.
      Dims same;
      for (int d = 0; d < value.rank(); ++d) same.push_back(d);
      targets.push_back(value = ops::permute(value, same));
      positions.push_back(i);
    }
    compile::run_eagerly(graph, values, &wanted);
    for (size_t i = 0; i < grads_out.size(); ++i) {
      if (!grads_out[i].defined()) continue;
      roots.push_back(values[static_cast<size_t>(graph.outputs[i])]);
      seeds.push_back(grads_out[i]);
    }
    const std::vector<Tensor> grads = autograd::grad(roots, targets, seeds, true, create_graph, true);
    for (size_t i = 0; i < grads.size(); ++i) grads_in[positions[i]] = grads[i];
  }

 private:
  std::shared_ptr<const Binding> binding_;
  std::vector<SavedTensor> saved_;
};
}  // namespace

std::shared_ptr<RegionNode> make_node_of_failed_run(std::shared_ptr<const Binding> binding,
                                                    std::span<const Tensor> inputs) {
  return std::make_shared<FailedRun>(std::move(binding), inputs);
}

}  // namespace rondo::compile
