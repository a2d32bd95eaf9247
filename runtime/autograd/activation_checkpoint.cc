// Activation checkpointing: the tensors that a function would save are computed again in its backward.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/accumulate_node.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/autograd/backward.h"
#include "rondo/runtime/autograd/collective_log.h"
#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/random/random.h"

namespace rondo::autograd {

namespace {

// Runs `fn` again, with gradients, in its backward. Its edges are those of the inputs, followed by one for each leaf
// that fn captures. No gradient flows along the edges to captured leaves: the inner backward adds these gradients to
// .grad. The edges only make a leaf wait for this node, so that the leaf's callbacks run once, when all uses of the
// leaf have contributed.
class CheckpointNode final : public Node {
 public:
  using Fn = std::function<std::vector<Tensor>(std::span<const Tensor>)>;
  CheckpointNode(Fn fn, std::span<const Tensor> inputs) : fn_(std::move(fn)) {
    autocast_ = amp::autocast_dtype();
    for (const Tensor& input : inputs) {
      inputs_.emplace_back(input, false);
      edges.push_back(input.defined() && input.requires_grad() ? gradient_edge(input) : Edge{});
    }
    n_inputs_ = edges.size();
  }
  const char* name() const override { return "checkpoint"; }
  // Runs fn for the first time, without gradients.
  std::vector<Tensor> run(std::span<const Tensor> inputs) {
    const NoGrad off;
    const GeneratorScope note(GeneratorScope::kNote, generators_);
    const CollectiveScope note_sums(CollectiveScope::kNote, collectives_);
    const LeafNotes read(*this, inputs);
    std::vector<Tensor> outputs = fn_(inputs);
    for (const Tensor& leaf : read.leaves()) {
      Edge edge = gradient_edge(leaf);
      if (std::any_of(edges.begin(), edges.end(), [&](const Edge& known) { return known.node == edge.node; })) continue;
      edges.push_back(std::move(edge));
      leaves_.emplace_back(leaf, false);
    }
    return outputs;
  }
  // The gradient of a leaf that fn captures is accumulated into .grad. grad() cannot return it, so requesting
  // it is an error.
  std::vector<bool> leads_to(const std::vector<bool>& requested_edges, const std::vector<int>&) const override {
    for (size_t i = n_inputs_; i < requested_edges.size(); ++i)
      if (requested_edges[i])
        throw Error(
            "autograd::grad: a gradient is asked for that flows to a leaf inside of a checkpoint; pass the leaf to "
            "checkpoint() among its inputs, and let the function read it from there");
    return {};
  }
  void release_saved() override {
    inputs_.clear();
    leaves_.clear();
    collectives_.messages.clear();
    released_ = true;
  }
  void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) override {
    const memory::Cause cause("backward of ", name(), {});
    if (grad_enabled())
      throw Error("backward of checkpoint: second derivatives (create_graph) do not reach through a checkpoint");
    if (released_)
      throw Error("backward of checkpoint: already freed; pass retain_graph = true to the earlier backward");
    for (const SavedTensor& leaf : leaves_) static_cast<void>(leaf.get("checkpoint", {}));  // throws if overwritten
    std::vector<Tensor> inputs;
    for (const SavedTensor& saved : inputs_) {
      const Tensor& input = saved.get("checkpoint", {});
      Tensor copy = input.defined() ? input.detach() : input;
      if (input.defined() && input.requires_grad()) copy.impl()->requires_grad = true;  // a leaf of the inner tape
      inputs.push_back(copy);
    }
    std::vector<Tensor> outputs;
    {
      const GeneratorScope replay(GeneratorScope::kReplay, generators_);
      const CollectiveScope replay_sums(CollectiveScope::kReplay, collectives_);
      GradMode on(true);
      amp::Autocast autocast(autocast_);
      outputs = fn_(inputs);
    }
    if (outputs.size() != grads_out.size())
      throw Error(absl::StrCat("backward of checkpoint: the function returned ", grads_out.size(),
                               " tensors in forward and ", outputs.size(), " in backward; both runs must do the same"));
    std::vector<Tensor> roots, seeds;
    for (size_t i = 0; i < outputs.size(); ++i)
      if (grads_out[i].defined() && outputs[i].defined() && outputs[i].requires_grad()) {
        roots.push_back(outputs[i]);
        seeds.push_back(grads_out[i]);
      }
    if (roots.empty()) return;
    if (backward_returns_gradients()) return differentiate(roots, seeds, inputs, grads_in);
    // Parameters that fn captures are leaves of the inner tape, so this adds to their .grad directly.
    autograd::backward(roots, seeds, false, false, {});
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined() || !inputs[i].grad().defined()) continue;
      grads_in[i] = inputs[i].grad();
      grads_in[i].storage().set_purpose(Purpose::kWorkspace);  // a user does not see this .grad
    }
  }

 private:
  // For autograd::grad(): computes gradients of the inputs only. Leaves that fn captures get none.
  static void differentiate(std::span<const Tensor> roots, std::span<const Tensor> seeds,
                            std::span<const Tensor> inputs, std::span<Tensor> grads_in) {
    std::vector<Tensor> requested;
    for (const Tensor& input : inputs)
      if (input.defined() && input.requires_grad()) requested.push_back(input);
    std::vector<Tensor> grads = autograd::grad(roots, requested, seeds, false, false, /*allow_unused=*/true);
    for (size_t i = 0, next = 0; i < inputs.size(); ++i)
      if (inputs[i].defined() && inputs[i].requires_grad()) grads_in[i] = std::move(grads[next++]);
  }

  Fn fn_;
  std::vector<SavedTensor> inputs_, leaves_;  // fn's inputs; the leaves that it captures
  std::vector<GeneratorState> generators_;    // states of fn's generators before the first run
  CollectiveLog collectives_;                 // the collectives of the first run
  std::optional<DType> autocast_;
  bool released_ = false;
  size_t n_inputs_ = 0;
};

// True if `view` is a view of a tensor that requires grad, such as a parameter, or of one of `inputs`.
bool views_any_of(const Tensor& view, std::span<const Tensor> inputs) {
  const AutogradMeta& meta = *view.impl()->autograd;
  return (meta.base.defined() && meta.base.requires_grad()) ||
         std::any_of(inputs.begin(), inputs.end(),
                     [&](const Tensor& input) { return input.defined() && input.storage() == view.storage(); });
}

}  // namespace

std::vector<Tensor> checkpoint(std::function<std::vector<Tensor>(std::span<const Tensor>)> fn,
                               std::span<const Tensor> inputs) {
  if (!fn) throw Error("autograd::checkpoint: the function is empty");
  if (!grad_enabled() || active_recorder() != nullptr) return fn(inputs);
  auto node = std::make_shared<CheckpointNode>(std::move(fn), inputs);
  std::vector<Tensor> outputs = node->run(inputs);
  node->n_outputs = static_cast<int>(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !is_floating(outputs[i].dtype())) continue;
    // fn may return an input or a parameter, which keeps its own history. A view of a tensor of fn's own is a plain
    // tensor to the user; a view of the user's tensor stays a view made under no_grad.
    const bool views_users = is_no_grad_view(outputs[i]) && views_any_of(outputs[i], inputs);
    if (!views_users &&
        (outputs[i].requires_grad() || is_no_grad_view(outputs[i]) || outputs[i].impl()->refs.load() > 1))
      outputs[i] = outputs[i].detach();
    set_history(outputs[i], node, static_cast<int>(i));
  }
  return outputs;
}

}  // namespace rondo::autograd
