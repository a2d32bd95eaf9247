// The devices that are built in: a new one has its line here, and its folder beside cpu/ and cuda/. It stands behind
// all of their rooms; device/backend.cc asks it for a device at that device's first use.
#include "rondo/runtime/cuda/backend.h"
#include "rondo/runtime/device/backend.h"

namespace rondo {

// The CPU's is here before main(): a program's static variables may be tensors.
constinit std::array<std::atomic<const BackendTable*>, kNumBackends> detail::backends = {&kCPUBackend, nullptr,
                                                                                         nullptr};

const BackendTable* detail::open_built_in(Backend backend, std::string* why_not) {
  return backend == Backend::kCUDA ? cuda::open(why_not) : nullptr;
}

}  // namespace rondo
