#include "rondo/optim/lion.h"

#include "absl/strings/str_cat.h"

namespace rondo::optim {

void Lion::add(std::span<const Tensor> params, const LionOptions& o) {
  for (double beta : o.betas)
    if (!(beta >= 0 && beta < 1)) throw Error(absl::StrCat("Lion: betas must be in [0, 1), got ", beta));
  if (!(o.lr >= 0 && o.weight_decay >= 0)) throw Error("Lion: lr and weight_decay must not be negative");
  static const UpdatePlan plan = plan_of<LionFormula>("lion", {{"exp_avg"}});
  add_group(params, plan, {.format = o.state});
  groups_.push_back(o);
}

Lion::Lion(std::vector<Tensor> params, LionOptions options)
    : Lion({ParamGroup<LionOptions>{std::move(params), options}}) {}
Lion::Lion(std::vector<ParamGroup<LionOptions>> groups) {
  add_groups(groups, [this](const auto& group) { add(group.params, group.options); });
}

void Lion::visit_options(int group, OptionVisitor visit) {
  LionOptions& o = groups_[static_cast<size_t>(group)];
  visit("lr", o.lr);
  visit("beta1", o.betas[0]);
  visit("beta2", o.betas[1]);
  visit("weight_decay", o.weight_decay);
}

ScalarRule Lion::scalars(int group) const {
  const LionOptions& o = groups_[static_cast<size_t>(group)];
  static_assert(LionFormula::kScalars == 5);
  return {.values = {o.maximize ? -1.0 : 1.0, 1 - o.lr * o.weight_decay, 1 - o.betas[0], 1 - o.betas[1], o.lr}};
}

}  // namespace rondo::optim
