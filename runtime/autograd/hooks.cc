#include "rondo/runtime/autograd/hooks.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/base/error.h"

namespace rondo::autograd {

// Hooks may remove themselves, or add others, while they run, so `hooks` is a copy of the list.
void run_hooks(std::vector<Hook> hooks, Tensor& grad) {
  for (const Hook& hook : hooks) {
    Tensor replaced = hook.fn(grad);
    if (!replaced.defined()) continue;
    if (!(replaced.sizes() == grad.sizes()) || replaced.dtype() != grad.dtype())
      throw Error(absl::StrCat("backward: a hook replaced a gradient ", std::string(name_of(grad.dtype())),
                               to_string(grad.sizes()), " by ", std::string(name_of(replaced.dtype())),
                               to_string(replaced.sizes())));
    if (!(replaced.device() == grad.device()))
      throw Error(absl::StrCat("backward: a hook replaced a gradient on ", to_string(grad.device()), " by one on ",
                               to_string(replaced.device()), "; move it with .to(Device)"));
    grad = apart_from_grads(std::move(replaced));
  }
}

void apply_extras(Node& node, std::span<Tensor> grads) {
  for (size_t i = 0; i < node.extras.size(); ++i) {
    Tensor& grad = grads[static_cast<size_t>(node.extras[i].output)];
    if (!grad.defined()) continue;
    if (!node.extras[i].hooks.empty()) run_hooks(node.extras[i].hooks, grad);
    if (auto slot = node.extras[i].retained.lock()) retain(*slot, grad);
  }
}

void retain(GradSlot& slot, const Tensor& grad) { slot.grad = slot.grad.defined() ? slot.grad + grad : grad.clone(); }

}  // namespace rondo::autograd
