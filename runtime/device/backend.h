// The interface to devices: a table of functions for each backend. To port Rondo to another kind of device, fill in one
// table, and the kernels that cannot be generated.
//
// Note [Streams]. A device has one compute stream. All threads and backward use it, so work runs in the order in which
//   it was enqueued. The copy and communication streams are internal: the backend, or the code that uses such a stream,
//   orders them against the compute stream with events. The CPU runs everything at once, so it has no streams.
// Note [Stream order]. Memory is allocated and freed in the order of the compute stream: a block may be freed while
//   work that uses it is still waiting to run, and work of the next owner runs after that. Another stream that uses a
//   block must wait for an event of the compute stream first.
// Note [Late errors]. A kernel that finds bad data, such as an index out of range, skips the access. The device keeps
//   the first such error. The next call that waits for the device throws it by throw_late(): the message names the line
//   of the call that failed and says that the error was found late. Until then `failed` is true for work that is
//   enqueued later: optimizer kernels read it on the stream and change nothing. Random numbers are still drawn
//   (random.h). After `synchronize`, whether it throws or not, no later call throws an error of earlier work. A program
//   that continues after an error must call it first.
// Note [Work]. Host code that runs on a stream uses addresses of the device; everything else that it uses is host
//   memory. It calls only two functions of the table: `failed`, and `deallocate` when it is destroyed. It throws if it
//   finds bad data. The backend keeps the first such exception unchanged and continues with the next work.
//
// A program may install its own device without changing Rondo, if host code can access the device's memory while its
// streams run. Such a device uses the CPU's kernels. Kernels for other devices have to be added to Rondo itself
// (runtime/README.md, compile/README.md).
//
//   using enum Backend;
//   BackendTable table = {.name = "slate", .kernels = kCPU, ...};   // required: all functions that may not be null
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

// Identifies a device's hardware. `unit` is equal in two processes of a machine if they use the same hardware. `bus` is
// its PCI address ("0000:3b:00.0"). Either is empty if it is not known.
struct DevicePlace {
  std::string unit, bus;
};

// A point in a stream. The backend owns it until release(), which may be called before the stream reaches the point.
using EventHandle = void*;

struct BackendTable {
  const char* name;  // "cuda"
  // Tensors of this backend can be read and written through host pointers at any time.
  bool host_memory;
  // The backend whose kernels and compiled code run here. CPU kernels (OpDef::host) are host code that enqueue() runs;
  // other kernels enqueue launches themselves.
  Backend kernels;
  // Returns the hand-written kernels of the backend `kernels` for an op; all fields are null if there are none. Thread
  // safe. A null own_kernels: the device uses the CPU's kernels.
  const BackendEntry& (*own_kernels)(const OpDef& op) = nullptr;
  // True: ops that have a lowering run as generated kernels (op_compiler.h) rather than as hand-written kernels. The
  // program must then link compile/.
  bool generates;
  int (*device_count)();

  // ---- Memory: Note [Stream order]
  // Throws OutOfMemoryError (memory.h). Blocks are aligned to kAlignment. 0 bytes also give a valid block.
  void* (*allocate)(int device, size_t bytes);
  // Does nothing after the driver has shut down.
  void (*deallocate)(int device, void* data, size_t bytes) noexcept;
  size_t (*block_bytes)(size_t bytes);  // the size of the block that allocate(bytes) takes
  AllocatorStats (*stats)(int device);
  void (*reset_peak)(int device);
  // Sets the most bytes of freed blocks that are kept for reuse.
  void (*set_cache_limit)(int device, int64_t bytes);
  // Sets the most bytes that may be reserved in total (memory::set_limit); 0: no limit.
  void (*set_limit)(int device, int64_t bytes);
  int64_t (*limit)(int device);
  // Adds `bytes`, which may be negative, to AllocatorStats::by_purpose.
  void (*count_purpose)(int device, Purpose purpose, int64_t bytes) noexcept;
  void (*trim)(int device);  // gives all freed blocks back, if the device is in use
  // Allocates page-locked host memory, which the device reads and writes directly. Initialises no other device.
  void* (*allocate_staging)(int device, size_t bytes);
  void (*deallocate_staging)(int device, void* data, size_t bytes) noexcept;

