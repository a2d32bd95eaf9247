// Records the moment of peak use of host memory while a memory::Recording (memory.h) lives. The allocator and storages
// report to the functions at the end of this file.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "rondo/runtime/device/allocator_stats.h"

namespace rondo::memory {

struct Peak {
  AllocatorStats stats;          // at the peak
  std::string cause;             // the call that allocated the block which made the peak
  int64_t most_activations = 0;  // the most bytes of activations at any time
};

// True while peaks are recorded. Check this before the note_ functions below.
namespace detail {
extern std::atomic<bool> recording;
}  // namespace detail
inline bool recording() { return detail::recording.load(std::memory_order_relaxed); }

// Returns false if a recording runs already.
bool start_recording();
void stop_recording();
// Restarts the recording: `now` is the peak until more memory is in use.
void restart_peak(const AllocatorStats& now);
Peak peak();

// Reports an allocated block; `now` includes it.
void note_allocation(const AllocatorStats& now, const void* data);
void note_purpose(const void* data, size_t bytes, Purpose from, Purpose to, int64_t activations_now);
void note_free(const void* data);

}  // namespace rondo::memory
