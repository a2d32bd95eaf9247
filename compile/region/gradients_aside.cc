#include "rondo/compile/region/gradients_aside.h"

#include <unordered_set>

namespace rondo::compile {

GradientsAside::GradientsAside(nn::ModuleBase& model) {
  std::unordered_set<const TensorImpl*> seen;
  for (const Tensor* slot : model.tensor_slots()) {
    if (!slot->defined() || !seen.insert(slot->impl()).second) continue;
    grads_.emplace_back(*slot, slot->grad());
  }
  for (auto& [tensor, grad] : grads_) tensor.zero_grad();  // when nothing throws any more
}
GradientsAside::~GradientsAside() {
  for (auto& [tensor, grad] : grads_) {
    tensor.zero_grad();
    if (grad.defined()) tensor.set_grad(grad);
  }
}

}  // namespace rondo::compile
