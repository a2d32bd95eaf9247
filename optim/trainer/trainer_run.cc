// The loop of Trainer: TrainerRun::train_step() is what a program would write itself.
#include "rondo/optim/trainer/trainer_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/modules/mode_scope.h"
#include "rondo/optim/optimizer_state.h"
#include "rondo/optim/step.h"
#include "rondo/optim/trainer/run_lock.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/shape.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"

namespace rondo::optim {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

// PositionOf: its destructor restores the position of the evaluation data, which may be the training data, too.
class PositionOf {
 public:
  explicit PositionOf(data::BatchSource& source) : source_(source), before_(source.position()) {}
  ~PositionOf() {
    try {
      source_.seek(before_);
    } catch (...) {  // the source was there before: only a source that breaks its contract throws
    }
  }
  PositionOf(const PositionOf&) = delete;
  PositionOf& operator=(const PositionOf&) = delete;

 private:
  data::BatchSource& source_;
  const data::BatchSource::Position before_;
};

// A copy of the buffers that forward passes write (a running mean), to undo a step that is cancelled or throws.
class BuffersOf {
 public:
  explicit BuffersOf(nn::ModuleBase& model) {
    for (const nn::NamedModule& m : model.named_modules())
      for (const nn::ModuleBase::Slot& slot : m.module.own_slots())
        if (!slot.is_parameter && slot.tensor->defined()) copies_.emplace_back(*slot.tensor, slot.tensor->clone());
  }
  void restore() {
    const NoGrad off;
    for (auto& [buffer, copy] : copies_) buffer.copy_(copy);
  }

 private:
  std::vector<std::pair<Tensor, Tensor>> copies_;
};

class RandomStateOfThread {
 public:
  RandomStateOfThread() : seed_(default_generator().seed()), offset_(default_generator().offset()) {}
  ~RandomStateOfThread() { default_generator().set_state(seed_, offset_); }
  RandomStateOfThread(const RandomStateOfThread&) = delete;
  RandomStateOfThread& operator=(const RandomStateOfThread&) = delete;

 private:
  const uint64_t seed_, offset_;
};

// Returns a batch like this one with 0 rows. Tensors without dimensions stay as they are.
data::Batch without_rows(const data::Batch& batch) {
  data::Batch empty;
  for (const Tensor& tensor : batch) empty.push_back(tensor.rank() == 0 ? tensor : tensor.slice(0, {0, 0}));
  return empty;
}

}  // namespace

TrainerRun::TrainerRun(nn::ModuleBase& model, Optimizer& optimizer, LossFn loss, data::BatchSource& train_data,
                       data::BatchSource* eval_data, TrainerOptions options)
    : model_(model),
      optimizer_(optimizer),
      loss_(std::move(loss)),
      options_(std::move(options)),
      replicas_(options_.replicas),
      source_(train_data),
      train_data_(share_of(train_share_, train_data)),
      eval_data_(eval_data == nullptr ? nullptr : &share_of(eval_share_, *eval_data)) {
  check_options();
  if (options_.autocast == kF16) scaler_.emplace();
  steps_per_epoch_ = steps_of_epoch(options_, train_data.size());
  max_steps_ = planned_steps(options_, train_data.size());
  progress_.max_steps = max_steps_;
}

// Returns the source itself, or with replicas this process's share of it.
data::BatchSource& TrainerRun::share_of(std::optional<data::BatchShare>& share, data::BatchSource& source) const {
  if (replicas_ == nullptr) return source;
  return share.emplace(source, replicas_->rank(), replicas_->size());
}

