// DeviceFailure marks a device whose tensors are invalid although the device still runs: a collective was aborted, so
// it has not written its results.
//
//   std::optional<DeviceFailure> failure;
//   failure.emplace(device, std::make_exception_ptr(ConnectionError("rank 1 is gone")));   // before the abort
//   weight.to_vector<float>();    // throws the ConnectionError, every time
//   failure.reset();              // the object that failed is destroyed
//   synchronize(device);          // throws the error for the last time
//
// Note [Failed devices]. After a failure, every read of the device's tensors by the host or by another device throws
//   the error: item(), to_vector(), to(), a checkpoint. To end this state, destroy the DeviceFailure, then call
//   rondo::synchronize(), which throws the error once more: with this call the program acknowledges the failure. Before
//   it reads the device's tensors, it must write them again, from a checkpoint. A device has one error at a time: a
//   second failure keeps the first error, and both objects must be destroyed. In contrast, an error in data is thrown
//   once (Note [Late errors] in backend.h), and a lost device (DeviceError) is lost until the process ends.
//
// REQUIRES: the DeviceFailure is constructed before the device can continue, so that a read that already waits for the
// device throws, too.
// Thread safety: all functions may be called from any thread.
#pragma once

#include <exception>

#include "rondo/runtime/device/device.h"

#pragma GCC visibility push(default)
namespace rondo {

class DeviceFailure {
 public:
  DeviceFailure(Device device, std::exception_ptr error);
  ~DeviceFailure();
  DeviceFailure(const DeviceFailure&) = delete;
  DeviceFailure& operator=(const DeviceFailure&) = delete;

 private:
  const Device device_;
};

namespace detail {
// ---- For backend.cc: Note [Failed devices]
// Throws the device's error if it has failed. Call it after a read has waited for the device.
void throw_if_failed(Device device);
// Called by synchronize(): throws the device's error if it has failed, and ends the failure if no DeviceFailure of the
// device is alive.
void throw_and_end_failure(Device device);
// Called when a backend is removed.
void forget_failures(Backend backend);
}  // namespace detail

}  // namespace rondo
#pragma GCC visibility pop
