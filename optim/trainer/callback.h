// Callback: functions that a Trainer (trainer.h) calls while it trains, for a progress bar, a log, a condition to stop.
//
//   struct Bar : optim::Callback {
//     void on_step(const optim::Progress& now) override { bar.set(now.step, now.max_steps); }
//   } bar;
//   trainer.add_callback(bar);
//
// Thread safety: all functions are called on the thread that runs train(), never two at once.
// Errors: an exception from a callback ends train(), between two steps, with nothing lost: a new call of train() goes
// on. A callback may call Trainer::cancel().
// The model is in training mode (leave it there: eval() turns dropout off for the rest of the run) and its gradients
// are not defined, except in on_micro_step(). Text may be generated (generation.h) and random numbers drawn: the losses
// of later steps do not depend on it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "rondo/runtime/base/error.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

// The progress of a run. Numbers that are not known yet are NaN or nullopt.
struct Progress {
  int64_t step = 0;       // the number of optimizer steps that are done
  int64_t max_steps = 0;  // the step at which training ends
  double epoch = 0;       // passes over the training data: 1.5 is in the middle of the second
  double loss = std::numeric_limits<double>::quiet_NaN();       // mean over the targets of the last step
  double lr = std::numeric_limits<double>::quiet_NaN();         // the rate of group 0 in the last step
  double grad_norm = std::numeric_limits<double>::quiet_NaN();  // before clipping; measured where gradients are clipped
  std::optional<double> eval_loss = std::nullopt;               // mean over all targets, by the last evaluation
  std::optional<double> best_eval_loss = std::nullopt;          // the lowest evaluation loss
  int64_t best_step = 0;                                        // the step of the lowest evaluation loss
  // Steps that changed no parameter: a gradient was not finite, or no target counted.
  int64_t skipped_steps = 0;
  // Means over the steps since the last on_log(); evaluations, checkpoints and callbacks are not timed.
  double step_ms = std::numeric_limits<double>::quiet_NaN();
  double samples_per_second = std::numeric_limits<double>::quiet_NaN();  // a sample is a row of a batch
  double targets_per_second = std::numeric_limits<double>::quiet_NaN();  // as TrainerOptions::count_targets counts
};

enum class StopReason : uint8_t {
  kFinished,      // max_steps are done
  kCancelled,     // Trainer::cancel() was called
  kEarlyStopped,  // the evaluation loss no longer falls
};

class Callback {
 public:
  virtual ~Callback() = default;
  // train() was called. now.step is the step that it goes on from; 0: a new run.
  virtual void on_begin(const Progress& /*now*/) {}
  // After each forward and backward of a micro-batch. now.step does not count the step that is under way.
  virtual void on_micro_step(const Progress& /*now*/) {}
  virtual void on_step(const Progress& /*now*/) {}
  // After on_step(), every logging_steps steps and after the last one.
  virtual void on_log(const Progress& /*now*/) {}
  virtual void on_evaluate(const Progress& /*now*/) {}
  // A checkpoint was written; `path` names its file.
  virtual void on_save(const Progress& /*now*/, const std::string& /*path*/) {}
  // A checkpoint could not be written, for example to a full disk. Older checkpoints are whole. Return true to train on
  // without it; the next one is due save_steps later. If no callback returns true, train() throws the error.
  virtual bool on_save_error(const Progress& /*now*/, const FileError& /*error*/) { return false; }
  // train() is about to return; never called if it throws.
  virtual void on_end(const Progress& /*now*/, StopReason /*reason*/) {}
};

}  // namespace rondo::optim
#pragma GCC visibility pop
