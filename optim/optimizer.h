// Optimizer: START HERE. Updates parameters from their gradients, in place.
//
//   optim::AdamW optimizer(model.parameters(), {.lr = 3e-4, .weight_decay = 0.1});
//   optim::compile(optimizer);                    // generated code from now on (compile.h)
//   loss.backward();
//   optimizer.step({.max_norm = 1.0});            // clips in the same pass over memory (StepOptions)
//   optimizer.zero_grad();
//
// Parameter groups: optim::AdamW({{.params = body.parameters(), .options = {.lr = 1e-4}},
//                                 {.params = head.parameters(), .options = {.lr = 1e-3}}}).
// Decay for matrices only: optim::AdamW(optim::decay_groups(model.parameters(), optim::AdamWOptions{...})).
// An average of the parameters: optimizer.track_average({.decay = 0.999}).
//
// All parameters are on one device. A parameter's state is made at its first gradient, so frozen parameters have none.
// A parameter without a gradient is skipped and its step count does not change. step() checks every gradient before it
// changes anything.
//
// Ownership: shares the parameters' tensors. Thread safety: one thread at a time.
//
// More at the end of this file: Note [Steps], [Dtypes of an update], [Master weights].
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/modules/state_dict.h"
#include "rondo/optim/formula.h"
#include "rondo/optim/kernel_report.h"
#include "rondo/optim/option_list.h"
#include "rondo/optim/step_report.h"
#include "rondo/runtime/base/source_location.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::optim {
class Step;
class StepLaunches;
struct OptimizerState;
}  // namespace rondo::optim

#pragma GCC visibility push(default)
namespace rondo::optim {

class LaunchQueue;

// A group without options has the defaults of its optimizer's options (AdamWOptions{}), not those of another group.
template <class Options> struct ParamGroup {
  std::vector<Tensor> params;
  Options options = {};
};

// Returns two groups, as in the training of GPT-2 and nanoGPT: tensors of rank 2 and more decay as `options` say,
// biases and the weights of norms do not. Both groups exist even if one has no parameter, so there are always two
// schedules.
//
//   optim::AdamW optimizer(optim::decay_groups(model.parameters(), optim::AdamWOptions{.weight_decay = 0.1}));
template <class Options>
std::vector<ParamGroup<Options>> decay_groups(const std::vector<Tensor>& params, const Options& options) {
  std::vector<ParamGroup<Options>> groups{{{}, options}, {{}, options}};
  groups[1].options.weight_decay = 0;
  for (const Tensor& p : params) groups[p.rank() >= 2 ? 0 : 1].params.push_back(p);
  return groups;
}

struct StepOptions {
  // The loss was multiplied by grad_scale before backward, so the gradients are divided by it. A loss scaler sets this.
  double grad_scale = 1;
  // Multiplies grad_scale, if defined: an f64 scalar, positive and finite, on the parameters' device.
  Tensor device_scale = Tensor();
  // Gradients are scaled by max_norm / (norm + 1e-6) if that factor is below 1. The norm is that of all gradients
  // together. 0 makes all gradients 0 (TrainerOptions::max_grad_norm is different: its 0 means no clipping). Leave
  // max_norm out to clip nothing.
  double max_norm = std::numeric_limits<double>::infinity();
  // Measures the norm of the gradients even if no option above needs it. A step whose norm is measured and not finite
  // is skipped and counted: it changes no parameter, state, average or step count. The host does not know whether the
  // step was skipped, so the tape sees a write of the parameters in any case.
  bool check_finite = false;
  // If true, the gradients are zeros after the step, even if the step is skipped. A run with checkpoints should drop
  // them instead, by Optimizer::zero_grad() (runtime/checkpoint/checkpoint.h says why).
  bool zero_grad = false;
  // A step in which no parameter has a gradient is an error, because it usually means a forgotten backward(). With
  // true, such a step does nothing.
  bool allow_no_gradients = false;
};

struct AverageOptions {
  double decay = 0.999;
  // Averages follow closely at first: the decay of a parameter's update t (1 for the first) is
  // min(decay, (1 + t) / (10 + t)), as in TensorFlow's ExponentialMovingAverage.
  bool warmup = false;
  // Buffers of the model to average, such as running statistics. Floating-point ones are averaged with the parameters,
  // in their compute dtype. They must be written in place and never replaced, as nn::Module does with its buffers.
  std::vector<Tensor> buffers = {};
};

class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Throws Error, before anything changes, if
  // - no parameter has a gradient (unless options.allow_no_gradients),
  // - DistributedDataParallel still holds a gradient, because its finish() was not called,
  // - a gradient has another dtype, shape or device than its parameter,
  // - parameters have been moved: some of them, or all of them after their first step,
  // - an option is out of range, or
  // - an UpdateAtSeams (update_at_seams.h) makes the steps.
  StepReport step(const StepOptions& options = {}, std::source_location where = std::source_location::current());
  void zero_grad(bool set_to_none = true);
  // Steps skipped since construction. Waits for the device.
  int64_t skipped_steps() const;

