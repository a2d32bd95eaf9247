#include "rondo/runtime/autograd/autograd.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/accumulate_node.h"
#include "rondo/runtime/autograd/anomaly_check.h"
#include "rondo/runtime/autograd/autograd_extras.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/location.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo {
namespace {

std::atomic<uint64_t> next_sequence{0};
thread_local bool grad_mode = true;
thread_local const Node* in_gradient_rule = nullptr;  // the node whose rule runs
thread_local const Node* in_place_of = nullptr;       // the node that new ones are going to replace

AutogradMeta& meta_of(const Tensor& tensor) {
  auto& meta = tensor.impl()->autograd;
  if (meta == nullptr) meta = std::make_unique<AutogradMeta>();
  return *meta;
}

// set_history(), for a tensor that no recording knows.
void put_history(Tensor& tensor, std::shared_ptr<Node> node, int output) {
  AutogradMeta& meta = meta_of(tensor);
  meta.grad_fn = std::move(node);
  meta.output = output;
  tensor.impl()->requires_grad = true;
}

// Freeing a deep tape must not recurse: nodes queue up here and are freed one by one.
thread_local absl::InlinedVector<std::shared_ptr<Node>, 8>* dying = nullptr;

}  // namespace

bool grad_enabled() { return grad_mode; }
GradMode::GradMode(bool on) : previous_(std::exchange(grad_mode, on)) {}
GradMode::~GradMode() { grad_mode = previous_; }

namespace {
uint64_t take_sequence() { return next_sequence.fetch_add(1, std::memory_order_relaxed); }

// What is recorded runs first, so that its node is older than this one: gradients meet in eager execution's order.
uint64_t sequence_of_new_node(std::source_location where) {
  if (Recorder* const recorder = active_recorder()) [[unlikely]]
    recorder->interrupt("a tape node is made", where);
  return in_place_of != nullptr ? in_place_of->sequence : take_sequence();
}
}  // namespace

Node::Node(std::source_location where)
    : sequence(sequence_of_new_node(where)), within(in_place_of != nullptr ? take_sequence() : 0) {}

Node::~Node() {
  std::remove_pointer_t<decltype(dying)> queue;
  const bool outermost = dying == nullptr;
  if (outermost) dying = &queue;
  try {
    for (Edge& edge : edges)
      if (edge.node && edge.node.use_count() == 1) dying->push_back(std::move(edge.node));
  } catch (const std::bad_alloc&) {  // the rest recurses
  }
  while (outermost && !queue.empty()) {
    std::shared_ptr<Node> node = std::move(queue.back());
    queue.pop_back();
  }
  if (outermost) dying = nullptr;
}

Tensor LeafGrad::grad() const { return leaf == nullptr ? Tensor() : leaf->leaf_grad(); }

// The user's handle is not kept: a later write in place may give it a history that leads to this node, and the two
// would own each other. A parameter's history never changes.
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
  // Devices always count what they hold, for the message when memory is exhausted.
  if ((memory::recording() || !(tensor_.impl()->device == kCPU)) && tensor_.storage() &&
      tensor_.storage().purpose() == Purpose::kWorkspace)
    tensor_.storage().set_purpose(Purpose::kActivations);
  if (is_output || !tensor.requires_grad()) return;
  const Edge history = autograd::gradient_edge(tensor);
  if (history.node) put_history(tensor_, history.node, history.output);
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

void apply_extras(Node& node, std::span<Tensor> grads) {
  for (size_t i = 0; i < node.extras.size(); ++i) {
    Tensor& grad = grads[static_cast<size_t>(node.extras[i].output)];
    if (!grad.defined()) continue;
    if (!node.extras[i].hooks.empty()) run_hooks(node.extras[i].hooks, grad);
    if (auto slot = node.extras[i].retained.lock()) retain(*slot, grad);
  }
}

void retain(GradSlot& slot, const Tensor& grad) { slot.grad = slot.grad.defined() ? slot.grad + grad : grad.clone(); }
}  // namespace autograd

