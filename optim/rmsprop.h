// RMSprop (Hinton, "Neural Networks for Machine Learning", lecture 6e, 2012), and its centered form (Graves,
// "Generating Sequences With Recurrent Neural Networks", 2013, equations 38 to 45). As in PyTorch, eps is added outside
// the square root.
//
//   optim::RMSprop optimizer(model.parameters(), {.lr = 1e-3, .momentum = 0.9, .centered = true});
#pragma once

#include <array>

#include "rondo/optim/formula_optimizer.h"
#include "rondo/runtime/ops/scalar_math.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;  // L2: grad += weight_decay * param
  double momentum = 0;
  bool centered = false;  // divide by the gradient's standard deviation, not by its root mean square
  bool maximize = false;
  StateFormat state = StateFormat::kFull;
  bool masters = true;  // f32 weights of 16-bit parameters: Note [Master weights] of optimizer.h
};

template <bool kCentered, bool kMomentum> struct RMSpropFormula {
  static constexpr size_t kStates = 1 + kCentered + kMomentum, kScalars = 7;

  template <class T>
  static void update(T& param, T grad, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars) {
    [[maybe_unused]] const auto& [sign, l2, alpha, weight, eps, momentum, lr] = scalars;
    const T g = scalar::fma(l2, param, grad * sign);
    T& square_avg = states[0];
    square_avg = scalar::fma(weight * g, g, alpha * square_avg);
    T second = square_avg;
    if constexpr (kCentered) {
      T& grad_avg = states[1];
      grad_avg = scalar::fma(weight, g - grad_avg, grad_avg);
      second = scalar::maximum(scalar::fma(-grad_avg, grad_avg, square_avg),
                               scalar::constant(g, 0.0));  // rounding may make the variance negative
    }
    T step = g / (scalar::sqrt(second) + eps);
    if constexpr (kMomentum) step = states[kStates - 1] = scalar::fma(momentum, states[kStates - 1], step);
    param = scalar::fma(-lr, step, param);
  }
};

class RMSprop : public FormulaOptimizer<RMSprop, RMSpropOptions> {
 public:
  using FormulaOptimizer::FormulaOptimizer;
  static constexpr const char* kName = "RMSprop";

  static constexpr OptionList kOptions{Option{"lr", &RMSpropOptions::lr},
                                       Option{"alpha", &RMSpropOptions::alpha},
                                       Option{"eps", &RMSpropOptions::eps},
                                       Option{"weight_decay", &RMSpropOptions::weight_decay},
                                       Option{"momentum", &RMSpropOptions::momentum},
                                       Option{"centered", &RMSpropOptions::centered, Saved::kLater},
                                       Option{"maximize", &RMSpropOptions::maximize, Saved::kLater},
                                       Option{"state", &RMSpropOptions::state, Saved::kLater},
                                       Option{"masters", &RMSpropOptions::masters, Saved::kNever}};

  static void check(const RMSpropOptions& o) {
    check_not_negative(
        kName,
        {{"lr", o.lr}, {"alpha", o.alpha}, {"eps", o.eps}, {"weight_decay", o.weight_decay}, {"momentum", o.momentum}});
  }
  static ScalarRule rule(const RMSpropOptions& o) {
    static_assert(RMSpropFormula<false, false>::kScalars == 7);
    return {.values = {o.maximize ? -1.0 : 1.0, o.weight_decay, o.alpha, 1 - o.alpha, o.eps, o.momentum, o.lr}};
  }
  static const UpdatePlan& plan(const RMSpropOptions& o) {
    const StateSpec square = {.name = "square_avg", .nonnegative = true}, mean = {"grad_avg"},
                    buffer = {"momentum_buffer"};
    static const auto& plans = *new std::array{
        plan_of<RMSpropFormula<false, false>>("rmsprop", {square}),
        plan_of<RMSpropFormula<false, true>>("rmsprop_momentum", {square, buffer}),
        plan_of<RMSpropFormula<true, false>>("rmsprop_centered", {square, mean}),
        plan_of<RMSpropFormula<true, true>>("rmsprop_centered_momentum", {square, mean, buffer}),
    };
    return plans[2 * o.centered + (o.momentum > 0)];
  }
  static FormulaCode<RMSpropOptions> code();
};

}  // namespace rondo::optim
#pragma GCC visibility pop
