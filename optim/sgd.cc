#include "rondo/optim/sgd.h"

#include "absl/strings/str_cat.h"
#include "rondo/optim/scalar_program.h"

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

namespace {
// The first step takes the whole gradient. Number: 1 - dampening.
struct GradWeight {
  static constexpr size_t kNumbers = 1, kOut = 1;
  template <class T> static std::array<T, kOut> run(T step, const std::array<T, kNumbers>& numbers) {
    const T one = scalar::constant(step, 1.0);
    return {scalar::select(scalar::eq(step, one), one, numbers[0])};
  }
};
}  // namespace

ScalarRule SGD::scalars(int group) const {
  static const RowProgram program = step_program<GradWeight>("sgd_grad_weight", {4});
  const SGDOptions& o = groups_[static_cast<size_t>(group)];
  static_assert(SGDFormula<false>::kScalars == 7);
  return {.values = {o.maximize ? -1.0 : 1.0, o.weight_decay, o.lr, o.momentum, /*grad_weight=*/1,
                     o.nesterov ? o.momentum : 1.0, o.nesterov ? 1.0 : 0.0},
          .program = o.dampening != 0 ? &program : nullptr,
          .numbers = {1.0 - o.dampening}};
}

}  // namespace rondo::optim
