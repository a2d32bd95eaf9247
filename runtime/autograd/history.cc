#include "rondo/runtime/autograd/history.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/accumulate_node.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/autograd/hooks.h"
#include "rondo/runtime/autograd/node_scope.h"
#include "rondo/runtime/base/location.h"
#include "rondo/runtime/device/peak_memory.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo {

// The user's handle is not kept: a later write in place may give it a history that leads to the node that saves the
// tensor, and handle and node would own each other. A parameter's history never changes, so its handle is kept.
SavedTensor::SavedTensor(const Tensor& tensor, bool is_output, std::source_location where) {
  if (!tensor.defined()) return;
  settle_history(tensor, where);
  version_ = tensor.version();
  const bool parameter = tensor.requires_grad() && tensor.is_leaf();
  if (parameter && !is_output) {
    tensor_ = tensor;
    return;
  }
  tensor_ = tensor.detach();
  // Memory of devices always gets its purpose, for the message when memory is exhausted.
  if ((memory::recording() || !(tensor_.impl()->device == kCPU)) && tensor_.storage() &&
      tensor_.storage().purpose() == Purpose::kWorkspace)
    tensor_.storage().set_purpose(Purpose::kActivations);
  if (is_output || !tensor.requires_grad()) return;
  const Edge history = autograd::gradient_edge(tensor);
  if (history.node) autograd::put_history(tensor_, history.node, history.output);
}

const Tensor& SavedTensor::get(const char* op, std::source_location where) const {
  if (overwritten())
    throw StaleTensorError(absl::StrCat("backward of ", op, ": a tensor of shape ", to_string(tensor_.sizes()),
                                        " that the gradient needs was overwritten in place (version ",
                                        tensor_.version(), ", saved at ", version_, "); clone it before the write",
                                        describe_location(where)));
  return tensor_;
}

namespace autograd {
namespace {

AutogradMeta& meta_of(const Tensor& tensor) {
  auto& meta = tensor.impl()->autograd;
  if (meta == nullptr) meta = std::make_unique<AutogradMeta>();
  return *meta;
}

// As in PyTorch, retain_grad() keeps the gradient of what the tensor holds now, so the retained gradient moves to the
// tensor's new node. A hook stays with the value for which it was registered.
[[gnu::cold, gnu::noinline]] void move_retained_gradient(const AutogradMeta& meta, Node& node, int output) {
  std::weak_ptr<GradSlot>& retained = meta.grad_fn->extras_of(meta.output).retained;
  if (retained.lock() != meta.slot) return;
  node.extras_of(output).retained = meta.slot;
  retained.reset();
}

void change_history(AutogradMeta& meta, std::shared_ptr<Node> node, int output) {
  if (meta.grad_fn != nullptr && meta.slot != nullptr) [[unlikely]]
    move_retained_gradient(meta, *node, output);
  meta.grad_fn = std::move(node);
  meta.output = output;
}

// Throws Error under create_graph: the two nodes below write gradients in ways that the tape does not see, so a second
// derivative would be wrong.
void refuse_second_derivative() {
  if (grad_enabled())
    throw Error(
        "backward with create_graph: second derivatives through an in-place write to a view, or to its base, are "
        "not supported; build the tensor with where, cat or stack");
}

// The part of its base that a view shows.
struct ViewGeometry {
  Dims base_sizes, base_strides, sizes, strides;
  int64_t offset;
  static ViewGeometry of(const Tensor& view, const Tensor& base) {
    return {base.sizes(), base.strides(), view.sizes(), view.strides(), view.storage_offset() - base.storage_offset()};
  }
  Tensor look(const Tensor& base) const {
    return Tensor::over(base.storage(), base.storage_offset() + offset, sizes, strides, base.dtype());
  }
  bool has_contiguous_base() const { return is_contiguous(base_sizes, base_strides); }
  // Returns a copy of the base's gradient in the base's layout.
  Tensor copy_of(const Tensor& grad) const {
    Tensor copy = zeros({grad.dtype(), grad.device()});
    copy.copy_(grad);
    return copy;
  }
  // Returns zeros in the base's layout, including the gaps between its elements.
  Tensor zeros(TensorOptions options) const {
    int64_t extent = base_sizes.numel() == 0 ? 0 : 1;
    for (int d = 0; d < base_sizes.rank() && extent > 0; ++d) extent += (base_sizes[d] - 1) * base_strides[d];
    const Tensor memory = Tensor::zeros({extent}, options);
    return Tensor::over(memory.storage(), 0, base_sizes, base_strides, options.dtype);
  }
};

// The history of a view after its base was overwritten: the gradient goes into a zero tensor of the base's shape.
class ViewOfBaseNode final : public Node {
 public:
  ViewOfBaseNode(ViewGeometry geometry, Edge base) : Node(AsRecordingGoesOn()), geometry_(geometry) {
    edges.push_back(std::move(base));
  }
  const char* name() const override { return "view"; }
  void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) override {
    refuse_second_derivative();
    const Tensor grad = geometry_.zeros({grads_out[0].dtype(), grads_out[0].device()});
    geometry_.look(grad).copy_(grads_out[0]);
    grads_in[0] = grad.contiguous();
  }
  // Many views of one base share one gradient of its size.
  bool adds_to_totals() const override { return true; }
  void backward_onto(std::span<Tensor> grads_out, std::span<Tensor> grads_in, std::span<LeafGrad>) override {
    apply_extras(*this, grads_out);
    if (grads_in.empty()) return;
    Tensor total = std::move(grads_in[0]);
    if (total.defined() && may_overwrite(total) && total.dtype() == grads_out[0].dtype() &&
        geometry_.has_contiguous_base()) {
      geometry_.look(total).add_(grads_out[0]);
      grads_in[0] = std::move(total);
      return;
    }
    backward(grads_out, grads_in);
    if (total.defined()) grads_in[0] = total + grads_in[0];
  }

