// The device status: a kernel writes it if it finds wrong data, and later work reads it (backend.h, Note [Late
// errors]). It is one block of device memory for each device. Its layout and functions are written once, here: the host
// compiles the layout as C++, and kernels get the same text in front of their own.
//
//   if (index < 0 || index >= size) { rondo_report(status, call, index, position); continue; }   // skip the access
//
// `call` is the number that the host gave to this call (Calls::note below). The first call in stream order wins: a
// later one leaves the status alone. Among the threads of one call, the lowest position wins, so the message is the
// same in every order of threads. Positions from 2^32 on count as 2^32 - 1.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

#include "rondo/runtime/base/location.h"

// Defines the text in the arguments as code, and the constant `name` with the same text as a string.
#define RONDO_TEXT_AND_CODE(name, ...) \
  __VA_ARGS__                          \
  inline constexpr const char* name = #__VA_ARGS__;

namespace rondo::cuda {

// clang-format off
RONDO_TEXT_AND_CODE(kDeviceStatusLayout,
struct DeviceStatus {
  unsigned call;             // the number of the first call that failed; 0: none has failed
  unsigned unused;
  unsigned long long high;   // min over failing threads of position << 32 | upper half of the value; ~0 at first
  unsigned long long low;    // min over failing threads of position << 32 | lower half of the value; ~0 at first
};
)
// clang-format on

// Functions that kernels need besides the layout. `__device__` and the atomics are CUDA's.
inline constexpr const char* kDeviceStatusFunctions = R"(
__device__ inline bool rondo_failed(const DeviceStatus* status) {
  return *(const volatile unsigned*)&status->call != 0u;
}
__device__ inline void rondo_report(DeviceStatus* status, unsigned call, long long value, long long position) {
  const unsigned first = atomicCAS(&status->call, 0u, call);
  if (first != 0u && first != call) return;
  const unsigned long long at = position < 0xFFFFFFFFll ? (unsigned long long)position : 0xFFFFFFFFull;
  const unsigned long long bits = (unsigned long long)value;
  atomicMin(&status->high, at << 32 | bits >> 32);
  atomicMin(&status->low, at << 32 | (bits & 0xFFFFFFFFull));
}
)";

inline constexpr DeviceStatus kNothingFailed{0, 0, ~0ull, ~0ull};

// The calls that may fail on a device. The host remembers the source location of each call until the device has passed
// it. Thread safe.
class Calls {
 public:
  // Notes a call of `op` at `site`, whose indices must lie below `size`, and returns its number. `at_position`: the
  // message tells the position, too.
  uint32_t note(const char* op, CallSite site, int64_t size, bool at_position = false);
  // Returns, for example, "embedding: index 9 is out of range for size 4 (train.cc:41)".
  std::string describe(const DeviceStatus& status) const;
  // Forgets calls older than `call`, which the device has passed. Keeps the last kKept, because another thread may have
  // noted calls that it has not launched yet.
  void forget_older_than(uint32_t call);
  uint32_t next() const;

 private:
  static constexpr size_t kKept = 1024;
  struct Call {
    uint32_t number;
    const char* op;
    CallSite site;
    int64_t size;
    bool at_position;
  };
  mutable std::mutex mutex_;
  std::deque<Call> calls_;
  uint32_t next_ = 1;
};

}  // namespace rondo::cuda
