#include "rondo/runtime/device/backend.h"

#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/device/device_failure.h"

namespace rondo {

namespace {
constexpr const char* kNames[] = {"cpu", "cuda", "fake"};
static_assert(std::size(kNames) == kNumBackends);
thread_local Device default_of_thread = kCPU;

// Returns the name of the first field that is null but may not be; null if the table is complete.
const char* first_missing(const BackendTable& table) {
  const std::pair<const char*, bool> fields[] = {
      {"name", table.name != nullptr},
      {"own_kernels", table.own_kernels != nullptr || table.kernels == kCPU.backend},
      {"device_count", table.device_count != nullptr},
      {"allocate", table.allocate != nullptr},
      {"deallocate", table.deallocate != nullptr},
      {"block_bytes", table.block_bytes != nullptr},
      {"stats", table.stats != nullptr},
      {"reset_peak", table.reset_peak != nullptr},
      {"set_cache_limit", table.set_cache_limit != nullptr},
      {"set_limit", table.set_limit != nullptr},
      {"limit", table.limit != nullptr},
      {"count_purpose", table.count_purpose != nullptr},
      {"trim", table.trim != nullptr},
      {"allocate_staging", table.allocate_staging != nullptr},
      {"deallocate_staging", table.deallocate_staging != nullptr},
      {"copy_in", table.copy_in != nullptr},
      {"copy_out", table.copy_out != nullptr},
      {"copy", table.copy != nullptr},
      {"fill", table.fill != nullptr},
      {"copy_staged", table.copy_staged != nullptr},
      {"record", table.record != nullptr},
      {"wait", table.wait != nullptr},
      {"release", table.release != nullptr},
      {"reached", table.reached != nullptr},
      {"elapsed", table.elapsed != nullptr},
      {"synchronize", table.synchronize != nullptr},
      {"failed", table.failed != nullptr},
      {"place", table.place != nullptr},
  };
  for (const auto& [name, there] : fields)
    if (!there) return name;
  return nullptr;
}
}  // namespace

namespace {
// Opens the backend if this is its first use. Returns null if there is none; `*why_not` is then the reason.
const BackendTable* find_backend(Backend backend, std::string* why_not) {
  if (const BackendTable* table = detail::backends[static_cast<size_t>(backend)]) return table;
  if (const BackendTable* table = detail::open_built_in(backend, why_not)) return table;
  if (why_not->empty())
    *why_not = absl::StrCat("this process has ", std::string(kNames[static_cast<size_t>(backend)]),
                            " devices neither built in nor installed");
  return nullptr;
}
}  // namespace

const BackendTable& detail::open_backend(Device device) {
  std::string why_not;
  if (const BackendTable* table = find_backend(device.backend, &why_not)) return *table;
  throw Error(absl::StrCat("no device ", to_string(device), ": ", why_not, "; leave the device out, or use the CPU"));
}

int device_count(Backend backend, std::string* why_not) {
  std::string reason;
  const BackendTable* table = find_backend(backend, &reason);
  if (why_not != nullptr) *why_not = std::move(reason);
  return table == nullptr ? 0 : table->device_count();
}

void install_backend(Backend backend, const BackendTable* table) {
  if (table != nullptr) {
    const char* const missing = first_missing(*table);
    if (missing != nullptr)
      throw Error(absl::StrCat("install_backend: the table of ", table->name == nullptr ? "a device" : table->name,
                               " has no ", missing, "; only `enqueue`, `copy_peer` and `call_library` may be null"));
  }
  detail::backends[static_cast<size_t>(backend)] = table;
  if (table == nullptr) detail::forget_failures(backend);
}

std::string to_string(Device device) {
  const BackendTable* table = detail::backends[static_cast<size_t>(device.backend)];
  const std::string name = table != nullptr ? table->name : kNames[static_cast<size_t>(device.backend)];
  return device == kCPU ? name : absl::StrCat(name, ":", static_cast<int>(device.index));
}

void require_device(Device device) {
  const int count = backend_of(device).device_count();
  if (device.index < 0 || device.index >= count)
    throw Error(absl::StrCat("no device ", to_string(device), ": ", backend_of(device).name, " has ",
                             counted(count, "device"), ", counted from 0"));
}

Device parse_device(std::string_view text) {
  for (int i = 0; i < kNumBackends; ++i) {
    std::string_view rest = text;
    if (!rest.starts_with(kNames[i])) continue;
    rest.remove_prefix(std::string_view(kNames[i]).size());
    const auto backend = static_cast<Backend>(i);
    if (rest.empty()) return {backend, 0};
    int index = -1;
    if (backend != kCPU.backend && rest.starts_with(':') && rest.size() > 1 && rest[1] >= '0' && rest[1] <= '9' &&
        absl::SimpleAtoi(absl::string_view(rest.data() + 1, rest.size() - 1), &index) && index <= 127)
      return {backend, static_cast<int8_t>(index)};
  }
  throw Error(absl::StrCat("no device is called \"", std::string(text), "\": write cpu, cuda or cuda:1"));
}

Device default_device() { return default_of_thread; }
DeviceScope::DeviceScope(Device device) : outer_(default_of_thread) {
  require_device(device);
  default_of_thread = device;
}
DeviceScope::~DeviceScope() { default_of_thread = outer_; }

void synchronize(Device device) {
  require_device(device);
  std::exception_ptr found;
  try {
    backend_of(device).synchronize(device.index);
  } catch (...) {
    found = std::current_exception();
  }
  detail::throw_and_end_failure(device);  // first, because the failure is the cause of `found`
  if (found != nullptr) std::rethrow_exception(found);
}

void throw_late(std::exception_ptr kept, Device device) {
  try {
    std::rethrow_exception(std::move(kept));
  } catch (const Error& error) {
    if (typeid(error) != typeid(Error)) throw;  // a new Error would lose the type
    throw Error(absl::StrCat(error.what(), ". Found late: ", to_string(device),
                             " runs behind the program, and this call is the first that waited for it since"));
  }
}

namespace {
// Copies bytes to host memory. Throws the error of a failed device: Note [Failed devices] in device_failure.h.
void read_bytes(void* to, Device device, const void* from, size_t bytes) {
  backend_of(device).copy_out(device.index, to, from, bytes);
  detail::throw_if_failed(device);
}
}  // namespace

void copy_bytes(Device to_device, void* to, Device from_device, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const BackendTable &target = backend_of(to_device), &source = backend_of(from_device);
  if (to_device == from_device) return target.copy(to_device.index, to, from, bytes);
  if (source.host_memory) return target.copy_in(to_device.index, to, from, bytes);
  if (target.host_memory) return read_bytes(to, from_device, from, bytes);
  if (to_device.backend == from_device.backend && target.copy_peer != nullptr) {
    detail::throw_if_failed(from_device);
    return target.copy_peer(to_device.index, to, from_device.index, from, bytes);
  }
  std::vector<std::byte> between(bytes);
  read_bytes(between.data(), from_device, from, bytes);
  target.copy_in(to_device.index, to, between.data(), bytes);
}

absl::AnyInvocable<void()> in_default_state(absl::AnyInvocable<void()> work) {
  return [work = std::move(work)]() mutable {
    const FloatingPointScope floating_point;
    work();
  };
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
