// One CUDA device as the runtime uses it: its primary context, its three streams, pools of events, its status block,
// and what is known when it fails. Also the list of all devices of the process.
//
// Thread safety: all functions may be called from any thread. The context is made current for the length of a call
// (ContextScope), so a host program may use CUDA in its own way beside Rondo.
//
// Note [Locks and the driver]. A call of the driver may wait for work of the device (cuModuleUnload, cuMemFree and
//   others do), and that work may be a callback of the host, which takes `mutex_` when it has run. So no function of
//   the driver is called while `mutex_` is held.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "rondo/runtime/cuda/cudnn.h"
#include "rondo/runtime/cuda/driver.h"
#include "rondo/runtime/cuda/status.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::cuda {

class Allocator;

// An event of the driver, taken from a pool and given back.
struct Event {
  EventPtr event = nullptr;
  bool timing = false;
};

class DeviceState {
 public:
  DeviceState(const Driver& driver, int index, int ordinal);
  ~DeviceState();
  DeviceState(const DeviceState&) = delete;
  DeviceState& operator=(const DeviceState&) = delete;

  const Driver& driver() const { return driver_; }
  int index() const { return index_; }
  Device device() const { return {Backend::kCUDA, static_cast<int8_t>(index_)}; }
  int ordinal() const { return ordinal_; }
  Context context() const { return context_; }
  StreamPtr stream(Stream stream) const { return streams_[static_cast<size_t>(stream)]; }
  StreamPtr compute() const { return stream(Stream::kCompute); }
  Allocator& allocator() { return *allocator_; }
  const std::string& name() const { return name_; }
  size_t total_memory() const { return total_memory_; }
  // Compute capability: 90 is 9.0.
  int capability() const { return capability_; }
  // The most bytes of shared memory that a block of a kernel can have.
  int most_shared() const { return most_shared_; }
  // A number that no other DeviceState of this process had, not even that of the same device before it was closed.
  uint64_t serial() const { return serial_; }

  // Throws DeviceError unless the call succeeded. An error that the context does not survive is kept: `usable` throws
  // it from then on.
  void check(Result result, const char* call) {
    if (result != Result::kSuccess) [[unlikely]]
      fail(result, call);
  }
  void require_usable() const {
    if (lost_.load(std::memory_order_acquire)) [[unlikely]]
      throw_lost();
  }
  bool lost() const { return lost_.load(std::memory_order_acquire); }

  // After work was enqueued: remembers its name for the message of a later error, and with RONDO_CUDA_SYNC=1 waits for
  // it. `name` lives as long as the process.
  void enqueued(const char* name, StreamPtr stream) {
    last_.store(name, std::memory_order_relaxed);
    if (sync_) [[unlikely]]
      wait_for_launch(name, stream);
  }

  // ---- Events
  Event take_event(bool timing);
  void give_event(Event event) noexcept;
  // `later` waits for what `earlier` has enqueued so far. The streams may be of two devices.
  static void join(DeviceState& later_device, StreamPtr later, DeviceState& earlier_device, StreamPtr earlier);
  // The host waits for what `stream` has enqueued so far.
  void wait(StreamPtr stream);
  void wait_all();  // for all streams

  // ---- Status
  DevicePtr status() const { return status_; }
  Calls& calls() { return calls_; }
  bool failed() const { return lost() || failed_.load(std::memory_order_relaxed); }
  // Throws what a kernel found, and clears it. `seen`: the status, read after a wait. `passed`: Calls::next() before
  // the read was enqueued.
  void throw_if_failed(const DeviceStatus& seen, uint32_t passed);

  // ---- Callbacks of the host (BackendTable::enqueue). The device owns them: a lost one never runs its last ones.
  struct Callback {
    DeviceState& device;
    absl::AnyInvocable<void()> work;
    std::list<Callback>::iterator self;
  };
  Callback& add_callback(absl::AnyInvocable<void()> work);
  void remove_callback(Callback& callback) noexcept;  // it will not run
  // It has run. `error`, if not null, is kept for the next wait. The callback itself is destroyed by drop_finished(),
  // on a thread that may call the driver: what it holds may be memory.
  void finish(Callback& callback, std::exception_ptr error) noexcept;
  void drop_finished() noexcept;

  // Made with the first call; all threads may use it.
  LtHandle lt_handle();
  // Enqueues a plan of cuDNN on the compute stream. The handle is made with the first call; a handle serves one thread
  // at a time. Throws DeviceError, OutOfMemoryError if there can be none.
  DnnStatus execute_dnn(const Cudnn& library, DnnDescriptor plan, DnnDescriptor pack);

  // ---- Modules. What is loaded when the device is closed is unloaded with it.
  void keep_module(ModulePtr module);
  void unload_module(ModulePtr module) noexcept;

  // True if work of this device may access memory of `other` directly. Asked and enabled once.
  bool can_access(DeviceState& other);

 private:
  [[noreturn]] void fail(Result result, const char* call);
  [[noreturn]] void throw_lost() const;
  void wait_for_launch(const char* name, StreamPtr stream);

  const Driver& driver_;
  const int index_, ordinal_;
  Context context_ = nullptr;
  StreamPtr streams_[3] = {};
  DevicePtr status_ = 0;
  std::string name_;
  size_t total_memory_ = 0;
  int capability_ = 0, most_shared_ = 0;
  const uint64_t serial_;
  const bool sync_;
  std::unique_ptr<Allocator> allocator_;
  Calls calls_;
  std::atomic<const char*> last_{"the start"};
  std::atomic<bool> lost_{false}, failed_{false};
  mutable std::mutex mutex_;  // guards what follows
  std::string lost_message_;
  std::exception_ptr kept_;
  std::list<Callback> pending_, finished_;
  std::atomic<bool> has_finished_{false};
  std::vector<EventPtr> free_events_[2];  // [with timing]
  std::vector<ModulePtr> modules_;
  std::vector<signed char> peers_;  // by index: 0 unknown, 1 direct access, -1 none
  std::mutex lt_mutex_;             // guards lt_. Not mutex_: to make a handle may find that the device is lost
  LtHandle lt_ = nullptr;
  std::mutex dnn_mutex_;  // guards what follows, and a call with it
  DnnHandle dnn_ = nullptr;
  Cudnn dnn_library_;  // that made it
};

// Makes a device's context current while it lives.
class ContextScope {
 public:
  explicit ContextScope(DeviceState& device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Driver& driver_;
};

// "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)"
std::string describe(const Driver& driver, Result result);

// How many devices there are. 0: none, and `*why_not` is the reason in one line. Opens the driver with the first call.
int open_devices(std::string* why_not);
// A device; its context is made with the first call. Throws Error if there is no such device, DeviceError if it does
// not work, or in a child process made by fork().
DeviceState& device_state(int index);
// The compute capability of a device: 90 is 9.0. Asks the driver, and makes no context: a process that only compares
// devices takes memory on none of them. Throws as device_state().
int capability_of(int index);
// "NVIDIA H100 80GB HBM3, sm_90, 132 multiprocessors, 81559 MiB, driver 13.0, cuBLASLt 130100": what times depend on.
// Throws as device_state().
std::string machine_of(int index);
// Asks the driver, and makes no context. Throws as device_state().
DevicePlace place_of(int index);
// Null if it was never used, is lost, or may not be used any more.
DeviceState* device_state_if_usable(int index) noexcept;
// True if a device has a context of this process's.
bool devices_in_use() noexcept;
// Gives all devices back; the next open_devices() starts anew.
void close_devices();

}  // namespace rondo::cuda
