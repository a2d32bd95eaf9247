#include "rondo/compile/region/stashed_gradients.h"

#include <unordered_set>

#include "rondo/runtime/autograd/autograd.h"

namespace rondo::compile {

StashedGradients::StashedGradients(nn::ModuleBase& model) {
  std::unordered_set<const TensorImpl*> seen;
  for (const Tensor* slot : model.tensor_slots()) {
    if (!slot->defined() || !seen.insert(slot->impl()).second) continue;
    const Tensor grad = slot->grad();
    const bool is_elsewhere = grad.defined() && grad.impl()->storage && !grad.storage().is_unique();
    grads_.push_back({*slot, grad, is_elsewhere ? grad.clone() : Tensor()});
  }
  for (Stashed& stashed : grads_) stashed.tensor.zero_grad();  // nothing can throw any more
}
StashedGradients::~StashedGradients() {
  const NoGrad off;
  for (auto& [tensor, grad, copy] : grads_) {
    tensor.zero_grad();
    if (!grad.defined()) continue;
    try {
      if (copy.defined()) grad.copy_(copy);
    } catch (...) {  // a device that does not work any more
    }
    tensor.set_grad(grad);
  }
}

}  // namespace rondo::compile
