// Adafactor (Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018, Algorithms 4 and
// 5), in PyTorch's form. Of a matrix (the last two dimensions) only the means of the squared gradient over rows and
// columns are kept; their outer product stands for the second moment.
//
//   optim::Adafactor optimizer(model.parameters(), {.lr = 1e-2});
#pragma once

#include <array>
#include <vector>

#include "rondo/optim/optimizer.h"
#include "rondo/runtime/ops/scalar_math.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

struct AdafactorOptions {
  double lr = 1e-2;           // the largest relative step
  double beta2_decay = -0.8;  // 1 - beta2 at step t is t^beta2_decay
  double eps1 = 0;            // of the second moment's root; 0: the epsilon of the parameter's dtype
  double eps2 = 1e-3;         // the least root mean square that a parameter counts with
  double d = 1.0;             // updates with a larger root mean square are scaled down to it
  double weight_decay = 0;    // times lr times the parameter is subtracted from the parameter
  bool maximize = false;
  StateFormat state = StateFormat::kFull;  // of vectors; factors are always in the compute dtype
};

// sign, weight of the new square, eps1^2, keep, step: the last is known after the first sweep.
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
// States: row_var, col_var, and row_var over its mean, which exists during a step.
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

class Adafactor : public Optimizer {
 public:
  explicit Adafactor(std::vector<Tensor> params, AdafactorOptions options = {});
  explicit Adafactor(std::vector<ParamGroup<AdafactorOptions>> groups);

 protected:
  const char* name() const override { return "Adafactor"; }
  void visit_options(int group, OptionVisitor visit) override;
  void scalars(int group, int64_t step, std::span<double> out) const override;
  void prepare(int sweep, PreparedParam& param) override;

 private:
  void add(std::span<const Tensor> params, const AdafactorOptions& options);
  std::vector<AdafactorOptions> groups_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
