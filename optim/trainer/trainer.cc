// What trainer.h declares. The loop is Trainer::Run, in trainer_run.cc.
#include "rondo/optim/trainer/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/optim/trainer/trainer_run.h"
#include "rondo/runtime/base/shape.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/data/token_data.h"

namespace rondo::optim {

int64_t unmasked_targets(const data::Batch& batch) {
  if (batch.size() < 2)
    throw Error(absl::StrCat("unmasked_targets: the batch holds ", batch.size(), " tensors, not {x, y, ...}"));
  const Tensor& targets = batch[1];
  if (targets.dtype() != kI64)
    throw Error(absl::StrCat("unmasked_targets: the second tensor of the batch must hold targets as i64, got ",
                             std::string(name_of(targets.dtype())), " ", to_string(targets.sizes())));
  const Tensor dense = targets.contiguous().to(kCPU);
  const int64_t* values = dense.data<int64_t>();
  return dense.numel() - std::count(values, values + dense.numel(), data::kIgnoreIndex);
}

int64_t batch_rows(const data::Batch& batch) {
  if (batch.empty()) throw Error("Trainer: a batch holds no tensor");
  return batch.front().rank() == 0 ? 1 : batch.front().size(0);
}

int64_t planned_steps(const TrainerOptions& options, int64_t batches_per_epoch) {
  if (options.max_steps > 0) return options.max_steps;
  if (batches_per_epoch == data::BatchSource::kEndless)
    throw Error("Trainer: the training data does not end (BatchSource::kEndless); set max_steps");
  const double steps = options.num_train_epochs * static_cast<double>(steps_of_epoch(options, batches_per_epoch));
  return static_cast<int64_t>(std::min(std::ceil(steps), 0x1p62));
}

Trainer::Trainer(nn::ModuleBase& model, Optimizer& optimizer, LossFn loss, data::BatchSource& train_data,
                 TrainerOptions options) try
    : run_(std::make_unique<Run>(model, optimizer, std::move(loss), train_data, nullptr, std::move(options))) {
} catch (const std::bad_alloc&) {
  throw_out_of_memory("Trainer");
}
Trainer::Trainer(nn::ModuleBase& model, Optimizer& optimizer, LossFn loss, data::BatchSource& train_data,
                 data::BatchSource& eval_data, TrainerOptions options) try
    : run_(std::make_unique<Run>(model, optimizer, std::move(loss), train_data, &eval_data, std::move(options))) {
} catch (const std::bad_alloc&) {
  throw_out_of_memory("Trainer");
}
Trainer::~Trainer() = default;

void Trainer::add_callback(Callback& callback) { run_->add_callback(callback); }
TrainResult Trainer::train() {
  return within_memory("Trainer::train", [&] { return run_->train(); });
}
void Trainer::cancel() noexcept { run_->cancel(); }
Progress Trainer::progress() const { return run_->progress(); }
double Trainer::evaluate() {
  return within_memory("Trainer::evaluate", [&] { return run_->evaluate(); });
}
std::optional<Trainer::Resumed> Trainer::resume_from_checkpoint(const std::string& folder) {
  return within_memory("Trainer::resume_from_checkpoint", [&] { return run_->resume_from_checkpoint(folder); });
}
void Trainer::resume_from_file(const std::string& path) {
  return within_memory("Trainer::resume_from_file", [&] { run_->resume_from_file(path); });
}
std::string Trainer::save_checkpoint() {
  return within_memory("Trainer::save_checkpoint", [&] { return run_->save_checkpoint(); });
}

}  // namespace rondo::optim
