// The interface to devices: a table of functions for each backend. To port Rondo to another kind of device, fill in one
// table, and the kernels that cannot be generated.
//
// Note [Streams]. A device has one compute stream. All threads and backward use it, so work runs in the order in which
//   it was enqueued. The copy and communication streams are internal: a backend, or whoever uses one, joins them with
//   the compute stream by events. The CPU runs everything at once, so it has no streams.
// Note [Stream order]. Memory is allocated and freed in the order of the compute stream: a block may be freed while
//   work that uses it is still waiting to run, and its next owner's work runs after that. Another stream that touches a
//   block must wait for an event of the compute stream first.
// Note [Late errors]. A kernel that finds its data wrong skips the access. The device keeps the first such error, and
//   the next call that waits for the device throws it, by throw_late(): it names the line of the call that failed, and
//   says that it came late. Until then, `failed` is true for work that is enqueued later; the passes of an optimizer
//   read it on the stream and change nothing. Random numbers are drawn on (random.h). After `synchronize`, whether it
//   throws or not, nothing of earlier work is left that a later call could throw: a program that goes on after an error
//   calls it first.
// Note [Work]. Host code that a stream runs has the device's addresses, and all else that it touches is host memory. It
//   calls nothing of the table but `failed`, and `deallocate` when it is destroyed. It throws an error of its data; the
//   backend keeps the first such exception, as it is, and goes on with the work behind it.
//
// A program may install a device of its own, without a change of Rondo, if host code can work on its memory while its
// streams run: the kernels are then the CPU's. Other kernels are part of Rondo (runtime/README.md, compile/README.md).
//
//   using enum Backend;
//   BackendTable table = {.name = "slate", .kernels = kCPU, ...};   // every function has to be there
//   install_backend(kFake, &table);                                 // Device{kFake, 0} is now "slate:0"
//
// Thread safety: all functions of a table may be called from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "rondo/runtime/device/allocator_stats.h"
#include "rondo/runtime/device/device.h"

#pragma GCC visibility push(default)
namespace rondo {

struct BackendEntry;  // op/op.h
struct OpDef;

enum class Stream : uint8_t { kCompute, kCopy, kCommunication };

// Which piece of hardware a device is. `unit`: equal for two processes of a machine if they use the same one. `bus`:
// its PCI address ("0000:3b:00.0") by which the system knows it. Empty: not known.
struct DevicePlace {
  std::string unit, bus;
};

// A point in a stream; owned by the backend, until release(). release() may come before the stream is there.
using EventHandle = void*;

struct BackendTable {
  const char* name;  // "cuda"
  // Tensors of this backend can be read and written through host pointers at any time.
  bool host_memory;
  // The backend whose kernels and compiled code run here. The CPU's kernels (OpDef::host) are host code, for enqueue();
  // others enqueue launches.
  Backend kernels;
  // The kernels of that backend for an op, all null if it has none. Thread safe. Null: they are the CPU's.
  const BackendEntry& (*own_kernels)(const OpDef& op) = nullptr;
  // Ops that have a lowering run as generated kernels (op_compiler.h), before kernels by hand are asked. That needs a
  // program that links compile/.
  bool generates;
  int (*device_count)();

  // ---- Memory: Note [Stream order]
  // Throws OutOfMemoryError (memory.h). Blocks are aligned to kAlignment. 0 bytes are a block, too.
  void* (*allocate)(int device, size_t bytes);
  // Does nothing once the driver is gone.
  void (*deallocate)(int device, void* data, size_t bytes) noexcept;
  size_t (*block_bytes)(size_t bytes);  // what allocate() takes for so many
  AllocatorStats (*stats)(int device);
  void (*reset_peak)(int device);
  // The most bytes of freed blocks that are kept for reuse.
  void (*set_cache_limit)(int device, int64_t bytes);
  // The most bytes that are reserved at all (memory::set_limit); 0: no limit.
  void (*set_limit)(int device, int64_t bytes);
  int64_t (*limit)(int device);
  // Counts `bytes` more, or fewer, in AllocatorStats::by_purpose.
  void (*count_purpose)(int device, Purpose purpose, int64_t bytes) noexcept;
  void (*trim)(int device);  // gives all freed blocks back, if the device is in use
  // Host memory that the device can read and write without a copy in between (page-locked). Uses no other device.
  void* (*allocate_staging)(int device, size_t bytes);
  void (*deallocate_staging)(int device, void* data, size_t bytes) noexcept;

