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
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/device/peak_memory.h"

namespace rondo::memory {

namespace {

// Returns the resident memory of this process, or 0 if the system does not report it.
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

void trim() {
  std::vector<void (*)()> others;
  {
    std::lock_guard lock(trims().mutex);
    others = trims().empty;
  }
  for (const auto empty : others) empty();
  allocator::empty_cache();  // last, because the other caches free blocks
#if defined(__GLIBC__)
  malloc_trim(0);  // freed memory lies between blocks in use; only malloc_trim() gives such pages back
#endif
  // Devices come last, because a lost device throws.
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

int64_t usable() { return allocator::usable(); }

Recording::Recording() : outside_at_start_(outside_bytes()) {
  if (!start_recording()) throw Error("memory::Recording: there is one already");
  restart();
}
Recording::~Recording() { stop_recording(); }

void Recording::restart() { restart_peak(allocator::stats()); }

Report Recording::report() const {
  const int64_t reserved = allocator::stats().bytes_reserved, outside = outside_bytes();
  const Peak most = peak();
  const auto bytes = [&](Purpose purpose) { return most.stats.by_purpose[static_cast<size_t>(purpose)]; };
  Report report{.parameters = bytes(Purpose::kParameters),
                .gradients = bytes(Purpose::kGradients),
                .states = bytes(Purpose::kStates),
                .activations = bytes(Purpose::kActivations),
                .most_activations = most.most_activations,
                .cause = most.cause};
  report.workspace = most.stats.bytes_in_use - report.in_use();
  // The allocator keeps freed memory, so memory that it reserved after the peak counts, too.
  report.cached = std::max<int64_t>(0, std::max(reserved, most.stats.bytes_reserved) - most.stats.bytes_in_use);
  report.outside = std::max(outside, outside_at_start_);
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
