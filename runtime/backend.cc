#include "rondo/runtime/backend.h"

#include <utility>
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

void require_device(Device device) {
  if (const int count = backend_of(device).device_count(); device.index < 0 || device.index >= count)
    throw Error(absl::StrCat("no device ", to_string(device), ": ", backend_of(device).name, " has ", count,
                             count == 1 ? " device" : " devices"));
}

void install_backend(Backend backend, const BackendTable* table) {
  if (table != nullptr) {
    const BackendTable& t = *table;
    const std::pair<bool, const char*> needed[] = {
        {t.name != nullptr, "name"},
        {t.device_count != nullptr, "device_count"},
        {t.allocate != nullptr, "allocate"},
        {t.deallocate != nullptr, "deallocate"},
        {t.block_bytes != nullptr, "block_bytes"},
        {t.stats != nullptr, "stats"},
        {t.reset_peak != nullptr, "reset_peak"},
        {t.set_cache_limit != nullptr, "set_cache_limit"},
        {t.trim != nullptr, "trim"},
        {t.allocate_staging != nullptr, "allocate_staging"},
        {t.deallocate_staging != nullptr, "deallocate_staging"},
        {t.copy_in != nullptr, "copy_in"},
        {t.copy_out != nullptr, "copy_out"},
        {t.copy != nullptr, "copy"},
        {t.fill != nullptr, "fill"},
        {t.record != nullptr, "record"},
        {t.wait != nullptr, "wait"},
        {t.release != nullptr, "release"},
        {t.elapsed != nullptr, "elapsed"},
        {t.synchronize != nullptr, "synchronize"},
        {t.failed != nullptr, "failed"},
    };
    for (const auto& [is_there, what] : needed)
      if (!is_there)
        throw Error(absl::StrCat("install_backend: the table of ", kNames[static_cast<size_t>(backend)], " has no ",
                                 what, "; only enqueue may be null (backend.h)"));
  }
  detail::backends[static_cast<size_t>(backend)] = table;
}

std::string to_string(Device device) {
  const std::string name = kNames[static_cast<size_t>(device.backend)];
  return device == kCPU ? name : absl::StrCat(name, ":", static_cast<int>(device.index));
}

Device default_device() { return default_of_thread; }
DeviceScope::DeviceScope(Device device) : outer_(default_of_thread) {
  require_device(device);
  default_of_thread = device;
}
DeviceScope::~DeviceScope() { default_of_thread = outer_; }

void synchronize(Device device) {
  require_device(device);
  backend_of(device).synchronize(device.index);
}

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
