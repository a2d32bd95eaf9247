// A device whose calls are counted, and single calls left out: what a program that uses it waits for, and whether a
// fake notices when the program forgets to wait.
//
//   FakeDevice fake;
//   WatchedBackend watched(fake.device());
//   step(fake.device());
//   EXPECT_EQ(watched.counts().copies_in, 0);
#pragma once

#include <algorithm>
#include <cstdint>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::test {

// A mistake of the program: it does not make these calls.
enum class Mistake {
  kNone,
  kCopyWaitsForNothing,     // no wait of the copy stream
  kComputeWaitsForNothing,  // no wait of the compute stream
  kStagingIsFreeAtOnce,     // no question and no wait whether an event is reached
};

// Changes the table of a backend while it lives. One at a time. What keeps a reference to the table is made and
// destroyed in between.
class WatchedBackend {
 public:
  struct Counts {
    int64_t copies_in = 0;                   // copy_in(): from pageable memory, on the compute stream
    int64_t copies_out = 0, host_waits = 0;  // copy_out(); synchronize() and elapsed()
    int64_t staged_on_compute = 0, staged_on_copy = 0, staged_bytes = 0;
    int64_t staging = 0, most_staging = 0;  // blocks of allocate_staging()
  };

  explicit WatchedBackend(Device device, Mistake mistake = Mistake::kNone)
      : device_(device), mistake_(mistake), original_(backend_of(device)), table_(original_) {
    invariant(current_ == nullptr, "WatchedBackend: one at a time");
    current_ = this;
    watch_copies();
    watch_waits();
    install_backend(device.backend, &table_);
  }
  ~WatchedBackend() {
    install_backend(device_.backend, &original_);
    current_ = nullptr;
  }
  WatchedBackend(const WatchedBackend&) = delete;
  WatchedBackend& operator=(const WatchedBackend&) = delete;
  const Counts& counts() const { return counts_; }
  void reset() { counts_ = {.staging = counts_.staging, .most_staging = counts_.staging}; }

 private:
  static const BackendTable& original() { return current_->original_; }
  static bool makes(Mistake mistake) { return current_->mistake_ == mistake; }
  static Counts& count() { return current_->counts_; }

  void watch_copies() {
    table_.copy_in = [](int device, void* to, const void* host, size_t bytes) {
      ++count().copies_in;
      original().copy_in(device, to, host, bytes);
    };
    table_.copy_out = [](int device, void* host, const void* from, size_t bytes) {
      ++count().copies_out;
      original().copy_out(device, host, from, bytes);
    };
    table_.copy_staged = [](int device, Stream stream, void* to, const void* staging, size_t bytes) {
      ++(stream == Stream::kCopy ? count().staged_on_copy : count().staged_on_compute);
      count().staged_bytes += static_cast<int64_t>(bytes);
      original().copy_staged(device, stream, to, staging, bytes);
    };
    table_.allocate_staging = [](int device, size_t bytes) {
      void* const data = original().allocate_staging(device, bytes);
      Counts& c = count();
      c.most_staging = std::max(c.most_staging, ++c.staging);
      return data;
    };
    table_.deallocate_staging = [](int device, void* data, size_t bytes) noexcept {
      --count().staging;
      original().deallocate_staging(device, data, bytes);
    };
  }
  void watch_waits() {
    table_.synchronize = [](int device) {
      ++count().host_waits;
      original().synchronize(device);
    };
    table_.elapsed = [](int device, EventHandle from, EventHandle to) {
      ++count().host_waits;
      return makes(Mistake::kStagingIsFreeAtOnce) ? 0.0 : original().elapsed(device, from, to);
    };
    table_.reached = [](int device, EventHandle event) {
      return makes(Mistake::kStagingIsFreeAtOnce) || original().reached(device, event);
    };
    table_.wait = [](int device, Stream stream, EventHandle event) {
      if (stream == Stream::kCopy && makes(Mistake::kCopyWaitsForNothing)) return;
      if (stream == Stream::kCompute && makes(Mistake::kComputeWaitsForNothing)) return;
      original().wait(device, stream, event);
    };
  }

  static inline WatchedBackend* current_ = nullptr;
  const Device device_;
  const Mistake mistake_;
  const BackendTable& original_;
  BackendTable table_;
  Counts counts_;
};

}  // namespace rondo::test
