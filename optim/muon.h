// Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024,
// kellerjordan.github.io/posts/muon), in PyTorch's form: the momentum of a matrix, made nearly orthogonal by
// Newton-Schulz iterations, is the step. For the matrices of hidden layers; embeddings, heads and vectors belong to
// another optimizer. Sweeps before and after the iterations are formulas; the iterations are matrix products, in a
// compiled region if the optimizer is compiled.
//
//   optim::Muon optimizer(matrices, {.lr = 0.02, .momentum = 0.95});
#pragma once

#include <array>
#include <vector>

#include "rondo/optim/optimizer.h"
#include "rondo/runtime/ops/scalar_math.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

struct MuonOptions {
  // How lr is adjusted to a matrix of A rows and B columns: times sqrt(max(1, A / B)), or times 0.2 sqrt(max(A, B)),
  // with which AdamW's learning rates and decays may be kept (Liu et al., "Muon is Scalable for LLM Training", 2025).
  enum AdjustLr { kOriginal, kMatchRmsAdamW };
  double lr = 1e-3;
  double weight_decay = 0.1;  // times lr times the parameter is subtracted from the parameter
  double momentum = 0.95;
  bool nesterov = true;
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};
  double eps = 1e-7;
  int ns_steps = 5;
  DType ns_dtype = kF32;  // of the iterations; PyTorch's are in bf16. f64 parameters: always f64
  AdjustLr adjust_lr = kOriginal;
  StateFormat state = StateFormat::kFull;
};

// States: the momentum, and the step, which exists during a step.
struct MuonScalars {
  static constexpr size_t kStates = 2, kScalars = 5;
};
struct MuonGather : MuonScalars {
  template <class T>
  static void update(T& /*param*/, T grad, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars) {
    auto& [buffer, step] = states;
    buffer = scalar::fma(scalars[0], grad - buffer, buffer);
    step = scalar::fma(scalars[1], buffer, scalars[2] * grad);  // Nesterov's, or the buffer itself
  }
};
struct MuonApply : MuonScalars {
  template <class T>
  static void update(T& param, T /*grad*/, std::array<T, kStates>& states, const std::array<T, kScalars>& scalars) {
    param = scalar::fma(-scalars[4], states[1], param * scalars[3]);
  }
};

class Muon : public Optimizer {
 public:
  explicit Muon(std::vector<Tensor> params, MuonOptions options = {});
  explicit Muon(std::vector<ParamGroup<MuonOptions>> groups);
  ~Muon() override;

 protected:
  const char* name() const override { return "Muon"; }
  void visit_options(int group, OptionVisitor visit) override;
  void scalars(int group, int64_t step, std::span<double> out) const override;
  void prepare(int sweep, PreparedParam& param) override;

 private:
  void add(std::span<const Tensor> params, const MuonOptions& options);
  Tensor orthogonalize(int group, const Tensor& matrix);
  std::vector<MuonOptions> groups_;
  struct Iterations;  // the compiled region of each group
  std::vector<std::unique_ptr<Iterations>> iterations_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
