#include "rondo/optim/sgd.h"

#include "absl/strings/str_cat.h"

namespace rondo::optim {

void SGD::add(std::span<const Tensor> params, const SGDOptions& o) {
  if (!(o.lr >= 0 && o.momentum >= 0 && o.weight_decay >= 0))
    throw Error("SGD: lr, momentum and weight_decay must not be negative");
  if (o.nesterov && (o.momentum == 0 || o.dampening != 0)) throw Error("SGD: nesterov needs momentum and no dampening");
  static const UpdatePlan plain = plan_of<SGDFormula<false>>("sgd", {});
  static const UpdatePlan with_momentum = plan_of<SGDFormula<true>>("sgd_momentum", {{"momentum_buffer"}});
  add_group(params, o.momentum != 0 ? with_momentum : plain, {.format = o.state});
  groups_.push_back(o);
}

SGD::SGD(std::vector<Tensor> params, SGDOptions options) : SGD({ParamGroup<SGDOptions>{std::move(params), options}}) {}
SGD::SGD(std::vector<ParamGroup<SGDOptions>> groups) {
  add_groups(groups, [this](const auto& group) { add(group.params, group.options); });
}

void SGD::visit_options(int group, OptionVisitor visit) {
  SGDOptions& o = groups_[static_cast<size_t>(group)];
  visit("lr", o.lr);
  visit("momentum", o.momentum);
  visit("dampening", o.dampening);
  visit("weight_decay", o.weight_decay);
}

ScalarRule SGD::scalars(int group) const {
  return {
      groups_[static_cast<size_t>(group)], [](const SGDOptions& o, int64_t step, std::span<double> out) {
        const double values[] = {
            o.maximize ? -1.0 : 1.0,       o.weight_decay,        o.lr, o.momentum, step == 1 ? 1.0 : 1.0 - o.dampening,
            o.nesterov ? o.momentum : 1.0, o.nesterov ? 1.0 : 0.0};
        static_assert(std::size(values) == SGDFormula<false>::kScalars);
        std::copy(std::begin(values), std::end(values), out.begin());
      }};
}

}  // namespace rondo::optim
