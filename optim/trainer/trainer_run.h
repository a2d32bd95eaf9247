// Trainer::Run: the functions and the state behind a Trainer. trainer.cc has the loop, trainer_checkpoint.cc the
// checkpoints.
//
// Thread safety: as Trainer's.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "rondo/optim/grad_scaler.h"
#include "rondo/optim/trainer/trainer.h"
#include "rondo/runtime/data/device_batches.h"

namespace rondo::optim {

class Trainer::Run {
 public:
  // `eval_data` may be null.
  Run(nn::ModuleBase& model, Optimizer& optimizer, LossFn loss, data::BatchSource& train_data,
      data::BatchSource* eval_data, TrainerOptions options);

  // Trainer's functions of these names.
  void add_callback(Callback& callback);
  TrainResult train();
  void cancel() noexcept { cancelled_.store(true); }
  Progress progress() const;
  double evaluate();
  std::optional<Resumed> resume_from_checkpoint(const std::string& folder);
  void resume_from_file(const std::string& path);
  std::string save_checkpoint();

 private:
  class Session;
  struct Micro {
    std::vector<int64_t> targets;  // of each batch
    int64_t rows = 0, all_targets = 0;
    bool ends_epoch = false;  // the epoch ended before there were enough batches
  };
  // The state of early stopping.
  struct Best {
    std::optional<double> loss = std::nullopt;
    int64_t step = 0;
    int64_t evaluations_since = 0;  // without an improvement beyond the threshold
    nn::StateDict state = {};       // with load_best_model_at_end: a copy of trained_tensors()
  };
  // All that a checkpoint holds beside tensors and the position in the data.
  struct State {
    int64_t step = 0;
    int64_t skipped_steps = 0;
    double loss = std::numeric_limits<double>::quiet_NaN(), lr = loss, grad_norm = loss;  // of the last step
    int64_t evaluated_step = -1;                                                          // of the last evaluation
    std::optional<double> eval_loss = std::nullopt;
    Best best = {};
  };
  // Since the last on_log().
  struct Timed {
    double seconds = 0;
    int64_t steps = 0, rows = 0, targets = 0;
  };

  void check_options() const;

  // ---- The loop (trainer.cc)
  bool train_step();
  bool fetch(Micro& step);
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
  // Where the next step begins to read.
  data::BatchSource::Position position() const { return batches_ ? batches_->position() : train_data_.position(); }
  template <class Fn> void tell(Fn fn) {
    for (Callback* callback : callbacks_) fn(*callback);
  }

  // ---- Checkpoints (trainer_checkpoint.cc)
  void resume(const io::Checkpoint& checkpoint, const std::string& path);
  std::string write_checkpoint();
  void claim_output_dir();
  bool only_trainable() const;
  // Parameters that require a gradient, and persistent buffers.
  std::vector<nn::NamedTensor> trained_tensors() const;
  // The `model` part of a checkpoint: trained_tensors(), or all tensors.
  std::vector<nn::NamedTensor> saved_tensors() const;
  const std::string& base_checksum();
  const std::string& data_checksum();

  nn::ModuleBase& model_;
  Optimizer& optimizer_;
  const LossFn loss_;
  data::BatchSource& train_data_;
  std::optional<data::DeviceBatches> batches_;  // while train() runs: train_data_ on the device, a batch ahead
  data::BatchSource* const eval_data_;          // may be null
  const TrainerOptions options_;
  std::vector<Callback*> callbacks_;
  std::optional<amp::GradScaler> scaler_;  // with f16

  int64_t steps_per_epoch_ = 0, max_steps_ = 0;
  State state_;
  Timed timed_;

  int64_t saved_step_ = -1;  // of the newest checkpoint, or of one that was given up
  std::string resumed_path_;
  bool owns_output_dir_ = false;               // the checkpoints in it are this run's
  std::string base_checksum_, data_checksum_;  // "": not computed yet
  bool training_ = false, in_step_ = false;
  std::atomic<bool> cancelled_ = false;
  mutable std::mutex progress_mutex_;  // of writes, and of reads by other threads
  Progress progress_;
};

}  // namespace rondo::optim
