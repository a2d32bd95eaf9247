// The built-in devices. A new device gets a line here and a folder beside cpu/ and cuda/. This file comes after these
// folders in the include order; device/backend.cc calls it at the first use of a device.
#include "rondo/runtime/cuda/backend.h"
#include "rondo/runtime/device/backend.h"

namespace rondo {

// The CPU's table is set before main(), because static variables of a program may be tensors.
constinit std::array<std::atomic<const BackendTable*>, kNumBackends> detail::backends = {&kCPUBackend, nullptr,
                                                                                         nullptr};

const BackendTable* detail::open_built_in(Backend backend, std::string* why_not) {
  return backend == Backend::kCUDA ? cuda::open(why_not) : nullptr;
}

}  // namespace rondo
