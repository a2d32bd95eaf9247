// DeviceBatches: copies the batches of a source to a device. The next batch is copied while the device computes with
// the current one, through page-locked memory and on the copy stream: neither the host nor a step waits for a copy.
//
//   data::DataLoader loader(dataset, {.batch_size = 32, .shuffle = true, .num_workers = 2});
//   data::DeviceBatches batches(loader, device);
//   while (auto batch = batches.next()) {
//     train((*batch)[0], (*batch)[1]);   // enqueues a step
//     batches.read_ahead();              // optional: reads while the device computes, before the host waits for it
//   }
//
// next() returns batch k and starts the copy of batch k + 1. It reads batch k + 1 from the source unless read_ahead()
// has read it before. A slow source should read in its own threads: DataLoaderOptions::num_workers.
//
// Position: position() is the position of the batch that next() will return; batches that are only read ahead do not
// count. The source's own position is ahead of it. Another reader may use the source meanwhile only if it seeks back
// afterwards. The destructor seeks the source back to position().
// Errors: if the source throws for a batch, the next() that would return this batch rethrows, and skips the batch if
// the source does. If a copy ahead runs out of memory, the next() that returns the batch copies it again. If that
// throws OutOfMemoryError, too, the batch stays, and the following call of next() tries again. A batch that cannot be
// moved (a tensor is undefined, the device is lost) is skipped; the Error names the batch and the tensor.
// Memory: at most two batches on the device, including the one in use, and StagedCopies::kSlots batches in page-locked
// memory. Tensors that are on the device already are passed on. Tensors that require grad or are on another device move
// with Tensor::to() when their batch is returned. Random numbers: while the source reads ahead, the default generator
// has a separate stream, so reading ahead does not change the numbers that a step draws. On a device with host memory
// (the CPU) nothing is copied and nothing is read ahead.
//
// Ownership: this object keeps a reference to the source, which must outlive it. The device must exist as long, too.
// Thread safety: one thread at a time. It starts no thread.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>

#include "rondo/runtime/data/batch_source.h"
#include "rondo/runtime/device/device.h"
#include "rondo/runtime/random/random.h"

#pragma GCC visibility push(default)
namespace rondo::data {

class StagedCopies;
struct StagingSlot;

struct DeviceBatchesOptions {
  // Also reads the first batch of the next epoch ahead: for training that continues after the end of an epoch.
  bool across_epochs = false;
};

class DeviceBatches : public BatchSource {
 public:
  // Throws Error if there is no such device.
  DeviceBatches(BatchSource& source, Device device, DeviceBatchesOptions options = {});
  ~DeviceBatches() override;
  DeviceBatches(const DeviceBatches&) = delete;
  DeviceBatches& operator=(const DeviceBatches&) = delete;

  std::optional<Batch> next() override;
  Position position() const override;
  void seek(Position position) override;
  int64_t size() const override { return source_.size(); }
  uint64_t fingerprint() const override { return source_.fingerprint(); }

  // Returns the batch that the i-th call of next() from now on returns (0: the next call), in host memory as the source
  // gave it; nullopt at the end of an epoch. Reads that far ahead, also past the end of an epoch. Throws the source's
  // exception for this batch. The reference is valid until next() or seek().
  const std::optional<Batch>& peek(int64_t i = 0);
  // Reads the next `batches` batches now, and writes the first two into page-locked memory. Stops at an error, and at
  // the end of the epoch unless `across_epochs`. Does nothing on the CPU.
  void read_ahead(int64_t batches = 2);

 private:
  // One answer of the source: a batch, the end of an epoch, or an error.
  struct Entry {
    Position before;
    std::optional<Batch> host = std::nullopt;
    std::exception_ptr error = nullptr;
    StagingSlot* slot = nullptr;  // null: not staged
    bool is_started = false;      // the copies are enqueued
    Batch there = {};             // tensors on the device; undefined for tensors that do not go through staging
    bool is_end() const { return !host && error == nullptr; }
  };
  void read();
  bool extend();
  void stage(Entry& entry, bool may_wait);
  void start(Entry& entry);
  void start_following();
  Batch moved(const Entry& entry) const;
  void drop_front() noexcept;
  void drop() noexcept;

  BatchSource& source_;
  const Device device_;
  const DeviceBatchesOptions options_;
  std::unique_ptr<StagedCopies> copies_;  // null: the device has host memory
  std::deque<Entry> queue_;               // entries that are read but not returned
  Generator draws_;                       // replaces the default generator while the source is read
};

}  // namespace rondo::data
#pragma GCC visibility pop
