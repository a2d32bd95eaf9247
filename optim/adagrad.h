// Adagrad (Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization",
// 2011), in PyTorch's form.
//
//   optim::Adagrad optimizer(model.parameters(), {.lr = 1e-2});
#pragma once

#include <array>
#include <vector>

#include "rondo/optim/optimizer.h"
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

class Adagrad : public Optimizer {
 public:
  explicit Adagrad(std::vector<Tensor> params, AdagradOptions options = {});
  explicit Adagrad(std::vector<ParamGroup<AdagradOptions>> groups);
  // One more group; see Optimizer::n_groups(). Throws what the constructor throws; then the optimizer is as before.
  void add_param_group(const ParamGroup<AdagradOptions>& group) {
    add_later([&] { add(group.params, group.options); });
  }

 protected:
  const char* name() const override { return "Adagrad"; }
  void visit_options(int group, OptionVisitor visit) override;
  ScalarRule scalars(int group) const override;

 private:
  void add(std::span<const Tensor> params, const AdagradOptions& options);
  std::vector<AdagradOptions> groups_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
