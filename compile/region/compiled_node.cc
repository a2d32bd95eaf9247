#include "rondo/compile/region/compiled_node.h"

#include <algorithm>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "rondo/compile/exec/check_units.h"
#include "rondo/compile/region/check_floats.h"
#include "rondo/compile/region/eager_backward.h"
#include "rondo/compile/region/kept_values.h"
#include "rondo/compile/stages/outcomes.h"
#include "rondo/compile/transform/passed_ops.h"
#include "rondo/runtime/autograd/anomaly.h"
#include "rondo/runtime/autograd/backward.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/autograd/hooks.h"
#include "rondo/runtime/autograd/node_scope.h"
#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/ops/lookup.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/tensor/memory_order.h"

namespace rondo::compile {
namespace {

bool like(const Tensor& tensor, const Value& value) {
  return tensor.dtype() == value.dtype && tensor.sizes() == value.sizes;
}

// Counts the tensors of `others`, `tensor` itself among them, that overlap the memory of the dense `tensor`.
int64_t overlaps(const Tensor& tensor, std::span<const Tensor> others) {
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

// Throws because the recording itself has overwritten what the gradient of `call` reads.
[[noreturn]] void throw_stale(const GraphNode& call) {
  throw StaleTensorError(
      absl::StrCat("backward of ", call.op->name,
                   ": a tensor that the gradient needs was overwritten in place in the same compiled "
                   "region; clone it before the write",
                   describe_location(call.where)));
}

// The inputs of a backward that are also held outside: code that gets gradients at a seam (plan/seams.h) may write
// to these inputs.
class SharedInputs {
 public:
  SharedInputs(const CompiledBackward& backward, std::span<const Tensor> inputs) : plan_(backward.program->plan()) {
    for (size_t k = 0; k < inputs.size(); ++k)
      if (backward.inputs[k].kind == BackwardInput::kSaved && inputs[k].defined() &&
          !autograd::is_only_holder(inputs[k]))
        read_.emplace_back(k, SavedTensor(inputs[k], false));
  }
  // Throws StaleTensorError if an input that is still read after the seam was overwritten.
  void check(const Plan::Seam& seam, const char* node) const {
    for (const auto& [input, saved] : read_)
      if (plan_.last_launch[input] >= seam.launch) saved.get(node, {});
  }

 private:
  const Plan& plan_;
  std::vector<std::pair<size_t, SavedTensor>> read_;
};

class CompiledNode final : public RegionNode, public std::enable_shared_from_this<CompiledNode> {
 public:
  CompiledNode(std::shared_ptr<const Binding> binding, std::span<const Tensor> inputs, std::span<const Tensor> results)
      : binding_(std::move(binding)), entry_(*binding_->entry()), kept_(entry_, inputs, results) {
    n_outputs = static_cast<int>(entry_.recording().outputs.size());
    edges.resize(inputs.size());
    for (int i : entry_.backward().grad_inputs)
      edges[static_cast<size_t>(i)] = autograd::gradient_edge(inputs[static_cast<size_t>(i)]);
  }
  bool adds_to_totals() const override { return true; }
  std::vector<bool> leads_to(const std::vector<bool>& requested_edges, const std::vector<int>& outputs) const override {
    if (!kept_.has_ports() && outputs.empty()) return {};
    return outputs_leading_to(entry_.recording(), requested_edges, outputs);
  }
  // Returns this node, owned through the output's port.
  std::shared_ptr<Node> history(int output) override {
    const std::shared_ptr<void> port = kept_.port(output, shared_from_this());
    if (port == nullptr) return shared_from_this();
    return {port, this};
  }
  void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) override {
    std::vector<LeafGrad> none(grads_in.size());
    backward_onto(grads_out, grads_in, none);
  }
  void backward_onto(std::span<Tensor> grads_out, std::span<Tensor> grads_in, std::span<LeafGrad> leaf_grads) override {
    const memory::Cause cause(
        "backward of ", name(),
        entry_.recording().nodes.empty() ? std::source_location() : entry_.recording().nodes[0].where);
    Arriving arriving;
    arriving.gradients.reserve(grads_out.size());
    for (const Tensor& grad : grads_out) arriving.gradients.push_back(grad.defined());
    KeptValues::Pass pass;
    {
      std::lock_guard lock(replace_mutex_);
      if (!replaced) pass = kept_.begin(arriving.gradients);
      if (!replaced && grad_enabled()) replace(pass, grads_out);
    }
    // A backward that had counted this node before the node was replaced still calls it, and runs the replacing tape.
    if (replaced) return tape_->backward(grads_out, grads_in, !autograd::LastRead::now());
    if (const char* why = why_replayed(arriving, pass); why != nullptr)
      backward_eagerly(Outcome::kReplayed, why, grads_out, grads_in, pass);
    else run(grads_out, grads_in, leaf_grads, arriving, pass);
    if (autograd::LastRead::now() && !pass.released) kept_.free(pass);
  }
  const Edge& successor(int output) const override { return tape_->output(output); }

 private:
  // Note [A tape for gradients with a history]. The second derivative of a region is that of its ops, so the recording
  // runs again on the eager tape. Gradients of a second derivative reach the region in two ways: through its results,
  // and through the tensors that its ops have saved. On the eager tape both meet at the ops. If the region's node and
  // the replay's tape both remained, the gradients would not meet, and each op, even a collective, would go backward
  // twice. So the replay's tape replaces this node (Note [Replaced nodes] in runtime/autograd/autograd.h), and the
  // region goes backward eagerly from then on.
  void replace(const KeptValues::Pass& pass, std::span<const Tensor> grads_out) {
    count(Outcome::kReplayed, "gradients with a history");
    tape_ = replay(*this, binding_, pass, grads_out);
    tape_->add(extras);
    replaced = true;
    extras.clear();
    kept_.free_all();
  }
  // Runs this one backward op by op, on an eager tape that is made for it.
  void backward_eagerly(Outcome outcome, const char* why, std::span<const Tensor> grads_out, std::span<Tensor> grads_in,
                        const KeptValues::Pass& pass) {
    count(outcome, why);
    const std::shared_ptr<const EagerTape> tape = replay(*this, binding_, pass, grads_out);
    tape->add(extras);
    tape->backward(grads_out, grads_in, /*retain_graph=*/true);
  }
  // Returns the reason to go backward op by op, for this one backward; null: run it compiled.
  const char* why_replayed(const Arriving& arriving, const KeptValues::Pass& pass) const {
    if (watches_inside()) return "a hook inside the region";
    if (leaves_out_collectives(arriving, pass)) return "a collective that grad() does not ask for";
    if (autograd::detecting_anomaly()) return "DetectAnomaly";
    return nullptr;
  }
  // True if a hook or retain_grad() asks for the gradient of an output from which other outputs are computed. Also true
  // if a hook, which may send messages itself, would run before collectives that follow it in eager execution.
  bool watches_inside() const {
    for (const OutputExtras& extra : extras) {
      if (extra.hooks.empty() && extra.retained.expired()) continue;
      const ValueId watched = entry_.recording().outputs[static_cast<size_t>(extra.output)];
      const int32_t producer = entry_.recording().value(watched).producer;
      for (size_t n = 0; n < entry_.recording().nodes.size(); ++n) {
        const GraphNode& node = entry_.recording().nodes[n];
        if (std::count(node.inputs.begin(), node.inputs.end(), watched) > 0) return true;
        if (node.op->is<trait::Exchange>() && static_cast<int32_t>(n) > producer && !extra.hooks.empty()) return true;
      }
    }
    return false;
  }
  // True if a collective must not run. The program of a backward computes the gradients of all inputs. In eager
  // execution, a collective does not run if grad() requests only gradients that do not need it.
  bool leaves_out_collectives(const Arriving& arriving, const KeptValues::Pass& pass) const {
    if (!entry_.communicates() || autograd::RequestedGradients::now() == nullptr) return false;
    const OpSet all = ops_passed(entry_.recording(), arriving.gradients);
    for (size_t n = 0; n < all.size(); ++n)
      if (all[n] && !(*pass.ops)[n] && entry_.recording().nodes[n].op->is<trait::Exchange>()) return true;
    return false;
  }

  void run(std::span<Tensor> grads_out, std::span<Tensor> grads_in, std::span<LeafGrad> leaf_grads, Arriving& arriving,
           KeptValues::Pass& pass) {
    const std::vector<Tensor> leaves = leaves_reached(leaf_grads, pass);
    choose_totals(grads_in, leaves, arriving);
    choose_seams(leaf_grads, arriving);
    if (entry_.options().exact) note_layouts(grads_out, arriving);
    const Binding::Backward bound = grads_in.empty() ? Binding::Backward() : binding_->backward_for(arriving);
    if (bound.compiled != nullptr && checks_floats()) check_backward_floats(*binding_, bound, arriving);
    const auto is_gone = [&](const BackwardInput& source) {
      if (source.kind != BackwardInput::kSaved || source.index < 0) return false;
      const SavedTensor& saved = kept(*pass.saved, static_cast<size_t>(source.index));
      return !saved.defined() || saved.overwritten();
    };
    if (!grads_in.empty() && bound.compiled == nullptr)
      return backward_eagerly(Outcome::kEager, "a backward", grads_out, grads_in, pass);
    if (!grads_in.empty() && bound.compiled->stale_for >= 0)
      throw_stale(entry_.recording().node(bound.compiled->stale_for));
    // If a saved tensor was overwritten or freed, goes backward op by op. Then the op that needs an overwritten tensor
    // throws, with its own name and line. Freed tensors are needed only by ops that this backward does not go through.
    if (!grads_in.empty() && std::any_of(bound.compiled->inputs.begin(), bound.compiled->inputs.end(), is_gone))
      return backward_eagerly(Outcome::kReplayed, "overwritten or freed memory", grads_out, grads_in, pass);
    autograd::apply_extras(*this, grads_out);
    if (grads_in.empty()) return;
    const CompiledBackward& backward = *bound.compiled;
    std::vector<Tensor> inputs = inputs_of(backward, grads_out, grads_in, leaves, arriving, *pass.saved);
    if (backward.program->reuses_inputs() && autograd::LastRead::now() && pass.is_last) kept_.release(pass);
    count(Outcome::kCompiled);
    const std::vector<Tensor> homes = homes_of(backward, grads_in, leaf_grads, arriving);
    const auto pass_on = [&](size_t i, Tensor grad) {
      const auto at = static_cast<size_t>(backward.grad_inputs[i]);
      if (arriving.owned[at]) {
        Tensor leaf = leaves[at];
        if (grad.storage() == leaf.storage()) leaf.storage().bump_version();
        else leaf.copy_(grad);
        leaf_grads[at].added = true;
        return;
      }
      if (i < homes.size() && homes[i].defined() && grad.storage() == homes[i].storage()) {
        homes[i].storage().bump_version();
        leaf_grads[at].added = true;
        return;
      }
      if (grads_in[at].defined() && !arriving.totals[at]) grads_in[at] = grads_in[at] + grad;
      else grads_in[at] = std::move(grad);
    };
    const auto take_gradient = [&](size_t i, Tensor grad) {
      const auto at = static_cast<size_t>(backward.grad_inputs[i]);
      pass_on(i, std::move(grad));
      if (comes_in_parts(at, arriving)) autograd::give_part(leaf_grads[at], grads_in[at]);
      else if (arriving.at_seams) autograd::complete_leaf(leaf_grads[at], grads_in[at]);
    };
    TakeResults take;
    if (arriving.at_seams)
      take = [&, shared = SharedInputs(backward, inputs)](const Plan::Seam& seam, std::vector<Tensor> results) {
        for (size_t r = 0; r < results.size(); ++r)
          take_gradient(static_cast<size_t>(seam.outputs[r]), std::move(results[r]));
        shared.check(seam, name());
      };
    std::vector<Tensor> results = pass.released
                                      ? run_and_release_checked(*backward.program, std::move(inputs), bound.floats,
                                                                homes, take)
                                      : run_checked(*backward.program, inputs, bound.floats, nullptr, homes, take);
    const auto take_rest = [&](size_t i) {
      if (i < backward.grad_inputs.size() && results[i].defined()) take_gradient(i, std::move(results[i]));
    };
    for (const Plan::Seam& seam : backward.program->plan().seams)  // results that a check has held back
      for (const int32_t output : seam.outputs) take_rest(static_cast<size_t>(output));
    for (size_t i = 0; i < results.size(); ++i) take_rest(i);
    if (!backward.rows.empty()) end_in_rows(backward, results, grads_in, leaf_grads);
  }

  // Decides whether gradients leave at seams: they do if an averager or an optimizer waits for one. Also decides which
  // gradients leave in parts: those for which an averager asks for parts.
  void choose_seams(std::span<const LeafGrad> leaf_grads, Arriving& arriving) const {
    arriving.at_seams = !entry_.parts().empty() && std::any_of(leaf_grads.begin(), leaf_grads.end(),
                                                               [](const auto& to) { return autograd::is_awaited(to); });
    if (!arriving.at_seams) return;
    for (const int32_t input : entry_.may_split())
      if (const auto at = static_cast<size_t>(input); autograd::comes_in_parts(leaf_grads[at])) {
        arriving.in_parts.resize(leaf_grads.size());
        arriving.in_parts[at] = true;
      }
  }
  static bool comes_in_parts(size_t input, const Arriving& arriving) {
    return !arriving.in_parts.empty() && arriving.in_parts[input];
  }

  // Hands over the last contributions as rows, as the gradient rules of lookups make them: Note [Gradients in parts] in
  // runtime/autograd/accumulate_node.h.
  void end_in_rows(const CompiledBackward& backward, std::span<const Tensor> results, std::span<Tensor> grads_in,
                   std::span<const LeafGrad> leaf_grads) const {
    for (size_t r = 0; r < backward.rows.size(); ++r) {
      const auto& [input, rows_at, indices_at] = backward.rows[r];
      const LeafGrad& to = leaf_grads[static_cast<size_t>(input)];
      Tensor& total = grads_in[static_cast<size_t>(input)];
      const Tensor &rows = results[static_cast<size_t>(rows_at)], &indices = results[static_cast<size_t>(indices_at)];
      if (!autograd::offer_rows(to, rows, indices)) {
        const Value& table = entry_.recording().value(entry_.recording().inputs[static_cast<size_t>(input)]);
        if (!total.defined()) total = Tensor::zeros(table.sizes, {table.dtype, rows.device()});
        else if (!autograd::may_overwrite(total)) total = total.clone();
        ops::add_rows(total, rows, indices);
      }
      const bool is_last = std::none_of(backward.rows.begin() + static_cast<std::ptrdiff_t>(r) + 1, backward.rows.end(),
                                        [&](const auto& other) { return other.input == input; });
      if (is_last) autograd::complete_leaf(to, total);
      else if (total.defined()) autograd::give_part(to, total);
    }
  }

  // Returns, for each gradient that the program computes, the memory in which it becomes a leaf's .grad
  // (autograd::GradientHome), or undefined. Empty: all are undefined.
  static std::vector<Tensor> homes_of(const CompiledBackward& backward, std::span<const Tensor> grads_in,
                                      std::span<const LeafGrad> leaf_grads, const Arriving& arriving) {
    std::vector<Tensor> homes(backward.grad_inputs.size());
    bool any = false;
    for (size_t i = 0; i < homes.size(); ++i) {
      const auto at = static_cast<size_t>(backward.grad_inputs[i]);
      if (leaf_grads[at].leaf == nullptr || arriving.owned[at] || grads_in[at].defined() ||
          comes_in_parts(at, arriving))
        continue;
      homes[i] = autograd::gradient_home(*leaf_grads[at].leaf);
      any = any || homes[i].defined();
    }
    return any ? homes : std::vector<Tensor>();
  }

  // Returns, for each input, its .grad if the input is a leaf that this backward reaches, otherwise undefined.
  std::vector<Tensor> leaves_reached(std::span<LeafGrad> leaf_grads, const KeptValues::Pass& pass) const {
    std::vector<Tensor> leaves;
    leaves.reserve(leaf_grads.size());
    const std::vector<bool> reached = pass.ops ? inputs_reached(entry_.recording(), *pass.ops) : std::vector<bool>();
    for (size_t i = 0; i < leaf_grads.size(); ++i)
      leaves.push_back(reached.empty() || reached[i] ? leaf_grads[i].grad() : Tensor());
    return leaves;
  }

  // Chooses the inputs for which the program adds to the gradient so far. As on the eager tape, several contributions
  // are added one by one to the gradient from later consumers. An op that adds onto an operand, as an embedding does,
  // also adds to the gradient so far. Any other single contribution is added after the run, or, for a leaf, to its
  // .grad in place.
  void choose_totals(std::span<const Tensor> grads_in, const std::vector<Tensor>& leaves, Arriving& arriving) const {
    arriving.owned.reserve(grads_in.size());
    arriving.totals.reserve(grads_in.size());
    for (size_t i = 0; i < grads_in.size(); ++i) {
      const auto [parts, adds_onto] = entry_.backward().contributions[i];
      arriving.owned.push_back(leaves[i].defined() && parts == 1 && !(adds_onto && entry_.options().exact) &&
                               like(leaves[i], entry_.recording().value(entry_.recording().inputs[i])) &&
                               overlaps(leaves[i], leaves) <= 1);
      arriving.totals.push_back(arriving.owned[i] || (grads_in[i].defined() && (parts > 1 || adds_onto)));
    }
  }

  // Notes the gradients that arrive in another layout than the outputs have: the order of sums follows the layout.
  // Without `exact` such a gradient is copied instead.
  void note_layouts(std::span<const Tensor> grads_out, Arriving& arriving) const {
    for (size_t i = 0; i < grads_out.size(); ++i) {
      const Value& output = entry_.recording().value(entry_.recording().outputs[i]);
      if (!grads_out[i].defined() || lies_channels_last(grads_out[i]) == lies_channels_last(output)) continue;
      arriving.in_other_layout.resize(grads_out.size());
      arriving.in_other_layout[i] = true;
    }
  }

  // Returns the operands of the backward's program.
  std::vector<Tensor> inputs_of(const CompiledBackward& backward, std::span<const Tensor> grads_out,
                                std::span<const Tensor> grads_in, const std::vector<Tensor>& leaves,
                                const Arriving& arriving, const KeptValues::Tensors& saved) const {
    std::vector<Tensor> inputs;
    inputs.reserve(backward.inputs.size());
    const Graph& graph = backward.program->graph();
    for (size_t k = 0; k < backward.inputs.size(); ++k) {
      const BackwardInput& source = backward.inputs[k];
      const auto at = static_cast<size_t>(source.index);
      const auto as_expected = [&](const Tensor& grad) {
        return with_strides(grad, graph.value(graph.inputs[k]).strides);
      };
      switch (source.kind) {
        case BackwardInput::kConstant: inputs.push_back(source.constant); break;
        case BackwardInput::kGradient: inputs.push_back(as_expected(grads_out[at])); break;
        case BackwardInput::kTotal:
          inputs.push_back(arriving.owned[at] ? leaves[at] : as_expected(grads_in[at]));
          break;
        case BackwardInput::kSaved:
          inputs.push_back(source.index < 0 ? Tensor() : kept(saved, at).get(name(), {}));
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
    return inputs;
  }

  const SavedTensor& kept(const KeptValues::Tensors& saved, size_t i) const {
    const Partition::Kept& kept = entry_.partition()->kept()[i];
    return kept.is_input ? saved.inputs[static_cast<size_t>(kept.index)] : saved.values[i];
  }

  std::shared_ptr<const Binding> binding_;
  const Entry& entry_;  // of binding_
  KeptValues kept_;
  std::mutex replace_mutex_;               // held until a backward has taken its saved values, or has replaced this
                                           // node
  std::shared_ptr<const EagerTape> tape_;  // the tape that replaces this node; once set, it does not change
};

}  // namespace

std::shared_ptr<RegionNode> make_compiled_node(std::shared_ptr<const Binding> binding, std::span<const Tensor> inputs,
                                               std::span<const Tensor> results) {
  return std::make_shared<CompiledNode>(std::move(binding), inputs, results);
}

}  // namespace rondo::compile
