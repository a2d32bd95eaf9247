// TrainerRun: the functions and state behind a Trainer. The loop is in trainer_run.cc, the checkpoints in
// trainer_checkpoint.cc.
//
// Thread safety: as Trainer's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rondo/modules/module.h"
#include "rondo/optim/grad_scaler.h"
#include "rondo/optim/optimizer.h"
#include "rondo/optim/trainer/trainer_options.h"
#include "rondo/runtime/data/batch_share.h"
#include "rondo/runtime/data/device_batches.h"

namespace rondo::optim {

class TrainerRun {
 public:
  // `eval_data` may be null.
  TrainerRun(nn::ModuleBase& model, Optimizer& optimizer, LossFn loss, data::BatchSource& train_data,
             data::BatchSource* eval_data, TrainerOptions options);

  // These functions do what Trainer's functions of the same names promise.
  void add_callback(Callback& callback);
  TrainResult train();
  void cancel() noexcept { cancelled_.store(true); }
  Progress progress() const;
  double evaluate();
  std::optional<ResumedRun> resume_from_checkpoint(const std::string& folder);
  void resume_from_file(const std::string& path);
  std::string save_checkpoint();

 private:
  class Session;
  // The batches of a step that this process has.
  struct Micro {
    std::vector<int64_t> targets;       // by batch; 0 if another process has the batch
    int64_t rows = 0, all_targets = 0;  // of the step's batches in all processes
    bool ends_epoch = false;            // the epoch ended before there were enough batches
  };
  // The results of the forwards and backwards of a step.
  struct Backwards {
    std::vector<std::pair<double, Tensor>> losses;  // by batch with targets: its share of the targets, and its loss
    bool ran = false;                               // a backward ran, maybe only on an empty batch
  };
  // The state of early stopping.
  struct Best {
    std::optional<double> loss = std::nullopt;
    int64_t step = 0;
    int64_t evaluations_since = 0;  // evaluations in a row that did not lower the loss by more than the threshold
    nn::StateDict state = {};       // with load_best_model_at_end: a copy of trained_tensors()
  };
  // All that a checkpoint holds beside tensors and the position in the data.
  struct State {
    int64_t step = 0;
    int64_t skipped_steps = 0;
    double loss = std::numeric_limits<double>::quiet_NaN(), lr = loss, grad_norm = loss;  // those of the last step
    int64_t evaluated_step = -1;  // the step of the last evaluation
    std::optional<double> eval_loss = std::nullopt;
    Best best = {};
  };
  // Times and counts since the last on_log().
  struct Timed {
    double seconds = 0;
    int64_t steps = 0, rows = 0, targets = 0;
  };

  void check_options() const;
  data::BatchSource& share_of(std::optional<data::BatchShare>& share, data::BatchSource& source) const;

  // ---- The training loop (trainer_run.cc)
  bool train_step();
  bool fetch(Micro& step);
  std::optional<Backwards> run_backwards(const Micro& step);
  std::function<double()> begin_mean(const std::vector<std::pair<double, Tensor>>& losses);
  Tensor loss_of(const data::Batch& batch) const;
  void finish_step(const Micro& step, double loss, const std::optional<StepReport>& report, double seconds);
  bool due(int64_t every) const;
  bool evaluation_due() const;
  bool save_due() const;
  bool stopped_early() const;
  std::optional<double> evaluation_loss(bool until_cancelled);
  void run_evaluation();
  void run_save();
  void restore_best();
  void show_state();
  bool is_cancelled() const { return replicas_ != nullptr ? agreed_to_stop_ : cancelled_.load(); }
  // True if this process writes the files.
  bool writes() const { return !options_.output_dir.empty() && (replicas_ == nullptr || replicas_->rank() == 0); }
  // True if each process has a part of the optimizer's states. Then all of them take part in a checkpoint.
  bool shares_states() const { return replicas_ != nullptr && replicas_->share_states_of(optimizer_); }
  bool saves() const { return writes() || (shares_states() && !options_.output_dir.empty()); }
  void compare_replicas();
  int64_t batches_per_step() const;
  int64_t epoch_steps_at(data::BatchSource::Position at) const;
  int64_t planned_step() const;
  // Returns the position in the data at which the next step begins.
  data::BatchSource::Position position() const { return batches_ ? batches_->position() : train_data_.position(); }
  template <class Fn> void tell(Fn fn) {
    for (Callback* callback : callbacks_) fn(*callback);
  }

  // ---- Checkpoints (trainer_checkpoint.cc)
  void resume(const io::Checkpoint& checkpoint, const std::string& path);
  std::string write_checkpoint();
  nn::StateDict optimizer_state();
  void claim_output_dir();
  bool only_trainable() const;
  // Returns the parameters that require a gradient, and the persistent buffers.
  std::vector<nn::NamedTensor> trained_tensors() const;
  // Returns the tensors of the `model` part of a checkpoint: trained_tensors(), or all tensors.
  std::vector<nn::NamedTensor> saved_tensors() const;
  const std::string& base_checksum();
  const std::string& data_checksum();

  nn::ModuleBase& model_;
  Optimizer& optimizer_;
  const LossFn loss_;
  const TrainerOptions options_;
  Replicas* const replicas_;                                  // null: one process
  std::optional<data::BatchShare> train_share_, eval_share_;  // this process's shares of the data, with replicas
  data::BatchSource& source_;                                 // the training data of all processes
  data::BatchSource& train_data_;                             // the training data of this process
  std::optional<data::DeviceBatches> batches_;  // while train() runs: train_data_ on the device, read ahead
  data::BatchSource* const eval_data_;          // null: there is no evaluation data
  std::vector<Callback*> callbacks_;
  std::optional<amp::GradScaler> scaler_;  // only for autocast in f16

  int64_t steps_per_epoch_ = 0, max_steps_ = 0;
  int64_t epoch_offset_ = 0;  // Note [Other steps]
  State state_;
  Timed timed_;

  int64_t saved_step_ = -1;  // the step of the newest checkpoint, or of one that could not be written
  std::string resumed_path_;
  bool owns_output_dir_ = false;               // the checkpoints in output_dir are this run's own
  std::string base_checksum_, data_checksum_;  // "": not computed yet
  bool training_ = false, in_step_ = false;
  std::atomic<bool> cancelled_ = false;
  bool agreed_to_stop_ = false;        // some process of the replicas was cancelled, and all know it
  mutable std::mutex progress_mutex_;  // held for writes of progress_, and for reads by other threads
  Progress progress_;
};

}  // namespace rondo::optim
