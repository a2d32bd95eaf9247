#include "rondo/dist/ddp/average_delivery.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"

namespace rondo::dist {

int64_t AverageDelivery::add_listener(Listener listener) {
  const int64_t id = listeners_.empty() ? 1 : listeners_.back().first + 1;
  listeners_.emplace_back(id, std::move(listener));
  return id;
}
void AverageDelivery::remove_listener(int64_t id) {
  std::erase_if(listeners_, [id](const auto& listener) { return listener.first == id; });
}
void AverageDelivery::tell(std::span<const Tensor> final_ones) const {
  for (const auto& [id, listener] : listeners_) listener(final_ones);
}

void AverageDelivery::deliver_ready() {
  while (!step_.async_device && next_ < sender_.sent() && sender_.reducers()[next_].work.is_done() &&
         (!listeners_.empty() || takers_.take_early()))
    deliver(next_++);
}

void AverageDelivery::deliver_all() {
  while (next_ < sender_.reducers().size()) deliver(next_++);
}

void AverageDelivery::deliver(size_t b) try {
  const NoGrad off;
  BucketReducer& reducer = sender_.reducers()[b];
  std::exchange(reducer.work, Work()).wait();
  if (!step_.async_device && !is_usable(b, reducer)) step_failed_ = true;
  if (step_failed_) return;
  const std::vector<bool> flags = !step_.options.allow_unused ? std::vector<bool>()
                                  : step_.async_device        ? reducer.any_rank_has_gradient
                                                              : reducer.read_flags();
  if (!reducer.layout()) return deliver_to_grads(reducer, flags);
  reducer.has_average = flags;
  for (size_t k = 0; flags.empty() && k < reducer.parameters().size(); ++k)
    reducer.has_average.push_back(reducer.has_gradient(k));
  for (size_t k = 0; k < reducer.has_average.size(); ++k)
    if (reducer.has_average[k]) step_.gradients[reducer.parameters()[k]].delivered = true;
  takers_.deliver(b, reducer, /*early=*/true);
} catch (const std::exception& error) {
  // This bucket is not delivered again, and part of it may be missing, so no rank may use this step.
  step_failed_ = true;
  step_.note(absl::StrCat("what uses the gradients failed: ", error.what()));
  throw;
}

// For gradients in host memory: reads the bucket's tag (Note [Tags] in bucket_reducer.h). Returns false if the bucket's
// average must not be used.
bool AverageDelivery::is_usable(size_t b, const BucketReducer& reducer) {
  const BucketReducer::TagStatus status = reducer.read_tag(step_.number, b, step_.group.world_size());
  if (status == BucketReducer::TagStatus::kNotReduced)
    step_.note(absl::StrCat("the ", reducer.layout() ? "reduce-scatter" : "all-reduce", " of bucket ", b, " (",
                            reducer.bucket().slots[0].name, " and what follows) did not happen in this step"));
  return status == BucketReducer::TagStatus::kValid;
}

// Delivers the bucket's averages to the parameters' .grad. `flags`: for each slot of the bucket, whether some rank has
// a gradient. If `flags` is empty, the slots for which this rank has a gradient are delivered.
void AverageDelivery::deliver_to_grads(BucketReducer& reducer, const std::vector<bool>& flags) {
  std::vector<Tensor> final_ones;
  for (size_t k = 0; k < reducer.parameters().size(); ++k) {
    const BucketSlot& slot = reducer.bucket().slots[k];
    if (!(flags.empty() ? reducer.has_gradient(k) : flags[k])) continue;
    StepGradient& gradient = step_.gradients[reducer.parameters()[k]];
    Tensor parameter = slot.parameter, average = reducer.take_average(k);
    if (!slot.whole()) {
      Tensor& all = gradient.assembled;
      const DType dtype = gradient.rows == nullptr ? parameter.dtype() : reducer.bucket().dtype;
      if (!all.defined()) all = Tensor::empty(parameter.sizes(), {dtype, step_.device});
      if (!reducer.is_adopted()) all.view({all.numel()}).slice(0, {slot.begin, slot.begin + slot.numel}).copy_(average);
      if (!slot.last_piece()) continue;
      average = std::exchange(all, Tensor());
    }
    if (gradient.rows != nullptr) {
      gradient.assembled = average;
      continue;
    }
    parameter.set_grad(average.to(parameter.dtype()));
    gradient.delivered = true;
    final_ones.push_back(parameter);
  }
  tell(final_ones);
}

void AverageDelivery::check_rows() {
  for (const size_t i : step_.in_two_parts) {
    const StepGradient& gradient = step_.gradients[i];
    gradient.rows->wait();
    if (!gradient.rows->has_come(step_.tag_of_rows(i)))
      step_.note(absl::StrCat("the all-gather of rows of ", gradient.name, " did not happen in this step"));
  }
}

void AverageDelivery::abandon() {
  for (; next_ < sender_.reducers().size(); ++next_) sender_.reducers()[next_].work.wait();
  for (const size_t i : step_.in_two_parts) step_.gradients[i].rows->wait();
}

void AverageDelivery::deliver_second_parts() {
  std::vector<Tensor> final_ones;
  for (const size_t i : step_.in_two_parts) {
    StepGradient& gradient = step_.gradients[i];
    const Tensor average = gradient.rows->complete(std::exchange(gradient.assembled, Tensor()), step_.group,
                                                   absl::StrCat(gradient.name, " of step ", step_.number));
    if (!average.defined()) continue;
    Tensor parameter = gradient.parameter;
    parameter.set_grad(average.to(parameter.dtype()));
    gradient.delivered = true;
    final_ones.push_back(parameter);
  }
  if (!final_ones.empty()) tell(final_ones);
}

void AverageDelivery::deliver_to_shards() {
  std::vector<BucketReducer>& reducers = sender_.reducers();
  takers_.begin(reducers);
  for (size_t b = 0; b < reducers.size(); ++b) takers_.deliver(b, reducers[b], /*early=*/false);
}

void AverageDelivery::start_over() {
  next_ = 0;
  step_failed_ = false;
}

}  // namespace rondo::dist
