// Optimizer: START HERE. Updates parameters from their gradients, in place.
//
//   optim::AdamW optimizer(model.parameters(), {.lr = 3e-4, .weight_decay = 0.1});
//   loss.backward();
//   optim::clip_grad_norm_(model.parameters(), 1.0);
//   optimizer.step();
//   optimizer.zero_grad();
//
// Parameter groups: optim::AdamW({{.params = matrices, .options = {.weight_decay = 0.1}},
//                                 {.params = vectors, .options = {.weight_decay = 0.0}}}).
// Each optimizer is one formula on scalars (adam.h, sgd.h), run over all parameters in one pass (foreach.h).
//
// Invariants: state exists, as zeros, from construction; it and the update are in the parameter's compute dtype (f32
// for bf16 and f16). A parameter without a gradient is skipped and its step count stands still. step() checks every
// gradient before it changes anything.
//
// Ownership: shares the parameters' tensors. Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/modules/state_dict.h"
#include "rondo/optim/foreach.h"
#include "rondo/runtime/tensor.h"

namespace rondo::optim {

template <class Options>
struct ParamGroup {
  std::vector<Tensor> params;
  Options options = {};
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Throws Error if a gradient has another dtype or shape than its parameter.
  void step();
  void zero_grad(bool set_to_none = true);

  int n_groups() const { return n_groups_; }
  double lr(int group = 0) const;
  void set_lr(double lr);  // of every group
  void set_lr(int group, double lr);

  // "state.<i>.<name>" for parameter i (counted through the groups) with "state.<i>.step" i64, and
  // "group.<g>.<option>" f64. The state tensors share memory with the optimizer.
  nn::StateDict state_dict() const;
  // Restores state and options. Throws nn::StateDictError, before anything is changed, if the state does not fit.
  void load_state_dict(const nn::StateDict& state);

 protected:
  Optimizer() = default;
  // For constructors: the next group, whose parameters get these state tensors.
  void add_group(std::span<const Tensor> params, std::span<const char* const> state_names);

  // Numeric options of a group by name; "lr" is among them.
  using OptionVisitor = absl::FunctionRef<void(const char* name, double& value)>;
  virtual void visit_options(int group, OptionVisitor visit) = 0;
  virtual const char* name() const = 0;
  // The compiled formula of a group, and its scalars at a parameter's step (1 for the first).
  virtual UpdateKernel kernel(int group) const = 0;
  virtual void scalars(int group, int64_t step, std::span<double> out) const = 0;

 private:
  struct Slot {
    Tensor param;
    int group = 0;
    Tensor step;  // i64 scalar
    std::span<const char* const> state_names;
    std::vector<Tensor> states;
    // Where step and states lie, for good: they are only ever written in place.
    int64_t* step_at = nullptr;
    std::array<void*, kMaxStates> states_at = {};
  };
  std::string slot_name(size_t i) const;
  double& option(int group, const char* name) const;

  std::vector<Slot> slots_;
  int n_groups_ = 0;
};

}  // namespace rondo::optim
