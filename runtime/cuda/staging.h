// Staging: page-locked host memory through which copies between host and device go. A buffer is used again when an
// event says that the copy which reads or writes it is done.
//
//   Staging::Buffer buffer = Staging::instance().take(device, bytes);   // host memory, free to write
//   memcpy(buffer.data, host, bytes); copy_to_device(..., stream);
//   Staging::instance().give(device, buffer, stream);                   // free again when the stream gets to here
//
// Thread safe. Buffers are page-locked for all devices.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include "rondo/runtime/cuda/device_state.h"

namespace rondo::cuda {

class Staging {
 public:
  // Bytes of the largest buffer. Larger copies go in pieces.
  static constexpr size_t kMostBytes = size_t{4} << 20;

  struct Buffer {
    std::byte* data = nullptr;
    size_t bytes = 0;
    DeviceState* device = nullptr;  // the device of `event`
    Event event;                    // null: nothing uses the buffer
  };

  static Staging& instance();

  // Takes a buffer of at least `bytes`, at most kMostBytes. Waits for an earlier copy if all buffers within the limit
  // are in use. Throws OutOfMemoryError. REQUIRES: the device's context is current.
  Buffer take(DeviceState& device, size_t bytes);
  // Gives a buffer back. It is free again when `stream` has done all that is enqueued now. If recording the event
  // fails, waits for the stream and throws.
  void give(DeviceState& device, Buffer buffer, StreamPtr stream);
  // Gives back a buffer that nothing uses any more.
  void give(Buffer buffer) noexcept;
  // Gives all buffers that are not in use back to the system, through any device.
  void clear(DeviceState& device);
  // Forgets the remaining buffers without freeing them: their devices are lost, and are about to be destroyed.
  void forget() noexcept;

 private:
  static constexpr size_t kMostInClass = 64;
  static constexpr int kClasses = 7;                         // 64 KB, 128 KB, ..., 4 MB
  static constexpr size_t kMostReserved = size_t{64} << 20;  // beyond it, copies wait for earlier ones
  static int class_of(size_t bytes);
  static bool passed(const Buffer& buffer);
  static void forget_event(Buffer& buffer) noexcept;

  std::mutex mutex_;
  std::deque<Buffer> free_[kClasses];  // in the order in which they were given back
  size_t reserved_ = 0;
};

}  // namespace rondo::cuda
