#include "rondo/runtime/data/staged_copies.h"

#include <bit>
#include <cstring>
#include <source_location>
#include <utility>

#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/device/allocator.h"

namespace rondo::data {
namespace {

// Returns the bytes that a tensor takes in staging memory, rounded up so that the next tensor begins aligned.
size_t rounded(int64_t bytes) { return (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment; }

size_t staged_bytes(const Batch& batch) {
  size_t bytes = 0;
  for (const Tensor& tensor : batch)
    if (StagedCopies::goes_through_staging(tensor)) bytes += rounded(tensor.nbytes());
  return bytes;
}

// An event that is released at the end of a scope.
class ScopedEvent {
 public:
  ScopedEvent(const BackendTable& backend, Device device, Stream stream)
      : backend_(backend), device_(device), event_(backend.record(device.index, stream)) {}
  ~ScopedEvent() {
    if (event_ != nullptr) backend_.release(device_.index, event_);
  }
  ScopedEvent(const ScopedEvent&) = delete;
  ScopedEvent& operator=(const ScopedEvent&) = delete;
  EventHandle get() const { return event_; }
  EventHandle keep() { return std::exchange(event_, nullptr); }

 private:
  const BackendTable& backend_;
  const Device device_;
  EventHandle event_;
};

}  // namespace

StagedCopies::StagedCopies(Device device) : device_(device), backend_(backend_of(device)) {}

StagedCopies::~StagedCopies() {
  for (StagingSlot& slot : slots_) {
    if (slot.copied != nullptr) {
      try {
        wait(slot.copied);
      } catch (...) {  // the device is lost, so no copy runs any more
      }
      backend_.release(device_.index, slot.copied);
    }
    if (slot.data != nullptr) backend_.deallocate_staging(device_.index, slot.data, slot.bytes);
  }
}

bool StagedCopies::goes_through_staging(const Tensor& tensor) {
  return tensor.defined() && has_host_memory(tensor.device()) && !tensor.requires_grad();
}

// Waits for `event`: elapsed() waits for both of its events, and here both are `event`.
void StagedCopies::wait(EventHandle event) const { backend_.elapsed(device_.index, event, event); }

bool StagedCopies::is_free(StagingSlot& slot) {
  if (slot.is_held) return false;
  if (slot.copied == nullptr) return true;
  if (!backend_.reached(device_.index, slot.copied)) return false;
  backend_.release(device_.index, std::exchange(slot.copied, nullptr));
  return true;
}

StagingSlot* StagedCopies::free_slot(size_t bytes, bool may_wait) {
  StagingSlot* found = nullptr;
  for (StagingSlot& slot : slots_) {
    // Prefers a slot that is large enough. If none is, prefers the largest one.
    const bool better = found == nullptr || (found->bytes < bytes && slot.bytes > found->bytes);
    if (better && is_free(slot)) found = &slot;
  }
  if (found == nullptr && may_wait) {
    for (StagingSlot& slot : slots_)
      if (!slot.is_held && (found == nullptr || slot.number < found->number)) found = &slot;
    invariant(found != nullptr, "StagedCopies: more batches are staged than there is memory for");
    wait(found->copied);
    backend_.release(device_.index, std::exchange(found->copied, nullptr));
  }
  if (found == nullptr || found->bytes >= bytes) return found;
  if (found->data != nullptr) backend_.deallocate_staging(device_.index, found->data, found->bytes);
  found->data = nullptr;
  found->bytes = 0;
  const size_t size = std::bit_ceil(bytes);  // rounded up, so that batches of varying size need few allocations
  found->data = static_cast<std::byte*>(backend_.allocate_staging(device_.index, size));
  found->bytes = size;
  return found;
}

StagingSlot* StagedCopies::stage(const Batch& batch, bool may_wait) {
  StagingSlot* const slot = free_slot(staged_bytes(batch), may_wait);
  if (slot == nullptr) return nullptr;
  std::byte* to = slot->data;
  for (const Tensor& tensor : batch) {
    if (!goes_through_staging(tensor) || tensor.nbytes() == 0) continue;
    const Tensor dense = tensor.contiguous();
    std::memcpy(to, dense.raw_data(), static_cast<size_t>(dense.nbytes()));
    to += rounded(dense.nbytes());
  }
  slot->is_held = true;
  return slot;
}

// See Note [Copies ahead].
Batch StagedCopies::start(StagingSlot& slot, const Batch& batch) {
  const memory::Cause cause("", "a batch that is copied ahead", std::source_location::current());
  Batch there(batch.size());
  for (size_t i = 0; i < batch.size(); ++i)
    if (goes_through_staging(batch[i])) there[i] = Tensor::empty(batch[i].sizes(), {batch[i].dtype(), device_});
  {
    const ScopedEvent allocated(backend_, device_, Stream::kCompute);
    backend_.wait(device_.index, Stream::kCopy, allocated.get());
  }
  try {
    const std::byte* from = slot.data;
    for (Tensor& tensor : there) {
      if (!tensor.defined() || tensor.nbytes() == 0) continue;
      const auto bytes = static_cast<size_t>(tensor.nbytes());
      backend_.copy_staged(device_.index, Stream::kCopy, tensor.mutable_address(), from, bytes);
      from += rounded(tensor.nbytes());
    }
    slot.copied = ScopedEvent(backend_, device_, Stream::kCopy).keep();
    slot.number = ++started_;
  } catch (...) {
    // Waits, because enqueued copies may still write into the tensors that are freed now.
    try {
      wait(ScopedEvent(backend_, device_, Stream::kCopy).get());
    } catch (...) {  // the device is lost, so no copy runs any more
    }
    throw;
  }
  return there;
}

void StagedCopies::join(StagingSlot& slot) {
  slot.is_held = false;
  if (slot.copied != nullptr) backend_.wait(device_.index, Stream::kCompute, slot.copied);
}

}  // namespace rondo::data
