// One CUDA device as the runtime uses it: its context (context.h), and the objects that live in the context: the
// allocator, pools of events, handles of libraries, modules. Also the list of all devices of the process.
//
// Thread safety: all functions may be called from any thread. Note [Locks and the driver] in context.h.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/runtime/cuda/allocator.h"
#include "rondo/runtime/cuda/context.h"
#include "rondo/runtime/cuda/cudnn.h"

namespace rondo::cuda {

// An event of the driver, taken from a pool and given back.
struct Event {
  EventPtr event = nullptr;
  bool timing = false;
};

class DeviceState final : public DeviceContext {
 public:
  DeviceState(const Driver& driver, int index, int ordinal);
  ~DeviceState() override;

  Allocator& allocator() { return *allocator_; }
  // A number that no other DeviceState of this process had, not even that of the same device before it was closed.
  uint64_t serial() const { return serial_; }

  // ---- Events
  Event take_event(bool timing);
  void give_event(Event event) noexcept;
  // Makes the stream `later` wait for all work that is enqueued on the stream `earlier` so far. The streams may be of
  // two devices.
  static void join(DeviceState& later_device, StreamPtr later, DeviceState& earlier_device, StreamPtr earlier);

  // ---- Handles of libraries
  // Returns the handle of cuBLASLt, which the first call makes. All threads may use it.
  LtHandle lt_handle();
  // Enqueues a plan of cuDNN on the compute stream. The first call makes the handle of cuDNN; a handle serves one
  // thread at a time. Throws DeviceError or OutOfMemoryError if the handle cannot be made.
  DnnStatus execute_dnn(const Cudnn& library, DnnDescriptor plan, DnnDescriptor pack);

  // ---- Modules. Those that are still loaded when the device is closed are unloaded then.
  void keep_module(ModulePtr module);
  void unload_module(ModulePtr module) noexcept;

  // True if kernels and copies of this device can access memory of `other` directly. The first call asks the driver,
  // and enables the access.
  bool can_access(DeviceState& other);

 private:
  OutOfMemoryError out_of_memory(const char* call) const override;

  const uint64_t serial_;
  std::unique_ptr<Allocator> allocator_;
  std::mutex mutex_;                      // guards the next three members
  std::vector<EventPtr> free_events_[2];  // [with timing]
  std::vector<ModulePtr> modules_;
  std::vector<signed char> peers_;  // by the other device's index: 0 unknown, 1 direct access, -1 none
  std::mutex lt_mutex_;             // guards lt_; mutex_ may not, because making a handle calls the driver
  LtHandle lt_ = nullptr;
  std::mutex dnn_mutex_;  // guards dnn_ and dnn_library_, and calls that use the handle
  DnnHandle dnn_ = nullptr;
  Cudnn dnn_library_;  // the library that made dnn_
};

// Returns the number of devices. If it is 0, `*why_not` is the reason in one line. The first call opens the driver.
int open_devices(std::string* why_not);
// Returns a device; its context is made with the first call. Throws Error if there is no such device, DeviceError if
// the device does not work, or in a child process made by fork().
DeviceState& device_state(int index);
// Returns the compute capability of a device: 90 is 9.0. Asks the driver, and makes no context: a process that only
// compares devices then takes memory on none of them. Throws like device_state().
int capability_of(int index);
// Returns the facts that measured times depend on: "NVIDIA H100 80GB HBM3, sm_90, 132 multiprocessors, 81559 MiB,
// driver 13.0, cuBLASLt 130100". Throws like device_state().
std::string machine_of(int index);
// Returns the device's UUID and PCI bus address. Asks the driver, and makes no context. Throws like device_state().
DevicePlace place_of(int index);
// Returns a device; null if it was never used, is lost, or may not be used any more.
DeviceState* device_state_if_usable(int index) noexcept;
// True if this process has made the context of any device.
bool devices_in_use() noexcept;
// Closes all devices; the next open_devices() starts anew. First waits until nothing runs on any device, and then calls
// `when_idle` with a usable device, if there is one.
void close_devices(absl::FunctionRef<void(DeviceState& usable)> when_idle);

}  // namespace rondo::cuda
