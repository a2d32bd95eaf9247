// MetricsFile: writes metrics.jsonl, the numbers of a run, with one JSON object in each line.
//
//   optim::MetricsLog log("out/metrics.jsonl");
//   trainer.add_callback(log);
//
//   optim::MetricsFile metrics("out/metrics.jsonl", /*first_step=*/0);   // in a loop of your own
//   metrics.write({.step = 10, .loss = 1.9, .lr = 1e-3});
//
// Numbers are in the shortest form that reads back to the same bits; a number that is not finite is null. A killed run
// that resumes from a checkpoint continues the file after the checkpoint's step.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rondo/optim/trainer/callback.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

class AppendFile;

// Steps count from 1. `loss` is the loss of the step's batch before the update; `eval_loss` is measured after the
// update.
struct MetricsRecord {
  int64_t step = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();
  std::optional<double> eval_loss = std::nullopt;
  double lr = 0;
  std::optional<double> grad_norm = std::nullopt;
  double targets_per_s = 0, step_ms = 0;
  std::optional<double> peak_rss_mib = std::nullopt;
};

// Returns one line, without the newline.
std::string to_json(const MetricsRecord& record);
// Reads one line of to_json(). Throws FileError, which names `path`.
MetricsRecord metrics_from_json(const std::string& json, const std::string& path);

class MetricsFile {
 public:
  // Continues the file of a run after `first_step` steps. Removes later lines; with 0, removes all lines. Throws
  // FileError, which names a line that cannot be read.
  MetricsFile(const std::string& path, int64_t first_step);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  // Appends a line. Throws FileError; the file then ends with the previous line.
  void write(const MetricsRecord& record);
  // Makes the lines durable. Call it before a checkpoint is written: then the file reaches the checkpoint's step.
  void sync();
  // Returns the records that the file had when it was opened, and those written since then.
  const std::vector<MetricsRecord>& records() const { return records_; }

 private:
  std::vector<MetricsRecord> records_;
  std::unique_ptr<AppendFile> file_;
};

// Writes a line for each on_log() and each evaluation.
class MetricsLog : public Callback {
 public:
  explicit MetricsLog(std::string path) : path_(std::move(path)) {}
  void on_begin(const Progress& now) override;
  void on_log(const Progress& now) override;
  void on_evaluate(const Progress& now) override;

 private:
  const std::string path_;
  std::optional<MetricsFile> file_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
