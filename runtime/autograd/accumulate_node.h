// The end of the tape at a leaf: adds to .grad, or makes it in its home (autograd_extras.h).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "rondo/runtime/autograd/anomaly_check.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/autograd/autograd_extras.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/base/within_memory.h"

namespace rondo::autograd {

// Each hook may replace the gradient.
void run_hooks(std::vector<Hook> hooks, Tensor& grad);

class AccumulateNode final : public Node {
 public:
  // The highest sequence: the node runs as soon as the leaf's last gradient has arrived.
  AccumulateNode(std::shared_ptr<GradSlot> slot) : Node(UINT64_MAX), slot_(std::move(slot)) {}
  const char* name() const override { return "accumulate"; }
  void backward(std::span<Tensor> grads_out, std::span<Tensor>) override {
    Tensor grad = std::move(grads_out[0]);  // Note [Gradient memory]
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
  // Not while somebody holds a gradient that was made there before.
  Tensor home_for_all() const {
    const bool is_free = home.defined() && home.impl()->refs.load() == 1;
    return grad_enabled() || !slot_->hooks.empty() || slot_->grad.defined() || !is_free ? Tensor() : home;
  }

  // Null while gradients must not come in parts: Note [Gradients in parts].
  GradientParts* parts_now() const {
    return grad_enabled() || !slot_->hooks.empty() || anomaly::detecting ? nullptr : parts;
  }

  bool has_callbacks() const { return !slot_->accumulated.empty(); }

  Tensor home;
  GradientParts* parts = nullptr;
  void leaf_grad_added() override {
    if (!slot_->grad.defined()) slot_->grad = home;  // GradientHome
    if (slot_->grad.impl()->storage) slot_->grad.storage().set_purpose(Purpose::kGradients);
    if (outer_backward_has_more(*this)) {
      if (GradientParts* const taker = parts_now(); taker != nullptr && taker->wants_part()) taker->part_added();
      return;
    }
    tell_of_end();
  }
  void complete() {
    if (!outer_backward_has_more(*this)) tell_of_end();
  }
  bool offer_part(Tensor& total) {
    GradientParts* const taker = parts_now();
    if (taker == nullptr || !taker->wants_part()) return false;
    accumulate(std::move(total));
    slot_->grad.storage().set_purpose(Purpose::kGradients);
    taker->part_added();
    return true;
  }

 private:
  void tell_of_end() {
    for (size_t i = 0; i < slot_->accumulated.size(); ++i) slot_->accumulated[i].second();
  }
  void accumulate(Tensor grad) {
    Tensor& total = slot_->grad;
    if (!grad_enabled() && grad.requires_grad()) grad = grad.detach();  // what a hook returned
    const bool at_home = home.defined() && grad.storage() == home.storage() &&
                         grad.storage_offset() == home.storage_offset();
    if (!total.defined()) total = at_home || may_become_grad(grad) ? std::move(grad) : grad.clone();
    else if (grad_enabled() || overlaps_itself(total)) total = total + grad;
    else total.add_(grad);
  }

  std::shared_ptr<GradSlot> slot_;
};

}  // namespace rondo::autograd
