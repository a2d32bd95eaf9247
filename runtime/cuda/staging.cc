#include "rondo/runtime/cuda/staging.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/within_memory.h"

namespace rondo::cuda {

Staging& Staging::instance() {
  static Staging* staging = new Staging;  // never destroyed: tensors with static lifetime may still be copied at exit
  return *staging;
}

int Staging::class_of(size_t bytes) { return std::bit_width((std::max<size_t>(bytes, 1) - 1) >> 16); }

// True if nothing uses the buffer any more. If its event cannot be queried, the device is lost, so nothing runs there.
bool Staging::passed(const Buffer& buffer) {
  return buffer.event.event == nullptr || buffer.device->driver().event_query(buffer.event.event) != Result::kNotReady;
}

void Staging::forget_event(Buffer& buffer) noexcept {
  if (buffer.event.event != nullptr) buffer.device->give_event(buffer.event);
  buffer.event = {};
  buffer.device = nullptr;
}

Staging::Buffer Staging::take(DeviceState& device, size_t bytes) {
  const int c = class_of(bytes);
  const size_t size = size_t{64 << 10} << c;
  Buffer buffer;
  {
    const std::lock_guard lock(mutex_);
    std::deque<Buffer>& free = free_[c];
    // Buffers are given back in the order in which their copies finish, except between devices and streams. So the
    // first one is the most likely to be free, and only its event is queried.
    if (!free.empty() && (passed(free.front()) || free.size() >= kMostInClass || reserved_ + size > kMostReserved)) {
      buffer = free.front();
      free.pop_front();
    } else {
      reserved_ += size;
    }
  }
  if (buffer.data != nullptr) {
    // If the wait fails, the buffer's device is lost (perhaps not `device`), and nothing uses the buffer any more.
    if (!passed(buffer)) static_cast<void>(buffer.device->driver().event_synchronize(buffer.event.event));
    forget_event(buffer);
    return buffer;
  }
  void* data = nullptr;
  Result result = device.driver().host_allocate(&data, size, kHostAllocPortable);
  if (result == Result::kOutOfMemory) {
    clear(device);  // frees the unused buffers of all sizes
    result = device.driver().host_allocate(&data, size, kHostAllocPortable);
  }
  size_t held = 0;
  if (result != Result::kSuccess) {
    const std::lock_guard lock(mutex_);
    held = reserved_ -= size;
  }
  if (result == Result::kOutOfMemory)
    throw device.allocator().out_of_memory(absl::StrCat("page-lock ", size, " bytes of host memory (copies hold ", held,
                                                        " bytes of it) for a copy to or from the device,"));
  device.check(result, "cuMemHostAlloc");
  return {static_cast<std::byte*>(data), size, nullptr, {}};
}

void Staging::give(DeviceState& device, Buffer buffer, StreamPtr stream) {
  try {
    buffer.event = device.take_event(/*timing=*/false);
    buffer.device = &device;
    device.check(device.driver().event_record(buffer.event.event, stream), "cuEventRecord");
  } catch (...) {
    forget_event(buffer);
    static_cast<void>(device.driver().stream_synchronize(stream));
    give(buffer);
    throw;
  }
  const std::lock_guard lock(mutex_);
  free_[class_of(buffer.bytes)].push_back(buffer);
}

void Staging::give(Buffer buffer) noexcept {
  const std::lock_guard lock(mutex_);
  free_[class_of(buffer.bytes)].push_front(buffer);
}

void Staging::clear(DeviceState& device) {
  const ContextScope scope(device);
  const std::lock_guard lock(mutex_);
  for (std::deque<Buffer>& free : free_) {
    std::deque<Buffer> in_use;
    for (Buffer& buffer : free) {
      if (!passed(buffer)) {
        in_use.push_back(buffer);
        continue;
      }
      forget_event(buffer);
      static_cast<void>(device.driver().host_free(buffer.data));
      reserved_ -= buffer.bytes;
    }
    free = std::move(in_use);
  }
}

void Staging::forget() noexcept {
  const std::lock_guard lock(mutex_);
  for (std::deque<Buffer>& free : free_) free.clear();
  reserved_ = 0;
}

}  // namespace rondo::cuda
