// Compiled kernels on a device, and how they are launched.
//
//   const std::shared_ptr<const Module> module = Module::load(device, cubin);
//   const Kernel kernel = module->kernel("gelu_f32");
//   void* args[] = {&x, &y, &n};                          // copied by the launch
//   launch(device, kernel, {blocks}, {256}, 0, args);     // on the compute stream
//
// Thread safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

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
  // Unloads the module. The driver first waits for pending launches of its kernels. Does nothing if the device was
  // closed, because that has unloaded the module.
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // Throws DeviceError if there is no such function. `dynamic_shared`: the most bytes of dynamic shared memory that
  // launches will ask for.
  Kernel kernel(const std::string& name, int dynamic_shared = 0) const;

 private:
  Module(int device, uint64_t serial, ModulePtr module) : device_(device), serial_(serial), module_(module) {}
  int device_;
  uint64_t serial_;  // of the DeviceState
  ModulePtr module_;
};

// Code that each device loads when it first launches one of the kernels. The object may outlive devices: a device that
// was closed and opened again loads the code again. Thread safe.
class LazyModule {
 public:
  // `image`: returns a device's image; called at the first launch on that device. `kernels`: names of the image's
  // functions.
  LazyModule(std::function<const std::string&(int device)> image, std::vector<std::string> kernels);
  ~LazyModule();
  LazyModule(const LazyModule&) = delete;
  LazyModule& operator=(const LazyModule&) = delete;
  // Returns the i-th of `kernels` on a device. Throws DeviceError like Module::load.
  const Kernel& kernel(int device, size_t i) const;

 private:
  struct Loaded;
  const Loaded& load(int device, uint64_t serial) const;
  const std::function<const std::string&(int device)> image_;
  const std::vector<std::string> names_;
  mutable std::mutex mutex_;                            // held while code is loaded
  mutable std::atomic<const Loaded*> loaded_{nullptr};  // a linked list, one item for each device
};

// Enqueues a kernel on the compute stream. `args`: a pointer to each argument. Does nothing if the grid has no blocks.
// Throws DeviceError.
void launch(int device, const Kernel& kernel, Dim3 grid, Dim3 block, unsigned shared_bytes, void** args);

}  // namespace rondo::cuda
