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
// One more, later: optimizer.add_param_group({.params = head.parameters(), .options = {.lr = 1e-3}}).
// What else a training step does to parameters and gradients joins the same pass over memory:
//
//   optim::compile(optimizer);                    // generated code from now on (compile.h)
//   optimizer.track_average({.decay = 0.999});    // EMA of the parameters
//   StepReport r = optimizer.step({.grad_scale = scale, .max_norm = 1.0, .zero_grad = true});
//
// Each optimizer is one formula on scalars (adam.h, sgd.h, ...), run over all parameters in one pass (foreach.h).
//
// Invariants: a parameter's state is made at its first gradient, so frozen parameters have none. The update is computed
// in the parameter's compute dtype (f32 for bf16 and f16). State is kept in that dtype unless StateFormat says
// otherwise. A parameter without a gradient is skipped and its step count does not change. step() checks every gradient
// before it changes anything.
//
// Ownership: shares the parameters' tensors. Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/modules/state_dict.h"
#include "rondo/optim/foreach.h"
#include "rondo/optim/formula.h"
#include "rondo/optim/param_slot.h"
#include "rondo/runtime/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

template <class Options> struct ParamGroup {
  std::vector<Tensor> params;
  Options options = {};
};

struct StepOptions {
  // The gradients are those of grad_scale times the loss: they are divided by it. A loss scaler sets this.
  double grad_scale = 1;
  // Gradients are scaled by max_norm / (norm + 1e-6) if that is below 1. The norm is that of all gradients together.
  double max_norm = std::numeric_limits<double>::infinity();
  // Measures the norm of the gradients even if neither option above needs it. A step whose norm is measured and not
  // finite is skipped and counted: it changes no parameter, state, average or step count.
  bool check_finite = false;
  // Gradients are zeros afterwards, also when the step was skipped. (Optimizer::zero_grad() drops them.)
  bool zero_grad = false;
  // A step in which no parameter has a gradient is an error, because it usually means a forgotten backward(). True:
  // such a step does nothing.
  bool allow_no_gradients = false;
};

struct StepReport {
  bool skipped = false;
  // The Euclidean norm of the unscaled gradients before clipping. NaN: not measured.
  double grad_norm = std::numeric_limits<double>::quiet_NaN();
};

struct AverageOptions {
  double decay = 0.999;
};

// What is generated for one optimizer.
struct KernelReport {
  bool compiled = false;  // optim::compile was called
  int kernels = 0;        // signatures in use: one for each combination of dtypes and formula
  int compilations = 0;   // of these, the ones that had to be generated: no table, disk cache or artifact file had them
  int64_t late = 0;       // compilations after the first step: 0 unless dtypes or options of step() changed
  double compile_ms = 0;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Throws Error, before anything changes, if
  // - no parameter has a gradient (unless options.allow_no_gradients),
  // - DistributedDataParallel still holds a gradient, because its finish() was not called,
  // - a gradient has another dtype or shape than its parameter,
  // - an option is out of range, or
  // - an UpdateAtSeams (update_at_seams.h) makes the steps.
  StepReport step(const StepOptions& options = {});
  void zero_grad(bool set_to_none = true);
  // Since construction.
  int64_t skipped_steps() const { return skipped_; }

  int n_groups() const { return static_cast<int>(group_sizes_.size()); }
  double lr(int group = 0) const;
  void set_lr(double lr);  // of every group
  void set_lr(int group, double lr);
  // One schedule (schedule.h) for each group: group g gets schedules[g](step). Throws Error, before any rate changes,
  // if their numbers differ or if a rate is negative or not finite.
  using Schedule = std::function<double(int64_t step)>;
  void set_lr(const std::vector<Schedule>& schedules, int64_t step);

  // From now on every step moves an average of each parameter: average += (1 - decay) (param - average). An average
  // starts as a copy of its parameter, taken before the first step that moves it, so a model that is loaded in between
  // is seen. Averages are part of the state dict, in the compute dtype.
  void track_average(AverageOptions options = {});
  void set_average_decay(double decay);
  // In the order of the parameters; updated in place. The average of a frozen parameter without state is the parameter
  // itself (it shares the memory).
  std::vector<Tensor> averages() const;
  // From now on every step also writes the parameters in `dtype` (bf16 or f16), for a forward that reads those.
  // (Autocast needs no such call: a step writes the copies that it uses, runtime/lowered.h.)
  void keep_copies(DType dtype);
  // In the order of the parameters; updated in place, always the same tensors. Copies are not part of the state dict.
  // This call and load_state_dict() rewrite the copies of parameters that were written by somebody else (a model that
  // was loaded).
  std::vector<Tensor> copies() const;

  // For parameter i (counted through the groups), if it has had a gradient: "state.<i>.step" i64, "state.<i>.<name>",
  // and for 8-bit states "state.<i>.<name>.scale". "state.<i>.average" if averages are tracked. For each group:
  // "group.<g>.params" i64 (their number) and "group.<g>.<option>" f64. The state tensors share memory with the
  // optimizer.
  nn::StateDict state_dict() const;
  // Restores state and options; a parameter without state in `state` has none afterwards. Throws nn::StateDictError,
  // before anything is changed, if the state does not fit.
  void load_state_dict(const nn::StateDict& state);

