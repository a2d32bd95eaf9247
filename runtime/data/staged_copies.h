// StagedCopies: copies batches from host memory to a device on its copy stream, while its compute stream works.
//
//   StagedCopies copies(device);
//   StagingSlot* slot = copies.stage(batch, /*may_wait=*/true);   // writes the bytes into page-locked memory
//   Batch there = copies.start(*slot, batch);                     // enqueues the copies without waiting
//   copies.join(*slot);                                           // later compute work waits for the copies
//
// Note [Copies ahead]. A copy is correct because of three ordering rules. (1) The copy stream waits for an event of the
//   compute stream that is recorded after the target was allocated: earlier work may still use that memory (backend.h,
//   Note [Stream order]). (2) The compute stream waits for an event of the copy stream before the target is used or
//   freed: join(). (3) The host writes staging memory again only after the copy from it has run: it checks the event.
//
// Only tensors in host memory that require no grad are copied (goes_through_staging()). The others are undefined in the
// batch that start() returns.
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "rondo/runtime/data/batch_source.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::data {

// The staging memory of one batch.
struct StagingSlot {
  std::byte* data = nullptr;
  size_t bytes = 0;
  EventHandle copied = nullptr;  // reached when the copy stream has read the memory; null: no copy was started
  uint64_t number = 0;           // the copy's number; copies run in this order
  bool is_held = false;          // a batch is staged here and not joined yet
};

class StagedCopies {
 public:
  // The number of batches that the host may be ahead of the device before stage() waits.
  static constexpr size_t kSlots = 4;

  // REQUIRES: the device does not use host memory.
  explicit StagedCopies(Device device);
  ~StagedCopies();  // waits for copies that have not run yet
  StagedCopies(const StagedCopies&) = delete;
  StagedCopies& operator=(const StagedCopies&) = delete;

  // True if the tensor is in host memory and requires no grad.
  static bool goes_through_staging(const Tensor& tensor);

  // Writes the batch into staging memory. Returns null if all slots are in use and `may_wait` is false. Throws
  // OutOfMemoryError if there is no page-locked memory.
  StagingSlot* stage(const Batch& batch, bool may_wait);
  // Enqueues the copies of a staged batch into new tensors. Throws OutOfMemoryError; the batch is still staged then.
  Batch start(StagingSlot& slot, const Batch& batch);
  // Makes later compute work wait for the copies; the slot is free when they have run. If start() was not called, the
  // slot is free at once.
  void join(StagingSlot& slot);

 private:
  StagingSlot* free_slot(size_t bytes, bool may_wait);
  bool is_free(StagingSlot& slot);
  void wait(EventHandle event) const;

  const Device device_;
  const BackendTable& backend_;
  std::array<StagingSlot, kSlots> slots_;
  uint64_t started_ = 0;
};

}  // namespace rondo::data
