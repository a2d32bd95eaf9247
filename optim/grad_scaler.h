// GradScaler: keeps small gradients of f16 training above underflow. The loss is multiplied by a scale; the optimizer
// divides it out in the pass that it makes anyway, skips the step where a gradient overflowed, and the scale follows:
// down after a skipped step, up after many good ones (Micikevicius et al., 2018, section 3.2).
//
//   amp::GradScaler scaler;
//   { amp::Autocast lower(kF16); loss = model.loss(x, y); }
//   scaler.scale(loss).backward();
//   scaler.step(optimizer, {.max_norm = 1.0});   // divides, clips, checks; may skip
//   scaler.update();
#pragma once

#include "rondo/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace rondo::amp {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // steps without overflow before the scale grows
  bool enabled = true;             // false: the scale is 1, and nothing is checked that step() was not asked to
};

// Not thread safe.
class GradScaler {
 public:
  // Throws Error unless the factors lie where a scale can move both ways: growth above 1, backoff between 0 and 1.
  explicit GradScaler(GradScalerOptions options = {});

  // loss * get_scale(), in the loss's dtype.
  Tensor scale(TensorArg loss) const;
  // optimizer.step(), whose gradients are those of a scaled loss. With several optimizers, one call each before
  // update().
  optim::StepReport step(optim::Optimizer& optimizer, optim::StepOptions options = {});
  // After the steps of one iteration. Throws Error if there was none.
  void update();

  double get_scale() const { return options_.enabled ? scale_ : 1; }
  int64_t skipped() const { return skipped_; }  // iterations in which a step was skipped

  // "scale" f64, "growth_tracker" and "skipped" i64.
  nn::StateDict state_dict() const;
  // Throws nn::StateDictError, before anything is changed, if a tensor is missing or is not a positive number of its
  // dtype.
  void load_state_dict(const nn::StateDict& state);

 private:
  GradScalerOptions options_;
  double scale_;
  int64_t good_steps_ = 0;  // since the scale changed
  int64_t skipped_ = 0;
  bool stepped_ = false, overflowed_ = false;  // in this iteration
};

}  // namespace rondo::amp
#pragma GCC visibility pop