 private:
  ViewGeometry geometry_;
};

// The history of a base after a write through one of its views: the view's part of the gradient goes to the written
// values, all other elements of the gradient go to the old base.
class OverwriteNode final : public Node {
 public:
  // `in_memory_order`: that of the base's AutogradMeta. A recording holds such a base as a view of its memory (Note
  // [Recorded in memory order] in compile/capture/trace.h). There the gradient of the old base is a sum with zeros,
  // which turns -0 into 0.
  OverwriteNode(ViewGeometry geometry, Edge base, Edge written, bool in_memory_order)
      : geometry_(geometry), in_memory_order_(in_memory_order) {
    edges.push_back(std::move(base));
    edges.push_back(std::move(written));
  }
  const char* name() const override { return "overwrite"; }
  void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) override {
    refuse_second_derivative();
    Tensor grad = std::move(grads_out[0]);
    if (!geometry_.has_contiguous_base()) grad = geometry_.copy_of(grad);
    else if (!may_overwrite(grad)) grad = grad.clone();
    grads_in[1] = geometry_.look(grad).clone();
    if (!edges[0].node) return;
    geometry_.look(grad).fill_(0);
    if (in_memory_order_) grad.add_(0.0);
    grads_in[0] = std::move(grad);
  }

 private:
  ViewGeometry geometry_;
  bool in_memory_order_;
};

constexpr const char* kStaleNoGradView =
    "a view made under no_grad is read with gradients on, after its base was overwritten; take the view with gradients "
    "on, or detach() it";

// True if `tensor` is a view made under no_grad, its base was overwritten since, and the base requires grad.
bool is_stale_no_grad_view(const Tensor& tensor) {
  const AutogradMeta* meta = tensor.impl()->autograd.get();
  return meta != nullptr && meta->no_grad_view && meta->base.defined() && meta->view_version != tensor.version() &&
         meta->base.requires_grad();
}

}  // namespace

void check_operand(const OpDef& op, const Tensor& input, std::source_location where) {
  if (is_stale_no_grad_view(input)) throw_op_error(op.name, kStaleNoGradView, where);
}

Edge gradient_edge(const Tensor& tensor, std::source_location where) {
  if (!tensor.defined()) throw_op_error("gradient_edge", "the tensor is undefined", where);
  TensorImpl* impl = tensor.impl();
  if (impl->recorder != nullptr && impl->requires_grad) settle_history(tensor, where);
  AutogradMeta* meta = impl->autograd.get();
  if (meta != nullptr && meta->base.defined() && meta->view_version != tensor.version() && meta->base.requires_grad()) {
    if (meta->no_grad_view) throw Error(absl::StrCat("autograd: ", kStaleNoGradView));
    // The base was overwritten since this view was made: the view gets a new history.
    if (overlaps_itself(tensor) || overlaps_itself(meta->base))
      throw Error(
          "autograd: an expanded view of a tensor that was overwritten in place; take the view after the write");
    auto node = std::make_shared<ViewOfBaseNode>(ViewGeometry::of(tensor, meta->base), gradient_edge(meta->base));
    change_history(*meta, std::move(node), 0);
    meta->view_version = tensor.version();
    impl->requires_grad = true;
  }
  if (!impl->requires_grad) return {};
  if (meta != nullptr && meta->grad_fn)
    return meta->grad_fn->replaced ? meta->grad_fn->successor(meta->output) : Edge{meta->grad_fn, meta->output};
  return {accumulator_of(tensor), 0};
}

