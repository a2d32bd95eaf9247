// Where a tensor lives.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace rondo {

enum class Backend : uint8_t { kCPU, kCUDA };
inline constexpr int kNumBackends = 2;

struct Device {
  Backend backend = Backend::kCPU;
  int8_t index = 0;
  friend bool operator==(Device, Device) = default;
};
inline constexpr Device kCPU{};

}  // namespace rondo
#pragma GCC visibility pop
