// A device for tests: host memory that behaves like a device's. It finds hidden host accesses, missing waits and
// memory that is used too early or too late, before a real device does.
//
//   FakeDevice fake({.seed = 7});
//   DeviceScope scope(fake.device());            // factories make tensors there
//   const double loss = model(x).item();         // runs what is queued, in an order that seed 7 chooses
//
// - Its memory is one range that the host may touch only while queued work runs: otherwise a read or write ends the
//   process with SIGSEGV, and with the address and the range in the message.
// - Work is queued, and runs when somebody waits, or earlier by chance. Each stream runs in its own order; between
//   streams, every order that events allow is possible, and the seed chooses one.
// - Blocks are full of 0xFF bytes (NaN) when they are fresh and, in stream order, after they are freed. Guard zones
//   behind blocks are checked when they are freed.
// - The n-th allocation fails on demand. An error that late work throws is thrown by the next call that waits.
// Its kernels are the CPU's. Thread safe; work runs on the thread that waits.
#pragma once

#include <cstdint>

#include "rondo/runtime/device/backend.h"

namespace rondo::test {

struct FakeDeviceOptions {
  uint64_t seed = 0;
  int devices = 1;
  size_t bytes = size_t{6} << 30;  // address space of each device; pages are taken when they are touched
  // The chance that some queued work runs when more is queued.
  double early = 0.02;
  bool generates = false;  // BackendTable::generates
  // Mistakes of a backend, for tests of the fake itself.
  bool copy_in_waits_for_compute = true;  // before it writes to a block that compute work may still read
  bool compute_waits_for_copy_in = true;
  bool frees_in_stream_order = true;
};

struct FakeDeviceCounts {
  int64_t allocations = 0, launches = 0, copies_in = 0, host_waits = 0;  // host_waits: copies out and synchronize()
  int64_t blocks_in_use = 0, trims = 0;
};

// Installs itself as Backend::kFake while it lives. One at a time.
class FakeDevice {
 public:
  explicit FakeDevice(FakeDeviceOptions options = {});
  ~FakeDevice();  // runs what is queued
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  Device device(int index = 0) const { return {Backend::kFake, static_cast<int8_t>(index)}; }
  FakeDeviceCounts counts(int index = 0) const;
  // The n-th allocation from now on (1 is the next) throws OutOfMemoryError, and no other. 0: none.
  void fail_allocation(int64_t n, int index = 0);
  int64_t queued(int index = 0) const;

  class Queue;
};

}  // namespace rondo::test
