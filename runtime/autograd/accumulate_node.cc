#include "rondo/runtime/autograd/accumulate_node.h"

#include "absl/strings/str_cat.h"

namespace rondo::autograd {

// Hooks may remove themselves, or add others, while they run, so this is a copy of the list.
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

GradientHome::GradientHome(const Tensor& leaf) {
  if (!leaf.defined() || !leaf.requires_grad() || !leaf.is_leaf())
    throw Error("GradientHome: the tensor is not a leaf that requires a gradient");
  accumulator_ = gradient_edge(leaf).node;
}
GradientHome::~GradientHome() {
  set(Tensor());
  set_parts(nullptr);
}
// A handle of its own: AccumulateNode counts those that others hold.
void GradientHome::set(Tensor home) {
  static_cast<AccumulateNode&>(*accumulator_).home = home.defined() ? home.detach() : Tensor();
}

void GradientHome::set_parts(GradientParts* parts) { static_cast<AccumulateNode&>(*accumulator_).parts = parts; }

bool offer_part(Node& leaf, Tensor& total) { return static_cast<AccumulateNode&>(leaf).offer_part(total); }
void complete_leaf(Node& leaf) { static_cast<AccumulateNode&>(leaf).complete(); }
GradientParts* parts_of(const Node& leaf) { return static_cast<const AccumulateNode&>(leaf).parts_now(); }
bool has_callbacks(const Node& leaf) { return static_cast<const AccumulateNode&>(leaf).has_callbacks(); }
Tensor gradient_home(const Node& leaf) {
  const auto* node = dynamic_cast<const AccumulateNode*>(&leaf);
  return node == nullptr ? Tensor() : node->home_for_all();
}

}  // namespace rondo::autograd
