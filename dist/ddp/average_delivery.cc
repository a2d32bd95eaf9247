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
  while (!step_.late && next_ < sender_.sent() && sender_.parcels()[next_].work.is_done() &&
         (!listeners_.empty() || takers_.take_early()))
    deliver(next_++);
}

void AverageDelivery::deliver_all() {
  while (next_ < sender_.parcels().size()) deliver(next_++);
}

void AverageDelivery::deliver(size_t b) {
  const NoGrad off;
  Parcel& parcel = sender_.parcels()[b];
  std::exchange(parcel.work, Work()).wait();
  if (!step_.late && !is_usable(b, parcel)) spoilt_ = true;
  if (spoilt_) return;
  const std::vector<bool> flags = !step_.options.allow_unused ? std::vector<bool>()
                                  : step_.late                ? parcel.somewhere
                                                              : parcel.read_flags();
  if (!parcel.layout()) return deliver_to_grads(parcel, flags);
  parcel.there = flags;
  for (size_t k = 0; flags.empty() && k < parcel.parameters().size(); ++k)
    parcel.there.push_back(parcel.has_gradient(k));
  for (size_t k = 0; k < parcel.there.size(); ++k)
    if (parcel.there[k]) step_.gradients[parcel.parameters()[k]].delivered = true;
  takers_.hand_over(b, parcel, /*early=*/true);
}

// Host memory: reads the tag (Note [Tags] in parcel.h). Returns false if the average must not be used.
bool AverageDelivery::is_usable(size_t b, const Parcel& parcel) {
  const Parcel::Arrived arrived = parcel.read_tag(step_.number, b, step_.group.world_size());
  if (arrived == Parcel::Arrived::kNotReduced)
    step_.note(absl::StrCat("the ", parcel.layout() ? "reduce-scatter" : "all-reduce", " of bucket ", b, " (",
                            parcel.bucket().slots[0].name, " and what follows) did not happen in this step"));
  return arrived == Parcel::Arrived::kWell;
}

// `flags`: by slot, whether some rank has a gradient. Empty: asks this rank's gradients instead.
void AverageDelivery::deliver_to_grads(Parcel& parcel, const std::vector<bool>& flags) {
  std::vector<Tensor> final_ones;
  for (size_t k = 0; k < parcel.parameters().size(); ++k) {
    const BucketSlot& slot = parcel.bucket().slots[k];
    if (!(flags.empty() ? parcel.has_gradient(k) : flags[k])) continue;
    StepGradient& gradient = step_.gradients[parcel.parameters()[k]];
    Tensor parameter = slot.parameter, average = parcel.take_average(k);
    if (!slot.whole()) {
      Tensor& all = gradient.assembled;
      const DType dtype = gradient.rows == nullptr ? parameter.dtype() : parcel.bucket().dtype;
      if (!all.defined()) all = Tensor::empty(parameter.sizes(), {dtype, step_.device});
      if (!parcel.is_adopted()) all.view({all.numel()}).slice(0, {slot.begin, slot.begin + slot.numel}).copy_(average);
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
  for (; next_ < sender_.parcels().size(); ++next_) sender_.parcels()[next_].work.wait();
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

void AverageDelivery::hand_to_shards() {
  std::vector<Parcel>& parcels = sender_.parcels();
  takers_.begin(parcels);
  for (size_t b = 0; b < parcels.size(); ++b) takers_.hand_over(b, parcels[b], /*early=*/false);
}

void AverageDelivery::start_over() {
  next_ = 0;
  spoilt_ = false;
}

}  // namespace rondo::dist
