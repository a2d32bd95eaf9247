// A run of a program with an optim::Trainer: the options that all of them have, stopping and going on.
//
//   struct MyOptions : RunOptions { ... };
//   add_options(flags, options, "checkpoints, and at the end the model", "of weights and batches");
//   ...
//   check(options);
//   const Job job(job_options(options));
//   optim::TrainerOptions trainer_options = trainer_options_of(options);   // then what the program adds to them
//   ...
//   resume(trainer, options, job);
//   const std::optional<optim::TrainResult> result = train(trainer, job);  // none: Ctrl-C
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "rondo/examples/flags.h"
#include "rondo/examples/job.h"
#include "rondo/optim/trainer/trainer.h"

namespace rondo::examples {

struct RunOptions {
  std::string output_dir, resume_from_checkpoint;
  bool overwrite_output_dir = false;
  int64_t gradient_accumulation_steps = 1;
  double max_grad_norm = 1;
  int64_t logging_steps = 20, save_steps = 0, save_total_limit = 2, seed = 42;
  Device device;
  bool check_ranks = false, pin_threads = true;
  double ddp_timeout = 300;
};

// The values that they have now are the defaults. `output_dir` and `seed`: the help of these two.
void add_options(Flags& flags, RunOptions& options, std::string output_dir, std::string seed);
// Throws Error, which names the option.
void check(const RunOptions& options);
JobOptions job_options(const RunOptions& options);
optim::TrainerOptions trainer_options_of(const RunOptions& options);

// --resume_from_checkpoint: a checkpoint file, a folder of them, or "true", the newest in output_dir, if there is one.
// A job that its launcher has started again goes on from its own newest one, whatever the option says. Rank 0 prints
// where the run goes on. Throws Error if a file or folder that is named has no checkpoint.
void resume(optim::Trainer& trainer, const RunOptions& options, const Job& job);

// Trains until the end, or until Ctrl-C (SIGINT) or SIGTERM: then the step that is under way ends, a checkpoint is
// written, rank 0 prints how to go on, and there is no result. A second signal ends the process. One at a time.
std::optional<optim::TrainResult> train(optim::Trainer& trainer, const Job& job);

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
