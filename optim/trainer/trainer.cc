// Trainer passes its calls on to TrainerRun; trainer_run.cc has the loop.
#include "rondo/optim/trainer/trainer.h"

#include <utility>

#include "rondo/optim/trainer/trainer_run.h"
#include "rondo/runtime/base/within_memory.h"

namespace rondo::optim {

Trainer::Trainer(nn::ModuleBase& model, Optimizer& optimizer, LossFn loss, data::BatchSource& train_data,
                 TrainerOptions options) try
    : run_(std::make_unique<TrainerRun>(model, optimizer, std::move(loss), train_data, nullptr, std::move(options))) {
} catch (const std::bad_alloc&) {
  throw_out_of_memory("Trainer");
}
Trainer::Trainer(nn::ModuleBase& model, Optimizer& optimizer, LossFn loss, data::BatchSource& train_data,
                 data::BatchSource& eval_data, TrainerOptions options) try
    : run_(
          std::make_unique<TrainerRun>(model, optimizer, std::move(loss), train_data, &eval_data, std::move(options))) {
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