  KernelReport kernels() const;

 protected:
  Optimizer() = default;
  // For constructors: the next group. `plan` is asked for each parameter; plans live as long as the optimizer.
  using PlanOf = absl::FunctionRef<const UpdatePlan&(const Tensor& param)>;
  void add_group(std::span<const Tensor> params, PlanOf plan, StateInit init);
  void add_group(std::span<const Tensor> params, const UpdatePlan& plan, StateInit init);
  // For constructors: calls add(group) for each, which calls add_group. Throws Error if there is no parameter at all.
  template <class Options, class Add> void add_groups(const std::vector<ParamGroup<Options>>& groups, Add add) {
    for (const ParamGroup<Options>& group : groups) add(group);
    check_has_parameters();
  }

  // For add_param_group() between two steps: calls add(), which calls add_group() once.
  void add_later(absl::FunctionRef<void()> add);

  // Numeric options of a group by name; "lr" is among them.
  using OptionVisitor = absl::FunctionRef<void(const char* name, double& value)>;
  virtual void visit_options(int group, OptionVisitor visit) = 0;
  virtual const char* name() const = 0;
  // The scalars of a group's formulas at a parameter's step (1 for the first): everything that changes from step to
  // step.
  virtual void scalars(int group, int64_t step, std::span<double> out) const = 0;

  // One parameter between two sweeps.
  struct PreparedParam {
    int group;
    const Tensor& param;
    const Tensor& grad;  // contiguous; still to be multiplied by grad_factor
    double grad_factor;
    std::span<StateArray> states;  // a transient one may be replaced by a tensor of the same shape and dtype
    std::span<const double> sums;  // of the sweep before
    std::span<double> scalars;     // of this parameter in the sweeps that follow; initially those of scalars()
  };
  virtual void prepare(int /*sweep*/, PreparedParam& /*param*/) {}
  bool compiled() const { return report_.compiled; }

 private:
  friend KernelReport compile(Optimizer& optimizer);
  friend class UpdateAtSeams;

  // Parameters that are updated by the same code: one Foreach for each sweep of the plan.
  struct Signature {
    const UpdatePlan* plan = nullptr;
    DType dtype = kF32;
    std::optional<DType> copy;
    std::vector<Foreach*> sweeps;
    std::vector<size_t> updates;  // positions in the list of this step's updates
  };
  // One parameter that is updated in this step.
  struct Update {
    ParamSlot* slot;
    void* param = nullptr;
    const void* grad = nullptr;
    Tensor dense_grad;  // a contiguous copy, if the parameter's gradient is not contiguous
    Tensor copy;        // the 16-bit copy to write, if any: the slot's, or the one that autocast uses
    double* scalars = nullptr;
    size_t sums = 0, sum_rows = 0;  // first element in sums_, and the number of rows for each sum
    int64_t numel() const { return slot->param.numel(); }
  };

  // ---- The parts of step(), in order (step.cc)
  void check_options(const StepOptions& options) const;
  void collect(size_t slot, std::vector<Update>& updates);
  void check_any_gradient(const std::vector<Update>& updates) const;
  [[noreturn]] void throw_no_gradients() const;
  double measure(const std::vector<Update>& updates) const;
  void update(std::vector<Update>& updates, double grad_factor, bool zero_grad);
  static void zero_gradients(std::vector<Update>& updates);
  void make_states(const std::vector<Update>& updates);
  void sort_by_signature(std::vector<Update>& updates, bool zero_grad);
  void count_and_fill_scalars(std::vector<Update>& updates, double grad_factor);
  void open_for_writing(Update& update);
  void run(Signature& signature, std::vector<Update>& updates, double grad_factor);
  void prepare_update(const Signature& signature, size_t sweep, Update& update, double grad_factor);
  void make_room_for_sums(const Signature& signature, size_t sweep, std::vector<Update>& updates);
  void fill_table(const Signature& signature, size_t sweep, const std::vector<Update>& updates);

  // ---- Code for a list of arrays
  std::vector<ArraySpec> arrays(const ParamSlot& slot, size_t sweep, bool zero_grad, std::optional<DType> copy) const;
  Foreach* pass_for(const Body& body, std::vector<ArraySpec> arrays);
  void compile_pass(Foreach& pass);

  std::string slot_name(size_t i) const;
  double& option(int group, const char* name) const;
  void check_has_parameters() const;
  void check_between_steps(const char* what) const;
  void refresh() const;

  std::vector<ParamSlot> slots_;
  std::vector<int64_t> group_sizes_;
  bool averaging_ = false;
  double average_decay_ = 0;
  int64_t skipped_ = 0;

  std::vector<std::unique_ptr<Foreach>> passes_;
  std::vector<Signature> signatures_;
  bool zero_grad_ = false;  // what signatures_ were made for
  KernelReport report_;
  bool stepped_ = false;
  bool postponed_ = false;  // a stance kept a pass from being compiled
  bool at_seams_ = false;   // an UpdateAtSeams makes the steps
  bool mid_step_ = false;   // it has updated some parameters of this step
  // Memory that steps reuse.
  ForeachTable table_;
  std::deque<std::array<double, kMaxScalars>> scalars_;
  std::vector<double> sums_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
