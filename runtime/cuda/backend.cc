#include "rondo/runtime/cuda/backend.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/nvtx.h"
#include "rondo/runtime/cuda/product.h"
#include "rondo/runtime/cuda/staging.h"

namespace rondo::cuda {
namespace {

DevicePtr address(const void* data) { return reinterpret_cast<DevicePtr>(data); }

// Holds a staging buffer, and gives it back: by give() or give_when_passed(), or, after an error, at the end of the
// scope.
class StagingScope {
 public:
  StagingScope(DeviceState& device, size_t bytes) : device_(device), buffer_(Staging::instance().take(device, bytes)) {}
  ~StagingScope() {
    if (buffer_.data == nullptr) return;
    // After an error the copy may still run, so the destructor waits for the current device and for `device_`.
    static_cast<void>(device_.driver().context_synchronize());
    try {
      const ContextScope scope(device_);
      static_cast<void>(device_.driver().context_synchronize());
    } catch (const Error&) {
      // The device is lost: nothing runs there any more.
    }
    Staging::instance().give(buffer_);
  }
  StagingScope(const StagingScope&) = delete;
  StagingScope& operator=(const StagingScope&) = delete;
  std::byte* data() const { return buffer_.data; }
  void give_when_passed() { Staging::instance().give(device_, std::exchange(buffer_, {}), device_.compute()); }
  void give() { Staging::instance().give(std::exchange(buffer_, {})); }

