// Adam (Kingma and Ba, 2015, Algorithm 1), AMSGrad (Reddi et al., 2018) and AdamW (Loshchilov and Hutter, 2019,
// Algorithm 2). Weight decay is L2 in Adam: it changes the gradient. In AdamW it is decoupled: it changes the
// parameter.
//
//   optim::AdamW optimizer(model.parameters(), {.lr = 3e-4, .betas = {0.9, 0.95}, .weight_decay = 0.1});
#pragma once

#include <array>

#include "rondo/optim/formula_optimizer.h"
#include "rondo/runtime/ops/scalar_math.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

struct AdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;  // L2: grad += weight_decay * param
  bool amsgrad = false;
  bool maximize = false;
  StateFormat state = StateFormat::kFull;
  bool masters = true;  // f32 weights of 16-bit parameters: Note [Master weights] of optimizer.h
};

struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;  // decoupled: param -= lr * weight_decay * param
  bool amsgrad = false;
  bool maximize = false;
  StateFormat state = StateFormat::kFull;
  bool masters = true;  // f32 weights of 16-bit parameters: Note [Master weights] of optimizer.h
};

// One formula for both kinds of decay: AdamW sets l2 = 0, Adam sets keep = 1. With these values, the unused term
// changes no bit of the result.
template <bool kAmsgrad> struct AdamFormula {
  static constexpr size_t kStates = kAmsgrad ? 3 : 2, kScalars = 9;

  template <class T>
  static void update(T& param, T grad, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars) {
    const auto& [sign, l2, keep, weight1, beta2, weight2, step_size, inverse_correction, eps] = scalars;
    T &exp_avg = states[0], &exp_avg_sq = states[1];
    const T g = scalar::fma(l2, param, grad * sign);
    exp_avg = scalar::fma(weight1, g - exp_avg, exp_avg);
    exp_avg_sq = scalar::fma(weight2 * g, g, beta2 * exp_avg_sq);
    T second = exp_avg_sq;
    if constexpr (kAmsgrad) second = states[2] = scalar::maximum(states[2], exp_avg_sq);
    const T denominator = scalar::fma(scalar::sqrt(second), inverse_correction, eps);
    param = scalar::fma(-step_size, exp_avg / denominator, param * keep);
  }
};

class Adam : public FormulaOptimizer<Adam, AdamOptions> {
 public:
  using FormulaOptimizer::FormulaOptimizer;
  static constexpr const char* kName = "Adam";

  static constexpr OptionList kOptions{Option{"lr", &AdamOptions::lr},
                                       Option{"beta", &AdamOptions::betas},
                                       Option{"eps", &AdamOptions::eps},
                                       Option{"weight_decay", &AdamOptions::weight_decay},
                                       Option{"amsgrad", &AdamOptions::amsgrad, Saved::kLater},
                                       Option{"maximize", &AdamOptions::maximize, Saved::kLater},
                                       Option{"state", &AdamOptions::state, Saved::kLater},
                                       Option{"masters", &AdamOptions::masters, Saved::kNever}};

  static void check(const AdamOptions& o);
  static FormulaCode<AdamOptions> code();
};

class AdamW : public FormulaOptimizer<AdamW, AdamWOptions> {
 public:
  using FormulaOptimizer::FormulaOptimizer;
  static constexpr const char* kName = "AdamW";

  static constexpr OptionList kOptions{Option{"lr", &AdamWOptions::lr},
                                       Option{"beta", &AdamWOptions::betas},
                                       Option{"eps", &AdamWOptions::eps},
                                       Option{"weight_decay", &AdamWOptions::weight_decay},
                                       Option{"amsgrad", &AdamWOptions::amsgrad, Saved::kLater},
                                       Option{"maximize", &AdamWOptions::maximize, Saved::kLater},
                                       Option{"state", &AdamWOptions::state, Saved::kLater},
                                       Option{"masters", &AdamWOptions::masters, Saved::kNever}};

  static void check(const AdamWOptions& o);
  static FormulaCode<AdamWOptions> code();
};

}  // namespace rondo::optim
#pragma GCC visibility pop
