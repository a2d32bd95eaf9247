#include "rondo/dist/parcel.h"

#include <cmath>
#include <utility>

#include "rondo/runtime/backend.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::dist {
namespace {

constexpr int64_t kTagElements = 3;

// Whole numbers up to 256 are exact in bf16, up to 2048 in f16.
double tag_of(int64_t step, size_t bucket, DType dtype) {
  io::Checksum sum;
  sum.update(&step, sizeof step);
  sum.update(&bucket, sizeof bucket);
  return static_cast<double>(1 + sum.digest() % (dtype == kBF16 ? 251 : 1023));
}

// Of an average, which is rounded once.
double tolerance(DType dtype) { return dtype == kBF16 ? 1.0 / 256 : dtype == kF16 ? 1.0 / 2048 : 1e-5; }

bool is_same_memory(const Tensor& a, const Tensor& b) {
  return a.storage() == b.storage() && a.storage_offset() == b.storage_offset();
}

}  // namespace

Parcel::Parcel(const Bucket& bucket, std::vector<size_t> parameters, Device device, bool allow_unused)
    : waiting(bucket.slots.size()),
      bucket_(&bucket),
      parameters_(std::move(parameters)),
      device_(device),
      allow_unused_(allow_unused),
      may_adopt_(!has_host_memory(device) && bucket.slots.size() == 1),
      filled_(bucket.slots.size()) {
  if (!may_adopt_) allocate();
}

void Parcel::allocate() {
  if (flat_.defined()) return;
  // As long as an adopted gradient: other ranks may have one.
  int64_t elements = may_adopt_ ? bucket_->slots[0].numel : bucket_->numel;
  if (has_host_memory(device_))
    elements += kTagElements + (allow_unused_ ? static_cast<int64_t>(bucket_->slots.size()) : 0);
  flat_ = Tensor::zeros({elements}, {bucket_->dtype, device_});
  flat_.storage().set_purpose(Purpose::kGradients);
  for (const BucketSlot& slot : bucket_->slots) {
    const Dims sizes = slot.whole() ? slot.parameter.sizes() : Dims{slot.numel};
    views_.push_back(
        Tensor::from_storage(flat_.storage(), slot.offset, sizes, contiguous_strides(sizes), bucket_->dtype));
  }
}

Tensor Parcel::home(size_t k) const {
  const BucketSlot& slot = bucket_->slots[k];
  return flat_.defined() && slot.whole() && slot.parameter.dtype() == bucket_->dtype ? views_[k] : Tensor();
}

void Parcel::put(size_t k, const Tensor& gradient, bool alone) {
  const BucketSlot& slot = bucket_->slots[k];
  filled_[k] = gradient.defined();
  adopted_ = may_adopt_ && alone && gradient.defined() && gradient.is_contiguous() &&
             gradient.dtype() == bucket_->dtype;
  const auto piece = [&](const Tensor& whole) {
    return slot.whole() ? whole : whole.view({whole.numel()}).slice(0, {slot.begin, slot.begin + slot.numel});
  };
  if (adopted_) {
    operand_ = piece(gradient);
    return;
  }
  allocate();
  Tensor& view = views_[k];
  if (!gradient.defined()) view.zero_();
  else if (!slot.whole()) view.copy_(piece(gradient.contiguous()));
  else if (!is_same_memory(gradient, view)) view.copy_(gradient);
}

void Parcel::write_tag(const Tag& tag) {
  Tensor end = flat_.slice(0, {bucket_->numel});
  end[0].fill_(tag_of(tag.step, tag.bucket, bucket_->dtype));
  end[1].fill_(tag.rank + 1);
  end[2].fill_(tag.troubled ? 1 : 0);
  if (!allow_unused_) return;
  const std::vector<double> flags(filled_.begin(), filled_.end());
  end.slice(0, {kTagElements}).copy_(Tensor::from(flags, {static_cast<int64_t>(flags.size())}, kCPU));
}

Parcel::Arrived Parcel::read_tag(int64_t step, size_t bucket, int world_size) const {
  const std::vector<double> tag = flat_.slice(0, {bucket_->numel}).to_vector<double>();
  const double expected[] = {tag_of(step, bucket, bucket_->dtype), (world_size + 1) / 2.0};
  for (size_t i = 0; i < 2; ++i)
    if (!(std::abs(tag[i] - expected[i]) <= tolerance(bucket_->dtype) * expected[i])) return Arrived::kNotReduced;
  return tag[2] == 0 ? Arrived::kWell : Arrived::kTroubled;
}

std::vector<bool> Parcel::read_flags() const {
  std::vector<bool> there;
  for (const double flag : flat_.slice(0, {bucket_->numel + kTagElements}).to_vector<double>())
    there.push_back(flag > 0);
  return there;
}

}  // namespace rondo::dist
