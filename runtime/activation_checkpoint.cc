// Activation checkpointing: what a function saves is not kept, but computed again when its backward comes.
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/memory.h"
#include "rondo/runtime/random.h"
#include "rondo/runtime/recorder.h"

namespace rondo::autograd {

namespace {

// Sets this thread's random stream for a scope.
class StreamGuard {
 public:
  StreamGuard(uint64_t seed, uint64_t offset)
      : seed_(default_generator().seed()), offset_(default_generator().offset()) {
    default_generator().set_state(seed, offset);
  }
  ~StreamGuard() { default_generator().set_state(seed_, offset_); }
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  uint64_t seed_, offset_;
};

// Runs `fn` again, with gradients, when its backward comes.
class CheckpointNode final : public Node {
 public:
  using Fn = std::function<std::vector<Tensor>(std::span<const Tensor>)>;
  CheckpointNode(Fn fn, std::span<const Tensor> inputs) : fn_(std::move(fn)) {
    const Generator& generator = default_generator();
    seed_ = generator.seed();
    offset_ = generator.offset();
    autocast_ = amp::autocast_dtype();
    for (const Tensor& input : inputs) {
      inputs_.emplace_back(input, false);
      edges.push_back(input.defined() && input.requires_grad() ? gradient_edge(input) : Edge{});
    }
  }
  const char* name() const override { return "checkpoint"; }
  void release_saved() override {
    inputs_.clear();
    released_ = true;
  }
  void backward(std::span<const Tensor> grads_out, std::span<Tensor> grads_in) override {
    const memory::Cause cause("backward of ", name(), {});
    if (grad_enabled())
      throw Error("backward of checkpoint: second derivatives (create_graph) do not reach through a checkpoint");
    if (released_)
      throw Error("backward of checkpoint: already freed; pass retain_graph = true to the earlier backward");
    std::vector<Tensor> inputs;
    for (const SavedTensor& saved : inputs_) {
      const Tensor& input = saved.get("checkpoint", {});
      Tensor copy = input.defined() ? input.detach() : input;
      if (input.defined() && input.requires_grad()) copy.impl()->requires_grad = true;  // a leaf here, but no parameter
      inputs.push_back(copy);
    }
    std::vector<Tensor> outputs;
    {
      const StreamGuard stream(seed_, offset_);
      GradMode on(true);
      amp::Autocast autocast(autocast_);
      outputs = fn_(inputs);
    }
    std::vector<Tensor> roots, seeds;
    for (size_t i = 0; i < outputs.size(); ++i)
      if (grads_out[i].defined() && outputs[i].requires_grad()) {
        roots.push_back(outputs[i]);
        seeds.push_back(grads_out[i]);
      }
    // Parameters that fn uses are leaves of the inner tape and accumulate directly.
    if (!roots.empty()) autograd::backward(roots, seeds, false, false, {});
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].defined() && inputs[i].requires_grad()) grads_in[i] = inputs[i].grad();
  }

 private:
  Fn fn_;
  std::vector<SavedTensor> inputs_;
  uint64_t seed_, offset_;
  std::optional<DType> autocast_;
  bool released_ = false;
};

}  // namespace

std::vector<Tensor> checkpoint(std::function<std::vector<Tensor>(std::span<const Tensor>)> fn,
                               std::span<const Tensor> inputs) {
  if (!grad_enabled() || active_recorder() != nullptr) return fn(inputs);
  auto node = std::make_shared<CheckpointNode>(fn, inputs);
  std::vector<Tensor> outputs = no_grad([&] { return fn(inputs); });
  node->n_outputs = static_cast<int>(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!is_floating(outputs[i].dtype())) continue;
    // fn may hand back an input, or a parameter: its own history stays.
    if (outputs[i].requires_grad() || outputs[i].impl()->refs.load() > 1) outputs[i] = outputs[i].detach();
    set_history(outputs[i], node, static_cast<int>(i));
  }
  return outputs;
}

}  // namespace rondo::autograd
