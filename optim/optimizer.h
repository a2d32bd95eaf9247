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
// What else a training step does to parameters and gradients joins the same pass over memory:
//
//   optim::compile(optimizer);                    // generated code from now on (compile.h)
//   optimizer.track_average({.decay = 0.999});    // EMA of the parameters
//   StepReport r = optimizer.step({.grad_scale = scale, .max_norm = 1.0, .zero_grad = true});
//
// Each optimizer is one formula on scalars (adam.h, sgd.h, ...), run over all parameters in one pass (foreach.h).
//
// Invariants: state exists from construction; the update is in the parameter's compute dtype (f32 for bf16 and f16),
// and so is state unless StateFormat says otherwise. A parameter without a gradient is skipped and its step count
// stands still. step() checks every gradient before it changes anything.
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
#include "rondo/runtime/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

template <class Options> struct ParamGroup {
  std::vector<Tensor> params;
  Options options = {};
};

// How state is kept. All arithmetic is in f32; formats below that need parameters of at most 32 bits.
enum class StateFormat : uint8_t {
  kFull,  // the compute dtype
  kBF16,  // half the memory. Changes below 2^-9 of a value are lost: choose beta2 accordingly
  k8Bit,  // a quarter: one byte and 1/64 for scales (block8.h). Parameters below 4,096 elements keep kFull
};

struct StepOptions {
  // The gradients are those of grad_scale times the loss: they are divided by it. Set by a loss scaler.
  double grad_scale = 1;
  // Gradients are scaled by max_norm / (norm + 1e-6) if that is below 1, norm that of all gradients together.
  double max_norm = std::numeric_limits<double>::infinity();
  // Measures the gradients even where neither of the above asks for it. A step whose gradients are measured and whose
  // norm is not finite changes no parameter, state, average or step count; it is counted.
  bool check_finite = false;
  // Gradients are zeros afterwards, also when the step was skipped. (zero_grad() drops them.)
  bool zero_grad = false;
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

  // Throws Error if a gradient has another dtype or shape than its parameter, an option makes no sense, or an
  // UpdateAtSeams (update_at_seams.h) makes the steps.
  StepReport step(const StepOptions& options = {});
  void zero_grad(bool set_to_none = true);
  // Since construction.
  int64_t skipped_steps() const { return skipped_; }

  int n_groups() const { return n_groups_; }
  double lr(int group = 0) const;
  void set_lr(double lr);  // of every group
  void set_lr(int group, double lr);

  // From now on every step moves an average of each parameter, average += (1 - decay) (param - average), which starts
  // as a copy of what the parameter is before its first step from here: loading a model in between is seen. Part of the
  // state dict. In the compute dtype.
  void track_average(AverageOptions options = {});
  void set_average_decay(double decay);
  // In the order of the parameters; updated in place.
  std::vector<Tensor> averages() const;
  // From now on every step also writes the parameters in `dtype` (bf16 or f16), for a forward that reads those.
  // (Autocast needs no such call: a step writes the copies that it uses, runtime/lowered.h.)
  void keep_copies(DType dtype);
  // In the order of the parameters; updated in place, always the same tensors. They are not part of the state dict:
  // this call and load_state_dict() write anew those of parameters that somebody else has written since (a model that
  // was loaded).
  std::vector<Tensor> copies() const;

  // "state.<i>.<name>" for parameter i (counted through the groups) with "state.<i>.step" i64; of 8-bit states also
  // "state.<i>.<name>.scale"; "state.<i>.average"; "group.<g>.<option>" f64. The state tensors share memory with the
  // optimizer.
  nn::StateDict state_dict() const;
  // Restores state and options. Throws nn::StateDictError, before anything is changed, if the state does not fit.
  void load_state_dict(const nn::StateDict& state);

  KernelReport kernels() const;