namespace {

// One call of an op.
class OpNode final : public Node {
 public:
  OpNode(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::source_location where)
      : op_(op), attrs_(attrs), where_(user_location(where)) {
    if (anomaly::in_scope) [[unlikely]]
      location_ = std::make_unique<std::string>(describe_location(where));
    edges.resize(inputs.size());
    metas_.reserve(inputs.size());
    saved_inputs_.resize(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor& input = *inputs[i];
      InputMeta& meta = metas_.emplace_back();
      if (!input.defined()) continue;
      // Field by field: what is written by the byte and read at once as 16 of them waits in the processor.
      meta.dtype = input.dtype();
      meta.sizes = input.sizes();
      if (input.requires_grad() && is_floating(input.dtype())) {
        edges[i] = autograd::gradient_edge(input);
        meta.needs_grad = edges[i].node != nullptr;
      }
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!op.saved.input(i) || !inputs[i]->defined()) continue;
      if (op.saved.product && (i >= 2 || !metas_[1 - i].needs_grad)) continue;
      saved_inputs_[i] = SavedTensor(*inputs[i], false);
      saves_ = true;
    }
  }
  void save_outputs(std::span<const Tensor> outputs) {
    n_outputs = static_cast<int>(outputs.size());
    if (op_.saved.outputs == 0) return;
    saved_outputs_.resize(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!op_.saved.output(i)) continue;
      saved_outputs_[i] = SavedTensor(outputs[i], true);
      saves_ = saves_ || outputs[i].defined();
    }
  }
  const char* name() const override { return op_.name; }
  std::string location() const override { return location_ != nullptr ? *location_ : describe_location(where_); }
  bool adds_to_totals() const override { return op_.grad_adds; }
  void release_saved() override {
    saved_inputs_.clear();
    saved_outputs_.clear();
    released_ = true;
  }
  void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) override {
    const memory::Cause cause("backward of ", op_.name, where_);
    if (released_ && saves_)
      throw Error(absl::StrCat("backward of ", op_.name,
                               ": its saved tensors were freed by an earlier backward; pass "
                               "retain_graph = true to that one",
                               describe_location(where_)));
    if (op_.grad == nullptr)
      throw Error(absl::StrCat("backward of ", op_.name, ": it has no gradient", describe_location(where_)));
    absl::InlinedVector<Tensor, kUsualInputs> inputs(std::max<size_t>(edges.size(), kUsualInputs));
    absl::InlinedVector<Tensor, kUsualOutputs> outputs(std::max<size_t>(grads_out.size(), kUsualOutputs));
    for (size_t i = 0; i < saved_inputs_.size(); ++i) inputs[i] = saved_inputs_[i].get(op_.name, where_);
    for (size_t i = 0; i < saved_outputs_.size(); ++i) {
      outputs[i] = saved_outputs_[i].get(op_.name, where_);
      // For a second derivative the saved output needs its history back.
      if (grad_mode && outputs[i].defined()) {
        outputs[i] = outputs[i].detach();
        put_history(outputs[i], self.lock(), static_cast<int>(i));
      }
    }
    const GradContext context(attrs_, inputs, outputs, grads_out, metas_, grads_in);
    const absl::Cleanup restore = [outer = std::exchange(in_gradient_rule, this)] { in_gradient_rule = outer; };
    const FloatingPointScope floating_point;
    if (anomaly::detecting) [[unlikely]]
      return checked_rule(context, inputs, outputs, grads_out, grads_in);
    op_.grad(context);
  }
  void backward_onto(std::span<Tensor> grads_out, std::span<Tensor> grads_in, std::span<LeafGrad>) override {
    autograd::apply_extras(*this, grads_out);
    if (grads_in.empty()) return;
    const bool all = !grad_mode && autograd::Asked::now() == nullptr;
    const autograd::RowsOfLeaf scope(all ? edges[0].node.get() : nullptr);
    backward(grads_out, grads_in);
  }

  std::weak_ptr<Node> self;

 private:
  void checked_rule(const GradContext& context, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                    std::span<const Tensor> grads_out, std::span<const Tensor> grads_in) const {
    anomaly::Check check;
    for (size_t i = 0; i < grads_out.size(); ++i) check.operand("the arriving gradient", grads_out[i]);
    for (size_t i = 0; i < saved_inputs_.size(); ++i) check.operand(absl::StrCat("saved operand ", i), inputs[i]);
    for (size_t i = 0; i < saved_outputs_.size(); ++i) check.operand(absl::StrCat("saved result ", i), outputs[i]);
    for (const Tensor& total : grads_in) check.operand("the gradient so far", total);
    for (SymFloat number : attrs_.floats) check.operand("a number", number.value());
    op_.grad(context);
    for (size_t i = 0; i < grads_in.size(); ++i)
      check.result(
          absl::StrCat("backward of ", op_.name), absl::StrCat("the gradient of operand ", i), grads_in[i],
          [this] { return (location_ == nullptr ? "; its forward ran outside of DetectAnomaly" : "") + location(); });
  }

  const OpDef& op_;
  Attrs attrs_;
  std::source_location where_;
  std::unique_ptr<const std::string> location_;  // under DetectAnomaly: with the module, which backward cannot see
  bool saves_ = false;                           // something; what saves nothing may go backward any number of times
  bool released_ = false;
  absl::InlinedVector<InputMeta, 3> metas_;
  absl::InlinedVector<SavedTensor, 3> saved_inputs_;
  absl::InlinedVector<SavedTensor, 1> saved_outputs_;
};

