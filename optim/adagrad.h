// Adagrad (Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization",
// 2011), in PyTorch's form.
//
//   optim::Adagrad optimizer(model.parameters(), {.lr = 1e-2});
#pragma once

#include <array>

#include "rondo/optim/formula_optimizer.h"
#include "rondo/runtime/ops/scalar_math.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;      // step t uses lr / (1 + (t - 1) * lr_decay)
  double weight_decay = 0;  // L2: grad += weight_decay * param
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;
  StateFormat state = StateFormat::kFull;
  bool masters = true;  // f32 weights of 16-bit parameters: Note [Master weights] of optimizer.h
};

struct AdagradFormula {
  static constexpr size_t kStates = 1, kScalars = 4;

  template <class T>
  static void update(T& param, T grad, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars) {
    const auto& [sign, l2, eps, lr] = scalars;
    const T g = scalar::fma(l2, param, grad * sign);
    states[0] = scalar::fma(g, g, states[0]);
    param = scalar::fma(-lr, g / (scalar::sqrt(states[0]) + eps), param);
  }
};

// Computes the rate of a step. Numbers: lr, lr_decay.
struct AdagradRate {
  static constexpr size_t kNumbers = 2, kOut = 1;
  template <class T> static std::array<T, kOut> run(T step, const std::array<T, kNumbers>& numbers) {
    const auto& [lr, lr_decay] = numbers;
    const T one = scalar::constant(step, 1.0);
    return {lr / (one + (step - one) * lr_decay)};
  }
};

class Adagrad : public FormulaOptimizer<Adagrad, AdagradOptions> {
 public:
  using FormulaOptimizer::FormulaOptimizer;
  static constexpr const char* kName = "Adagrad";

  static constexpr OptionList kOptions{
      Option{"lr", &AdagradOptions::lr},
      Option{"lr_decay", &AdagradOptions::lr_decay},
      Option{"weight_decay", &AdagradOptions::weight_decay},
      Option{"initial_accumulator_value", &AdagradOptions::initial_accumulator_value, Saved::kLater},
      Option{"eps", &AdagradOptions::eps},
      Option{"maximize", &AdagradOptions::maximize, Saved::kLater},
      Option{"state", &AdagradOptions::state, Saved::kLater},
      Option{"masters", &AdagradOptions::masters, Saved::kNever}};

  static void check(const AdagradOptions& o) {
    check_not_negative(kName, {{"lr", o.lr},
                               {"lr_decay", o.lr_decay},
                               {"weight_decay", o.weight_decay},
                               {"initial_accumulator_value", o.initial_accumulator_value},
                               {"eps", o.eps}});
  }
  static ScalarRule rule(const AdagradOptions& o) {
    static const RowProgram& program = *new RowProgram(step_program<AdagradRate>("adagrad_rate", {3}));
    static_assert(AdagradFormula::kScalars == 4);
    return {.values = {o.maximize ? -1.0 : 1.0, o.weight_decay, o.eps, /*lr=*/0},
            .program = &program,
            .numbers = {o.lr, o.lr_decay}};
  }
  static const UpdatePlan& plan(const AdagradOptions& /*o*/) {
    static const UpdatePlan& plan = *new UpdatePlan(
        plan_of<AdagradFormula>("adagrad", {{.name = "sum", .nonnegative = true}}));
    return plan;
  }
  static double initial_state(const AdagradOptions& o) { return o.initial_accumulator_value; }
  static FormulaCode<AdagradOptions> code();
};

}  // namespace rondo::optim
#pragma GCC visibility pop
