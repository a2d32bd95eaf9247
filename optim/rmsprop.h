// RMSprop (Hinton, "Neural Networks for Machine Learning", lecture 6e, 2012), and its centered form (Graves,
// "Generating Sequences With Recurrent Neural Networks", 2013, equations 38 to 45). As in PyTorch, eps is added outside
// the square root.
//
//   optim::RMSprop optimizer(model.parameters(), {.lr = 1e-3, .momentum = 0.9, .centered = true});
#pragma once

#include <array>
#include <vector>

#include "rondo/optim/optimizer.h"
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
                               scalar::constant(g, 0.0));  // rounding may give < 0
    }
    T step = g / (scalar::sqrt(second) + eps);
    if constexpr (kMomentum) step = states[kStates - 1] = scalar::fma(momentum, states[kStates - 1], step);
    param = scalar::fma(-lr, step, param);
  }
};

class RMSprop : public Optimizer {
 public:
  explicit RMSprop(std::vector<Tensor> params, RMSpropOptions options = {});
  explicit RMSprop(std::vector<ParamGroup<RMSpropOptions>> groups);
  // One more group; see Optimizer::n_groups(). Throws what the constructor throws; then the optimizer is as before.
  void add_param_group(const ParamGroup<RMSpropOptions>& group) {
    add_later([&] { add(group.params, group.options); });
  }

 protected:
  const char* name() const override { return "RMSprop"; }
  void visit_options(int group, OptionVisitor visit) override;
  ScalarRule scalars(int group) const override;

 private:
  void add(std::span<const Tensor> params, const RMSpropOptions& options);
  std::vector<RMSpropOptions> groups_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
