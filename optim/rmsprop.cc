#include "rondo/optim/rmsprop.h"

#include "absl/strings/str_cat.h"

namespace rondo::optim {

void RMSprop::add(std::span<const Tensor> params, const RMSpropOptions& o) {
  if (!(o.lr >= 0 && o.eps >= 0 && o.weight_decay >= 0 && o.momentum >= 0 && o.alpha >= 0))
    throw Error("RMSprop: lr, alpha, eps, weight_decay and momentum must not be negative");
  const StateSpec square = {.name = "square_avg", .nonnegative = true}, mean = {"grad_avg"},
                  buffer = {"momentum_buffer"};
  static const UpdatePlan plans[] = {
      plan_of<RMSpropFormula<false, false>>("rmsprop", {square}),
      plan_of<RMSpropFormula<false, true>>("rmsprop_momentum", {square, buffer}),
      plan_of<RMSpropFormula<true, false>>("rmsprop_centered", {square, mean}),
      plan_of<RMSpropFormula<true, true>>("rmsprop_centered_momentum", {square, mean, buffer}),
  };
  add_group(params, plans[2 * o.centered + (o.momentum > 0)], {.format = o.state});
  groups_.push_back(o);
}

RMSprop::RMSprop(std::vector<Tensor> params, RMSpropOptions options)
    : RMSprop({ParamGroup<RMSpropOptions>{std::move(params), options}}) {}
RMSprop::RMSprop(std::vector<ParamGroup<RMSpropOptions>> groups) {
  add_groups(groups, [this](const auto& group) { add(group.params, group.options); });
}

void RMSprop::visit_options(int group, OptionVisitor visit) {
  RMSpropOptions& o = groups_[static_cast<size_t>(group)];
  visit("lr", o.lr);
  visit("alpha", o.alpha);
  visit("eps", o.eps);
  visit("weight_decay", o.weight_decay);
  visit("momentum", o.momentum);
}

ScalarRule RMSprop::scalars(int group) const {
  const RMSpropOptions& o = groups_[static_cast<size_t>(group)];
  static_assert(RMSpropFormula<false, false>::kScalars == 7);
  return {.values = {o.maximize ? -1.0 : 1.0, o.weight_decay, o.alpha, 1 - o.alpha, o.eps, o.momentum, o.lr}};
}

}  // namespace rondo::optim
