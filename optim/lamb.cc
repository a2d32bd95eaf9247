#include "rondo/optim/lamb.h"

#include "rondo/optim/formula_code.h"
#include "rondo/optim/scalar_program.h"
#include "rondo/optim/step_programs.h"

namespace rondo::optim {
namespace {

// Computes the trust ratio. In: the squares of the parameter's norm and of the step's. Out: the parameter's norm over
// the step's norm, or 1 if one of them is 0.
struct TrustRatio {
  static constexpr size_t kIn = 2, kNumbers = 0, kOut = 1;
  template <class T>
  static std::array<T, kOut> run(const std::array<T, kIn>& in, const std::array<T, kNumbers>& /*numbers*/) {
    const T weight = scalar::sqrt(in[0]), update = scalar::sqrt(in[1]);
    const T zero = scalar::constant(weight, 0.0), one = scalar::constant(weight, 1.0);
    return {
        scalar::select(scalar::logical_and(scalar::lt(zero, weight), scalar::lt(zero, update)), weight / update, one)};
  }
};

const UpdatePlan& lamb_plan(const LAMBOptions& /*o*/, const Tensor& /*param*/) {
  static const UpdatePlan& plan = *new UpdatePlan{
      {{"exp_avg"}, {.name = "exp_avg_sq", .nonnegative = true}},
      {{body_of<LAMBGather>("lamb_gather")},
       {.body = body_of<LAMBApply>("lamb_apply"),
        .program = RowProgram{program_body<TrustRatio>("lamb_trust_ratio"), {}, {LAMBScalars::kScalars - 1}}}},
      /*matrices=*/false,
      /*own_scalars=*/true};
  return plan;
}

ScalarRule lamb_rule(const LAMBOptions& o) {
  static const RowProgram& corrections = *new RowProgram{bias_corrections(), {}, {3, 4}};
  static_assert(LAMBScalars::kScalars == 9);
  return {.values = {1 - o.betas[0], o.betas[1], 1 - o.betas[1], /*inverse1=*/0, /*inverse_root2=*/0, o.eps,
                     o.weight_decay, o.lr, /*trust=*/1},
          .program = &corrections,
          .numbers = {1.0, o.betas[0], o.betas[1]}};
}

}  // namespace

void LAMB::check(const LAMBOptions& o) {
  check_betas(kName, o.betas);
  check_not_negative(kName, {{"lr", o.lr}, {"eps", o.eps}, {"weight_decay", o.weight_decay}});
}

FormulaCode<LAMBOptions> LAMB::code() { return {&lamb_plan, &lamb_rule}; }

}  // namespace rondo::optim
