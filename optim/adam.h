// Adam (Kingma and Ba, 2015, Algorithm 1), AMSGrad (Reddi et al., 2018) and AdamW (Loshchilov and Hutter, 2019,
// Algorithm 2). Weight decay is L2 in Adam: it changes the gradient. In AdamW it is decoupled: it changes the
// parameter.
//
//   optim::AdamW optimizer(model.parameters(), {.lr = 3e-4, .betas = {0.9, 0.95}, .weight_decay = 0.1});
#pragma once

#include <array>
#include <vector>

#include "rondo/optim/optimizer.h"
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
};

struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;  // decoupled: param -= lr * weight_decay * param
  bool amsgrad = false;
  bool maximize = false;
  StateFormat state = StateFormat::kFull;
};

// One formula for both kinds of decay: AdamW sets l2 = 0, Adam sets keep = 1. These two values change no bit.
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

// The shared base of Adam and AdamW.
class AdamBase : public Optimizer {
 protected:
  struct Group {
    AdamOptions options;
    bool decoupled;
  };
  void add(std::span<const Tensor> params, Group group);
  void visit_options(int group, OptionVisitor visit) override;
  ScalarRule scalars(int group) const override;

 private:
  std::vector<Group> groups_;
};

class Adam : public AdamBase {
 public:
  explicit Adam(std::vector<Tensor> params, AdamOptions options = {});
  explicit Adam(std::vector<ParamGroup<AdamOptions>> groups);
  // One more group; see Optimizer::n_groups(). Throws what the constructor throws; then the optimizer is as before.
  void add_param_group(const ParamGroup<AdamOptions>& group);

 protected:
  const char* name() const override { return "Adam"; }
};

class AdamW : public AdamBase {
 public:
  explicit AdamW(std::vector<Tensor> params, AdamWOptions options = {});
  explicit AdamW(std::vector<ParamGroup<AdamWOptions>> groups);
  // One more group; see Optimizer::n_groups(). Throws what the constructor throws; then the optimizer is as before.
  void add_param_group(const ParamGroup<AdamWOptions>& group);

 protected:
  const char* name() const override { return "AdamW"; }
};

}  // namespace rondo::optim
#pragma GCC visibility pop
