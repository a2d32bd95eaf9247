// StepLaunches: makes the launches of one step, and owns the device memory that they share, which is freed in stream
// order.
//
// step_launches.cc sorts the updates by signature and queues the sweeps. step_scalars.cc counts the step and computes
// the scalars of the formulas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "rondo/optim/optimizer.h"
#include "rondo/optim/optimizer_state.h"

namespace rondo::optim {

// One parameter that is updated in this step.
struct StepUpdate {
  ParamSlot* slot;
  void* param = nullptr;
  const void* grad = nullptr;
  Tensor dense_grad;              // a contiguous copy, if the gradient is not contiguous, or other parameters share it
  Tensor copy;                    // the 16-bit copy to write, if any: the slot's, or the one that autocast uses
  size_t row = 0;                 // index of its scalars in StepLaunches::values_
  size_t sums = 0, sum_rows = 0;  // index of the first in StepLaunches::sums_, and the number of rows for each sum
  int64_t numel() const { return slot->param.numel(); }
};

class StepLaunches {
 public:
  // `decision`: a Decision on the device. Keeps references to all arguments. Constructor and destructor empty the
  // optimizer's queue; the destructor also drops transient states.
  StepLaunches(Optimizer& optimizer, OptimizerState& state, std::vector<StepUpdate>& updates, const Tensor& decision);
  ~StepLaunches();
  StepLaunches(const StepLaunches&) = delete;
  StepLaunches& operator=(const StepLaunches&) = delete;

  // Does the part of a step that may fail: Note [Steps change nothing before they are ready]. REQUIRES: there is at
  // least one update.
  void prepare(bool zero_grad);
  // Advances the step counts. REQUIRES: the launches of the step are ready.
  void advance_counts();
  const Decision* decided() const { return reinterpret_cast<const Decision*>(decision_.address()); }

 private:
  // Parameters that had the same count before the step.
  struct Cohort {
    std::shared_ptr<StepCount> before, after;  // the same object if all sharers of the count are updated
    size_t size = 0;                           // how many parameters of the cohort this step updates
  };
  // Parameters with the same scalars: those of one group and one cohort, or a single parameter with scalars of its own.
  struct Row {
    size_t cohort, group;
    const Tensor* own;  // the row's only parameter, if it has scalars of its own; else null
  };

  void make_states();
  void copy_shared_gradients();
  void sort_by_signature(bool zero_grad);

  void sort_into_rows();
  void upload_scalars(const absl::InlinedVector<ScalarRule, 2>& rules);
  void queue_counts();
  void queue_rules(const absl::InlinedVector<ScalarRule, 2>& rules);
  void queue_warm_averages();
  void prepare_scalars();

  void queue_sweeps(Signature& signature);
  void make_transients(const Signature& signature);
  void prepare_update(size_t sweep, StepUpdate& update);
  void queue_program(const Signature& signature, size_t sweep);
  void make_room_for_sums(const Signature& signature, size_t sweep);
  void fill_table(ForeachTable& table, const Signature& signature, size_t sweep) const;

  double* row(size_t i) const { return reinterpret_cast<double*>(values_.data()) + i * kRowValues; }

  Optimizer& optimizer_;
  OptimizerState& state_;
  std::vector<StepUpdate>& updates_;
  const Tensor& decision_;
  const Device device_;
  std::vector<Cohort> cohorts_;
  absl::InlinedVector<Row, 4> rows_;
  Storage values_;  // kRowValues for each row, then the number 1
  Storage sums_;    // the sums of the previous sweep: make_room_for_sums()
};

}  // namespace rondo::optim
