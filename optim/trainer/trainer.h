// Trainer: START HERE. The plain training loop with what a long run needs around it: evaluation, callbacks, cancelling,
// accumulation, precision, checkpoints, early stop, and resuming bit for bit. It is optional: TrainerRun::train_step()
// in trainer_run.cc is the loop that you would write yourself, and fits one screen.
//
//   optim::Trainer trainer(model, optimizer, [&](const data::Batch& b) { return model.loss(b[0], b[1]); }, train_data,
//                          eval_data, {.num_train_epochs = 3, .count_targets = optim::unmasked_targets,
//                                      .eval_steps = 100, .output_dir = "run"});
//   trainer.resume_from_checkpoint();                       // from the newest checkpoint in "run", if there is one
//   const optim::TrainResult result = trainer.train();      // trainer.cancel() from any thread ends it early
//
// Packed batches (ExampleBatchesOptions::pack) have a third tensor, positions: model.loss(b[0], b[1], b[2]). Without it
// the sequences of a row attend to each other, and the loss is wrong.
//
// Ownership: keeps references to model, optimizer, data and callbacks, which must outlive the Trainer. Make the
// optimizer, add adapters and compile regions before you make the Trainer.
// Thread safety: one thread at a time, except cancel() and progress(), which any thread may call at any time.
//
// More at the end of this file: Note [Mean over targets], [Resuming], [Checkpoints of a run], [Batches ahead],
// [Several processes], [Another number of processes].
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "rondo/modules/module.h"
#include "rondo/optim/optimizer.h"
#include "rondo/optim/trainer/callback.h"
#include "rondo/optim/trainer/trainer_options.h"
#include "rondo/runtime/data/batch_source.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

class TrainerRun;

class Trainer {
 public:
  using LossFn = optim::LossFn;

  // Throws Error if an option is out of range, if data is empty, if training data does not end (kEndless) and max_steps
  // is not set, or if evaluation data does not end.
  Trainer(nn::ModuleBase& model, Optimizer& optimizer, LossFn loss, data::BatchSource& train_data,
          TrainerOptions options = {});
  Trainer(nn::ModuleBase& model, Optimizer& optimizer, LossFn loss, data::BatchSource& train_data,
          data::BatchSource& eval_data, TrainerOptions options = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Callbacks are called in the order in which they were added. Throws Error during train().
  void add_callback(Callback& callback);

  // Trains until max_steps, cancel() or early stop. Modules are in training mode meanwhile, and afterwards in the mode
  // that each was in before. If something throws (loss function, data, callback, a full disk), parameters, optimizer
  // and position are those of the last whole step, and another call goes on from that step. Throws FileError if a
  // checkpoint cannot be written (Callback::on_save_error), io::NonFiniteError if a parameter to be saved is not
  // finite, and Error if another run writes to output_dir or has left checkpoints there.
  TrainResult train();

  // Ends train() after at most one micro-step (a forward and backward of one batch, or one batch of an evaluation),
  // with a checkpoint of the last whole step in output_dir. Steps are never left half done. If called before train(),
  // train() returns at once. One call ends one train(). Safe in a signal handler.
  void cancel() noexcept;
  Progress progress() const;

  // Returns the mean loss over all targets of the evaluation data; with replicas each process evaluates its share.
  // Throws Error if there is no evaluation data, or no target in it.
  double evaluate();

  using Resumed = ResumedRun;
  // Goes on from the newest whole checkpoint of `folder`, or of output_dir if `folder` is "". Returns nullopt if there
  // is no checkpoint. Throws ResumeError, nn::StateDictError or FileError before anything is changed.
  std::optional<Resumed> resume_from_checkpoint(const std::string& folder = "");
  // Like resume_from_checkpoint(), but goes on from the checkpoint in this file.
  void resume_from_file(const std::string& path);
  // Writes a checkpoint into output_dir now; returns its path. Callbacks may call this, except in on_micro_step(),
  // where it throws Error. With replicas only rank 0 writes the file. Other ranks get "", and do nothing unless the
  // states are in shards.
  std::string save_checkpoint();

 private:
  std::unique_ptr<TrainerRun> run_;  // trainer_run.h
};

}  // namespace rondo::optim
#pragma GCC visibility pop

// Note [Mean over targets]. Micro-batches of one step may hold different numbers of targets (padding, masked prompts).
// Each is weighted by its number of targets (TrainerOptions::count_targets), so the gradient is that of the mean over
// all targets of the step, however the step is cut into batches. Evaluation weighs in the same way.
//
// Note [Resuming]. A run that was killed or cancelled and resumed makes the same steps as an undisturbed one, bit for
// bit, with dropout, accumulation, autocast and compiled regions, in the middle of an epoch too. REQUIRES the same
// options, loss, data and number of threads as before; a warning names another seed, max_grad_norm or autocast. The
// optimizer's options come from the checkpoint, also its learning rate. Random numbers of a step are a function of
// (seed, step): train() sets default_generator() for each step, and restores it when it returns.
//
// Note [Checkpoints of a run]. They are io::Checkpoints (checkpoint.h) in output_dir: parameters, persistent buffers,
// optimizer, loss scale, position in the data, early-stop state. If a LoRA adapter is active, they hold only the
// trained parameters, and a checksum of the frozen ones (`save_only_trainable`).
//
// Note [Batches ahead]. On a device that is not the CPU, the next step's batches are read and copied while this step is
// computed (runtime/data/device_batches.h). The source's own position is then ahead during train(), and exact when it
// returns.
//
// Note [Several processes]. With TrainerOptions::replicas (dist/ddp/trainer_replicas.h makes one of a
// DistributedDataParallel) each process makes the same Trainer on the same data, and takes its share of the batches
// (data/batch_share.h, Note [Global batch order]): n processes with `a` batches each make the steps of one process with
// n * a batches. Evaluations are shared, too, with rank 0's buffers (running statistics) on every process. All
// processes read checkpoints, rank 0 writes them. All of them call train(), evaluate() and the functions that resume. A
// cancel() in one process ends train() in all, after at most one whole step or evaluation. An exception in one process
// ends train() in the others with an error that names that process; none of them can go on in this job. The optimizer's
// states may be in shards (TrainerReplicasOptions::shards). A checkpoint then still has the states of whole parameters,
// and resumes with shards or without; all processes call save_checkpoint(), too.
//
// Note [Another number of processes]. A checkpoint resumes on any number of processes. The position in the data is
// exact: the job's order of batches goes on. If ranks times gradient_accumulation_steps is as before, every step has
// the same batches. Losses then differ only by the order of sums, and by what each process computes for itself: masks
// of dropout, and the statistics of BatchNorm over its own batch (over those of all processes if it is synchronised).
// If that product has changed, steps have another size from the checkpoint on: Note [Other steps] in trainer_run.cc.
// A run may also go on with another batch size if the data can be cut anew (BatchSource::cut_from; data::ExampleBatches
// can). The order of the rows goes on, too: a step of 4 rows goes on as 2 batches of 2, or as one batch of 2 in each of
// two processes, with the same rows.
