#include "rondo/optim/trainer/trainer_options.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/shape.h"
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

int64_t batches_of_step(const TrainerOptions& options) {
  return std::max<int64_t>(options.gradient_accumulation_steps, 1) *
         (options.replicas != nullptr ? options.replicas->size() : 1);
}

int64_t steps_of_epoch(const TrainerOptions& options, int64_t batches) {
  const int64_t of_a_step = batches_of_step(options);
  return batches / of_a_step + (batches % of_a_step != 0);
}

int64_t planned_steps(const TrainerOptions& options, int64_t batches_per_epoch) {
  if (options.max_steps > 0) return options.max_steps;
  if (batches_per_epoch == data::BatchSource::kEndless)
    throw Error("Trainer: the training data does not end (BatchSource::kEndless); set max_steps");
  const double steps = options.num_train_epochs * static_cast<double>(steps_of_epoch(options, batches_per_epoch));
  return static_cast<int64_t>(std::min(std::ceil(steps), 0x1p62));
}

}  // namespace rondo::optim
