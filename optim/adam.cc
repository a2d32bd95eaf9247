#include "rondo/optim/adam.h"

#include "absl/strings/str_cat.h"
#include "rondo/optim/step_programs.h"

namespace rondo::optim {
namespace {

void check(const AdamOptions& o) {
  for (double beta : o.betas)
    if (!(beta >= 0 && beta < 1)) throw Error(absl::StrCat("Adam: betas must be in [0, 1), got ", beta));
  if (!(o.lr >= 0 && o.eps >= 0 && o.weight_decay >= 0))
    throw Error("Adam: lr, eps and weight_decay must not be negative");
}

AdamOptions as_adam(const AdamWOptions& o) {
  return {o.lr, o.betas, o.eps, o.weight_decay, o.amsgrad, o.maximize, o.state};
}

const UpdatePlan& plan(bool amsgrad) {
  static const UpdatePlan plain = plan_of<AdamFormula<false>>(
      "adam", {{"exp_avg"}, {.name = "exp_avg_sq", .nonnegative = true}});
  static const UpdatePlan with_max = plan_of<AdamFormula<true>>(
      "adam_amsgrad",
      {{"exp_avg"}, {.name = "exp_avg_sq", .nonnegative = true}, {.name = "max_exp_avg_sq", .nonnegative = true}});
  return amsgrad ? with_max : plain;
}

}  // namespace

void AdamBase::add(std::span<const Tensor> params, Group group) {
  check(group.options);
  add_group(params, plan(group.options.amsgrad), {.format = group.options.state});
  groups_.push_back(group);
}

void AdamBase::visit_options(int group, OptionVisitor visit) {
  AdamOptions& o = groups_[static_cast<size_t>(group)].options;
  visit("lr", o.lr);
  visit("beta1", o.betas[0]);
  visit("beta2", o.betas[1]);
  visit("eps", o.eps);
  visit("weight_decay", o.weight_decay);
}

ScalarRule AdamBase::scalars(int group) const {
  static const RowProgram corrections = {bias_corrections(), {}, {6, 7}};
  const auto& [o, decoupled] = groups_[static_cast<size_t>(group)];
  static_assert(AdamFormula<false>::kScalars == 9);
  return {.values = {o.maximize ? -1.0 : 1.0, decoupled ? 0.0 : o.weight_decay,
                     decoupled ? 1.0 - o.lr * o.weight_decay : 1.0, 1 - o.betas[0], o.betas[1], 1 - o.betas[1],
                     /*step_size=*/0, /*inverse_correction=*/0, o.eps},
          .program = &corrections,
          .numbers = {o.lr, o.betas[0], o.betas[1]}};
}

void Adam::add_param_group(const ParamGroup<AdamOptions>& group) {
  add_between_steps([&] { add(group.params, {group.options, false}); });
}
void AdamW::add_param_group(const ParamGroup<AdamWOptions>& group) {
  add_between_steps([&] { add(group.params, {as_adam(group.options), true}); });
}

Adam::Adam(std::vector<Tensor> params, AdamOptions options)
    : Adam({ParamGroup<AdamOptions>{std::move(params), options}}) {}
Adam::Adam(std::vector<ParamGroup<AdamOptions>> groups) { add_groups(*this, groups); }
AdamW::AdamW(std::vector<Tensor> params, AdamWOptions options)
    : AdamW({ParamGroup<AdamWOptions>{std::move(params), options}}) {}
AdamW::AdamW(std::vector<ParamGroup<AdamWOptions>> groups) { add_groups(*this, groups); }

}  // namespace rondo::optim
