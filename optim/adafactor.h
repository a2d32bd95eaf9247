// Adafactor (Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018, Algorithms 4 and
// 5), in PyTorch's form. For a matrix (the last two dimensions) the state has one number for each row and for each
// column: a moving average of the mean squared gradient. Their outer product approximates the second moment. For other
// parameters the second moment is kept in full.
//
//   optim::Adafactor optimizer(model.parameters(), {.lr = 1e-2});
#pragma once

#include <array>
#include <span>

#include "rondo/optim/formula_optimizer.h"
#include "rondo/runtime/ops/scalar_math.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

struct AdafactorOptions {
  double lr = 1e-2;           // the largest relative step
  double beta2_decay = -0.8;  // 1 - beta2 at step t is t^beta2_decay
  double eps1 = 0;            // lower bound of the second moment's square root; 0: the epsilon of the parameter's dtype
  double eps2 = 1e-3;         // lower bound of the parameter's root mean square, which scales the step
  double d = 1.0;             // an update with a larger root mean square is scaled down to this one
  double weight_decay = 0;    // decoupled: param -= lr * weight_decay * param
  bool maximize = false;
  StateFormat state = StateFormat::kFull;  // of vectors; row and column means are always in the compute dtype
  bool masters = true;                     // f32 weights of 16-bit parameters: Note [Master weights] of optimizer.h
};

// The scalars of both formulas, in order: sign, weight of the new square, eps1^2, keep, step. A program after the first
// sweep scales `step`.
struct AdafactorScalars {
  static constexpr size_t kScalars = 5;
  static constexpr int kWeight = 1, kEps = 2, kStep = 4;
  template <class T> static T direction(T grad, T second, const std::array<T, kScalars>& s) {
    return scalar::rsqrt(scalar::maximum(second, s[kEps])) * (grad * s[0]);
  }
};
struct AdafactorVector : AdafactorScalars {
  static constexpr size_t kStates = 1;
};
struct AdafactorVectorGather : AdafactorVector {
  static constexpr size_t kSums = 2;
  template <class T>
  static void update(T& param, T grad, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars,
                     std::array<T, kSums>& sums) {
    states[0] = scalar::fma(scalars[kWeight], scalar::fma(grad, grad, -states[0]), states[0]);
    const T u = direction(grad, states[0], scalars);
    sums = {param * param, u * u};
  }
};
struct AdafactorVectorApply : AdafactorVector {
  template <class T>
  static void update(T& param, T grad, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars) {
    param = scalar::fma(-scalars[kStep], direction(grad, states[0], scalars), param * scalars[3]);
  }
};
// States: row_var, col_var, and row_var divided by its mean. The third one exists only during a step.
struct AdafactorMatrix : AdafactorScalars {
  static constexpr size_t kStates = 3;
};
struct AdafactorMatrixGather : AdafactorMatrix {
  static constexpr size_t kSums = 2;
  template <class T>
  static void update(T& param, T grad, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars,
                     std::array<T, kSums>& sums) {
    const T u = direction(grad, states[2] * states[1], scalars);
    sums = {param * param, u * u};
  }
};
struct AdafactorMatrixApply : AdafactorMatrix {
  template <class T>
  static void update(T& param, T grad, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars) {
    param = scalar::fma(-scalars[kStep], direction(grad, states[2] * states[1], scalars), param * scalars[3]);
  }
};

class Adafactor : public FormulaOptimizer<Adafactor, AdafactorOptions> {
 public:
  using FormulaOptimizer::FormulaOptimizer;
  static constexpr const char* kName = "Adafactor";
  static constexpr OptionList kOptions{Option{"lr", &AdafactorOptions::lr},
                                       Option{"beta2_decay", &AdafactorOptions::beta2_decay},
                                       Option{"eps1", &AdafactorOptions::eps1, Saved::kLater},
                                       Option{"eps2", &AdafactorOptions::eps2},
                                       Option{"d", &AdafactorOptions::d},
                                       Option{"weight_decay", &AdafactorOptions::weight_decay},
                                       Option{"maximize", &AdafactorOptions::maximize, Saved::kLater},
                                       Option{"state", &AdafactorOptions::state, Saved::kLater},
                                       Option{"masters", &AdafactorOptions::masters, Saved::kNever}};

  static void check(const AdafactorOptions& o);
  static FormulaCode<AdafactorOptions> code();

 protected:
  void prepare(int sweep, PreparedParam& param) override;
  void own_scalars(int group, const Tensor& param, std::span<double> scalars, std::span<double> numbers) const override;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
