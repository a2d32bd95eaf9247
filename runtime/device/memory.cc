#include "rondo/runtime/device/memory.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::memory {

namespace detail {
std::atomic<bool> recording{false};
}  // namespace detail

namespace {

// The peak of the one recording.
struct Peak {
  std::mutex mutex;  // guards all but the atomics
  std::atomic<int64_t> bytes{0};
  std::atomic<const void*> newest{nullptr};  // the block that made it, whose purpose may become known later
  std::atomic<int64_t> most_activations{0};
  AllocatorStats stats;
  std::string cause;
  int64_t outside_at_start = 0;
};
// Never destroyed: memory is freed until the very end of a process.
Peak& peak() {
  static Peak* peak = new Peak;
  return *peak;
}

// 0 if the system does not tell.
int64_t resident_bytes() {
  int64_t pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    long long size = 0, resident = 0;
    if (std::fscanf(file, "%lld %lld", &size, &resident) == 2) pages = resident;
    std::fclose(file);
  }
  return pages * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
}
int64_t outside_bytes() { return std::max<int64_t>(0, resident_bytes() - allocator::stats().bytes_reserved); }

}  // namespace

namespace detail {

void note_allocation(int64_t bytes_in_use, const void* data) {
  Peak& p = peak();
  if (bytes_in_use <= p.bytes.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(p.mutex);
  if (bytes_in_use <= p.bytes.load(std::memory_order_relaxed)) return;
  p.bytes.store(bytes_in_use, std::memory_order_relaxed);
  p.newest.store(data, std::memory_order_relaxed);
  p.stats = allocator::stats();
  p.stats.bytes_in_use = bytes_in_use;
  p.cause = Cause::describe();
}

void note_purpose(const void* data, size_t bytes, Purpose from, Purpose to, int64_t activations_now) {
  Peak& p = peak();
  for (int64_t most = p.most_activations.load(std::memory_order_relaxed);
       activations_now > most &&
       !p.most_activations.compare_exchange_weak(most, activations_now, std::memory_order_relaxed);) {
  }
  if (p.newest.load(std::memory_order_relaxed) != data) return;
  std::lock_guard lock(p.mutex);
  if (p.newest.load(std::memory_order_relaxed) != data) return;
  p.stats.by_purpose[static_cast<size_t>(from)] -= static_cast<int64_t>(bytes);
  p.stats.by_purpose[static_cast<size_t>(to)] += static_cast<int64_t>(bytes);
}

void note_free(const void* data) {
  Peak& p = peak();
  if (p.newest.load(std::memory_order_relaxed) != data) return;
  std::lock_guard lock(p.mutex);
  if (p.newest.load(std::memory_order_relaxed) == data) p.newest.store(nullptr, std::memory_order_relaxed);
}

}  // namespace detail

namespace {
struct Trims {
  std::mutex mutex;
  std::vector<void (*)()> empty;
};
Trims& trims() {
  static Trims* trims = new Trims;
  return *trims;
}
}  // namespace

void on_trim(void (*empty)()) {
  std::lock_guard lock(trims().mutex);
  trims().empty.push_back(empty);
}

namespace {
std::atomic<void (*)()> growth{nullptr};
}  // namespace
void on_growth(void (*give_back)()) { growth.store(give_back); }
void detail::before_growth() {
  if (const auto give_back = growth.load()) give_back();
}

void trim() {
  std::vector<void (*)()> others;
  {
    std::lock_guard lock(trims().mutex);
    others = trims().empty;
  }
  for (const auto empty : others) empty();
  allocator::empty_cache();  // after the others, which free blocks
#if defined(__GLIBC__)
  malloc_trim(0);  // what was freed lies between what is in use: only this gives its pages back
#endif
  // Last, because a lost device throws.
  for (const BackendTable* table : rondo::detail::backends) {
    if (table == nullptr || table->host_memory) continue;
    for (int device = 0; device < table->device_count(); ++device) table->trim(device);
  }
}

void set_limit(int64_t bytes, Device device) {
  if (bytes < 0) throw Error(absl::StrCat("memory::set_limit: ", bytes, " bytes"));
  backend_of(device).set_limit(device.index, bytes);
}
int64_t limit(Device device) { return backend_of(device).limit(device.index); }
AllocatorStats stats(Device device) { return backend_of(device).stats(device.index); }

Recording::Recording() {
  if (detail::recording.exchange(true)) throw Error("memory::Recording: there is one already");
  detail::asks_for_causes.fetch_add(1, std::memory_order_relaxed);
  peak().outside_at_start = outside_bytes();
  restart();
}

Recording::~Recording() {
  detail::asks_for_causes.fetch_sub(1, std::memory_order_relaxed);
  detail::recording.store(false);
}

void Recording::restart() {
  Peak& p = peak();
  std::lock_guard lock(p.mutex);
  p.stats = allocator::stats();
  p.bytes.store(p.stats.bytes_in_use, std::memory_order_relaxed);
  p.newest.store(nullptr, std::memory_order_relaxed);
  p.most_activations.store(p.stats.by_purpose[static_cast<size_t>(Purpose::kActivations)], std::memory_order_relaxed);
  p.cause = "before the recording";
}

Report Recording::report() const {
  Peak& p = peak();
  const int64_t reserved = allocator::stats().bytes_reserved, outside = outside_bytes();
  std::lock_guard lock(p.mutex);
  const auto bytes = [&](Purpose purpose) { return p.stats.by_purpose[static_cast<size_t>(purpose)]; };
  Report report{.parameters = bytes(Purpose::kParameters),
                .gradients = bytes(Purpose::kGradients),
                .states = bytes(Purpose::kStates),
                .activations = bytes(Purpose::kActivations),
                .cause = p.cause};
  report.most_activations = p.most_activations.load(std::memory_order_relaxed);
  report.workspace = p.stats.bytes_in_use - report.in_use();
  // Memory is kept, so what was reserved since the peak counts, too.
  report.cached = std::max<int64_t>(0, std::max(reserved, p.stats.bytes_reserved) - p.stats.bytes_in_use);
  report.outside = std::max(outside, p.outside_at_start);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  report.process_peak = static_cast<int64_t>(usage.ru_maxrss) * 1024;
  return report;
}

std::string to_string(const Report& r) try {
  std::string text;
  const auto line = [&](const char* what, int64_t bytes) {
    append_formatted(&text, "%-34s %10.1f MB\n", what, static_cast<double>(bytes) * 1e-6);
  };
  line("parameters", r.parameters);
  line("gradients", r.gradients);
  line("optimizer states", r.states);
  line("activations, saved for backward", r.activations);
  line("workspace", r.workspace);
  line("in use at the peak", r.in_use());
  line("cached by the allocator", r.cached);
  line("outside the allocator", r.outside);
  line("total", r.total());
  line("the process's own peak", r.process_peak);
  line("activations at their own peak", r.most_activations);
  return absl::StrCat(text, "the peak was made by ", r.cause, "\n");
} catch (const std::bad_alloc&) {
  throw_out_of_memory("memory::to_string");
}

}  // namespace rondo::memory
