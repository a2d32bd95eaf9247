// The options and the results of a Trainer (trainer.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rondo/optim/optimizer.h"
#include "rondo/optim/trainer/callback.h"
#include "rondo/optim/trainer/replicas.h"
#include "rondo/runtime/base/dtype.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/checkpoint/checkpoint.h"
#include "rondo/runtime/data/batch_source.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

// Returns the mean loss over the batch's targets, a tensor of one element. The batch is on the model's device. The
// function is called in training mode with gradients, and in evaluation mode without.
using LossFn = std::function<Tensor(const data::Batch& batch)>;

// Returns the number of targets of a language model's batch {x, y, ...}: the entries of y that are not
// data::kIgnoreIndex.
int64_t unmasked_targets(const data::Batch& batch);
// Returns the first dimension of the batch's first tensor, or 1 if that tensor has no dimensions.
int64_t batch_rows(const data::Batch& batch);

// Options have the names of Hugging Face's transformers.TrainingArguments where it has them.
struct TrainerOptions {
  int64_t max_steps = -1;                   // optimizer steps; positive: num_train_epochs is not used
  double num_train_epochs = 3;              // may be a fraction
  int64_t gradient_accumulation_steps = 1;  // batches of one step; the last step of an epoch has those that remain
  double max_grad_norm = 1.0;               // gradients are clipped to this norm; 0: not clipped
  // The dtype for matrix products (bf16 or f16); parameters keep theirs. f16 scales the loss (grad_scaler.h). nullopt:
  // off.
  std::optional<DType> autocast = std::nullopt;
  // Learning rates as functions of the step, which counts from 0 (schedule.h): one for all groups of the optimizer, or
  // one for each. Empty: the optimizer's own.
  std::vector<Optimizer::Schedule> lr_schedules = {};
  // Returns the weight of a batch: the number of targets over which the loss function takes the mean. Use
  // unmasked_targets for language models; the default counts rows. A batch without targets is left out. The function
  // gets the batch in host memory, as the source gave it.
  std::function<int64_t(const data::Batch&)> count_targets = batch_rows;

  int64_t logging_steps = 10;
  int64_t eval_steps = 0;  // 0: at the end of each epoch. There is always an evaluation after the last step
  bool eval_on_start = false;
  // The run stops when this number of evaluations in a row have not lowered the best loss by more than the threshold.
  // 0: off.
  int64_t early_stopping_patience = 0;
  double early_stopping_threshold = 0;
  // When training has ended (but not after cancel()), the parameters of the best evaluation are restored. Costs a copy
  // of the trained parameters, in memory and in each checkpoint.
  bool load_best_model_at_end = false;

  std::string output_dir = {};        // the folder of the checkpoints; empty: none are written
  int64_t save_steps = 500;           // 0: at the end of each epoch. There is always a checkpoint when train() returns
  int save_total_limit = 2;           // this number of the newest checkpoints is kept
  bool overwrite_output_dir = false;  // a new run deletes the checkpoints of an older one; otherwise they are an error
  // Checkpoints leave out frozen parameters, which must be the same when resuming. nullopt: they do so if an adapter is
  // active.
  std::optional<bool> save_only_trainable = std::nullopt;
  bool ignore_data_skip = false;  // resume on other data or batches, from the beginning of the data
  uint64_t seed = 42;             // the seed of random numbers, such as dropout's
  Replicas* replicas = nullptr;   // null: one process trains. Must outlive the Trainer
};

// Returns the number of steps that a run makes with these options, for schedules that need it. `batches_per_epoch`: of
// all processes together. Throws Error if epochs do not end (data::BatchSource::kEndless) and max_steps is not set.
int64_t planned_steps(const TrainerOptions& options, int64_t batches_per_epoch);

// Returns the number of batches in a step, of all processes together.
int64_t batches_of_step(const TrainerOptions& options);
// Returns the number of optimizer steps in an epoch. `batches` counts the batches of all processes. The last step takes
// the batches that are left, which may be fewer.
int64_t steps_of_epoch(const TrainerOptions& options, int64_t batches);

struct TrainResult {
  StopReason reason = StopReason::kFinished;
  Progress last = {};  // the progress that the last callback saw
};

// Thrown if a checkpoint does not fit this trainer: other data, another base below the adapter, another adapter, or not
// written by a Trainer. Nothing was changed. (Other parameters or another optimizer: nn::StateDictError, also before
// anything is changed.)
class ResumeError : public Error {
 public:
  using Error::Error;
};

struct ResumedRun {
  int64_t step = 0;
  std::string path;
  std::vector<io::SkippedCheckpoint> skipped;  // files that are newer, and were skipped because they are damaged
};

}  // namespace rondo::optim
#pragma GCC visibility pop
