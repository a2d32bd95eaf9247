#include "rondo/optim/lamb.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/backend.h"

namespace rondo::optim {

void LAMB::add(std::span<const Tensor> params, const LAMBOptions& o) {
  for (double beta : o.betas)
    if (!(beta >= 0 && beta < 1)) throw Error(absl::StrCat("LAMB: betas must be in [0, 1), got ", beta));
  if (!(o.lr >= 0 && o.eps >= 0 && o.weight_decay >= 0))
    throw Error("LAMB: lr, eps and weight_decay must not be negative");
  static const UpdatePlan plan = {{{"exp_avg"}, {.name = "exp_avg_sq", .nonnegative = true}},
                                  {{body_of<LAMBGather>("lamb_gather")}, {body_of<LAMBApply>("lamb_apply"), true}}};
  add_group(params, plan, {.format = o.state});
  groups_.push_back(o);
}

LAMB::LAMB(std::vector<Tensor> params, LAMBOptions options)
    : LAMB({ParamGroup<LAMBOptions>{std::move(params), options}}) {}
LAMB::LAMB(std::vector<ParamGroup<LAMBOptions>> groups) {
  add_groups(groups, [this](const auto& group) { add(group.params, group.options); });
}

void LAMB::visit_options(int group, OptionVisitor visit) {
  LAMBOptions& o = groups_[static_cast<size_t>(group)];
  visit("lr", o.lr);
  visit("beta1", o.betas[0]);
  visit("beta2", o.betas[1]);
  visit("eps", o.eps);
  visit("weight_decay", o.weight_decay);
}

ScalarRule LAMB::scalars(int group) const {
  return {groups_[static_cast<size_t>(group)], [](const LAMBOptions& o, int64_t step, std::span<double> out) {
            const double t = static_cast<double>(step);
            const double correction1 = 1 - std::pow(o.betas[0], t), correction2 = 1 - std::pow(o.betas[1], t);
            const double values[] = {1 - o.betas[0],
                                     o.betas[1],
                                     1 - o.betas[1],
                                     1 / correction1,
                                     1 / std::sqrt(correction2),
                                     o.eps,
                                     o.weight_decay,
                                     o.lr,
                                     1.0};
            static_assert(std::size(values) == LAMBScalars::kScalars);
            std::copy(std::begin(values), std::end(values), out.begin());
          }};
}

// The trust ratio; 1 where a norm is 0.
void LAMB::prepare(int /*sweep*/, PreparedParam& param) {
  enqueue(param.device, [sums = param.sums, scalars = param.scalars, decision = param.decision] {
    if (decision->go != Decision::kUpdate) return;
    const double weight = std::sqrt(sums.total(0)), update = std::sqrt(sums.total(1));
    scalars[LAMBScalars::kScalars - 1] = weight > 0 && update > 0 ? weight / update : 1.0;
  });
}

}  // namespace rondo::optim
