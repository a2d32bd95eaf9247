#include "rondo/runtime/device/peak_memory.h"

#include <mutex>

#include "rondo/runtime/base/cause.h"

namespace rondo::memory {

namespace detail {
std::atomic<bool> recording{false};
}  // namespace detail

namespace {

struct Recorded {
  std::mutex mutex;  // guards `peak`, except its most_activations
  std::atomic<int64_t> bytes{0};
  std::atomic<const void*> newest{nullptr};  // the block that made the peak; its purpose may be set later
  std::atomic<int64_t> most_activations{0};
  Peak peak;
};
// Never destroyed, because memory is freed until the end of the process.
Recorded& recorded() {
  static Recorded* recorded = new Recorded;
  return *recorded;
}

}  // namespace

bool start_recording() {
  if (detail::recording.exchange(true)) return false;
  detail::asks_for_causes.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void stop_recording() {
  detail::asks_for_causes.fetch_sub(1, std::memory_order_relaxed);
  detail::recording.store(false);
}

void restart_peak(const AllocatorStats& now) {
  Recorded& r = recorded();
  std::lock_guard lock(r.mutex);
  r.peak.stats = now;
  r.peak.cause = "before the recording";
  r.bytes.store(now.bytes_in_use, std::memory_order_relaxed);
  r.newest.store(nullptr, std::memory_order_relaxed);
  r.most_activations.store(now.by_purpose[static_cast<size_t>(Purpose::kActivations)], std::memory_order_relaxed);
}

Peak peak() {
  Recorded& r = recorded();
  std::lock_guard lock(r.mutex);
  Peak peak = r.peak;
  peak.most_activations = r.most_activations.load(std::memory_order_relaxed);
  return peak;
}

void note_allocation(const AllocatorStats& now, const void* data) {
  Recorded& r = recorded();
  if (now.bytes_in_use <= r.bytes.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(r.mutex);
  if (now.bytes_in_use <= r.bytes.load(std::memory_order_relaxed)) return;
  r.bytes.store(now.bytes_in_use, std::memory_order_relaxed);
  r.newest.store(data, std::memory_order_relaxed);
  r.peak.stats = now;
  r.peak.cause = Cause::describe();
}

void note_purpose(const void* data, size_t bytes, Purpose from, Purpose to, int64_t activations_now) {
  Recorded& r = recorded();
  for (int64_t most = r.most_activations.load(std::memory_order_relaxed);
       activations_now > most &&
       !r.most_activations.compare_exchange_weak(most, activations_now, std::memory_order_relaxed);) {
  }
  if (r.newest.load(std::memory_order_relaxed) != data) return;
  std::lock_guard lock(r.mutex);
  if (r.newest.load(std::memory_order_relaxed) != data) return;
  r.peak.stats.by_purpose[static_cast<size_t>(from)] -= static_cast<int64_t>(bytes);
  r.peak.stats.by_purpose[static_cast<size_t>(to)] += static_cast<int64_t>(bytes);
}

void note_free(const void* data) {
  Recorded& r = recorded();
  if (r.newest.load(std::memory_order_relaxed) != data) return;
  std::lock_guard lock(r.mutex);
  if (r.newest.load(std::memory_order_relaxed) == data) r.newest.store(nullptr, std::memory_order_relaxed);
}

}  // namespace rondo::memory
