#include "rondo/runtime/autograd/accumulate_node.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/anomaly_check.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/autograd/hooks.h"
#include "rondo/runtime/base/error.h"

namespace rondo::autograd {
namespace {

class AccumulateNode final : public Node {
 public:
  // The node has the highest sequence, so it runs as soon as the leaf's last gradient has arrived.
  AccumulateNode(const Tensor& leaf, std::shared_ptr<GradSlot> slot)
      : Node(UINT64_MAX), sizes_(leaf.sizes()), dtype_(leaf.dtype()), device_(leaf.device()), slot_(std::move(slot)) {}
  const char* name() const override { return "accumulate"; }
  void backward(std::span<Tensor> grads_out, std::span<Tensor>) override {
    Tensor grad = std::move(grads_out[0]);  // Note [Gradient memory]
    if (!(grad.sizes() == sizes_) || grad.dtype() != dtype_ || !(grad.device() == device_)) [[unlikely]]
      refuse(grad);
    if (!slot_->hooks.empty()) run_hooks(slot_->hooks, grad);
    if (anomaly::detecting) [[unlikely]] {
      anomaly::Check check;
      check.operand("the gradient", grad);
      check.operand("what .grad held", slot_->grad);
      accumulate(std::move(grad));
      check.result("backward", "the .grad of a leaf", slot_->grad, [] { return std::string(); });
    } else {
      accumulate(std::move(grad));
    }
    leaf_grad_added();
  }
  Tensor leaf_grad() const override {
    const Tensor& total = slot_->grad;
    return grad_enabled() || !slot_->hooks.empty() || !total.defined() || !total.is_contiguous() ? Tensor() : total;
  }
  // Returns `home` if a node may write the leaf's whole gradient into it, otherwise an undefined tensor. A node may not
  // while somebody still holds an earlier gradient in that memory.
  Tensor home_for_all() const {
    const bool is_free = home.defined() && home.impl()->refs.load() == 1;
    return grad_enabled() || !slot_->hooks.empty() || slot_->grad.defined() || !is_free ? Tensor() : home;
  }

  // Returns `parts`, or null while gradients must not come in parts: Note [Gradients in parts].
  GradientParts* parts_now() const {
    return grad_enabled() || !slot_->hooks.empty() || anomaly::detecting ? nullptr : parts;
  }

  void leaf_grad_added() override {
    if (!slot_->grad.defined()) slot_->grad = home;  // the gradient was written into the home
    if (slot_->grad.impl()->storage) slot_->grad.storage().set_purpose(Purpose::kGradients);
  }
  bool offer_part(Tensor& total) {
    GradientParts* const taker = parts_now();
    if (taker == nullptr || !taker->wants_part()) return false;
    accumulate(std::move(total));
    slot_->grad.storage().set_purpose(Purpose::kGradients);
    taker->part_added();
    return true;
  }
  bool has_hooks() const { return !slot_->hooks.empty(); }
  bool has_callbacks() const { return !slot_->accumulated.empty(); }
  // Runs the callbacks. A callback may add callbacks, which run from the next backward on, and may remove any callback.
  void call_back() {
    const std::shared_ptr<GradSlot> slot = slot_;
    const auto callbacks = slot->accumulated;
    for (const auto& [id, fn] : callbacks)
      if (std::any_of(slot->accumulated.begin(), slot->accumulated.end(),
                      [id = id](const auto& there) { return there.first == id; }))
        fn();
  }

  Tensor home;
  GradientParts* parts = nullptr;

 private:
  [[noreturn, gnu::cold, gnu::noinline]] void refuse(const Tensor& grad) const {
    const auto text = [](DType dtype, const Dims& sizes, Device device) {
      return absl::StrCat(std::string(name_of(dtype)), to_string(sizes), " on ", to_string(device));
    };
    throw Error(absl::StrCat("backward: the gradient of a leaf ", text(dtype_, sizes_, device_), " came as ",
                             text(grad.dtype(), grad.sizes(), grad.device()),
                             "; the node that made it returns another gradient than its input needs"));
  }
  void accumulate(Tensor grad) {
    Tensor& total = slot_->grad;
    if (!grad_enabled() && grad.requires_grad()) grad = grad.detach();  // a hook's result may have a history
    const bool at_home = home.defined() && grad.storage() == home.storage() &&
                         grad.storage_offset() == home.storage_offset();
    if (!total.defined()) total = at_home || may_become_grad(grad) ? std::move(grad) : grad.clone();
    else if (grad_enabled() || overlaps_itself(total)) total = total + grad;
    else total.add_(grad);
  }

