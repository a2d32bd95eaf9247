// AbsentDevice: stands in for a CUDA device that this machine lacks, to compile ahead of time. A program runs on it as
// on any device, so NVRTC compiles everything that the program needs, but nothing is computed.
//
//   AbsentDevice gpu(90);               // cuda:0 is of sm_90 until `gpu` is destroyed
//   model.to(gpu.device());
//   model.loss(x, y).backward();        // compiles; the loss is a number without a meaning
//
// Copies to and from the device are carried out, so a program can read back what it copied to the device. Kernels,
// products, and fills of more than a page are not run: their results are zeros, or the old contents of the memory.
// Memory that is never written takes only address space, so a model may be larger than this machine's memory. All calls
// are synchronous.
//
// Only one AbsentDevice may exist at a time, and no other thread may use CUDA while it exists. After it is destroyed,
// the device's tensors may only be destroyed, not used.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "rondo/runtime/cuda/module.h"
#include "rondo/runtime/device/device.h"

namespace rondo::cuda {

// A launch of a kernel, or a call of a library, that a real device would have received.
struct AbsentLaunch {
  // The kernel's name; or "cublasLtMatmul" for a matrix product, and "cudnnBackendExecute" for a plan of cuDNN. For
  // these two, the fields below are not set.
  const char* name;
  const std::string* image;  // the cubin, or PTX, that was loaded
  Dim3 grid, block;
  unsigned shared_bytes;  // dynamic shared memory
};

class AbsentDevice {
 public:
  // `capability`: the device's compute capability; 90 is 9.0. `watch`: if not null, called for each launch. Throws
  // Error if this process has used a CUDA device.
  explicit AbsentDevice(int capability, std::function<void(const AbsentLaunch&)> watch = nullptr);
  ~AbsentDevice();
  AbsentDevice(const AbsentDevice&) = delete;
  AbsentDevice& operator=(const AbsentDevice&) = delete;

  Device device() const { return {Backend::kCUDA, 0}; }
};

// True while an AbsentDevice exists.
bool is_absent();

}  // namespace rondo::cuda
