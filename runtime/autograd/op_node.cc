#include "rondo/runtime/autograd/op_node.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/anomaly_check.h"
#include "rondo/runtime/autograd/backward.h"
#include "rondo/runtime/autograd/history.h"
#include "rondo/runtime/autograd/hooks.h"
#include "rondo/runtime/autograd/node_scope.h"
#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/location.h"
#include "rondo/runtime/tensor/memory_order.h"

namespace rondo::autograd {
namespace {

// Note [Rules in memory order]. If the result of an elementwise op is channels last (Note [Results keep the layout] in
//   op/op.h), the op's rule runs on views of its tensors (B, H, W, C). So gradients lie in memory as the result does,
//   and the gradient of an operand that was broadcast is summed in the order of memory, as in a compiled region, which
//   differentiates such views, too (capture/trace.h).
Dims as_image(Dims sizes) {
  while (sizes.rank() < 4) sizes.insert(0, 1);
  return sizes;
}
Dims in_memory_order(const Dims& sizes) {
  if (sizes.empty()) return sizes;
  const Dims image = as_image(sizes);
  return {image[0], image[2], image[3], image[1]};
}
Tensor in_memory_order(const Tensor& x) {
  if (!x.defined() || x.rank() == 0) return x;
  return (x.rank() == 4 ? x : x.reshape(as_image(x.sizes()))).permute({0, 2, 3, 1});
}
Tensor out_of_memory_order(const Tensor& x, const Dims& sizes) {
  if (!x.defined() || x.rank() == 0) return x;
  const Tensor front = x.permute({0, 3, 1, 2});
  return sizes.rank() == 4 ? front : front.reshape(sizes);
}

// The node of one call of an op.
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
      // Field by field, not as one struct: a 16-byte load right after the narrower stores would stall the processor.
      meta.dtype = input.dtype();
      meta.sizes = input.sizes();
      if (input.requires_grad() && is_floating(input.dtype())) {
        edges[i] = gradient_edge(input);
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
      if (grad_enabled() && outputs[i].defined()) {
        outputs[i] = outputs[i].detach();
        put_history(outputs[i], self.lock(), static_cast<int>(i));
      }
    }
    const RuleScope rule(*this);
    const FloatingPointScope floating_point;
    if (in_memory_order_) [[unlikely]]
      return run_rule_in_memory_order(inputs, outputs, grads_out, grads_in);
    run_rule(inputs, outputs, grads_out, metas_, grads_in);
  }
  void backward_onto(std::span<Tensor> grads_out, std::span<Tensor> grads_in, std::span<LeafGrad>) override {
    apply_extras(*this, grads_out);
    if (grads_in.empty()) return;
    const bool all = !grad_enabled() && RequestedGradients::now() == nullptr;
    const RowsOfLeaf scope(all ? edges[0].node.get() : nullptr);
    backward(grads_out, grads_in);
  }

  std::weak_ptr<Node> self;

  // Notes that the rule runs in memory order: Note [Rules in memory order].
  void set_in_memory_order() { in_memory_order_ = true; }

 private:
  void run_rule(std::span<const Tensor> inputs, std::span<const Tensor> outputs, std::span<const Tensor> grads_out,
                std::span<const InputMeta> metas, std::span<Tensor> grads_in) const {
    const GradContext context(attrs_, inputs, outputs, grads_out, metas, grads_in);
    if (anomaly::detecting) [[unlikely]]
      return checked_rule(context, inputs, outputs, grads_out, grads_in);
    op_.grad(context);
  }
  void run_rule_in_memory_order(std::span<Tensor> inputs, std::span<Tensor> outputs, std::span<const Tensor> grads_out,
                                std::span<Tensor> grads_in) const {
    absl::InlinedVector<Tensor, 1> grads(grads_out.begin(), grads_out.end());
    absl::InlinedVector<InputMeta, 3> metas = metas_;
    for (Tensor& tensor : inputs) tensor = in_memory_order(tensor);
    for (Tensor& tensor : outputs) tensor = in_memory_order(tensor);
    for (Tensor& tensor : grads) tensor = in_memory_order(tensor);
    for (InputMeta& meta : metas) meta.sizes = in_memory_order(meta.sizes);
    run_rule(inputs, outputs, grads, metas, grads_in);
    for (size_t i = 0; i < grads_in.size(); ++i) grads_in[i] = out_of_memory_order(grads_in[i], metas_[i].sizes);
  }
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
  std::unique_ptr<const std::string> location_;  // under DetectAnomaly: names the module, which backward cannot see
  bool saves_ = false;  // the node saves a tensor; one that saves none may run backward any number of times
  bool released_ = false;
  bool in_memory_order_ = false;
  absl::InlinedVector<InputMeta, 3> metas_;
  absl::InlinedVector<SavedTensor, 3> saved_inputs_;
  absl::InlinedVector<SavedTensor, 1> saved_outputs_;
};

// The history of a result of an op without a gradient.
class NondifferentiableNode final : public Node {
 public:
  NondifferentiableNode(const OpDef& op, std::span<const Tensor* const> inputs, std::source_location where)
      : op_(op), where_(where) {
    for (const Tensor* input : inputs)
      edges.push_back(input->defined() && input->requires_grad() ? gradient_edge(*input) : Edge{});
  }
  const char* name() const override { return op_.name; }
  void backward(std::span<Tensor>, std::span<Tensor>) override {
    throw_op_error(op_.name, "has no derivative: nothing can be differentiated through it", where_);
  }

 private:
  const OpDef& op_;
  std::source_location where_;
};

}  // namespace

void record_call(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::span<Tensor> outputs,
                 std::source_location where) {
  auto node = std::make_shared<OpNode>(op, inputs, attrs, where);
  node->self = node;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].defined() && is_floating(outputs[i].dtype())) put_history(outputs[i], node, static_cast<int>(i));
  node->save_outputs(outputs);
  if (op.kind == OpKind::kElementwise && lies_channels_last(outputs[0])) [[unlikely]] {
    node->set_in_memory_order();
    outputs[0].impl()->autograd->in_memory_order = true;
  }
}

void record_in_place(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, Tensor& target,
                     std::source_location where) {
  auto node = std::make_shared<OpNode>(op, inputs, attrs, where);
  node->self = node;
  node->save_outputs({&target, 1});
  put_history_of_write(target, std::move(node));
}

void record_nondifferentiable(const OpDef& op, std::span<const Tensor* const> inputs, std::span<Tensor> outputs,
                              std::source_location where) {
  std::shared_ptr<NondifferentiableNode> node;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !is_floating(outputs[i].dtype())) continue;
    if (!node) node = std::make_shared<NondifferentiableNode>(op, inputs, where);
    node->n_outputs = static_cast<int>(outputs.size());
    put_history(outputs[i], node, static_cast<int>(i));
  }
}

}  // namespace rondo::autograd
