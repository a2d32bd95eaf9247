// What programs with an optim::Trainer share: options, stopping by Ctrl-C, and resuming.
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

// The current values of `options` become the defaults. `output_dir` and `seed`: the help texts of these two flags.
void add_options(Flags& flags, RunOptions& options, std::string output_dir, std::string seed);
// Throws Error, which names the option.
void check(const RunOptions& options);
JobOptions job_options(const RunOptions& options);
optim::TrainerOptions trainer_options_of(const RunOptions& options);

// Resumes as --resume_from_checkpoint says: from a checkpoint file, from the newest checkpoint of a folder, or ("true")
// from the newest one in output_dir, if there is one. A job that its launcher has restarted resumes from its own newest
// checkpoint, whatever the option says. Rank 0 prints where the run resumes. Throws Error if a file or folder that is
// named has no checkpoint.
void resume(optim::Trainer& trainer, const RunOptions& options, const Job& job);

// Trains until the end, or until Ctrl-C (SIGINT) or SIGTERM. Then training stops (Trainer::cancel), a checkpoint is
// written, rank 0 prints how to resume, and the result is nullopt. A second signal ends the process. Only one call of
// train() may run at a time.
std::optional<optim::TrainResult> train(optim::Trainer& trainer, const Job& job);

// Rank 0 adds this callback. It marks the folder as the job's own, after the trainer has removed other runs'
// checkpoints from it.
class OwnsFolder : public optim::Callback {
 public:
  OwnsFolder(const Job& job, std::string folder) : job_(job), folder_(std::move(folder)) {}
  void on_begin(const optim::Progress& /*now*/) override { job_.own(folder_); }

 private:
  const Job& job_;
  const std::string folder_;
};

}  // namespace rondo::examples
