// The launches of one step, and the memory of the device that they share; it is freed in stream order.
//
// step_launches.cc sorts the updates by signature and queues the sweeps. step_scalars.cc counts the step and computes
// the scalars of the formulas.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "rondo/optim/step.h"

namespace rondo::optim {

class Step::Launches {
 public:
  // The queue is empty before and after: what was not submitted is dropped, and so are transient states.
  explicit Launches(Step& step);
  ~Launches();
  Launches(const Launches&) = delete;
  Launches& operator=(const Launches&) = delete;

  // Does everything in a step that may fail: Note [Steps change nothing before they are ready]. REQUIRES: an update.
  void prepare(bool zero_grad);
  // Advances the step counts. REQUIRES: the launches of the step are ready.
  void advance_counts();
  const Decision* decided() const { return reinterpret_cast<const Decision*>(step_.decision_.address()); }

 private:
  // Parameters that had the same count before the step.
  struct Cohort {
    std::shared_ptr<StepCount> before, after;  // one count if all of its sharers are updated
    size_t size = 0;                           // the parameters that this step updates
  };
  // Parameters with the same scalars: those of one group and one cohort, or one parameter that has its own.
  struct Row {
    size_t cohort, group;
    const Tensor* own;  // the only parameter, if it has scalars of its own
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

  Step& step_;
  OptimizerState& state_;
  std::vector<StepUpdate>& updates_;
  const Device device_;
  std::vector<Cohort> cohorts_;
  absl::InlinedVector<Row, 4> rows_;
  Storage values_;  // kRowValues for each row, then a 1
  Storage sums_;    // of the sweep before, by rows
};

}  // namespace rondo::optim
