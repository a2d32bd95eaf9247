// StepReport: the norm of a step's gradients, and whether the step was skipped. A step finds this out on the
// parameters' device, in stream order, and later launches read it there. The host reads it only if it asks.
//
//   const StepReport report = optimizer.step({.max_norm = 1.0});
//   if (report.skipped()) ...                   // waits for the device; on the CPU everything is known
#pragma once

#include <limits>
#include <utility>
#include <vector>

#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

// What a step decided, in the device's memory. All zeros: a kernel found its data wrong, so the step does nothing and
// counts nothing (backend.h, Note [Late errors]).
struct Decision {
  double norm;     // the norm of the unscaled gradients before clipping; NaN: not measured
  double factor;   // multiplies the gradients: it unscales and clips them
  double updates;  // 1: the step updates; 0: it changes no parameter and no state
  double skipped;  // 1: the step is skipped, because the norm is not finite

  // Reads a Decision. `values`: its four numbers, f64. Waits for the device, and throws the error if a kernel found its
  // data wrong.
  static Decision read(const Tensor& values) {
    const std::vector<double> host = values.to_vector<double>();
    return {host[0], host[1], host[2], host[3]};
  }
};

// Copies keep the values of their step.
class StepReport {
 public:
  StepReport() = default;  // for a step that measured nothing
  // `decision`: the four f64 of a Decision.
  explicit StepReport(Tensor decision) : decision_(std::move(decision)) {}

  // skipped() and grad_norm() wait for the device, as Decision::read() does.
  // Returns true if the norm was measured and is not finite: the step changed no parameter, state, average or step
  // count.
  bool skipped() const { return decision_.defined() && Decision::read(decision_).skipped != 0; }
  // Returns the Euclidean norm of the unscaled gradients before clipping, or NaN if it was not measured.
  double grad_norm() const {
    return decision_.defined() ? Decision::read(decision_).norm : std::numeric_limits<double>::quiet_NaN();
  }

  // Returns the Decision's four values on the device; undefined if nothing was measured.
  const Tensor& decision() const { return decision_; }

 private:
  Tensor decision_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