 protected:
  Optimizer() = default;
  // For constructors: the next group. `plan` is asked for each parameter; plans live as long as the optimizer.
  struct GroupSpec {
    StateFormat format = StateFormat::kFull;
    double initial_state = 0;
  };
  using PlanOf = absl::FunctionRef<const UpdatePlan&(const Tensor& param)>;
  void add_group(std::span<const Tensor> params, PlanOf plan, GroupSpec spec);
  void add_group(std::span<const Tensor> params, const UpdatePlan& plan, GroupSpec spec);

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
    const Tensor& grad;  // contiguous; times grad_factor
    double grad_factor;
    std::span<Tensor> states;      // transient ones too, which may be replaced by tensors of the same shape and dtype
    std::span<const double> sums;  // of the sweep before
    std::span<double> scalars;     // of this parameter in the sweeps that follow; those of scalars() at first
  };
  virtual void prepare(int /*sweep*/, PreparedParam& /*param*/) {}
  bool compiled() const { return report_.compiled; }

 private:
  friend KernelReport compile(Optimizer& optimizer);
  friend class UpdateAtSeams;
  // A state of a parameter's memory.
  struct Seen {
    const void* data = nullptr;
    uint32_t version = 0;
    bool operator==(const Seen&) const = default;
    static Seen of(const Tensor& param) { return {param.raw_data(), param.version()}; }
  };
  struct Slot {
    Tensor param;
    int group = 0;
    const UpdatePlan* plan = nullptr;
    Tensor step;                         // i64 scalar
    std::vector<Tensor> states, scales;  // by StateSpec; scales are undefined where there are none
    Tensor average, copy;
    Seen copied;         // what `copy` was made of
    Seen averaged;       // what `average` is a copy of, until it moves
    bool moves = false;  // a step has moved `average`, or it was loaded
    // Where these lie, for good: they are only ever written in place.
    int64_t* step_at = nullptr;
    std::array<void*, kMaxStates> states_at = {}, scales_at = {};
    void* average_at = nullptr;
    int bucket = -1;
    int64_t matrices = 1, width = 0;  // of a plan with matrices
  };
  // Parameters that are updated by the same code.
  struct Bucket {
    const UpdatePlan* plan = nullptr;
    DType dtype = kF32;
    std::optional<DType> copy;
    std::vector<Foreach*> sweeps;
    std::vector<size_t> active;  // positions in Active, in this step
  };
  struct Active {
    size_t slot;
    int64_t numel;
    const void* grad;
    Tensor dense;  // the gradient, where it had to be made contiguous
    Tensor copy;   // in 16 bits, if there is to be one: the slot's, or the one that autocast uses
    double* scalars = nullptr;
    void* param = nullptr;
    size_t sums = 0, sum_rows = 0;  // where in sums_, and how many of each
  };
  std::string slot_name(size_t i) const;
  double& option(int group, const char* name) const;
  void collect(size_t slot, std::vector<Active>& active) const;
  void update(std::vector<Active>& active, double grad_factor, bool zero_grad);
  void check_whole(const char* what) const;
  static void refresh_average(Slot& slot);
  void refresh() const;
  void check_options(const StepOptions& options) const;
  void sort_into_buckets(std::vector<Active>& active, bool zero_grad);
  std::vector<ArraySpec> arrays(const Slot& slot, size_t sweep, bool zero_grad, std::optional<DType> copy) const;
  Foreach* pass_for(const Body& body, std::vector<ArraySpec> arrays);
  void compile_pass(Foreach& pass);
  double measure(const std::vector<Active>& active) const;
  void fill_scalars(std::vector<Active>& active, double grad_factor);
  void run(Bucket& bucket, std::vector<Active>& active, double grad_factor);
  void prepare(int sweep, int n_sums, Active& active, double grad_factor);
  void make_room_for_sums(const Bucket& bucket, size_t sweep, std::vector<Active>& active);
  void fill_table(const Bucket& bucket, size_t sweep, const std::vector<Active>& active);

  std::vector<Slot> slots_;
  int n_groups_ = 0;
  bool averaging_ = false;
  double average_decay_ = 0;
  int64_t skipped_ = 0;

  std::vector<std::unique_ptr<Foreach>> passes_;
  std::vector<Bucket> buckets_;
  bool zero_grad_ = false;  // what buckets_ were made for
  KernelReport report_;
  bool stepped_ = false;
  bool postponed_ = false;  // a stance kept a pass from being compiled
  bool at_seams_ = false;   // an UpdateAtSeams makes the steps
  bool half_made_ = false;  // it has updated some parameters of this step
  // Reused from step to step.
  ForeachTable table_;
  std::deque<std::array<double, kMaxScalars>> scalars_;
  std::vector<double> sums_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
