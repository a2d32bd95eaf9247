// Compiled kernels on a device, and how they are launched.
//
//   const std::shared_ptr<const Module> module = Module::load(device, cubin);
//   const Kernel kernel = module->kernel("gelu_f32");
//   void* args[] = {&x, &y, &n};                          // copied by the launch
//   launch(device, kernel, {blocks}, {256}, 0, args);     // on the compute stream
//
// Thread safe.
#pragma once

#include <memory>
#include <string>

#include "rondo/runtime/cuda/driver.h"

namespace rondo::cuda {

class DeviceState;

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// A function of a module, and its name. The name lives as long as the process: errors that come later print it.
struct Kernel {
  FunctionPtr function = nullptr;
  const char* name = "";
};

class Module {
 public:
  // `image`: a cubin, or PTX that ends with a zero. Throws DeviceError if the device cannot run it.
  static std::shared_ptr<const Module> load(int device, const std::string& image);
  ~Module();  // the device may still have launches of its kernels to do: the driver waits for them
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // Throws DeviceError if there is no such function. `dynamic_shared`: the most bytes of dynamic shared memory that
  // launches will ask for.
  Kernel kernel(const std::string& name, int dynamic_shared = 0) const;

 private:
  Module(int device, ModulePtr module) : device_(device), module_(module) {}
  int device_;
  ModulePtr module_;
};

// Enqueues a kernel on the compute stream. `args`: a pointer to each argument. A grid without blocks is no launch.
// Throws DeviceError.
void launch(int device, const Kernel& kernel, Dim3 grid, Dim3 block, unsigned shared_bytes, void** args);

// A device's cuBLASLt handle, which all threads may use. Throws DeviceError, and says why, if there is no cuBLASLt.
LtHandle lt_handle(int device);
const CublasLt& lt();

}  // namespace rondo::cuda
