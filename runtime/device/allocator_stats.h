// Statistics of an allocator: bytes, also by purpose.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace rondo {

// The use of a block of memory (memory.h).
enum class Purpose : uint8_t { kWorkspace, kParameters, kGradients, kStates, kActivations };
inline constexpr int kPurposes = 5;

struct AllocatorStats {
  int64_t bytes_in_use = 0;            // handed out now
  int64_t peak_bytes = 0;              // highest bytes_in_use since reset_peak()
  int64_t bytes_cached = 0;            // freed blocks above 64 KB, kept for reuse
  int64_t allocations = 0;             // number of allocations since the process began
  int64_t bytes_reserved = 0;          // taken from the system: in use, cached, and lost to rounding
  int64_t by_purpose[kPurposes] = {};  // parts of bytes_in_use; kWorkspace is not counted: it is the rest
};

}  // namespace rondo
#pragma GCC visibility pop
