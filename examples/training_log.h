// TrainingLog: writes the files of a run, and prints its progress.
//
//   TrainingLog log("out", /*first_step=*/0, /*max_steps=*/2000, /*tokens_per_step=*/768);
//   for (...) {
//     log.begin_step();
//     ...
//     log.end_step(loss);
//     if (due) log.write({.step = done, .loss = loss, .lr = lr});
//   }
//
//   <folder>/metrics.jsonl  one JSON object for each line (metrics_file.h): step, loss, eval_loss if evaluated, lr,
//                           targets_per_s and step_ms (means since the line before); the last line also has
//                           peak_rss_mib
//   <folder>/loss.svg       the curves, drawn again at each evaluation
//   <folder>/tensorboard/   events (event_writer.h)
// Steps count from 1. The line of step n has the loss before that step's update and, if evaluated, the validation loss
// after it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "rondo/optim/trainer/event_writer.h"
#include "rondo/optim/trainer/metrics_file.h"

namespace rondo::examples {

class TrainingLog {
 public:
  // Continues the log of a run that has made `first_step` steps: removes the lines of later steps. Throws FileError.
  TrainingLog(const std::string& folder, int64_t first_step, int64_t max_steps, int64_t tokens_per_step);
  ~TrainingLog();
  TrainingLog(const TrainingLog&) = delete;
  TrainingLog& operator=(const TrainingLog&) = delete;

  // Call begin_step() and end_step() around the work that is timed: without evaluation and checkpoints.
  void begin_step();
  void end_step(float loss);
  // Writes a line to metrics.jsonl. Fills in the times of the record.
  void write(optim::MetricsRecord record);
  // Makes the lines durable. Called before a checkpoint, so that the log never ends before the checkpoint's step.
  void sync() { metrics_.sync(); }
  // Prints a line of text, and removes the progress bar until it is drawn again.
  void say(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;
  std::string eta() const;  // the time until the end of the run, with evaluations and checkpoints
  void draw_bar();
  void clear_bar();

  const std::string folder_;
  const int64_t first_step_, max_steps_, tokens_per_step_;
  optim::MetricsFile metrics_;
  optim::EventWriter events_;

  Clock::time_point started_ = Clock::now(), step_began_, bar_drawn_;
  int64_t done_;             // the number of steps that are done
  int64_t timed_steps_ = 0;  // the number of steps since the last line
  double timed_ms_ = 0;
  float loss_ = 0;
  std::optional<double> eval_loss_;
  const bool terminal_;
  bool bar_visible_ = false;
};

}  // namespace rondo::examples