  // Returns the name of the class, for messages.
  virtual const char* name() const = 0;
  // Returns the device of the parameters.
  Device device() const;
  int n_groups() const;
  double lr(int group = 0) const;
  void set_lr(double lr);  // sets the rate of every group
  void set_lr(int group, double lr);
  // One schedule (schedule.h) for each group: group g gets schedules[g](step). Throws Error, before any rate changes,
  // if their numbers differ or if a rate is negative or not finite.
  using Schedule = std::function<double(int64_t step)>;
  void set_lr(const std::vector<Schedule>& schedules, int64_t step);

  // From now on every step updates a moving average of each parameter: average += (1 - decay) (param - average). A
  // 16-bit parameter counts with its value before rounding. The average of a parameter starts as a copy of it, taken at
  // the first step, so weights loaded before that step are seen. The average of a buffer starts as its value at the
  // first step. Averages are part of the state dict, in the compute dtype. To evaluate with them: AverageScope
  // (average_scope.h). A later call changes the decay and the warm-up, and may add buffers if there are none. Throws
  // Error if a buffer is undefined, not contiguous, or on another device, or if it shares memory with a parameter or
  // another buffer.
  void track_average(AverageOptions options = {});
  void set_average_decay(double decay);
  // Returns the averages in the order of the parameters. Steps update these tensors in place. The average of a frozen
  // parameter without state is the parameter itself (it shares the memory).
  std::vector<Tensor> averages() const;
  // Returns the averages of AverageOptions::buffers, in their order. For a buffer that is not floating-point: the
  // buffer itself.
  std::vector<Tensor> buffer_averages() const;
  // From now on every step also writes copies of the parameters in `dtype` (bf16 or f16), for a forward that reads
  // copies. (Autocast needs no such call: steps write the copies that it uses, runtime/ops/lowered.h.)
  void keep_copies(DType dtype);
  // Returns the copies in the order of the parameters: always the same tensors, which steps update in place. Copies are
  // not part of the state dict. This call and load_state_dict() rewrite the copies of parameters that something else
  // has written, such as the loading of a model.
  std::vector<Tensor> copies() const;

  // The state dict has
  // - for parameter i (counted through the groups), if it has had a gradient: "state.<i>.step" i64, "state.<i>.<name>",
  //   for 8-bit states "state.<i>.<name>.scale", and "state.<i>.master" if it has an f32 weight;
  // - if averages are tracked: "state.<i>.average", "average.decay" and "average.warmup" f64, and for their
  //   floating-point buffers "buffer.<i>.average" and one "buffer.updates" i64;
  // - for each group: "group.<g>.params" i64 (the number of its parameters) and "group.<g>.<option>" f64, every option
  //   (option_list.h) but `masters`.
  // The state tensors share memory with the optimizer, step counts excepted.
  nn::StateDict state_dict() const;
  // Restores state and options, as PyTorch does: lr, betas, maximize and nesterov are those of `state` afterwards. A
  // parameter without state in `state` has none afterwards. Throws nn::StateDictError, before anything is changed, if
  // the state does not fit, if an option is out of range, or if an option differs that decides which states there are:
  // amsgrad, centered, the format, whether momentum is 0. Make the optimizer with the same values of these options.
  // States of earlier versions lack flags (maximize, nesterov, ...) and the decay of averages: then the optimizer keeps
  // its own. States without f32 weights load: the weights are made from the parameters at the next step, and the call
  // warns once. With `masters` = false, f32 weights in `state` are ignored.
  void load_state_dict(const nn::StateDict& state);

