#include "rondo/optim/adam.h"

#include "absl/strings/str_cat.h"
#include "rondo/optim/formula_code.h"
#include "rondo/optim/step_programs.h"

namespace rondo::optim {
namespace {

// Converts AdamW's options to Adam's, which the shared code takes.
AdamOptions as_adam(const AdamWOptions& o) {
  return {o.lr, o.betas, o.eps, o.weight_decay, o.amsgrad, o.maximize, o.state, o.masters};
}

// Returns the plan of Adam or AdamW: both have one formula. In messages and profiles, the plan has the optimizer's
// name.
template <bool kDecoupled> const UpdatePlan& adam_plan(const AdamOptions& o, const Tensor& /*param*/) {
  static const UpdatePlan& plain = *new UpdatePlan(plan_of<AdamFormula<false>>(
      kDecoupled ? "adamw" : "adam", {{"exp_avg"}, {.name = "exp_avg_sq", .nonnegative = true}}));
  static const UpdatePlan& with_max = *new UpdatePlan(plan_of<AdamFormula<true>>(
      kDecoupled ? "adamw_amsgrad" : "adam_amsgrad",
      {{"exp_avg"}, {.name = "exp_avg_sq", .nonnegative = true}, {.name = "max_exp_avg_sq", .nonnegative = true}}));
  return o.amsgrad ? with_max : plain;
}

ScalarRule adam_rule(const AdamOptions& o, bool decoupled) {
  static const RowProgram& corrections = *new RowProgram{bias_corrections(), {}, {6, 7}};
  static_assert(AdamFormula<false>::kScalars == 9);
  return {.values = {o.maximize ? -1.0 : 1.0, decoupled ? 0.0 : o.weight_decay,
                     decoupled ? 1.0 - o.lr * o.weight_decay : 1.0, 1 - o.betas[0], o.betas[1], 1 - o.betas[1],
                     /*step_size=*/0, /*inverse_correction=*/0, o.eps},
          .program = &corrections,
          .numbers = {o.lr, o.betas[0], o.betas[1]}};
}

void check_adam(const char* name, const AdamOptions& o) {
  check_betas(name, o.betas);
  check_not_negative(name, {{"lr", o.lr}, {"eps", o.eps}, {"weight_decay", o.weight_decay}});
}

}  // namespace

void Adam::check(const AdamOptions& o) { check_adam(kName, o); }
FormulaCode<AdamOptions> Adam::code() {
  return {&adam_plan<false>, [](const AdamOptions& o) { return adam_rule(o, /*decoupled=*/false); }};
}

void AdamW::check(const AdamWOptions& o) { check_adam(kName, as_adam(o)); }
FormulaCode<AdamWOptions> AdamW::code() {
  return {[](const AdamWOptions& o, const Tensor& param) -> const UpdatePlan& {
            return adam_plan<true>(as_adam(o), param);
          },
          [](const AdamWOptions& o) { return adam_rule(as_adam(o), /*decoupled=*/true); }};
}

}  // namespace rondo::optim