void TrainerRun::check_options() const {
  const FloatingPointScope floating_point;  // a host may trap invalid operations, such as a comparison with NaN
  const TrainerOptions& o = options_;
  const auto require = [](bool holds, auto... what) {
    if (!holds) throw Error(absl::StrCat("Trainer: ", what...));
  };
  require(loss_ != nullptr, "the loss function is empty");
  require(o.count_targets != nullptr, "count_targets is empty");
  require(train_data_.size() > 0, "the training data holds no batch");
  require(eval_data_ == nullptr || eval_data_->size() > 0, "the evaluation data holds no batch");
  require(eval_data_ == nullptr || eval_data_->size() != data::BatchSource::kEndless,
          "the evaluation data does not end (BatchSource::kEndless)");
  require(o.gradient_accumulation_steps >= 1, "gradient_accumulation_steps is ", o.gradient_accumulation_steps,
          ", must be at least 1");
  require(o.max_steps > 0 || (o.num_train_epochs >= 0 && o.num_train_epochs < 1e9), "num_train_epochs is ",
          o.num_train_epochs);
  require(o.max_grad_norm >= 0, "max_grad_norm is ", o.max_grad_norm, "; 0 means that gradients are not clipped");
  require(!o.autocast || o.autocast == kBF16 || o.autocast == kF16, "autocast must be bf16 or f16");
  const int64_t schedules = std::ssize(o.lr_schedules);
  require(schedules <= 1 || schedules == optimizer_.n_groups(), "there are ", schedules,
          " lr_schedules; the optimizer has ", optimizer_.n_groups(), " groups, so give one for each, or one for all");
  require(o.logging_steps >= 1, "logging_steps is ", o.logging_steps, ", must be at least 1");
  require(o.eval_steps >= 0, "eval_steps is ", o.eval_steps);
  require(o.save_steps >= 0, "save_steps is ", o.save_steps);
  require(o.save_total_limit >= 1, "save_total_limit is ", o.save_total_limit, ", at least 1 must stay");
  require(o.early_stopping_patience >= 0, "early_stopping_patience is ", o.early_stopping_patience);
  require(o.early_stopping_threshold >= 0, "early_stopping_threshold is ", o.early_stopping_threshold);
  require(eval_data_ != nullptr || o.early_stopping_patience == 0, "early_stopping_patience needs evaluation data");
  require(eval_data_ != nullptr || !o.load_best_model_at_end, "load_best_model_at_end needs evaluation data");
}

// ---- The training loop

static_assert(std::atomic<bool>::is_always_lock_free, "cancel() must be safe in a signal handler");

