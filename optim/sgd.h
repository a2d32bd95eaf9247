// Stochastic gradient descent with momentum (Sutskever et al., 2013), in PyTorch's form: the learning rate multiplies
// the momentum buffer, and dampening does not apply to the first step.
//
//   optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9, .nesterov = true});
#pragma once

#include <array>
#include <vector>

#include "rondo/optim/optimizer.h"
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
};

template <bool kMomentum> struct SGDFormula {
  static constexpr size_t kStates = kMomentum ? 1 : 0, kScalars = 7;

  template <class T>
  static void update(T& param, T grad, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars) {
    [[maybe_unused]] const auto& [sign, l2, lr, momentum, grad_weight, ahead_buffer, ahead_grad] = scalars;
    T direction = scalar::fma(l2, param, grad * sign);
    if constexpr (kMomentum) {
      states[0] = scalar::fma(momentum, states[0], grad_weight * direction);
      // Nesterov's direction is grad + momentum * buffer. Otherwise it is the buffer.
      direction = scalar::fma(ahead_buffer, states[0], ahead_grad * direction);
    }
    param = scalar::fma(-lr, direction, param);
  }
};

class SGD : public Optimizer {
 public:
  explicit SGD(std::vector<Tensor> params, SGDOptions options = {});
  explicit SGD(std::vector<ParamGroup<SGDOptions>> groups);
  // One more group; see Optimizer::n_groups(). Throws what the constructor throws; then the optimizer is as before.
  void add_param_group(const ParamGroup<SGDOptions>& group) {
    add_later([&] { add(group.params, group.options); });
  }

 protected:
  const char* name() const override { return "SGD"; }
  void visit_options(int group, OptionVisitor visit) override;
  ScalarRule scalars(int group) const override;

 private:
  void add(std::span<const Tensor> params, const SGDOptions& options);
  std::vector<SGDOptions> groups_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
