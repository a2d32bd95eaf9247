// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, Algorithm 2).
//
//   optim::Lion optimizer(model.parameters(), {.lr = 1e-4, .weight_decay = 0.1});
#pragma once

#include <array>
#include <vector>

#include "rondo/optim/optimizer.h"
#include "rondo/runtime/ops/scalar_math.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

struct LionOptions {
  double lr = 1e-4;
  std::array<double, 2> betas = {0.9, 0.99};
  double weight_decay = 0;  // decoupled: param -= lr * weight_decay * param
  bool maximize = false;
  StateFormat state = StateFormat::kFull;
};

struct LionFormula {
  static constexpr size_t kStates = 1, kScalars = 5;

  template <class T>
  static void update(T& param, T grad, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars) {
    const auto& [sign, keep, weight1, weight2, lr] = scalars;
    T& exp_avg = states[0];
    const T g = grad * sign;
    const T direction = scalar::sign(scalar::fma(weight1, g - exp_avg, exp_avg));
    exp_avg = scalar::fma(weight2, g - exp_avg, exp_avg);
    param = scalar::fma(-lr, direction, param * keep);
  }
};

class Lion : public Optimizer {
 public:
  explicit Lion(std::vector<Tensor> params, LionOptions options = {});
  explicit Lion(std::vector<ParamGroup<LionOptions>> groups);
  // One more group; see Optimizer::n_groups(). Throws what the constructor throws; then the optimizer is as before.
  void add_param_group(const ParamGroup<LionOptions>& group) {
    add_later([&] { add(group.params, group.options); });
  }

 protected:
  const char* name() const override { return "Lion"; }
  void visit_options(int group, OptionVisitor visit) override;
  ScalarRule scalars(int group) const override;

 private:
  void add(std::span<const Tensor> params, const LionOptions& options);
  std::vector<LionOptions> groups_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
