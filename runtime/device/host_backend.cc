// The backend of the CPU: its memory is host memory, and all work runs at once. Its kernels are in cpu/.
#include "rondo/runtime/device/backend.h"

#include <chrono>
#include <cstring>

#include "rondo/runtime/device/allocator.h"

namespace rondo {
namespace {

struct Event {
  std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now();
};

}  // namespace

constinit const BackendTable kCPUBackend = {
    .name = "cpu",
    .host_memory = true,
    .kernels = Backend::kCPU,
    .generates = false,
    .device_count = [] { return 1; },
    .allocate = [](int, size_t bytes) { return allocator::allocate(bytes); },
    .deallocate = [](int, void* data, size_t bytes) noexcept { allocator::deallocate(data, bytes); },
    .block_bytes = &allocator::block_bytes,
    .stats = [](int) { return allocator::stats(); },
    .reset_peak = [](int) { allocator::reset_peak(); },
    .set_cache_limit = [](int, int64_t bytes) { allocator::set_cache_limit(bytes); },
    .set_limit = [](int, int64_t bytes) { allocator::set_limit(bytes); },
    .limit = [](int) { return allocator::limit(); },
    .count_purpose = [](int, Purpose purpose, int64_t bytes) noexcept { allocator::count_purpose(purpose, bytes); },
    .trim = [](int) { allocator::empty_cache(); },
    .allocate_staging = [](int, size_t bytes) { return allocator::allocate(bytes); },
    .deallocate_staging = [](int, void* data, size_t bytes) noexcept { allocator::deallocate(data, bytes); },
    .copy_in = [](int, void* to, const void* host, size_t bytes) { std::memcpy(to, host, bytes); },
    .copy_out = [](int, void* host, const void* from, size_t bytes) { std::memcpy(host, from, bytes); },
    .copy = [](int, void* to, const void* from, size_t bytes) { std::memmove(to, from, bytes); },
    .copy_peer = nullptr,
    .fill = [](int, void* to, uint8_t byte, size_t bytes) { std::memset(to, byte, bytes); },
    .copy_staged = [](int, Stream, void* to, const void* staging, size_t bytes) { std::memcpy(to, staging, bytes); },
    .enqueue = nullptr,
    .record = [](int, Stream) -> EventHandle { return new Event; },
    .wait = [](int, Stream, EventHandle) {},
    .release = [](int, EventHandle event) noexcept { delete static_cast<Event*>(event); },
    .reached = [](int, EventHandle) { return true; },
    .elapsed =
        [](int, EventHandle from, EventHandle to) {
          return std::chrono::duration<double>(static_cast<Event*>(to)->time - static_cast<Event*>(from)->time).count();
        },
    .synchronize = [](int) {},
    .failed = [](int) noexcept { return false; },
    .call_library = nullptr,
    .place = [](int) { return DevicePlace{}; },
};

}  // namespace rondo