  KernelReport kernels() const;

 protected:
  Optimizer();
  // Adds the next group. The functions below must know its options already. Throws Error in the middle of a step.
  void add_group(std::span<const Tensor> params);
  void check_has_parameters() const;  // constructors end with this call

  // Passes every option of a group by name to `visit` (option_list.h). "lr" is among them.
  using OptionVisitor = optim::OptionVisitor;
  virtual void visit_options(int group, OptionVisitor visit) = 0;
  // Throws Error if an option of the group is out of range.
  virtual void check_options(int group) const = 0;
  // Return how a parameter of the group is updated, and how its states start. Plans live as long as the optimizer.
  virtual const UpdatePlan& update_plan(int group, const Tensor& param) const = 0;
  virtual StateInit state_init(int group) const = 0;
  // Returns the scalars of a group's formulas, for the current values of the options.
  virtual ScalarRule scalars(int group) const = 0;
  // For plans with own_scalars: changes the scalars of a parameter, and sets the numbers of its sweeps' programs.
  // `param`: the parameter, or its master weight if there is one.
  virtual void own_scalars(int /*group*/, const Tensor& /*param*/, std::span<double> /*scalars*/,
                           std::span<double> /*numbers*/) const {}

  // A parameter before one of its sweeps. Its scalars are values on the device.
  struct PreparedParam {
    LaunchQueue& queue;
    Device device;
    int group;
    const Tensor& param;           // the parameter, or its master weight if there is one
    const Tensor& grad;            // contiguous; still to be multiplied by the decision's factor
    const Tensor& decision;        // work that prepare() enqueues must change no state unless Decision::updates is 1
    std::span<StateArray> states;  // a transient state may be replaced by a tensor of the same shape and dtype
    const Storage& values;
    size_t row;
    size_t position(size_t scalar) const { return row * kRowValues + kFirstScalar + scalar; }
    const double* scalar_at(size_t k) const { return reinterpret_cast<const double*>(values.data()) + position(k); }
    Tensor scalar(size_t k) const { return Tensor::over(values, static_cast<int64_t>(position(k)), {}, {}, kF64); }
  };
  // Enqueues work for one parameter, and reads nothing on the host: Note [Steps]. Work that changes a state goes into
  // the queue. All other work runs at once, and so do earlier sweeps, which may change only transient states
  // (launch_queue.h).
  virtual void prepare(int /*sweep*/, PreparedParam& /*param*/) {}
  bool compiled() const;  // true if optim::compile was called

 private:
  void add_slots(std::span<const Tensor> params);
  class LoadedState;                       // a state dict that is being loaded (state_dict.cc)
  friend class Step;                       // one step (step.h)
  friend class StepLaunches;               // the launches of a step (step_launches.h)
  std::unique_ptr<OptimizerState> state_;  // what is kept between steps (optimizer_state.h)
};

}  // namespace rondo::optim
#pragma GCC visibility pop

// Note [Steps]. Each optimizer is one formula on scalars (adam.h, sgd.h, ...), run over all parameters in one pass
// (foreach.h). A step enqueues launches on the parameters' device and reads nothing back. Launches that change anything
// that lasts are enqueued only when all of them are ready: a step that throws has changed no parameter, state or count
// (launch_queue.h). Step counts, the norm, the decision whether to skip, and the scalars of the formula are values in
// the device's memory; launches compute them and read them there. Options (lr) are values of the host, taken when
// step() is called. Counts are kept as f64.
//
// Note [Dtypes of an update]. The update is computed in the parameter's compute dtype (f32 for bf16 and f16). State is
// kept in that dtype unless StateFormat says otherwise.
//
// Note [Master weights]. A bf16 number has 8 bits of precision: 1 + 6e-4 is 1. An update of less than half a unit in
// the last place of a 16-bit parameter would be lost, at every step. So the optimizer keeps an f32 weight of each bf16
// and f16 parameter, updates that, and writes the rounded weight into the parameter, in the same pass. Weights are made
// from the parameters at the first step, are part of the state dict, and cost 4 bytes an element. If something else
// writes the parameter (a model is loaded), each element that still equals its rounded weight keeps the weight; for the
// others the new value becomes the weight. With the option `masters` = false the parameter itself is updated, and a
// step warns once.
