// Stopping and going on, for programs with an optim::Trainer.
#pragma once

#include <string>

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
// one. Prints where the run goes on. Throws Error if a file or folder that is named has no checkpoint.
void resume(optim::Trainer& trainer, const std::string& from, const std::string& output_dir);

}  // namespace rondo::examples
