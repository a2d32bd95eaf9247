// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, Algorithm 2).
//
//   optim::Lion optimizer(model.parameters(), {.lr = 1e-4, .weight_decay = 0.1});
#pragma once

#include <array>

#include "rondo/optim/formula_optimizer.h"
#include "rondo/runtime/ops/scalar_math.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

struct LionOptions {
  double lr = 1e-4;
  std::array<double, 2> betas = {0.9, 0.99};
  double weight_decay = 0;  // decoupled: param -= lr * weight_decay * param
  bool maximize = false;
  StateFormat state = StateFormat::kFull;
  bool masters = true;  // f32 weights of 16-bit parameters: Note [Master weights] of optimizer.h
};

struct LionFormula {
  static constexpr size_t kStates = 1, kScalars = 5;

  template <class T>
  static void update(T& param, T grad, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars) {
    const auto& [sign, keep, weight1, weight2, lr] = scalars;
    T& exp_avg = states[0];
    const T g = grad * sign;
    const T ahead = scalar::fma(weight1, g - exp_avg, exp_avg);
    // If `ahead` is NaN, the parameter becomes NaN, too. sign() would hide the NaN.
    const T direction = scalar::select(scalar::eq(ahead, ahead), scalar::sign(ahead), ahead);
    exp_avg = scalar::fma(weight2, g - exp_avg, exp_avg);
    param = scalar::fma(-lr, direction, param * keep);
  }
};

class Lion : public FormulaOptimizer<Lion, LionOptions> {
 public:
  using FormulaOptimizer::FormulaOptimizer;
  static constexpr const char* kName = "Lion";

  static constexpr OptionList kOptions{Option{"lr", &LionOptions::lr},
                                       Option{"beta", &LionOptions::betas},
                                       Option{"weight_decay", &LionOptions::weight_decay},
                                       Option{"maximize", &LionOptions::maximize, Saved::kLater},
                                       Option{"state", &LionOptions::state, Saved::kLater},
                                       Option{"masters", &LionOptions::masters, Saved::kNever}};

  static void check(const LionOptions& o) {
    check_betas(kName, o.betas);
    check_not_negative(kName, {{"lr", o.lr}, {"weight_decay", o.weight_decay}});
  }
  static ScalarRule rule(const LionOptions& o) {
    static_assert(LionFormula::kScalars == 5);
    return {.values = {o.maximize ? -1.0 : 1.0, 1 - o.lr * o.weight_decay, 1 - o.betas[0], 1 - o.betas[1], o.lr}};
  }
  static const UpdatePlan& plan(const LionOptions& /*o*/) {
    static const UpdatePlan& plan = *new UpdatePlan(plan_of<LionFormula>("lion", {{"exp_avg"}}));
    return plan;
  }
  static FormulaCode<LionOptions> code();
};

}  // namespace rondo::optim
#pragma GCC visibility pop