// Prepares thread, model and folder for train(). The destructor restores thread and model, and unlocks the folder.
class TrainerRun::Session {
 public:
  explicit Session(TrainerRun& run) : run_(run), modes_(run.model_) {
    if (run.writes()) lock_.emplace(run.options_.output_dir);
    run.claim_output_dir();
    if (run.writes()) run.data_checksum();  // computed now, so that no step later waits for it
    run.compare_replicas();
    run.model_.train();
    run.optimizer_.zero_grad();  // drops gradients that the caller may have left
    run.batches_.emplace(run.train_data_, run.optimizer_.device(), data::DeviceBatchesOptions{.across_epochs = true});
    run.training_ = true;
  }
  ~Session() {
    run_.batches_.reset();  // moves train_data_ back to where the next step begins
    run_.training_ = run_.in_step_ = run_.cancelled_ = run_.agreed_to_stop_ = false;
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  TrainerRun& run_;
  const nn::ModeScope modes_;
  const RandomStateOfThread random_;
  std::optional<RunLock> lock_;
};

TrainResult TrainerRun::train() {
  if (training_) throw Error("Trainer::train: it is running already");
  if (Step::state_of(optimizer_).shards != nullptr && !shares_states())
    throw Error(
        "Trainer::train: the optimizer's states are in shards; name its ShardedOptimizer in "
        "TrainerReplicasOptions::shards");
  const Session session(*this);
  tell([this](Callback& c) { c.on_begin(progress_); });
  StopReason reason = StopReason::kFinished;
  // Does one thing in each turn, and decides what from the state alone: so a resumed run does what the killed one would
  // have done.
  for (;;) {
    if (is_cancelled()) {
      reason = StopReason::kCancelled;
      break;
    }
    if (evaluation_due()) {
      run_evaluation();
    } else if (stopped_early()) {
      reason = StopReason::kEarlyStopped;
      break;
    } else if (save_due()) {
      run_save();
    } else if (state_.step >= max_steps_) {
      break;
    } else {
      train_step();
    }
  }
  if (saves() && saved_step_ != state_.step) run_save();
  if (reason != StopReason::kCancelled && options_.load_best_model_at_end) restore_best();
  tell([&](Callback& c) { c.on_end(progress_, reason); });
  return {reason, progress()};
}

// Makes one optimizer step on the mean loss over all targets of its micro-batches. Returns false if cancelled: then
// nothing has changed.
bool TrainerRun::train_step() {
  const data::BatchSource::Position begin = batches_->position();
  BuffersOf buffers(model_);
  const auto undo = [&] {
    buffers.restore();
    optimizer_.zero_grad();
    batches_->seek(begin);
    in_step_ = false;
    return false;
  };
  in_step_ = true;
  try {
    const Clock::time_point began = Clock::now();
    Micro step;
    if (!fetch(step)) return undo();
    seed_step(options_.seed, replicas_ == nullptr ? 0 : replicas_->rank(), state_.step);
    if (!options_.lr_schedules.empty()) {
      std::vector<Optimizer::Schedule> schedules = options_.lr_schedules;
      schedules.resize(static_cast<size_t>(optimizer_.n_groups()), schedules.front());
      optimizer_.set_lr(schedules, planned_step());
    }
    const auto made = run_backwards(step);
    if (!made) return undo();
    if (step.all_targets > 0 && replicas_ != nullptr) replicas_->average_gradients(made->ran);
    const std::function<double()> loss = begin_mean(made->losses);
    std::optional<StepReport> report;
    if (step.all_targets > 0) {
      StepOptions how;
      if (options_.max_grad_norm > 0) how.max_norm = options_.max_grad_norm;
      report = scaler_ ? scaler_->step(optimizer_, how) : optimizer_.step(how);
      if (scaler_) scaler_->update();
    }
    optimizer_.zero_grad();
    if (replicas_ != nullptr) replicas_->end_step();
    // While the device computes, reads the next step's batches and one more: taking the last of them starts its copy.
    if (state_.step + 1 < max_steps_) batches_->read_ahead(options_.gradient_accumulation_steps + 1);
    const double mean = loss();
    finish_step(step, step.all_targets == 0 ? std::nan("") : mean, report, seconds_since(began));
  } catch (...) {
    undo();
    throw;
  }
  in_step_ = false;
  tell([this](Callback& c) { c.on_step(progress_); });
  if (state_.step % options_.logging_steps == 0 || state_.step == max_steps_) {
    tell([this](Callback& c) { c.on_log(progress_); });
    timed_ = {};
  }
  return true;
}

// Fetches the batches of the next step, and counts the targets of all of them before the step begins: the weight of
// each batch depends on all of them. The last step of an epoch has the batches that are left. Returns false if
// cancelled.
bool TrainerRun::fetch(Micro& step) {
  bool ended = false;
  const int64_t ranks = replicas_ == nullptr ? 1 : replicas_->size();
  for (int64_t taken = 0; taken < options_.gradient_accumulation_steps;) {
    if (replicas_ == nullptr && cancelled_) return false;
    const std::optional<data::Batch>& batch = batches_->peek(taken);
    if (!batch) {
      step.ends_epoch = taken > 0;
      if (step.ends_epoch) break;
      if (std::exchange(ended, true)) throw Error("Trainer: the training data holds no batch");
      batches_->next();
      continue;
    }
    data::BatchSource::Position at = batches_->position();
    at.batch += taken * ranks;
    ++taken;
    const bool mine = !train_share_ || train_share_->owns(at);
    const int64_t targets = mine ? options_.count_targets(*batch) : 0;
    if (targets < 0) throw Error(absl::StrCat("Trainer: count_targets returned ", targets));
    step.targets.push_back(targets);
    if (!mine) continue;
    step.rows += batch_rows(*batch);
    step.all_targets += targets;
  }
  if (replicas_ == nullptr) return true;
  const std::vector<double> sums = replicas_->sum(
      {static_cast<double>(step.all_targets), static_cast<double>(step.rows), cancelled_ ? 1.0 : 0.0},
      "targets of the step");
  step.all_targets = static_cast<int64_t>(sums[0]);
  step.rows = static_cast<int64_t>(sums[1]);
  agreed_to_stop_ = sums[2] > 0;
  return !agreed_to_stop_;
}

// Runs forward and backward of each batch. Losses are read later, when the whole step is enqueued. Returns nullopt if
// cancelled.
std::optional<TrainerRun::Backwards> TrainerRun::run_backwards(const Micro& step) {
  Backwards made;
  // If layers wait for the other processes, every process runs as many forwards and backwards as the others.
  const bool runs_empty = step.all_targets > 0 && replicas_ != nullptr && replicas_->layers_wait();
  size_t last = step.targets.size();  // the number of batches up to the last one that runs
  while (last > 0 && step.targets[last - 1] == 0 && !runs_empty) --last;
  for (size_t i = 0; i < step.targets.size(); ++i) {
    data::Batch batch = *batches_->next();
    const bool counts = step.targets[i] > 0;  // the mean loss over no targets is 0 / 0
    if (!counts && !runs_empty) continue;
    if (is_cancelled()) return std::nullopt;
    if (!counts) batch = without_rows(batch);
    const double share = static_cast<double>(step.targets[i]) / static_cast<double>(step.all_targets);
    const Tensor loss = loss_of(batch);
    made.ran = true;
    if (counts) made.losses.emplace_back(share, loss.detach());
    // Replicas average the gradients, but the step needs their sum.
    const double weight = replicas_ == nullptr ? share : share * replicas_->size();
    Tensor part = weight == 1 ? loss : loss * weight;
    if (scaler_) part = scaler_->scale(part);
    if (replicas_ == nullptr) part.backward();
    else replicas_->backward(part, /*is_last=*/i + 1 == last);
    tell([this](Callback& c) { c.on_micro_step(progress_); });
  }
  if (step.ends_epoch) batches_->next();
  return made;
}

// Returns a function that waits for the mean loss of the step over all processes.
std::function<double()> TrainerRun::begin_mean(const std::vector<std::pair<double, Tensor>>& losses) {
  if (replicas_ != nullptr) return replicas_->begin_sum(losses, "loss of the step");
  return [losses] {
    double mean = 0;
    for (const auto& [share, loss] : losses) mean += share * loss.item();
    return mean;
  };
}

Tensor TrainerRun::loss_of(const data::Batch& batch) const {
  const amp::Autocast lower(options_.autocast);
  Tensor loss = loss_(batch);
  if (!loss.defined() || loss.numel() != 1)
    throw Error(absl::StrCat(
        "Trainer: the loss function must return the mean loss of the batch, a tensor of one element; it returned ",
        loss.defined() ? to_string(loss.sizes()) : "an undefined tensor"));
  return loss;
}

// Updates the state, the times and the progress after a step. `report`: nullopt if no target counted; then the
// optimizer made no step.
void TrainerRun::finish_step(const Micro& step, double loss, const std::optional<StepReport>& report, double seconds) {
  const FloatingPointScope floating_point;
  const bool skipped = !report || report->skipped();
  const double grad_norm = report ? report->grad_norm() : std::nan("");
  ++state_.step;
  state_.loss = loss;
  state_.lr = optimizer_.lr();
  state_.grad_norm = grad_norm;
  if (skipped) ++state_.skipped_steps;
  timed_.seconds += seconds;
  timed_.steps += 1;
  timed_.rows += step.rows;
  timed_.targets += step.all_targets;
  const std::lock_guard lock(progress_mutex_);
  progress_.step_ms = 1e3 * timed_.seconds / static_cast<double>(timed_.steps);
  progress_.samples_per_second = static_cast<double>(timed_.rows) / timed_.seconds;
  progress_.targets_per_second = static_cast<double>(timed_.targets) / timed_.seconds;
  show_state();
}

// Copies state_ into the fields of progress_. REQUIRES: progress_mutex_ is held.
void TrainerRun::show_state() {
  const data::BatchSource::Position at = position();
  progress_.step = state_.step;
  progress_.loss = state_.loss;
  progress_.lr = state_.lr;
  progress_.grad_norm = state_.grad_norm;
  progress_.epoch = static_cast<double>(at.epoch) +
                    static_cast<double>(at.batch) / static_cast<double>(train_data_.size());
  progress_.eval_loss = state_.eval_loss;
  progress_.best_eval_loss = state_.best.loss;
  progress_.best_step = state_.best.step;
  progress_.skipped_steps = state_.skipped_steps;
}

void TrainerRun::add_callback(Callback& callback) {
  if (training_) throw Error("Trainer::add_callback: add callbacks before train()");
  callbacks_.push_back(&callback);
}

Progress TrainerRun::progress() const {
  const std::lock_guard lock(progress_mutex_);
  return progress_;
}

// ---- Between steps: evaluations, checkpoints, early stopping

bool TrainerRun::due(int64_t every) const {
  if (state_.step == 0) return false;
  return every > 0 ? state_.step % every == 0 : (state_.step + epoch_offset_) % steps_per_epoch_ == 0;
}

// Note [Other steps]. A run may be resumed with other steps: more or fewer batches in each, or batches of another size.
// The step count then goes on, so that checkpoints keep their order. If a step is to be compared with epochs,
// epoch_offset_ is added to it: at the end of an epoch and, with num_train_epochs, in schedules and at the run's end.
int64_t TrainerRun::planned_step() const { return options_.max_steps > 0 ? state_.step : state_.step + epoch_offset_; }

int64_t TrainerRun::batches_per_step() const { return batches_of_step(options_); }

// Returns how many steps of this run's size come before this position.
int64_t TrainerRun::epoch_steps_at(data::BatchSource::Position at) const {
  const int64_t of_an_epoch = steps_of_epoch(options_, train_data_.size());
  return (at.epoch + 1) * of_an_epoch - steps_of_epoch(options_, train_data_.size() - at.batch);
}

// Throws an error in every process unless all processes begin at the same place with the same data.
void TrainerRun::compare_replicas() {
  if (replicas_ == nullptr) return;
  const data::BatchSource::Position at = train_data_.position();
  replicas_->require_equal(
      {absl::StrCat("step ", state_.step, " of ", max_steps_), absl::StrCat("epoch ", at.epoch, ", batch ", at.batch),
       absl::StrCat("training data ", data_checksum(), ", ", train_data_.size(), " batches"),
       absl::StrCat(eval_data_ == nullptr ? 0 : eval_data_->size(), " evaluation batches"),
       absl::StrCat("gradient_accumulation_steps ", options_.gradient_accumulation_steps, ", max_grad_norm ",
                    options_.max_grad_norm, ", seed ", options_.seed),
       shares_states() ? absl::StrCat("states in shards, ", options_.output_dir.empty()
                                                                ? "no checkpoints"
                                                                : absl::StrCat("save_steps ", options_.save_steps))
                       : "whole states"},
      "Trainer");
  agreed_to_stop_ = replicas_->sum({cancelled_ ? 1.0 : 0.0}, "cancelled").front() > 0;
}

bool TrainerRun::evaluation_due() const {
  if (eval_data_ == nullptr || state_.evaluated_step == state_.step) return false;
  if (state_.step == 0) return options_.eval_on_start;
  return due(options_.eval_steps) || state_.step >= max_steps_;
}

bool TrainerRun::save_due() const { return saves() && saved_step_ != state_.step && due(options_.save_steps); }

bool TrainerRun::stopped_early() const {
  return options_.early_stopping_patience > 0 && state_.best.evaluations_since >= options_.early_stopping_patience;
}

double TrainerRun::evaluate() { return *evaluation_loss(/*until_cancelled=*/false); }

// Returns the mean loss over the evaluation data, or nullopt if cancelled.
std::optional<double> TrainerRun::evaluation_loss(bool until_cancelled) {
  if (eval_data_ == nullptr) throw Error("Trainer::evaluate: there is no evaluation data");
  const NoGrad off;
  const nn::ModeScope modes(model_);
  const RandomStateOfThread random;
  const PositionOf position(*eval_data_);
  model_.eval();
  // All evaluations draw the same random numbers. Steps never draw these numbers.
  default_generator().set_state(options_.seed, uint64_t{1} << 63);
  eval_data_->seek({});
  data::DeviceBatches batches(*eval_data_, optimizer_.device());
  double sum = 0, all_targets = 0;
  for (;;) {
    const bool mine = !eval_share_ || eval_share_->owns(batches.position());
    if (!batches.peek()) break;
    if (replicas_ == nullptr && until_cancelled && cancelled_) return std::nullopt;
    const int64_t targets = mine ? options_.count_targets(*batches.peek()) : 0;
    const data::Batch batch = *batches.next();
    if (targets == 0) continue;
    const Tensor loss = loss_of(batch);
    batches.read_ahead();
    sum += static_cast<double>(targets) * loss.item();
    all_targets += static_cast<double>(targets);
  }
  if (replicas_ != nullptr) {
    const std::vector<double> sums = replicas_->sum({sum, all_targets, until_cancelled && cancelled_ ? 1.0 : 0.0},
                                                    "evaluation");
    sum = sums[0], all_targets = sums[1];
    agreed_to_stop_ = agreed_to_stop_ || sums[2] > 0;
  }
  if (all_targets == 0) throw Error("Trainer::evaluate: the evaluation data holds no target");
  return sum / all_targets;
}

void TrainerRun::run_evaluation() {
  const std::optional<double> loss = evaluation_loss(/*until_cancelled=*/true);
  if (!loss) return;
  state_.eval_loss = loss;
  state_.evaluated_step = state_.step;
  Best& best = state_.best;
  const auto lower_by_more_than = [&](double difference) {
    const FloatingPointScope floating_point;
    return floating_point.here(!std::isnan(*loss) && (!best.loss || *best.loss - *loss > difference));
  };
  const bool improved = lower_by_more_than(options_.early_stopping_threshold), lowest = lower_by_more_than(0);
  best.evaluations_since = improved ? 0 : best.evaluations_since + 1;
  if (lowest) {
    best.loss = loss;
    best.step = state_.step;
    if (options_.load_best_model_at_end) {
      best.state.clear();
      for (const nn::NamedTensor& t : trained_tensors()) best.state[t.name] = t.tensor.clone();
    }
  }
  {
    const std::lock_guard lock(progress_mutex_);
    show_state();
  }
  tell([this](Callback& c) { c.on_evaluate(progress_); });
}

void TrainerRun::run_save() {
  std::string path;
  try {
    path = write_checkpoint();
  } catch (const FileError& error) {
    bool go_on = false;
    tell([&](Callback& c) { go_on |= c.on_save_error(progress_, error); });
    if (!go_on) throw;
  }
  saved_step_ = state_.step;
  if (!path.empty()) tell([&](Callback& c) { c.on_save(progress_, path); });
}

std::string TrainerRun::save_checkpoint() {
  if (!saves() && !options_.output_dir.empty()) return "";
  claim_output_dir();
  const std::string path = write_checkpoint();
  saved_step_ = state_.step;
  if (path.empty()) return "";
  tell([&](Callback& c) { c.on_save(progress_, path); });
  return path;
}

void TrainerRun::restore_best() {
  if (state_.best.state.empty() || state_.best.step == state_.step) return;
  nn::load_tensors(trained_tensors(), state_.best.state, /*strict=*/true, "Trainer");
}

}  // namespace rondo::optim
