#include "rondo/dist/ddp/bucket_reducer.h"

#include <cmath>
#include <utility>

#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::dist {
namespace {

constexpr int64_t kTagElements = 3;

// Returns a hash of the step and the bucket. It is a small whole number, because bf16 is exact only up to 256, and f16
// only up to 2048.
double tag_of(int64_t step, size_t bucket, DType dtype) {
  io::Checksum sum;
  sum.update(&step, sizeof step);
  sum.update(&bucket, sizeof bucket);
  return static_cast<double>(1 + sum.digest() % (dtype == kBF16 ? 251 : 1023));
}

// The largest relative error that read_tag() accepts in an average, which is rounded once to `dtype`.
double tolerance(DType dtype) { return dtype == kBF16 ? 1.0 / 256 : dtype == kF16 ? 1.0 / 2048 : 1e-5; }

bool is_same_memory(const Tensor& a, const Tensor& b) {
  return a.storage() == b.storage() && a.storage_offset() == b.storage_offset();
}

}  // namespace

BucketReducer::BucketReducer(const Bucket& bucket, std::vector<size_t> parameters, Device device, bool allow_unused,
                             std::optional<ShardLayout> layout, int world_size)
    : pending(bucket.slots.size()),
      any_rank_has_gradient(bucket.slots.size()),
      bucket_(&bucket),
      parameters_(std::move(parameters)),
      device_(device),
      allow_unused_(allow_unused),
      layout_(std::move(layout)),
      rows_(layout_ ? world_size : 1),
      row_(layout_ ? layout_->row : bucket.numel),
      may_adopt_(!has_host_memory(device) && bucket.slots.size() == 1 && !layout_),
      filled_(bucket.slots.size()) {
  if (!may_adopt_) allocate();
}

void BucketReducer::allocate() {
  if (flat_.defined()) return;
  // All ranks must send the same number of elements, and other ranks may send an adopted gradient in this collective.
  // So this memory has as many elements as an adopted gradient, and no alignment at its end.
  const int64_t elements = (may_adopt_ ? bucket_->slots[0].numel : row_) + tag_elements();
  averages_ = flat_ = layout_ ? Tensor::zeros({rows_, elements}, {bucket_->dtype, device_})
                              : Tensor::zeros({elements}, {bucket_->dtype, device_});
  if (layout_) averages_ = Tensor::zeros({elements}, {bucket_->dtype, device_});
  for (const Tensor* made : {&flat_, &averages_}) made->storage().set_purpose(Purpose::kGradients);
  if (layout_) return;
  for (const BucketSlot& slot : bucket_->slots) {
    const Dims sizes = slot.whole() ? slot.parameter.sizes() : Dims{slot.numel};
    views_.push_back(
        Tensor::from_storage(flat_.storage(), slot.offset, sizes, contiguous_strides(sizes), bucket_->dtype));
  }
}

int64_t BucketReducer::tag_elements() const {
  if (!has_host_memory(device_)) return 0;
  return kTagElements + (allow_unused_ ? static_cast<int64_t>(bucket_->slots.size()) : 0);
}

void BucketReducer::reduce(ProcessGroup& group, const std::string& name) {
  work = layout_ ? group.reduce_scatter(averages_, flat_, ReduceOp::kAverage, name)
                 : group.all_reduce(adopted_ ? operand_ : flat_, ReduceOp::kAverage, name);
}

// With a layout, returns undefined: the bucket's memory may still receive parameters when the next gradients are made.
Tensor BucketReducer::home(size_t k) const {
  const BucketSlot& slot = bucket_->slots[k];
  return !layout_ && flat_.defined() && slot.whole() && slot.parameter.dtype() == bucket_->dtype ? views_[k] : Tensor();
}

void BucketReducer::put(size_t k, const Tensor& gradient, bool only_holder) {
  const BucketSlot& slot = bucket_->slots[k];
  filled_[k] = gradient.defined();
  adopted_ = may_adopt_ && only_holder && gradient.defined() && gradient.is_contiguous() &&
             gradient.dtype() == bucket_->dtype;
  const auto piece = [&](const Tensor& whole) {
    return slot.whole() ? whole : whole.view({whole.numel()}).slice(0, {slot.begin, slot.begin + slot.numel});
  };
  if (adopted_) {
    operand_ = piece(gradient);
    return;
  }
  allocate();
  if (layout_) return copy_spans(k, gradient);
  Tensor& view = views_[k];
  if (!gradient.defined()) view.zero_();
  else if (!slot.whole()) view.copy_(piece(gradient.contiguous()));
  else if (!is_same_memory(gradient, view)) view.copy_(gradient);
}

void BucketReducer::copy_spans(size_t k, const Tensor& gradient) {
  const Tensor line = gradient.defined() ? gradient.contiguous().view({gradient.numel()}) : Tensor();
  for (const ShardSpan& span : layout_->spans[k]) {
    if (span.numel == 0) continue;
    const int64_t begin = bucket_->slots[k].begin + span.begin;
    Tensor to = flat_.select(0, span.rank).slice(0, {span.offset, span.offset + span.numel});
    if (line.defined()) to.copy_(line.slice(0, {begin, begin + span.numel}));
    else to.zero_();
  }
}

void BucketReducer::write_tag(const Tag& tag) {
  std::vector<double> values = {tag_of(tag.step, tag.bucket, bucket_->dtype), tag.rank + 1.0, tag.troubled ? 1.0 : 0.0};
  if (allow_unused_) values.insert(values.end(), filled_.begin(), filled_.end());
  const auto n = static_cast<int64_t>(values.size());
  flat_.view({rows_, row_ + n}).slice(1, {row_}).copy_(Tensor::from(values, {n}, kCPU));
}

BucketReducer::TagStatus BucketReducer::read_tag(int64_t step, size_t bucket, int world_size) const {
  const std::vector<double> tag = averages_.slice(0, {row_}).to_vector<double>();
  const double expected[] = {tag_of(step, bucket, bucket_->dtype), (world_size + 1) / 2.0};
  for (size_t i = 0; i < 2; ++i)
    if (!(std::abs(tag[i] - expected[i]) <= tolerance(bucket_->dtype) * expected[i])) return TagStatus::kNotReduced;
  return tag[2] == 0 ? TagStatus::kValid : TagStatus::kRankFailed;
}

std::vector<bool> BucketReducer::read_flags() const {
  std::vector<bool> flags;
  for (const double flag : averages_.slice(0, {row_ + kTagElements}).to_vector<double>()) flags.push_back(flag > 0);
  return flags;
}

}  // namespace rondo::dist
