// Device: where a tensor is stored, and where ops on it run.
//
//   Tensor on_gpu = x.to(Device{Backend::kCUDA, 0});
//   DeviceScope scope(on_gpu.device());        // Tensor::zeros({2}) is now made on this device
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace rondo {

enum class Backend : uint8_t {
  kCPU,
  kCUDA,
  kFake,  // a device that the program or a test installs (backend.h)
};
inline constexpr int kNumBackends = 3;

struct Device {
  Backend backend = Backend::kCPU;
  int8_t index = 0;
  friend bool operator==(Device, Device) = default;
};
inline constexpr Device kCPU{};

std::string to_string(Device device);  // "cpu", "cuda:0"

// Returns the device that a text names: "cpu", "cuda" (the first one), "cuda:1". Throws Error for any other text. Does
// not check whether the device exists.
Device parse_device(std::string_view text);

// Returns how many devices of this kind the process can use. If it is 0, `*why_not` is the reason in one line.
int device_count(Backend backend, std::string* why_not = nullptr);

// Returns the device on which this thread's factories create tensors if the call names none: kCPU outside of any
// DeviceScope.
Device default_device();

// While a DeviceScope lives, default_device() of its thread is `device`. Throws Error if there is no such device.
class DeviceScope {
 public:
  explicit DeviceScope(Device device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  Device outer_;
};

// Waits until the device has done all enqueued work. Throws the error that a kernel has found in its data since the
// last wait, such as an index out of range. Reading a value (Tensor::item(), to_vector(), to(kCPU)) does the same.
void synchronize(Device device);

}  // namespace rondo
#pragma GCC visibility pop
