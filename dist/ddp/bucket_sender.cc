#include "rondo/dist/ddp/bucket_sender.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/autograd/gradient_memory.h"

namespace rondo::dist {

void BucketSender::set_plan(BucketPlan plan) {
  reducers_.clear();
  plan_ = std::move(plan);
  buckets_of_.assign(step_.gradients.size(), {});
  const int world_size = step_.group.world_size();
  // For each GradientShards: how many elements each rank has been assigned so far.
  std::vector<std::vector<int64_t>> loads(takers_.size(), std::vector<int64_t>(static_cast<size_t>(world_size)));
  for (size_t b = 0; b < plan_.buckets.size(); ++b) {
    std::vector<size_t> parameters;
    for (const BucketSlot& slot : plan_.buckets[b].slots) {
      parameters.push_back(step_.position_of(slot.parameter));
      buckets_of_[parameters.back()].push_back(b);
    }
    std::optional<ShardLayout> layout;
    if (const size_t taker = plan_.buckets[b].taker; taker != 0)
      layout = lay_out_shards(plan_.buckets[b], loads[taker - 1]);
    reducers_.emplace_back(plan_.buckets[b], std::move(parameters), step_.device, step_.options.allow_unused,
                           std::move(layout), world_size);
  }
}

void BucketSender::take(size_t i) {
  for (const size_t b : buckets_of_[i]) --reducers_[b].pending;
}

void BucketSender::send_ready() {
  while (next_bucket_ < reducers_.size() && reducers_[next_bucket_].pending == 0) send(next_bucket_++);
  while (next_bucket_ == reducers_.size() && next_rows_ < step_.in_two_parts.size() &&
         step_.gradients[step_.in_two_parts[next_rows_]].complete)
    send_rows(step_.in_two_parts[next_rows_++]);
}

void BucketSender::send_all() {
  while (next_bucket_ < reducers_.size()) send(next_bucket_++);
  while (next_rows_ < step_.in_two_parts.size()) send_rows(step_.in_two_parts[next_rows_++]);
}

void BucketSender::send(size_t b) {
  const NoGrad off;
  BucketReducer& reducer = reducers_[b];
  takers_.before_send(b, reducer);
  for (size_t k = 0; k < reducer.parameters().size(); ++k) put(reducer, k);
  if (!step_.async_device)
    reducer.write_tag(
        {.step = step_.number, .bucket = b, .rank = step_.group.rank(), .troubled = !step_.trouble.empty()});
  reducer.reduce(step_.group, absl::StrCat("bucket ", b, " of step ", step_.number));
}

void BucketSender::put(BucketReducer& reducer, size_t k) {
  const BucketSlot& slot = reducer.bucket().slots[k];
  StepGradient& gradient = step_.gradients[reducer.parameters()[k]];
  Tensor parameter = slot.parameter;
  Tensor& grad = gradient.held;
  if (!gradient.arrived && !gradient.sent) {
    if (!step_.options.allow_unused)
      step_.note(absl::StrCat("the gradient of ", slot.name,
                              " did not arrive; if a step may leave parameters out, set "
                              "BucketOptions::allow_unused"));
    else if (!parameter.grad().defined()) step_.unused.push_back(slot.name);
  }
  // The whole gradient is taken out of .grad when its first piece is sent, so that a further backward before finish()
  // cannot change it.
  if (slot.begin == 0) {
    if (!grad.defined()) grad = parameter.grad();
    parameter.set_grad(Tensor());
    gradient.home->set(Tensor());
    if (!slot.whole() && grad.defined() && !grad.is_contiguous()) grad = grad.contiguous();
    gradient.only_holder = grad.defined() && autograd::is_only_holder(grad);
  }
  gradient.sent = true;
  reducer.put(k, grad, gradient.only_holder);
  if (reducer.is_adopted() && !slot.whole()) gradient.assembled = grad;
  if (slot.last_piece()) grad = Tensor();  // frees the gradient that backward made
}

void BucketSender::send_rows(size_t i) {
  const NoGrad off;
  const StepGradient& gradient = step_.gradients[i];
  gradient.rows->send(step_.group, step_.tag_of_rows(i), absl::StrCat(gradient.name, " of step ", step_.number));
}

void BucketSender::start_over() {
  next_bucket_ = next_rows_ = 0;
  for (BucketReducer& reducer : reducers_) {
    reducer.pending = reducer.parameters().size();
    reducer.is_taken = false;
    for (size_t k = 0; k < reducer.parameters().size(); ++k)
      step_.gradients[reducer.parameters()[k]].home->set(reducer.home(k));
  }
}

}  // namespace rondo::dist
