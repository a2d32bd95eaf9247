// StagedCopies: batches go from host memory to a device on its copy stream, while its compute stream works.
//
//   StagedCopies copies(device);
//   StagingSlot* slot = copies.stage(batch, /*may_wait=*/true);   // writes the bytes into page-locked memory
//   Batch there = copies.start(*slot, batch);                     // enqueues the copies; nobody waits
//   copies.join(*slot);                                           // compute work from here on comes after them
//
// Note [Copies ahead]. Three orders keep a copy right. (1) The copy stream waits for an event of the compute stream
//   that is recorded after the target was allocated: earlier work may still use that memory (backend.h, Note [Stream
//   order]). (2) The compute stream waits for an event of the copy stream before the target is used or freed: join().
//   (3) Staging memory is written again when the copy that reads it has run: the host asks that event.
//
// Only plain data in host memory is copied (goes_through_staging()). Other tensors are undefined in the started batch.
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
  EventHandle copied = nullptr;  // the copy stream has read the memory; null: no copy was started
  uint64_t number = 0;           // of that copy: they run in this order
  bool is_held = false;          // by a batch that was staged and is not joined yet
};

class StagedCopies {
 public:
  // The host may be so many batches ahead of the device. Then stage() waits.
  static constexpr size_t kSlots = 4;

  // REQUIRES: the device's memory is not the host's.
  explicit StagedCopies(Device device);
  ~StagedCopies();  // waits for the copies that have not run
  StagedCopies(const StagedCopies&) = delete;
  StagedCopies& operator=(const StagedCopies&) = delete;

  // The tensor is in host memory and requires no gradient.
  static bool goes_through_staging(const Tensor& tensor);

  // Writes the batch into staging memory. Null if all slots are in use and `may_wait` is false. Throws OutOfMemoryError
  // if there is no page-locked memory.
  StagingSlot* stage(const Batch& batch, bool may_wait);
  // Enqueues the copies of a staged batch into new tensors. Throws OutOfMemoryError; the batch is still staged then.
  Batch start(StagingSlot& slot, const Batch& batch);
  // Later compute work comes after the copies, and the slot is free when they have run. Not started: it is free now.
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
