#include "rondo/optim/adagrad.h"

#include "absl/strings/str_cat.h"
#include "rondo/optim/scalar_program.h"

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

namespace {
// Numbers: lr, lr_decay.
struct DecayedRate {
  static constexpr size_t kNumbers = 2, kOut = 1;
  template <class T> static std::array<T, kOut> run(T step, const std::array<T, kNumbers>& numbers) {
    const auto& [lr, lr_decay] = numbers;
    const T one = scalar::constant(step, 1.0);
    return {lr / (one + (step - one) * lr_decay)};
  }
};
}  // namespace

ScalarRule Adagrad::scalars(int group) const {
  static const RowProgram program = step_program<DecayedRate>("adagrad_rate", {3});
  const AdagradOptions& o = groups_[static_cast<size_t>(group)];
  static_assert(AdagradFormula::kScalars == 4);
  return {.values = {o.maximize ? -1.0 : 1.0, o.weight_decay, o.eps, /*lr=*/0},
          .program = &program,
          .numbers = {o.lr, o.lr_decay}};
}

}  // namespace rondo::optim
