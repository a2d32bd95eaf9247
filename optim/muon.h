// Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024,
// kellerjordan.github.io/posts/muon), in PyTorch's form. The step is the momentum of a matrix, made nearly orthogonal
// by Newton-Schulz iterations. Use Muon for the matrices of hidden layers, and another optimizer for embeddings, heads
// and vectors. A first sweep computes the momentum, then the iterations run, and a second sweep updates the parameters.
// The iterations are matrix products; they run in a compiled region if the optimizer is compiled.
//
//   optim::Muon optimizer(matrices, {.lr = 0.02, .momentum = 0.95});
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "rondo/optim/formula_optimizer.h"
#include "rondo/runtime/ops/scalar_math.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

struct MuonOptions {
  // The factor of lr for a matrix of A rows and B columns. kOriginal: sqrt(max(1, A / B)). kMatchRmsAdamW:
  // 0.2 sqrt(max(A, B)), which lets you keep the lr and weight_decay that you use with AdamW (Liu et al., "Muon is
  // Scalable for LLM Training", 2025).
  enum AdjustLr { kOriginal, kMatchRmsAdamW };
  double lr = 1e-3;
  double weight_decay = 0.1;  // decoupled: param -= lr * weight_decay * param
  double momentum = 0.95;
  bool nesterov = true;
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};
  double eps = 1e-7;
  int ns_steps = 5;
  DType ns_dtype = kF32;  // dtype of the iterations (PyTorch: bf16); f64 parameters use f64
  AdjustLr adjust_lr = kOriginal;
  StateFormat state = StateFormat::kFull;
  bool masters = true;  // f32 weights of 16-bit parameters: Note [Master weights] of optimizer.h
};

constexpr std::array<MuonOptions::AdjustLr, 2> option_values(MuonOptions::AdjustLr) {
  return {MuonOptions::kOriginal, MuonOptions::kMatchRmsAdamW};
}

// States: the momentum, and the step to take. The second one exists only during a step.
struct MuonScalars {
  static constexpr size_t kStates = 2, kScalars = 5;
};
// Both sweeps compute the momentum, because the first one must not change a kept state (Optimizer::prepare).
struct MuonGather : MuonScalars {
  template <class T> static T momentum(T grad, T buffer, const std::array<T, kScalars>& scalars) {
    return scalar::fma(scalars[0], grad - buffer, buffer);
  }
  template <class T>
  static void update(T& /*param*/, T grad, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars) {
    // Nesterov's direction, or the momentum without nesterov.
    states[1] = scalar::fma(scalars[1], momentum(grad, states[0], scalars), scalars[2] * grad);
  }
};
struct MuonApply : MuonScalars {
  template <class T>
  static void update(T& param, T grad, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars) {
    states[0] = MuonGather::momentum(grad, states[0], scalars);
    param = scalar::fma(-scalars[4], states[1], param * scalars[3]);
  }
};

class Muon : public FormulaOptimizer<Muon, MuonOptions> {
 public:
  using FormulaOptimizer::FormulaOptimizer;
  static constexpr const char* kName = "Muon";
  static constexpr OptionList kOptions{Option{"lr", &MuonOptions::lr},
                                       Option{"weight_decay", &MuonOptions::weight_decay},
                                       Option{"momentum", &MuonOptions::momentum},
                                       Option{"nesterov", &MuonOptions::nesterov, Saved::kLater},
                                       Option{"ns_coefficient", &MuonOptions::ns_coefficients, Saved::kLater},
                                       Option{"eps", &MuonOptions::eps, Saved::kLater},
                                       Option{"ns_steps", &MuonOptions::ns_steps, Saved::kLater},
                                       Option{"ns_dtype", &MuonOptions::ns_dtype, Saved::kLater},
                                       Option{"adjust_lr", &MuonOptions::adjust_lr, Saved::kLater},
                                       Option{"state", &MuonOptions::state, Saved::kLater},
                                       Option{"masters", &MuonOptions::masters, Saved::kNever}};

  static void check(const MuonOptions& o);
  static FormulaCode<MuonOptions> code();

 protected:
  void prepare(int sweep, PreparedParam& param) override;
  void own_scalars(int group, const Tensor& param, std::span<double> scalars, std::span<double> numbers) const override;

 private:
  struct Iterations;
  std::vector<std::shared_ptr<Iterations>> iterations_;  // by group; shared, because the type is incomplete here
};

}  // namespace rondo::optim
#pragma GCC visibility pop
