// TrainingLog: the files that a run writes, and what it prints while it runs.
//
//   TrainingLog log("out", /*first_step=*/0, /*max_steps=*/2000, /*tokens_per_step=*/768);
//   for (...) {
//     log.begin_step();
//     ...
//     log.end_step(loss);
//     if (due) log.write({.step = done, .loss = loss, .lr = lr});
//   }
//
//   <folder>/metrics.jsonl  one JSON object for each line: step, loss, val_loss if evaluated, lr, tokens_per_s and
//   step_ms
//                           (means since the line before); the last line also has peak_rss_mib
//   <folder>/loss.svg       the curves, drawn again at each evaluation
//   <folder>/tensorboard/   events (event_writer.h)
// Steps count from 1. The line of step n has the loss before that step's update and, if evaluated, the validation loss
// after it.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "rondo/examples/event_writer.h"

namespace rondo::examples {

struct Record {
  int64_t step = 0;
  float loss = 0;  // of the batch
  std::optional<double> val_loss = std::nullopt;
  double lr = 0;
  double tokens_per_s = 0, step_ms = 0;  // filled by TrainingLog
  std::optional<double> peak_rss_mib = std::nullopt;
};

class TrainingLog {
 public:
  // Continues the log of a run after `first_step` steps. Later lines are removed. Throws FileError.
  TrainingLog(const std::string& folder, int64_t first_step, int64_t max_steps, int64_t tokens_per_step);
  ~TrainingLog();
  TrainingLog(const TrainingLog&) = delete;
  TrainingLog& operator=(const TrainingLog&) = delete;

  // Around the work that is timed. Evaluation and checkpoints are outside.
  void begin_step();
  void end_step(float loss);
  void write(Record record);
  // Makes the lines durable. Called before a checkpoint, so that the log never ends before the checkpoint's step.
  void sync();
  // A line of text beside the progress bar.
  void say(const std::string& text);

  const std::vector<Record>& records() const { return records_; }

 private:
  using Clock = std::chrono::steady_clock;
  void load(int64_t first_step);
  std::string eta() const;  // evaluations and checkpoints included
  void draw_bar();
  void clear_bar();

  const std::string folder_;
  const int64_t first_step_, max_steps_, tokens_per_step_;
  std::vector<Record> records_;
  std::FILE* metrics_ = nullptr;
  EventWriter events_;

  Clock::time_point started_ = Clock::now(), step_began_, bar_drawn_;
  int64_t done_;             // steps
  int64_t timed_steps_ = 0;  // since the last line
  double timed_ms_ = 0;
  float loss_ = 0;
  std::optional<double> val_loss_;
  const bool terminal_;
  bool bar_visible_ = false;
};

// One line of metrics.jsonl, without the newline; numbers in the shortest form that reads back to the same bits.
std::string to_json(const Record& record);
// Throws FileError naming `path`.
Record record_from_json(const std::string& json, const std::string& path);

}  // namespace rondo::examples