 private:
  DeviceState& device_;
  Staging::Buffer buffer_;
};

// Calls f(offset, size) for each piece of `bytes` that goes through one staging buffer.
template <class F> void for_each_piece(size_t bytes, F f) {
  for (size_t at = 0; at < bytes; at += Staging::kMostBytes) f(at, std::min(bytes - at, Staging::kMostBytes));
}

void copy_in(int device, void* to, const void* host, size_t bytes) {
  if (bytes == 0) return;
  DeviceState& state = device_state(device);
  const ContextScope scope(state);
  for_each_piece(bytes, [&](size_t at, size_t size) {
    StagingScope staged(state, size);
    std::memcpy(staged.data(), static_cast<const std::byte*>(host) + at, size);
    state.check(state.driver().copy_to_device(address(to) + at, staged.data(), size, state.compute()),
                "cuMemcpyHtoDAsync");
    state.enqueued("a copy to the device", state.compute());
    staged.give_when_passed();
  });
}

// Waits for the work that is enqueued on the compute stream (`all`: on all streams). Then throws the error, if any,
// that a kernel has reported.
void wait_and_check(DeviceState& state, bool all) {
  const uint32_t passed = state.calls().next();
  StagingScope staged(state, sizeof(DeviceStatus));
  state.check(state.driver().copy_to_host(staged.data(), state.status(), sizeof(DeviceStatus), state.compute()),
              "cuMemcpyDtoHAsync");
  if (all) state.wait_all();
  else state.wait(state.compute());
  DeviceStatus seen;
  std::memcpy(&seen, staged.data(), sizeof seen);
  staged.give();
  state.drop_finished();
  state.throw_if_failed(seen, passed);
}

void copy_out(int device, void* host, const void* from, size_t bytes) {
  if (bytes == 0) return;
  DeviceState& state = device_state(device);
  const ContextScope scope(state);
  for_each_piece(bytes, [&](size_t at, size_t size) {
    StagingScope staged(state, size);
    state.check(state.driver().copy_to_host(staged.data(), address(from) + at, size, state.compute()),
                "cuMemcpyDtoHAsync");
    state.enqueued("a copy to the host", state.compute());
    wait_and_check(state, /*all=*/false);
    std::memcpy(static_cast<std::byte*>(host) + at, staged.data(), size);
    staged.give();
  });
}

void copy(int device, void* to, const void* from, size_t bytes) {
  if (bytes == 0 || to == from) return;
  DeviceState& state = device_state(device);
  const ContextScope scope(state);
  const DevicePtr target = address(to), source = address(from);
  const auto run = [&](DevicePtr into, DevicePtr out_of) {
    state.check(state.driver().copy_on_device(into, out_of, bytes, state.compute()), "cuMemcpyDtoDAsync");
    state.enqueued("a copy on the device", state.compute());
  };
  if (target + bytes <= source || source + bytes <= target) return run(target, source);
  // Copies through other memory, because the driver's copy is undefined for ranges that overlap.
  const Storage between = Storage::allocate(bytes, {Backend::kCUDA, static_cast<int8_t>(device)});
  run(address(between.data()), source);
  run(target, address(between.data()));
}

void fill(int device, void* to, uint8_t byte, size_t bytes) {
  if (bytes == 0) return;
  DeviceState& state = device_state(device);
  const ContextScope scope(state);
  state.check(state.driver().fill_bytes(address(to), byte, bytes, state.compute()), "cuMemsetD8Async");
  state.enqueued("a fill", state.compute());
}

void copy_staged(int device, Stream stream, void* to, const void* staging, size_t bytes) {
  if (bytes == 0) return;
  DeviceState& state = device_state(device);
  const ContextScope scope(state);
  state.check(state.driver().copy_to_device(address(to), staging, bytes, state.stream(stream)), "cuMemcpyHtoDAsync");
  state.enqueued("a copy from page-locked memory", state.stream(stream));
}

void copy_peer(int to_device, void* to, int from_device, const void* from, size_t bytes) {
  if (bytes == 0) return;
  DeviceState &target = device_state(to_device), &source = device_state(from_device);
  // Earlier work of the target may still use the memory that is overwritten, so the source's stream first waits for the
  // target's. Later work of the source may overwrite what is copied: it comes after the copy in the source's stream.
  DeviceState::join(source, source.compute(), target, target.compute());
  if (source.can_access(target)) {
    const ContextScope scope(source);
    source.check(source.driver().copy_peer(address(to), target.context(), address(from), source.context(), bytes,
                                           source.compute()),
                 "cuMemcpyPeerAsync");
    source.enqueued("a copy to another device", source.compute());
    DeviceState::join(target, target.compute(), source, source.compute());
    return;
  }
  for_each_piece(bytes, [&](size_t at, size_t size) {
    const ContextScope scope(source);
    StagingScope staged(target, size);
    source.check(source.driver().copy_to_host(staged.data(), address(from) + at, size, source.compute()),
                 "cuMemcpyDtoHAsync");
    source.enqueued("a copy to another device, through the host", source.compute());
    DeviceState::join(target, target.compute(), source, source.compute());
    const ContextScope there(target);
    target.check(target.driver().copy_to_device(address(to) + at, staged.data(), size, target.compute()),
                 "cuMemcpyHtoDAsync");
    target.enqueued("a copy from another device, through the host", target.compute());
    staged.give_when_passed();
  });
}

// ---- Callbacks of the host

void run_callback(void* data) {
  auto& callback = *static_cast<DeviceContext::Callback*>(data);
  std::exception_ptr error;
  try {
    callback.work();
  } catch (...) {
    error = std::current_exception();
  }
  callback.device.finish(callback, std::move(error));
}

void enqueue(int device, Stream stream, absl::AnyInvocable<void()> work) {
  DeviceState& state = device_state(device);
  state.drop_finished();
  const ContextScope scope(state);
  DeviceContext::Callback& callback = state.add_callback(std::move(work));
  const Result result = state.driver().launch_host(state.stream(stream), &run_callback, &callback);
  if (result != Result::kSuccess) [[unlikely]]
    state.remove_callback(callback);
  state.check(result, "cuLaunchHostFunc");
  state.enqueued("a callback of the host", state.stream(stream));
}

// ---- Events

EventHandle record(int device, Stream stream) {
  DeviceState& state = device_state(device);
  const ContextScope scope(state);
  auto event = std::make_unique<Event>(state.take_event(/*timing=*/true));
  state.check(state.driver().event_record(event->event, state.stream(stream)), "cuEventRecord");
  return event.release();
}

void wait(int device, Stream stream, EventHandle event) {
  if (event == nullptr) return;
  DeviceState& state = device_state(device);
  const ContextScope scope(state);
  state.check(state.driver().stream_wait_event(state.stream(stream), static_cast<Event*>(event)->event, 0),
              "cuStreamWaitEvent");
}

void release(int device, EventHandle event) noexcept {
  const std::unique_ptr<Event> owned(static_cast<Event*>(event));
  if (DeviceState* state = device_state_if_usable(device); state != nullptr && owned != nullptr)
    state->give_event(*owned);
}

bool reached(int device, EventHandle event) {
  DeviceState& state = device_state(device);
  const ContextScope scope(state);
  const Result result = state.driver().event_query(static_cast<Event*>(event)->event);
  if (result == Result::kNotReady) return false;
  state.check(result, "cuEventQuery");
  return true;
}

double elapsed(int device, EventHandle from, EventHandle to) {
  DeviceState& state = device_state(device);
  const ContextScope scope(state);
  float milliseconds = 0;
  for (const EventHandle event : {from, to})
    state.check(state.driver().event_synchronize(static_cast<Event*>(event)->event), "cuEventSynchronize");
  state.check(
      state.driver().event_elapsed(&milliseconds, static_cast<Event*>(from)->event, static_cast<Event*>(to)->event),
      "cuEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e-3;
}

void synchronize(int device) {
  DeviceState& state = device_state(device);
  const ContextScope scope(state);
  wait_and_check(state, /*all=*/true);
}

// ---- Page-locked memory of callers

void* allocate_staging(int device, size_t bytes) {
  DeviceState& state = device_state(device);
  const ContextScope scope(state);
  void* data = nullptr;
  const Result result = state.driver().host_allocate(&data, std::max<size_t>(bytes, 1), kHostAllocPortable);
  if (result == Result::kOutOfMemory)
    throw state.allocator().out_of_memory("page-lock " + std::to_string(bytes) + " bytes of host memory");
  state.check(result, "cuMemHostAlloc");
  return data;
}

void deallocate_staging(int device, void* data, size_t) noexcept {
  DeviceState* state = device_state_if_usable(device);
  if (state == nullptr || data == nullptr) return;
  try {
    const ContextScope scope(*state);
    static_cast<void>(state->driver().host_free(data));
  } catch (const Error&) {
    // The device is lost: the memory is not freed.
  }
}

// ---- Libraries and launchers

void call_library(int device, Stream stream, const char* name, absl::FunctionRef<void(void* stream)> call) {
  DeviceState& state = device_state(device);
  state.require_usable();
  const ContextScope scope(state);
  call(state.stream(stream));
  state.enqueued(name, state.stream(stream));
}

// ---- The table

int count() { return open_devices(nullptr); }

void deallocate(int device, void* data, size_t bytes) noexcept {
  if (DeviceState* state = device_state_if_usable(device)) state->allocator().deallocate(data, bytes);
}

void trim(int device) {
  DeviceState* state = device_state_if_usable(device);
  if (state == nullptr) return;
  Product::trim();
  state->allocator().trim();
  Staging::instance().clear(*state);
}

constinit const BackendTable kBackend = {
    .name = "cuda",
    .host_memory = false,
    .kernels = Backend::kCUDA,
    .own_kernels = &own_kernels,
    .generates = true,
    .device_count = &count,
    .allocate = [](int device, size_t bytes) { return device_state(device).allocator().allocate(bytes); },
    .deallocate = &deallocate,
    .block_bytes = &Allocator::block_bytes,
    .stats = [](int device) { return device_state(device).allocator().stats(); },
    .reset_peak = [](int device) { device_state(device).allocator().reset_peak(); },
    .set_cache_limit = [](int device, int64_t bytes) { device_state(device).allocator().set_cache_limit(bytes); },
    .set_limit = [](int device, int64_t bytes) { device_state(device).allocator().set_limit(bytes); },
    .limit = [](int device) { return device_state(device).allocator().limit(); },
    .count_purpose =
        [](int device, Purpose purpose, int64_t bytes) noexcept {
          if (DeviceState* state = device_state_if_usable(device)) state->allocator().count_purpose(purpose, bytes);
        },
    .trim = &trim,
    .allocate_staging = &allocate_staging,
    .deallocate_staging = &deallocate_staging,
    .copy_in = &copy_in,
    .copy_out = &copy_out,
    .copy = &copy,
    .copy_peer = &copy_peer,
    .fill = &fill,
    .copy_staged = &copy_staged,
    .enqueue = &enqueue,
    .record = &record,
    .wait = &wait,
    .release = &release,
    .reached = &reached,
    .elapsed = &elapsed,
    .synchronize = &synchronize,
    .failed =
        [](int device) noexcept {
          DeviceState* state = device_state_if_usable(device);
          return state == nullptr || state->failed();
        },
    .call_library = &call_library,
    .place = &place_of,
};

}  // namespace

const BackendTable* open(std::string* why_not) {
  if (open_devices(why_not) == 0) return nullptr;
  Range::open();
  install_backend(Backend::kCUDA, &kBackend);
  return &kBackend;
}

void close() {
  install_backend(Backend::kCUDA, nullptr);
  Product::trim();
  close_devices([](DeviceState& usable) { Staging::instance().clear(usable); });
  Staging::instance().forget();
}

}  // namespace rondo::cuda
