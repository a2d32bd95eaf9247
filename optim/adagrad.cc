#include "rondo/optim/adagrad.h"

#include "absl/strings/str_cat.h"

namespace rondo::optim {

void Adagrad::add(std::span<const Tensor> params, const AdagradOptions& o) {
  if (!(o.lr >= 0 && o.lr_decay >= 0 && o.weight_decay >= 0 && o.initial_accumulator_value >= 0 && o.eps >= 0))
    throw Error("Adagrad: options must not be negative");
  static const UpdatePlan plan = plan_of<AdagradFormula>("adagrad", {{.name = "sum", .nonnegative = true}});
  add_group(params, plan, {.format = o.state, .value = o.initial_accumulator_value});
  groups_.push_back(o);
}

Adagrad::Adagrad(std::vector<Tensor> params, AdagradOptions options)
    : Adagrad({ParamGroup<AdagradOptions>{std::move(params), options}}) {}
Adagrad::Adagrad(std::vector<ParamGroup<AdagradOptions>> groups) {
  add_groups(groups, [this](const auto& group) { add(group.params, group.options); });
}

void Adagrad::visit_options(int group, OptionVisitor visit) {
  AdagradOptions& o = groups_[static_cast<size_t>(group)];
  visit("lr", o.lr);
  visit("lr_decay", o.lr_decay);
  visit("weight_decay", o.weight_decay);
  visit("eps", o.eps);
}

ScalarRule Adagrad::scalars(int group) const {
  return {groups_[static_cast<size_t>(group)], [](const AdagradOptions& o, int64_t step, std::span<double> out) {
            const double lr = o.lr / (1 + static_cast<double>(step - 1) * o.lr_decay);
            const double values[] = {o.maximize ? -1.0 : 1.0, o.weight_decay, o.eps, lr};
            static_assert(std::size(values) == AdagradFormula::kScalars);
            std::copy(std::begin(values), std::end(values), out.begin());
          }};
}

}  // namespace rondo::optim
