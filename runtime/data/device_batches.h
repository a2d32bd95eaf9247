// DeviceBatches: the batches of a source, on a device. The next batch is copied while the device computes with this
// one: through page-locked memory and on the copy stream, so neither the host nor a step waits for a copy.
//
//   data::DataLoader loader(dataset, {.batch_size = 32, .shuffle = true, .num_workers = 2});
//   data::DeviceBatches batches(loader, device);
//   while (auto batch = batches.next()) {
//     train((*batch)[0], (*batch)[1]);   // enqueues a step
//     batches.read_ahead();              // optional: reads while the device computes, before the host waits for it
//   }
//
// next() returns batch k, and starts the copy of batch k + 1. If the source has not been asked for batch k + 1 yet, it
// is read now; read_ahead() does that earlier. Slow sources read in threads of their own:
// DataLoaderOptions::num_workers.
//
// Position: position() is that of the next batch that next() returns. A batch that was read ahead and not returned does
// not count; the destructor takes the source back. Until then the source's own position is ahead, and it must not be
// read by anybody else, unless they seek back to where it was.
// Errors: what the source throws for a batch is thrown by the next() that would return it, which skips the batch if the
// source does. A copy ahead that finds no memory is tried again by that next(), which throws OutOfMemoryError. Then the
// batch stays: the next call tries again. A batch that cannot be moved (a tensor is undefined, the device is lost) is
// skipped; the Error names the batch and the tensor.
// Memory: two batches on the device at most, the one in use included, and StagedCopies::kSlots in page-locked memory.
// Tensors of a batch that are on the device already are passed on; those that require gradients or are on another
// device move with Tensor::to() when their batch is returned. Random numbers: numbers that a source draws from the
// default generator when it is read ahead come from a stream of their own, so that reading ahead changes nothing that a
// step draws. A device with host memory (the CPU): nothing is copied and nothing is read ahead.
//
// Ownership: keeps a reference to the source, which must outlive it; the device must stay until it is destroyed.
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
  // Reads the first batch of the next epoch ahead, too: for training that goes on behind the end of an epoch.
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

  // What the i-th next() from now on returns (0: the coming one), as the source gave it: in host memory. Nothing at the
  // end of an epoch. Reads so far ahead, over ends of epochs, too. Throws what the source threw for it. The reference
  // is valid until next() or seek().
  const std::optional<Batch>& peek(int64_t i = 0);
  // Reads the next batches now, as many as are named, and writes the first ones into page-locked memory. Stops at an
  // error, and at the end of the epoch unless `across_epochs`. The CPU: does nothing.
  void read_ahead(int64_t batches = 2);

 private:
  // One answer of the source: a batch, the end of an epoch, or an error.
  struct Entry {
    Position before;
    std::optional<Batch> host = std::nullopt;
    std::exception_ptr error = nullptr;
    StagingSlot* slot = nullptr;  // null: not staged
    bool is_started = false;      // the copies are enqueued
    Batch there = {};             // on the device; undefined where a tensor does not go through staging
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
  std::deque<Entry> queue_;               // read and not returned
  Generator draws_;                       // of a source that is read ahead
};

}  // namespace rondo::data
#pragma GCC visibility pop
