// LAMB (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", 2020, Algorithm 2):
// Adam's step of each parameter, scaled by the ratio of the parameter's norm to the step's norm. Two sweeps: the first
// updates the averages and measures both norms, the second updates the parameters.
//
//   optim::LAMB optimizer(model.parameters(), {.lr = 2e-3, .weight_decay = 0.01});
#pragma once

#include <array>

#include "rondo/optim/formula_optimizer.h"
#include "rondo/runtime/ops/scalar_math.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

struct LAMBOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-6;
  double weight_decay = 0;  // step += weight_decay * param, before the step is scaled
  StateFormat state = StateFormat::kFull;
  bool masters = true;  // f32 weights of 16-bit parameters: Note [Master weights] of optimizer.h
};

// Computes Adam's step r of section 3.3 from the averages, which are already updated.
struct LAMBScalars {
  static constexpr size_t kScalars = 9;
  template <class T> static T direction(T param, T exp_avg, T exp_avg_sq, const std::array<T, kScalars>& s) {
    const auto& [weight1, beta2, weight2, inverse1, inverse_root2, eps, decay, lr, trust] = s;
    const T denominator = scalar::fma(scalar::sqrt(exp_avg_sq), inverse_root2, eps);
    return scalar::fma(decay, param, exp_avg * inverse1 / denominator);
  }
};
struct LAMBGather : LAMBScalars {
  static constexpr size_t kStates = 2, kSums = 2;
  template <class T>
  static void update(T& param, T grad, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars,
                     std::array<T, kSums>& sums) {
    auto& [exp_avg, exp_avg_sq] = states;
    exp_avg = scalar::fma(scalars[0], grad - exp_avg, exp_avg);
    exp_avg_sq = scalar::fma(scalars[2] * grad, grad, scalars[1] * exp_avg_sq);
    const T r = direction(param, exp_avg, exp_avg_sq, scalars);
    sums = {param * param, r * r};
  }
};
struct LAMBApply : LAMBScalars {
  static constexpr size_t kStates = 2;
  template <class T>
  static void update(T& param, T /*grad*/, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars) {
    const T lr = scalars[7] * scalars[8];
    param = scalar::fma(-lr, direction(param, states[0], states[1], scalars), param);
  }
};

class LAMB : public FormulaOptimizer<LAMB, LAMBOptions> {
 public:
  using FormulaOptimizer::FormulaOptimizer;
  static constexpr const char* kName = "LAMB";

  static constexpr OptionList kOptions{Option{"lr", &LAMBOptions::lr},
                                       Option{"beta", &LAMBOptions::betas},
                                       Option{"eps", &LAMBOptions::eps},
                                       Option{"weight_decay", &LAMBOptions::weight_decay},
                                       Option{"state", &LAMBOptions::state, Saved::kLater},
                                       Option{"masters", &LAMBOptions::masters, Saved::kNever}};

  static void check(const LAMBOptions& o);
  static FormulaCode<LAMBOptions> code();
};

}  // namespace rondo::optim
#pragma GCC visibility pop
