// A device whose numbers mean nothing any more, though it runs on: a collective was aborted, and what it should have
// written is not there.
//
//   std::optional<DeviceFailure> failure;
//   failure.emplace(device, std::make_exception_ptr(ConnectionError("rank 1 is gone")));   // before the abort
//   weight.to_vector<float>();    // throws it, every time
//   failure.reset();              // the object that failed is gone
//   synchronize(device);          // throws it for the last time
//
// Note [Failed devices]. From the failure on, every read of the device's tensors by the host or by another device
//   throws the error: item(), to_vector(), to(), a checkpoint. This ends when the DeviceFailure has been destroyed and
//   rondo::synchronize() has been called since: it throws the error once more. By that call a program says that it
//   knows. It must then write the device's tensors anew, from a checkpoint, before it reads them. A device has one
//   error at a time: a second failure keeps the first error, and both have to be destroyed. An error of data differs:
//   it is thrown once (Note [Late errors] in backend.h). A device that is lost (DeviceError) is lost for the process.
//
// REQUIRES: the failure is made before the device can go on. Then a read that waits for the device at that moment
// throws, too.
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
// Throws the error of a device that has failed. To be called after a read has waited for the device.
void throw_if_failed(Device device);
// The same for synchronize(): ends the failure if nothing holds it any more.
void throw_and_end_failure(Device device);
// For devices that are taken away.
void forget_failures(Backend backend);
}  // namespace detail

}  // namespace rondo
#pragma GCC visibility pop