  const Dims sizes_;
  const DType dtype_;
  const Device device_;
  std::shared_ptr<GradSlot> slot_;
};

thread_local LeafNotes* leaf_notes = nullptr;

}  // namespace

std::shared_ptr<Node> accumulator_of(const Tensor& leaf) {
  std::unique_ptr<AutogradMeta>& meta = leaf.impl()->autograd;
  if (meta == nullptr) meta = std::make_unique<AutogradMeta>();
  if (std::shared_ptr<Node> accumulator = meta->accumulator.lock()) return accumulator;
  if (!meta->slot) meta->slot = std::make_shared<GradSlot>();
  std::shared_ptr<Node> accumulator = std::make_shared<AccumulateNode>(leaf, meta->slot);
  meta->accumulator = accumulator;
  return accumulator;
}

GradientHome::GradientHome(const Tensor& leaf) {
  if (!leaf.defined() || !leaf.requires_grad() || !leaf.is_leaf())
    throw Error("GradientHome: the tensor is not a leaf that requires a gradient");
  accumulator_ = accumulator_of(leaf);
}
GradientHome::~GradientHome() {
  set(Tensor());
  set_parts(nullptr);
}
// Keeps a new handle (detach()). Only gradients that were written into the home share this handle, so its reference
// count tells home_for_all() whether somebody still holds such a gradient.
void GradientHome::set(Tensor home) {
  static_cast<AccumulateNode&>(*accumulator_).home = home.defined() ? home.detach() : Tensor();
}

void GradientHome::set_parts(GradientParts* parts) { static_cast<AccumulateNode&>(*accumulator_).parts = parts; }

bool offer_part(Node& leaf, Tensor& total) { return static_cast<AccumulateNode&>(leaf).offer_part(total); }
void notify_part_added(Node& leaf) {
  if (GradientParts* const taker = parts_of(leaf); taker != nullptr && taker->wants_part()) taker->part_added();
}
void run_accumulated_callbacks(Node& leaf) { static_cast<AccumulateNode&>(leaf).call_back(); }
GradientParts* parts_of(const Node& leaf) { return static_cast<const AccumulateNode&>(leaf).parts_now(); }
bool has_hooks(const Node& leaf) { return static_cast<const AccumulateNode&>(leaf).has_hooks(); }
bool has_callbacks(const Node& leaf) { return static_cast<const AccumulateNode&>(leaf).has_callbacks(); }
Tensor gradient_home(const Node& leaf) {
  const auto* node = dynamic_cast<const AccumulateNode*>(&leaf);
  return node == nullptr ? Tensor() : node->home_for_all();
}

void end_graphs_of_leaf(const Tensor& leaf, const std::string& error) {
  AutogradMeta* meta = leaf.impl()->autograd.get();
  if (meta == nullptr || meta->accumulator.expired()) return;  // no graph leads to the leaf
  auto next = std::make_shared<GradSlot>(*meta->slot);
  *meta->slot = {};
  meta->slot->hooks.push_back({-1, [error](const Tensor&) -> Tensor { throw Error(error); }});
  meta->slot = std::move(next);
  meta->accumulator.reset();
}

LeafNotes::LeafNotes(const Node& node, std::span<const Tensor> inputs)
    : previous_(std::exchange(leaf_notes, this)), node_(node), inputs_(inputs) {}
LeafNotes::~LeafNotes() { leaf_notes = previous_; }
LeafNotes* LeafNotes::now() { return leaf_notes; }
void LeafNotes::note(const Tensor& operand) {
  if (!operand.defined() || !operand.requires_grad()) return;
  const auto is_operand = [&](const Tensor& tensor) { return tensor.defined() && tensor.is_same(operand); };
  if (!operand.is_leaf()) {
    const AutogradMeta* const meta = operand.impl()->autograd.get();  // null: its op is only recorded
    const Node* const made_by = meta != nullptr ? meta->grad_fn.get() : nullptr;
    if (made_by != nullptr && made_by->sequence < node_.sequence &&
        std::none_of(inputs_.begin(), inputs_.end(), is_operand))
      throw Error(absl::StrCat("autograd::checkpoint: the function reads a tensor of shape ",
                               to_string(operand.sizes()), " that was computed outside of it and requires grad (by ",
                               made_by->name(), made_by->location(),
                               "); pass it to checkpoint() among the inputs, and let the function "
                               "read it from there"));
    return;
  }
  if (std::none_of(leaves_.begin(), leaves_.end(), is_operand)) leaves_.push_back(operand);
}

}  // namespace rondo::autograd