  // ---- Copies. `host` may be any host memory.
  // The copy is in the order of the compute stream. The caller may reuse the host memory on return.
  void (*copy_in)(int device, void* to, const void* host, size_t bytes);
  // Waits until the bytes are copied. Throws like `synchronize`.
  void (*copy_out)(int device, void* host, const void* from, size_t bytes);
  // Copies within the device, in the order of the compute stream.
  void (*copy)(int device, void* to, const void* from, size_t bytes);
  // Copies from another device of this backend, in the order of the compute streams of both. Null: the copy goes
  // through host memory.
  void (*copy_peer)(int device, void* to, int from_device, const void* from, size_t bytes);
  void (*fill)(int device, void* to, uint8_t byte, size_t bytes);
  // Copies from memory of allocate_staging(), in the order of `stream`. Returns at once: until the stream has done the
  // copy, the caller may neither write nor free the staging memory.
  void (*copy_staged)(int device, Stream stream, void* to, const void* staging, size_t bytes);

  // ---- Work
  // Runs host code that works on the device's memory, in the order of the stream: Note [Work]. Null: the function
  // enqueue() below runs it at once. A device with kernels of its own uses this for callbacks only.
  void (*enqueue)(int device, Stream stream, absl::AnyInvocable<void()> work);
  EventHandle (*record)(int device, Stream stream);
  void (*wait)(int device, Stream stream, EventHandle event);  // later work of the stream waits, not the host
  void (*release)(int device, EventHandle event) noexcept;
  bool (*reached)(int device, EventHandle event);                   // has the stream reached it? Does not wait
  double (*elapsed)(int device, EventHandle from, EventHandle to);  // seconds; waits for both
  void (*synchronize)(int device);                                  // throws the kept error: Note [Late errors]
  bool (*failed)(int device) noexcept;

  // ---- Libraries and launchers
  // For libraries that enqueue work themselves: makes the device current on this thread and calls `call` with the
  // native handle of the stream (a CUstream). `name` appears in messages of later errors and must live as long as the
  // process. Null: streams have no such handle.
  void (*call_library)(int device, Stream stream, const char* name, absl::FunctionRef<void(void* stream)> call);
  DevicePlace (*place)(int device);
};

// The host as a device (host_backend.cc).
extern const BackendTable kCPUBackend;

namespace detail {
extern std::array<std::atomic<const BackendTable*>, kNumBackends> backends;  // null until a backend's first use
// Opens a built-in backend (devices.cc). Returns null on failure; `*why_not` is the reason, or empty if the backend is
// not built in.
const BackendTable* open_built_in(Backend backend, std::string* why_not);
// Opens the backend of `device`, on its first use. Throws Error if this process has no such backend.
const BackendTable& open_backend(Device device);
}  // namespace detail

// Returns the table of a device. Throws Error if this process has no such backend.
inline const BackendTable& backend_of(Device device) {
  const BackendTable* table = detail::backends[static_cast<size_t>(device.backend)].load(std::memory_order_acquire);
  if (table == nullptr) [[unlikely]]
    return detail::open_backend(device);
  return *table;
}

// Makes a backend available. A null `table` removes the backend; then no tensor on its devices may be used any more.
// The table must outlive its use. Throws Error with the name of the function if one is null that may not be null.
void install_backend(Backend backend, const BackendTable* table);

// Throws Error unless there is such a device.
void require_device(Device device);

// Wraps `work` in a FloatingPointScope, because a stream's thread inherits its floating-point state from its creator.
absl::AnyInvocable<void()> in_default_state(absl::AnyInvocable<void()> work);

// Runs `work`, host code that works on the device's memory, on the device's compute stream: at once if the table has no
// `enqueue` (the CPU), otherwise later. `work` must own everything that it uses.
template <class Work> void enqueue(Device device, Work&& work) {
  const BackendTable& table = backend_of(device);
  if (table.enqueue == nullptr) [[likely]]
    work();
  else table.enqueue(device.index, Stream::kCompute, in_default_state(std::forward<Work>(work)));
}

// Throws the error that a device kept: Note [Late errors]. The message of a plain Error is extended: it says that the
// error was found late. Any other exception is thrown unchanged.
[[noreturn]] void throw_late(std::exception_ptr kept, Device device);

// True if enqueue() runs its work at once.
inline bool runs_at_once(Device device) { return backend_of(device).enqueue == nullptr; }

// True if host code may use the device's addresses.
inline bool has_host_memory(Device device) { return backend_of(device).host_memory; }

// Copies bytes between any two devices.
void copy_bytes(Device to_device, void* to, Device from_device, const void* from, size_t bytes);

// Measures seconds on the device's compute stream, for tuning.
class Stopwatch {
 public:
  explicit Stopwatch(Device device);  // starts
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  double seconds() const;  // since the start; waits for all work that is enqueued

 private:
  Device device_;
  EventHandle start_;
};

}  // namespace rondo
#pragma GCC visibility pop
