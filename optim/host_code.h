// Enqueues host code on a device's stream. No other file in optim/ does this. Devices whose kernels are generated run
// no host code: for them every pass is a launch of generated code.
#pragma once

#include <utility>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::optim {

// True if host code may work on the device's memory in stream order.
inline bool runs_host_code(Device device) { return !backend_of(device).generates; }

template <class Work> void enqueue_host_code(Device device, Work&& work) {
  invariant(runs_host_code(device), "host code for the memory of a device whose kernels are generated");
  enqueue(device, std::forward<Work>(work));
}

}  // namespace rondo::optim