// The history of a result of an op without a gradient.
class DeadEndNode final : public Node {
 public:
  DeadEndNode(const OpDef& op, std::span<const Tensor* const> inputs, std::source_location where)
      : op_(op), where_(where) {
    for (const Tensor* input : inputs)
      edges.push_back(input->defined() && input->requires_grad() ? autograd::gradient_edge(*input) : Edge{});
  }
  const char* name() const override { return op_.name; }
  void backward(std::span<Tensor>, std::span<Tensor>) override {
    throw_op_error(op_.name, "has no derivative: nothing can be differentiated through it", where_);
  }

 private:
  const OpDef& op_;
  std::source_location where_;
};

// The two nodes below move gradients by hand: a second derivative would miss them.
void refuse_second_derivative() {
  if (grad_mode)
    throw Error(
        "backward with create_graph: second derivatives through an in-place write to a view, or to its base, are "
        "not supported; build the tensor with where, cat or stack");
}

// Where a view stands in its base.
struct ViewGeometry {
  Dims base_sizes, base_strides, sizes, strides;
  int64_t offset;
  static ViewGeometry of(const Tensor& view, const Tensor& base) {
    return {base.sizes(), base.strides(), view.sizes(), view.strides(), view.storage_offset() - base.storage_offset()};
  }
  Tensor look(const Tensor& base) const {
    return Tensor::over(base.storage(), base.storage_offset() + offset, sizes, strides, base.dtype());
  }
  // Zeros of the base's layout, gaps included.
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
  // A recording goes on: what is recorded does not change.
  ViewOfBaseNode(ViewGeometry geometry, Edge base) : Node(take_sequence()), geometry_(geometry) {
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
    autograd::apply_extras(*this, grads_out);
    if (grads_in.empty()) return;
    Tensor total = std::move(grads_in[0]);
    if (total.defined() && autograd::may_overwrite(total) && total.dtype() == grads_out[0].dtype() &&
        is_contiguous(geometry_.base_sizes, geometry_.base_strides)) {
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
// values, the rest to the old base.
class OverwriteNode final : public Node {
 public:
  OverwriteNode(ViewGeometry geometry, Edge base, Edge written) : geometry_(geometry) {
    edges.push_back(std::move(base));
    edges.push_back(std::move(written));
  }
  const char* name() const override { return "overwrite"; }
  void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) override {
    refuse_second_derivative();
    Tensor grad = std::move(grads_out[0]);
    if (!autograd::may_overwrite(grad)) grad = grad.clone();
    grads_in[1] = geometry_.look(grad).clone();
    if (!edges[0].node) return;
    geometry_.look(grad).fill_(0);
    grads_in[0] = std::move(grad);
  }

 private:
  ViewGeometry geometry_;
};

constexpr const char* kStaleNoGradView =
    "a view made under no_grad is read with gradients on, after its base was overwritten; take the view with gradients "
    "on, or detach() it";

// As Tensor::requires_grad(), for a view whose base was overwritten.
bool is_stale_no_grad_view(const Tensor& tensor) {
  const AutogradMeta* meta = tensor.impl()->autograd.get();
  return meta != nullptr && meta->no_grad_view && meta->base.defined() && meta->view_version != tensor.version() &&
         meta->base.requires_grad();
}

}  // namespace

namespace autograd {

bool overlaps_itself(const Tensor& tensor) {
  if (tensor.numel() == 0) return false;
  for (int i = 0; i < tensor.rank(); ++i)
    if (tensor.strides()[i] == 0 && tensor.sizes()[i] > 1) return true;
  return false;
}

void check_operand(const OpDef& op, const Tensor& input, std::source_location where) {
  if (is_stale_no_grad_view(input)) throw_op_error(op.name, kStaleNoGradView, where);
}

Edge gradient_edge(const Tensor& tensor, std::source_location where) {
  TensorImpl* impl = tensor.impl();
  if (impl->recorder != nullptr && impl->requires_grad) settle_history(tensor, where);
  AutogradMeta* meta = impl->autograd.get();
  if (meta != nullptr && meta->base.defined() && meta->view_version != tensor.version() && meta->base.requires_grad()) {
    if (meta->no_grad_view) throw Error(absl::StrCat("autograd: ", kStaleNoGradView));
    // The base was overwritten since this view was made: look at it again.
    if (overlaps_itself(tensor) || overlaps_itself(meta->base))
      throw Error(
          "autograd: an expanded view of a tensor that was overwritten in place; take the view after the write");
    meta->grad_fn = std::make_shared<ViewOfBaseNode>(ViewGeometry::of(tensor, meta->base), gradient_edge(meta->base));
    meta->output = 0;
    meta->view_version = tensor.version();
    impl->requires_grad = true;
  }
  if (!impl->requires_grad) return {};
  if (meta != nullptr) {
    if (meta->grad_fn)
      return meta->grad_fn->replaced ? meta->grad_fn->successor(meta->output) : Edge{meta->grad_fn, meta->output};
    if (std::shared_ptr<Node> accumulator = meta->accumulator.lock()) return {std::move(accumulator), 0};
  }
  AutogradMeta& leaf_meta = meta_of(tensor);
  if (!leaf_meta.slot) leaf_meta.slot = std::make_shared<GradSlot>();
  std::shared_ptr<Node> accumulator = std::make_shared<AccumulateNode>(leaf_meta.slot);
  leaf_meta.accumulator = accumulator;
  return {std::move(accumulator), 0};
}

const Node* node_of_rule() { return in_gradient_rule; }

void set_history(Tensor& tensor, std::shared_ptr<Node> node, int output, std::source_location where) {
  before_history_change(tensor, where);
  put_history(tensor, std::move(node), output);
}

void mark_view(Tensor& view, const Tensor& base, bool under_no_grad) {
  const AutogradMeta* base_meta = base.impl()->autograd.get();
  const bool of_view = base_meta != nullptr && base_meta->base.defined();
  // Views of gradients, inside a gradient rule, stay inside it. To know their base would only keep its memory shared.
  if (in_gradient_rule != nullptr && under_no_grad && !of_view && !base.requires_grad()) return;
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

void record_call(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::span<Tensor> outputs,
                 std::source_location where) {
  auto node = std::make_shared<OpNode>(op, inputs, attrs, where);
  node->self = node;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].defined() && is_floating(outputs[i].dtype())) put_history(outputs[i], node, static_cast<int>(i));
  node->save_outputs(outputs);
}

InPlaceOf::InPlaceOf(const Node& node) : previous_(std::exchange(in_place_of, &node)) {}
InPlaceOf::~InPlaceOf() { in_place_of = previous_; }

void record_in_place(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, Tensor& target,
                     std::source_location where) {
  AutogradMeta& meta = meta_of(target);
  const Tensor base = meta.base;
  auto node = std::make_shared<OpNode>(op, inputs, attrs, where);
  node->self = node;
  if (!base.defined()) {
    put_history(target, node, 0);
    node->save_outputs({&target, 1});
    return;
  }
  node->save_outputs({&target, 1});
  const ViewGeometry geometry = ViewGeometry::of(target, base);
  Tensor root = base;
  const Edge old_base = root.requires_grad() ? gradient_edge(root) : Edge{};
  put_history(root, std::make_shared<OverwriteNode>(geometry, old_base, Edge{node, 0}), 0);
  put_history(target, std::make_shared<ViewOfBaseNode>(geometry, gradient_edge(root)), 0);
  meta.view_version = target.version();
}

void record_dead_end(const OpDef& op, std::span<const Tensor* const> inputs, std::span<Tensor> outputs,
                     std::source_location where) {
  std::shared_ptr<DeadEndNode> node;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !is_floating(outputs[i].dtype())) continue;
    if (!node) node = std::make_shared<DeadEndNode>(op, inputs, where);
    node->n_outputs = static_cast<int>(outputs.size());
    put_history(outputs[i], node, static_cast<int>(i));
  }
}

void check_in_place(const OpDef& op, const Tensor& target, bool differentiable, std::source_location where) {
  if (overlaps_itself(target))
    throw_op_error(op.name, "an expanded tensor cannot be written in place: several elements are one; clone() it first",
                   where);
  if (!grad_mode) return;
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
  if (differentiable && meta != nullptr && meta->base.defined() && !meta->base.is_contiguous())
    throw_op_error(op.name, "a differentiable in-place write to a view needs a contiguous base", where);
}

}  // namespace autograd

}  // namespace rondo
