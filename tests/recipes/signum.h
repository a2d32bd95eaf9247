// Signum (Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", 2018, Algorithm 2): SGD with
// the sign of the momentum.
//
//   optim::Signum optimizer(model.parameters(), {.lr = 1e-4});
#pragma once

#include <array>

#include "rondo/optim/formula_optimizer.h"
#include "rondo/runtime/ops/scalar_math.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

struct SignumOptions {
  double lr = 1e-4;
  double momentum = 0.9;
  double weight_decay = 0;  // decoupled: param -= lr * weight_decay * param
  StateFormat state = StateFormat::kFull;
  bool masters = true;
};

struct SignumFormula {
  static constexpr size_t kStates = 1, kScalars = 3;

  template <class T>
  static void update(T& param, T grad, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars) {
    const auto& [weight, keep, lr] = scalars;
    states[0] = scalar::fma(weight, grad - states[0], states[0]);
    param = scalar::fma(-lr, scalar::sign(states[0]), param * keep);
  }
};

class Signum : public FormulaOptimizer<Signum, SignumOptions> {
 public:
  using FormulaOptimizer::FormulaOptimizer;
  static constexpr const char* kName = "Signum";

  static constexpr OptionList kOptions{Option{"lr", &SignumOptions::lr}, Option{"momentum", &SignumOptions::momentum},
                                       Option{"weight_decay", &SignumOptions::weight_decay},
                                       Option{"state", &SignumOptions::state},
                                       Option{"masters", &SignumOptions::masters, Saved::kNever}};

  static void check(const SignumOptions& o) {
    if (!(o.lr >= 0 && o.weight_decay >= 0 && o.momentum >= 0 && o.momentum < 1))
      throw Error("Signum: lr and weight_decay must not be negative, momentum must be in [0, 1)");
  }
  static ScalarRule rule(const SignumOptions& o) {
    return {.values = {1 - o.momentum, 1 - o.lr * o.weight_decay, o.lr}};
  }
  static const UpdatePlan& plan(const SignumOptions& /*o*/) {
    static const UpdatePlan plan = plan_of<SignumFormula>("signum", {{"momentum_buffer"}});
    return plan;
  }
  static FormulaCode<SignumOptions> code();
};

}  // namespace rondo::optim
#pragma GCC visibility pop
