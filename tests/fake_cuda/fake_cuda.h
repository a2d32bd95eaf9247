// A CUDA driver and cuBLASLt for tests, on a machine without a GPU: START HERE for tests/fake_cuda/. Host memory stands
// for device memory, registered host functions for kernels, oneDNN for products.
//
//   FakeCuda cuda({.seed = 7, .devices = 2});
//   const Tensor x = Tensor::randn({5}).to(cuda.device(1));     // through runtime/cuda/, as with a real driver
//
// It is strict and adversarial:
// - Work is queued and runs late, in an order that the seed chooses among those that streams and events allow.
// - Host code that touches device memory, a kernel that touches memory of another device, a freed block or what lies
//   behind a block ends the process with a message.
// - Two pieces of work that touch the same bytes without an event between them are a race, in whatever order they run.
// - Fresh blocks are poison (0xFF: NaN). Page-locked memory is read when the copy runs.
// - Handles that are invalid, destroyed or of another device, copies from pageable memory, freeing twice or too early,
//   launches that are too large: each ends the process and says what it was.
// - A product whose layouts, types, alignments, algorithm or workspace do not fit each other, or its memory, likewise.
// - The n-th allocation fails on demand, and a kernel can kill its context.
// A whole program runs on it with RONDO_CUDA_PATH set to its folder, and RONDO_FAKE_CUDA=seed:devices:megabytes
// (driver.cc, options_of_environment).
// What it assumes of the real driver cites the manual in driver.cc; tests/gpu/ compares it with one, where there is
// one.
//
// RONDO_TEST_CUDA=real: FakeCuda stands for the machine's own driver. A test skips where it asks for what only the fake
// has: its Control, a device of chosen properties, more devices than there are.
#pragma once

#include <string>
#include <vector>

#include "rondo/runtime/cuda/module.h"
#include "rondo/runtime/device/device.h"
#include "rondo/tests/fake_cuda/control.h"

namespace rondo::test {

// True with RONDO_TEST_CUDA=real.
bool on_real_cuda();

// The runtime uses the fake while this lives. One at a time. The destructor closes CUDA, and fails the test if the
// runtime keeps memory, streams, events or contexts.
class FakeCuda {
 public:
  explicit FakeCuda(fake_cuda::Options options = {});
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  Device device(int index = 0) const { return {Backend::kCUDA, static_cast<int8_t>(index)}; }
  // The test skips if this is no fake.
  fake_cuda::Control& control() const;
  fake_cuda::Control* operator->() const { return &control(); }
  // Registers a kernel, loads it on a device and keeps it loaded while this lives.
  cuda::Kernel kernel(const std::string& name, fake_cuda::Kernel kernel, int device = 0);
  // The context of a device is dead on purpose: the destructor expects no tidy end.
  void expect_lost() { lost_ = true; }

 private:
  fake_cuda::Control* control_ = nullptr;  // null: the machine's own driver
  bool lost_ = false;
  std::vector<std::shared_ptr<const cuda::Module>> modules_;
};

// Where the fake's libraries are: RONDO_TEST_FAKE_CUDA, where it is set, holds some whose kernels a sanitizer watches.
std::string fake_cuda_folder();
// A function of the fake's library, by its name.
void* library_symbol(const char* name);
template <class Function> Function library_function(const char* name) {
  return reinterpret_cast<Function>(library_symbol(name));
}

// Sets an environment variable while it lives; null takes it away.
class Setting {
 public:
  Setting(const char* name, const char* value);
  ~Setting();
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
  std::string before_;
  bool had_;
};

}  // namespace rondo::test
