// GradScaler: keeps small gradients of f16 training from underflowing to 0. The loss is multiplied by a scale. The
// optimizer divides the gradients by it, in the pass that it makes anyway, and skips the step if a gradient overflowed.
// The scale falls after a skipped step and rises after many good ones (Micikevicius et al., 2018, section 3.2).
//
//   amp::GradScaler scaler;
//   { amp::Autocast lower(kF16); loss = model.loss(x, y); }
//   scaler.scale(loss).backward();
//   scaler.step(optimizer, {.max_norm = 1.0});   // divides, clips, checks; may skip
//   scaler.update();
//
// The scale and its history are values on the device of the loss and the parameters. scale(), step() and update() do
// not wait for the device. get_scale() and skipped() wait for it, and so does reading the tensors of state_dict().
#pragma once

#include <cstdint>
#include <memory>

#include "rondo/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace rondo::amp {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // steps without overflow before the scale grows
  bool enabled = true;             // false: the scale is 1, and step() checks only what its options ask for
};

// Not thread safe.
class GradScaler {
 public:
  // Throws Error unless growth_factor is above 1 and backoff_factor between 0 and 1.
  explicit GradScaler(GradScalerOptions options = {});
  // A copy of a GradScaler has its own scale and history.
  GradScaler(const GradScaler& other);
  GradScaler& operator=(const GradScaler& other);
  ~GradScaler();

  // Returns loss * get_scale(), in the loss's dtype. The first loss or step() decides on which device the scale and its
  // history are. Throws Error if a later loss, or the parameters of a later step(), are on another device.
  Tensor scale(TensorArg loss);
  // Calls optimizer.step() for the gradients of a scaled loss. With several optimizers, call it once for each before
  // update().
  optim::StepReport step(optim::Optimizer& optimizer, optim::StepOptions options = {},
                         std::source_location where = std::source_location::current());
  // Adjusts the scale. Call it after the steps of each iteration. Throws Error if there was no step.
  void update();

  double get_scale() const;
  int64_t skipped() const;  // returns the number of iterations in which a step was skipped

  // Returns copies of the values: "scale", "growth_factor" and "backoff_factor" f64, "growth_interval",
  // "growth_tracker" and "skipped" i64.
  nn::StateDict state_dict() const;
  // Restores all values of state_dict(). States of earlier versions lack the factors and the interval: then the scaler
  // keeps its own. Throws nn::StateDictError, before anything is changed, if another value is missing, is not a number
  // of its dtype, or is refused by the constructor.
  void load_state_dict(const nn::StateDict& state);

 private:
  struct State;
  GradScalerOptions options_;
  std::unique_ptr<State> state_;
};

}  // namespace rondo::amp
#pragma GCC visibility pop