void put_history(Tensor& tensor, std::shared_ptr<Node> node, int output) {
  change_history(meta_of(tensor), std::move(node), output);
  tensor.impl()->requires_grad = true;
}

void put_history_of_write(Tensor& target, std::shared_ptr<Node> node) {
  AutogradMeta& meta = meta_of(target);
  if (!meta.base.defined()) {
    if (!meta.in_memory_order || !target.requires_grad()) return put_history(target, std::move(node), 0);
    // So that compiled and eager gradients have the same bits, the write has the history of a write through a view that
    // shows all of its base: the old values also get a gradient of zeros.
    const Edge old = gradient_edge(target);
    return put_history(target,
                       std::make_shared<OverwriteNode>(ViewGeometry::of(target, target), old, Edge{std::move(node), 0},
                                                       /*in_memory_order=*/true),
                       0);
  }
  const ViewGeometry geometry = ViewGeometry::of(target, meta.base);
  Tensor root = meta.base;
  const Edge old_base = root.requires_grad() ? gradient_edge(root) : Edge{};
  put_history(
      root,
      std::make_shared<OverwriteNode>(geometry, old_base, Edge{std::move(node), 0}, meta_of(root).in_memory_order), 0);
  put_history(target, std::make_shared<ViewOfBaseNode>(geometry, gradient_edge(root)), 0);
  meta.view_version = target.version();
}

void set_history(Tensor& tensor, std::shared_ptr<Node> node, int output, std::source_location where) {
  if (!tensor.defined()) throw_op_error("set_history", "the tensor is undefined", where);
  if (node == nullptr) throw_op_error("set_history", "there is no node", where);
  if (output < 0 || output >= node->n_outputs)
    throw_op_error("set_history",
                   absl::StrCat("the node has ", node->n_outputs, " outputs (n_outputs), and no output ", output),
                   where);
  if (!is_floating(tensor.dtype()))
    throw_op_error("set_history",
                   absl::StrCat("a tensor of ", std::string(name_of(tensor.dtype())), " has no gradient"), where);
  before_history_change(tensor, where);
  put_history(tensor, std::move(node), output);
}

void mark_view(Tensor& view, const Tensor& base, bool under_no_grad) {
  const AutogradMeta* base_meta = base.impl()->autograd.get();
  const bool of_view = base_meta != nullptr && base_meta->base.defined();
  // Views that a gradient rule makes of gradients stay inside the rule. Keeping their base would only add a
  // holder of its memory.
  if (node_of_rule() != nullptr && under_no_grad && !of_view && !base.requires_grad()) return;
  AutogradMeta& meta = meta_of(view);
  meta.base = of_view ? base_meta->base : base;
  meta.view_version = view.version();
  meta.no_grad_view = under_no_grad || is_no_grad_view(base);
}

void mark_no_grad_view(Tensor& view) { meta_of(view).no_grad_view = true; }

bool is_no_grad_view(const Tensor& tensor) {
  const AutogradMeta* meta = tensor.impl()->autograd.get();
  return meta != nullptr && meta->no_grad_view;
}

void check_in_place(const OpDef& op, const Tensor& target, bool differentiable, std::source_location where) {
  if (overlaps_itself(target))
    throw_op_error(op.name, "an expanded tensor cannot be written in place: several elements are one; clone() it first",
                   where);
  if (!grad_enabled()) return;
  const AutogradMeta* meta = target.impl()->autograd.get();
  const bool history = meta != nullptr && meta->grad_fn != nullptr;
  // A view without history that only follows its base (Note [Views]) is no leaf.
  if (target.impl()->requires_grad && !history)
    throw_op_error(
        op.name, "a leaf that requires grad cannot be written in place; write it in a scope with `NoGrad off;`", where);
  if (meta != nullptr && meta->no_grad_view && meta->base.defined() && (differentiable || meta->base.requires_grad()))
    throw_op_error(op.name,
                   "this view was made under no_grad and is overwritten with gradients on; do both under no_grad, so "
                   "that no gradient sees the write, or both outside of it",
                   where);
  if (meta != nullptr && meta->base.defined() && meta->base.requires_grad() && meta->base.is_leaf())
    throw_op_error(op.name, "this is a view of a leaf that requires grad; wrap the write in no_grad()", where);
  if (differentiable && meta != nullptr && meta->base.defined() && overlaps_itself(meta->base))
    throw_op_error(op.name, "a differentiable in-place write to a view of an expanded tensor; clone() the tensor first",
                   where);
}

}  // namespace autograd
}  // namespace rondo
