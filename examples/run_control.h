// Stopping and going on, for programs with an optim::Trainer.
#pragma once

#include <string>
#include <utility>

#include "rondo/examples/job.h"
#include "rondo/optim/trainer/trainer.h"

namespace rondo::examples {

// While this lives, Ctrl-C (SIGINT) and SIGTERM cancel the trainer: the step that is under way ends, a checkpoint is
// written. A second one ends the process. One at a time.
class CancelOnSignals {
 public:
  explicit CancelOnSignals(optim::Trainer& trainer);
  ~CancelOnSignals();
  CancelOnSignals(const CancelOnSignals&) = delete;
  CancelOnSignals& operator=(const CancelOnSignals&) = delete;
};

// --resume_from_checkpoint: a checkpoint file, a folder of them, or "true", the newest in `output_dir`, if there is
// one. A job that its launcher has started again goes on from its own newest one, whatever `from` says. Rank 0 prints
// where the run goes on. Throws Error if a file or folder that is named has no checkpoint.
void resume(optim::Trainer& trainer, std::string from, const std::string& output_dir, const Job& job);

// For rank 0: the folder belongs to the job once the trainer has cleared it of other runs' checkpoints.
class OwnsFolder : public optim::Callback {
 public:
  OwnsFolder(const Job& job, std::string folder) : job_(job), folder_(std::move(folder)) {}
  void on_begin(const optim::Progress& /*now*/) override { job_.own(folder_); }

 private:
  const Job& job_;
  const std::string folder_;
};

}  // namespace rondo::examples