  // ---- Copies. `host` may be any host memory.
  // The host memory is free again on return; the copy stands in the order of the compute stream.
  void (*copy_in)(int device, void* to, const void* host, size_t bytes);
  // Waits for the bytes. Throws as `synchronize`.
  void (*copy_out)(int device, void* host, const void* from, size_t bytes);
  // Within the device, in the order of the compute stream.
  void (*copy)(int device, void* to, const void* from, size_t bytes);
  // From another device of this backend, after what both have enqueued and before what they enqueue later. Null:
  // through host memory.
  void (*copy_peer)(int device, void* to, int from_device, const void* from, size_t bytes);
  void (*fill)(int device, void* to, uint8_t byte, size_t bytes);
  // From memory of allocate_staging(), in the order of `stream`. Returns at once: until the stream has passed the copy,
  // the staging memory may be neither written nor freed.
  void (*copy_staged)(int device, Stream stream, void* to, const void* staging, size_t bytes);

  // ---- Work
  // Runs host code that works on the device's memory, in the order of the stream: Note [Work]. Null: enqueue() runs it
  // at once. A device whose `kernels` are not the CPU's has this for callbacks only.
  void (*enqueue)(int device, Stream stream, absl::AnyInvocable<void()> work);
  EventHandle (*record)(int device, Stream stream);
  void (*wait)(int device, Stream stream, EventHandle event);  // later work of the stream waits, not the host
  void (*release)(int device, EventHandle event) noexcept;
  bool (*reached)(int device, EventHandle event);                   // the stream is there; the host does not wait
  double (*elapsed)(int device, EventHandle from, EventHandle to);  // seconds; waits for both
  void (*synchronize)(int device);                                  // throws what is kept: Note [Late errors]
  bool (*failed)(int device) noexcept;

  // ---- Libraries and launchers
  // Calls `call` with the device's own handle of a stream (a CUstream), the device being current on this thread: for
  // libraries that enqueue work themselves. `name`, for the messages of later errors, lives as long as the process.
  // Null: streams have no such handle.
  void (*call_library)(int device, Stream stream, const char* name, absl::FunctionRef<void(void* stream)> call);
  DevicePlace (*place)(int device);
};

// The host as a device (host_backend.cc).
extern const BackendTable kCPUBackend;

namespace detail {
extern std::array<std::atomic<const BackendTable*>, kNumBackends> backends;  // the first use, of any thread, opens one
// Opens one that is built in (devices.cc). Null: there is none; `*why_not` is the reason, or empty if none is built in.
const BackendTable* open_built_in(Backend backend, std::string* why_not);
// Opens a backend that is opened with its first use. Throws Error if this process has none.
const BackendTable& open_backend(Device device);
}  // namespace detail

// The table of a device. Throws Error if this process has no such backend.
inline const BackendTable& backend_of(Device device) {
  const BackendTable* table = detail::backends[static_cast<size_t>(device.backend)].load(std::memory_order_acquire);
  if (table == nullptr) [[unlikely]]
    return detail::open_backend(device);
  return *table;
}

// Makes a backend available; null takes it away, and then no tensor of it may be used. The table has to outlive its
// use. Throws Error, which names it, if a function is missing that may not be null.
void install_backend(Backend backend, const BackendTable* table);

// Throws Error unless there is such a device.
void require_device(Device device);

// `work` in a FloatingPointScope: a thread has the state that its creator had.
absl::AnyInvocable<void()> in_default_state(absl::AnyInvocable<void()> work);

// Runs `work`, host code that works on the device's memory, on its compute stream: at once where that is the CPU,
// otherwise later. It must own all that it needs.
template <class Work> void enqueue(Device device, Work&& work) {
  const BackendTable& table = backend_of(device);
  if (table.enqueue == nullptr) [[likely]]
    work();
  else table.enqueue(device.index, Stream::kCompute, in_default_state(std::forward<Work>(work)));
}

// Throws what a device kept of earlier work: Note [Late errors]. An Error gets words that say that it came late; any
// other exception is thrown as it is.
[[noreturn]] void throw_late(std::exception_ptr kept, Device device);

// True if enqueue() runs its work at once.
inline bool runs_at_once(Device device) { return backend_of(device).enqueue == nullptr; }

// True if host code may use the device's addresses.
inline bool has_host_memory(Device device) { return backend_of(device).host_memory; }

// Copies bytes between any two devices.
void copy_bytes(Device to_device, void* to, Device from_device, const void* from, size_t bytes);

// Seconds on the device's compute stream between two points: for tuning.
class Stopwatch {
 public:
  explicit Stopwatch(Device device);  // starts
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  double seconds() const;  // since the start, including all that has been enqueued

 private:
  Device device_;
  EventHandle start_;
};

}  // namespace rondo
#pragma GCC visibility pop
