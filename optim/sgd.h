// Stochastic gradient descent with momentum (Sutskever et al., 2013), in PyTorch's form: the learning rate multiplies
// the momentum buffer, and dampening does not apply to the first step.
//
//   optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9, .nesterov = true});
#pragma once

#include <array>

#include "rondo/optim/formula_optimizer.h"
#include "rondo/runtime/ops/scalar_math.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  // L2: grad += weight_decay * param
  bool nesterov = false;    // requires momentum > 0 and dampening = 0
  bool maximize = false;
  StateFormat state = StateFormat::kFull;
  bool masters = true;  // f32 weights of 16-bit parameters: Note [Master weights] of optimizer.h
};

template <bool kMomentum> struct SGDFormula {
  static constexpr size_t kStates = kMomentum ? 1 : 0, kScalars = 7;

  template <class T>
  static void update(T& param, T grad, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars) {
    [[maybe_unused]] const auto& [sign, l2, lr, momentum, grad_weight, ahead_buffer, ahead_grad] = scalars;
    T direction = scalar::fma(l2, param, grad * sign);
    if constexpr (kMomentum) {
      states[0] = scalar::fma(momentum, states[0], grad_weight * direction);
      // With nesterov, the direction is grad + momentum * buffer. Without, it is the buffer.
      direction = scalar::fma(ahead_buffer, states[0], ahead_grad * direction);
    }
    param = scalar::fma(-lr, direction, param);
  }
};

// Computes the weight of the gradient: 1 in the first step, then the number. Number: 1 - dampening.
struct SGDGradWeight {
  static constexpr size_t kNumbers = 1, kOut = 1;
  template <class T> static std::array<T, kOut> run(T step, const std::array<T, kNumbers>& numbers) {
    const T one = scalar::constant(step, 1.0);
    return {scalar::select(scalar::eq(step, one), one, numbers[0])};
  }
};

class SGD : public FormulaOptimizer<SGD, SGDOptions> {
 public:
  using FormulaOptimizer::FormulaOptimizer;
  static constexpr const char* kName = "SGD";

  static constexpr OptionList kOptions{Option{"lr", &SGDOptions::lr},
                                       Option{"momentum", &SGDOptions::momentum},
                                       Option{"dampening", &SGDOptions::dampening},
                                       Option{"weight_decay", &SGDOptions::weight_decay},
                                       Option{"nesterov", &SGDOptions::nesterov, Saved::kLater},
                                       Option{"maximize", &SGDOptions::maximize, Saved::kLater},
                                       Option{"state", &SGDOptions::state, Saved::kLater},
                                       Option{"masters", &SGDOptions::masters, Saved::kNever}};

  static void check(const SGDOptions& o) {
    check_not_negative(kName, {{"lr", o.lr}, {"momentum", o.momentum}, {"weight_decay", o.weight_decay}});
    if (o.nesterov && (o.momentum == 0 || o.dampening != 0))
      throw Error("SGD: nesterov needs momentum and no dampening");
  }
  static ScalarRule rule(const SGDOptions& o) {
    static const RowProgram& program = *new RowProgram(step_program<SGDGradWeight>("sgd_grad_weight", {4}));
    static_assert(SGDFormula<false>::kScalars == 7);
    return {.values = {o.maximize ? -1.0 : 1.0, o.weight_decay, o.lr, o.momentum, /*grad_weight=*/1,
                       o.nesterov ? o.momentum : 1.0, o.nesterov ? 1.0 : 0.0},
            .program = o.dampening != 0 ? &program : nullptr,
            .numbers = {1.0 - o.dampening}};
  }
  static const UpdatePlan& plan(const SGDOptions& o) {
    static const UpdatePlan& plain = *new UpdatePlan(plan_of<SGDFormula<false>>("sgd", {}));
    static const UpdatePlan& with_momentum = *new UpdatePlan(
        plan_of<SGDFormula<true>>("sgd_momentum", {{"momentum_buffer"}}));
    return o.momentum != 0 ? with_momentum : plain;
  }
  static FormulaCode<SGDOptions> code();
};

}  // namespace rondo::optim
#pragma GCC visibility pop
