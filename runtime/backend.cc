#include "rondo/runtime/backend.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/cpu/backend.h"
#include "rondo/runtime/error.h"

namespace rondo {

namespace {
constexpr const char* kNames[kNumBackends] = {"cpu", "cuda", "fake"};
thread_local Device default_of_thread = kCPU;
}  // namespace

// The table of tables.
constinit std::array<const BackendTable*, kNumBackends> detail::backends = {&kCPUBackend, nullptr, nullptr};

void detail::throw_no_backend(Device device) {
  throw Error(absl::StrCat("no device ", to_string(device), ": this process has ",
                           std::string(kNames[static_cast<size_t>(device.backend)]),
                           " devices neither built in nor "
                           "installed; leave the device out, or write kCPU"));
}

void install_backend(Backend backend, const BackendTable* table) {
  detail::backends[static_cast<size_t>(backend)] = table;
}

std::string to_string(Device device) {
  const std::string name = kNames[static_cast<size_t>(device.backend)];
  return device == kCPU ? name : absl::StrCat(name, ":", static_cast<int>(device.index));
}

Device default_device() { return default_of_thread; }
DeviceScope::DeviceScope(Device device) : outer_(default_of_thread) {
  if (const int count = backend_of(device).device_count(); device.index < 0 || device.index >= count)
    throw Error(absl::StrCat("DeviceScope: no device ", to_string(device), "; there are ", count));
  default_of_thread = device;
}
DeviceScope::~DeviceScope() { default_of_thread = outer_; }

void synchronize(Device device) { backend_of(device).synchronize(device.index); }

void copy_bytes(Device to_device, void* to, Device from_device, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const BackendTable &target = backend_of(to_device), &source = backend_of(from_device);
  if (to_device == from_device) return target.copy(to_device.index, to, from, bytes);
  if (source.host_memory) return target.copy_in(to_device.index, to, from, bytes);
  if (target.host_memory) return source.copy_out(from_device.index, to, from, bytes);
  std::vector<std::byte> between(bytes);
  source.copy_out(from_device.index, between.data(), from, bytes);
  target.copy_in(to_device.index, to, between.data(), bytes);
}

Stopwatch::Stopwatch(Device device)
    : device_(device), start_(backend_of(device).record(device.index, Stream::kCompute)) {}
Stopwatch::~Stopwatch() { backend_of(device_).release(device_.index, start_); }
double Stopwatch::seconds() const {
  const BackendTable& table = backend_of(device_);
  const EventHandle now = table.record(device_.index, Stream::kCompute);
  const double seconds = table.elapsed(device_.index, start_, now);
  table.release(device_.index, now);
  return seconds;
}

}  // namespace rondo
