// A CUDA device that is not here, for compiling ahead: a program runs on it as on any device, so that everything that
// it needs is compiled by NVRTC, and nothing computes.
//
//   AbsentDevice gpu(90);               // cuda:0 is of sm_90 until `gpu` is destroyed
//   model.to(gpu.device());
//   model.loss(x, y).backward();        // compiles; the loss is a number without a meaning
//
// Copies to the device and back do happen, so what a program puts there it gets back unchanged. Kernels, products and
// fills of more than a page do not: results are zeros, or whatever the memory held. Memory that nobody writes costs
// nothing (address space only), so a model may be larger than this machine. Work is done when a call returns.
//
// One at a time; no other thread may use CUDA while it lives. Tensors of the device may only be destroyed after it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "rondo/runtime/cuda/module.h"
#include "rondo/runtime/device/device.h"

namespace rondo::cuda {

// A launch that a real device would have got.
struct AbsentLaunch {
  // The function's name. "cublasLtMatmul": a product, "cudnnBackendExecute": a plan, and nothing below is set.
  const char* name;
  const std::string* image;  // the cubin, or PTX, that was loaded
  Dim3 grid, block;
  unsigned shared_bytes;  // dynamic
};

class AbsentDevice {
 public:
  // `capability`: 90 is 9.0. `watch`: called with each launch, if not null. Throws Error if this process uses CUDA.
  explicit AbsentDevice(int capability, std::function<void(const AbsentLaunch&)> watch = nullptr);
  ~AbsentDevice();
  AbsentDevice(const AbsentDevice&) = delete;
  AbsentDevice& operator=(const AbsentDevice&) = delete;

  Device device() const { return {Backend::kCUDA, 0}; }
};

// True while there is one.
bool is_absent();

}  // namespace rondo::cuda
