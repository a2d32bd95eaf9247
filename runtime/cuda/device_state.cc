#include "rondo/runtime/cuda/device_state.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/device/memory.h"

namespace rondo::cuda {
namespace {

constexpr int kMostDevices = 64;
// CUDA 12.0: the first driver that runs code from NVRTC 12.
constexpr int kOldestDriver = 12000;

// True in a child process made by fork(): it has a copy of this memory, but cannot use the devices.
std::atomic<bool> forked{false};
std::atomic<int> n_devices{0};
std::atomic<uint64_t> serials{0};
std::atomic<DeviceState*> states[kMostDevices];
std::mutex opening;  // held while devices are opened or closed; guards `driver`
const Driver* driver = nullptr;

[[noreturn]] void throw_forked() {
  throw DeviceError(
      "CUDA cannot be used in a child process made by fork() after the parent has used it; fork before the first use "
      "of "
      "CUDA, or start the child as a program of its own (exec)");
}

}  // namespace

// ---- One device

DeviceState::DeviceState(const Driver& driver, int index, int ordinal)
    : DeviceContext(driver, index, ordinal), serial_(++serials), allocator_(std::make_unique<Allocator>(*this)) {}

DeviceState::~DeviceState() {
  if (lost()) return;  // everything is gone with the context
  try {
    const ContextScope scope(*this);
    static_cast<void>(driver().context_synchronize());
    drop_finished();
    if (lt_ != nullptr) static_cast<void>(require_cublas_lt().destroy(lt_));
    if (dnn_ != nullptr) static_cast<void>(dnn_library_.destroy(dnn_));
    for (const ModulePtr module : modules_) static_cast<void>(driver().module_unload(module));
    allocator_.reset();
    for (const auto& events : free_events_)
      for (EventPtr event : events) static_cast<void>(driver().event_destroy(event));
  } catch (const Error&) {
    // The driver frees what is left when it destroys the context.
  }
}

OutOfMemoryError DeviceState::out_of_memory(const char* call) const {
  return allocator_->out_of_memory(absl::StrCat("do ", call));
}

Event DeviceState::take_event(bool timing) {
  {
    const std::lock_guard lock(mutex_);
    std::vector<EventPtr>& free = free_events_[timing];
    if (!free.empty()) {
      const Event event{free.back(), timing};
      free.pop_back();
      return event;
    }
  }
  Event event{nullptr, timing};
  const ContextScope scope(*this);
  check(driver().event_create(&event.event, timing ? 0 : kEventDisableTiming), "cuEventCreate");
  return event;
}

void DeviceState::give_event(Event event) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    free_events_[event.timing].push_back(event.event);
  } catch (const std::bad_alloc&) {
    static_cast<void>(driver().event_destroy(event.event));
  }
}

void DeviceState::join(DeviceState& later_device, StreamPtr later, DeviceState& earlier_device, StreamPtr earlier) {
  const Event event = earlier_device.take_event(/*timing=*/false);
  // cuStreamWaitEvent waits for the record that the event has at the time of the call, so the event may be recorded
  // again at once.
  struct Give {
    DeviceState& device;
    Event event;
    ~Give() { device.give_event(event); }
  } give{earlier_device, event};
  {
    const ContextScope scope(earlier_device);
    earlier_device.check(earlier_device.driver().event_record(event.event, earlier), "cuEventRecord");
  }
  const ContextScope scope(later_device);
  later_device.check(later_device.driver().stream_wait_event(later, event.event, 0), "cuStreamWaitEvent");
}

LtHandle DeviceState::lt_handle() {
  const CublasLt& library = require_cublas_lt();
  const ContextScope scope(*this);
  const std::lock_guard lock(lt_mutex_);
  if (lt_ != nullptr) return lt_;
  LtStatus status = library.create(&lt_);
  if (status == LtStatus::kAllocFailed) {
    allocator_->trim();  // the handle needs device memory, and the allocator's cache may hold all of it
    status = library.create(&lt_);
  }
  if (status != LtStatus::kSuccess) {
    lt_ = nullptr;
    if (status == LtStatus::kAllocFailed) throw allocator_->out_of_memory("make a handle of cuBLASLt");
    throw DeviceError(absl::StrCat("cuda:", index(), ": cublasLtCreate: ", library.status_string(status)));
  }
  return lt_;
}

DnnStatus DeviceState::execute_dnn(const Cudnn& library, DnnDescriptor plan, DnnDescriptor pack) {
  const ContextScope scope(*this);
  const std::lock_guard lock(dnn_mutex_);
  if (dnn_ == nullptr) {
    DnnHandle made = nullptr;
    DnnStatus status = library.create(&made);
    if (category_of(status) == DnnStatus::kInternalError) {
      allocator_->trim();  // the handle needs device memory, and the allocator's cache may hold all of it
      status = library.create(&made);
    }
    if (category_of(status) == DnnStatus::kInternalError) throw allocator_->out_of_memory("make a handle of cuDNN");
    if (status == DnnStatus::kSuccess) status = library.set_stream(made, compute());
    if (status != DnnStatus::kSuccess)
      throw DeviceError(absl::StrCat("cuda:", index(), ": cudnnCreate: ", library.status_string(status)));
    dnn_ = made;
    dnn_library_ = library;
  }
  return library.execute(dnn_, plan, pack);
}

void DeviceState::keep_module(ModulePtr module) {
  const std::lock_guard lock(mutex_);
  modules_.push_back(module);
}
void DeviceState::unload_module(ModulePtr module) noexcept {
  {
    const std::lock_guard lock(mutex_);
    std::erase(modules_, module);
  }
  static_cast<void>(driver().module_unload(module));  // without the lock: Note [Locks and the driver]
}

bool DeviceState::can_access(DeviceState& other) {
  const auto at = static_cast<size_t>(other.index());
  {
    const std::lock_guard lock(mutex_);
    if (peers_.size() <= at) peers_.resize(at + 1);
    if (peers_[at] != 0) return peers_[at] > 0;
  }
  int can = 0;
  if (driver().device_can_access_peer(&can, ordinal(), other.ordinal()) != Result::kSuccess) can = 0;
  if (can != 0) {
    const ContextScope scope(*this);
    const Result result = driver().context_enable_peer(other.context(), 0);
    // Other code in this process may have enabled the access already. If the driver refuses it (too many peers, a
    // virtual machine), copies go through host memory.
    can = result == Result::kSuccess || result == Result::kPeerAccessAlreadyEnabled;
  }
  const std::lock_guard lock(mutex_);
  peers_[at] = can != 0 ? 1 : -1;
  return can != 0;
}

// ---- All devices

int open_devices(std::string* why_not) {
  if (const int n = n_devices.load(std::memory_order_acquire); n > 0) return n;
  const std::lock_guard lock(opening);
  if (const int n = n_devices.load(std::memory_order_acquire); n > 0) return n;
  const auto none = [&](const std::string& reason) {
    if (why_not != nullptr) *why_not = absl::StrCat("no CUDA device: ", reason);
    return 0;
  };
  if (forked.load()) return none("this is a child process made by fork() after the parent has used CUDA");
  std::string reason;
  const Driver* found = find_driver(&reason);
  if (found == nullptr) return none(reason);
  if (const Result result = found->init(0); result == Result::kStubLibrary)
    return none("libcuda.so.1 is the toolkit's stub, not a driver; install the NVIDIA driver");
  else if (result == Result::kNoDevice) return none("the driver is there and finds no GPU");
  else if (result != Result::kSuccess) return none(absl::StrCat("cuInit: ", describe(*found, result)));
  int version = 0, count = 0;
  if (const Result result = found->driver_version(&version); result != Result::kSuccess)
    return none(absl::StrCat("cuDriverGetVersion: ", describe(*found, result)));
  if (version < kOldestDriver)
    return none(absl::StrCat("the driver is too old: it supports CUDA ", version / 1000, ".", version % 1000 / 10,
                             ", and Rondo needs ", kOldestDriver / 1000, ".0"));
  if (const Result result = found->device_count(&count); result != Result::kSuccess)
    return none(absl::StrCat("cuDeviceGetCount: ", describe(*found, result)));
  if (count == 0) return none("the driver is there and finds no GPU");
  static const bool watching = [] {
    pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
    return true;
  }();
  static_cast<void>(watching);
  memory::detail::asks_for_causes.fetch_add(1, std::memory_order_relaxed);
  driver = found;
  count = std::min(count, kMostDevices);
  n_devices.store(count, std::memory_order_release);
  return count;
}

namespace {

// Throws Error if there is no such device, DeviceError in a child process made by fork().
void require_index(int index) {
  if (forked.load(std::memory_order_relaxed)) [[unlikely]]
    throw_forked();
  int count = n_devices.load(std::memory_order_acquire);
  if (count == 0) [[unlikely]] {
    std::string why_not;
    if ((count = open_devices(&why_not)) == 0) throw Error(why_not);
  }
  if (index < 0 || index >= count) [[unlikely]]
    throw Error(absl::StrCat("no device cuda:", index, ": cuda has ", counted(count, "device"), ", counted from 0"));
}

// Returns the driver's number of a device. REQUIRES: require_index() has accepted the index.
int ordinal_of(int index) {
  int ordinal = 0;
  if (const Result result = driver->device_get(&ordinal, index); result != Result::kSuccess)
    throw DeviceError(absl::StrCat("cuda:", index, ": cuDeviceGet: ", describe(*driver, result)));
  return ordinal;
}

}  // namespace

DeviceState& device_state(int index) {
  require_index(index);
  if (DeviceState* state = states[index].load(std::memory_order_acquire)) [[likely]] {
    state->require_usable();
    return *state;
  }
  const std::lock_guard lock(opening);
  if (DeviceState* state = states[index].load(std::memory_order_acquire)) return *state;
  auto* state = new DeviceState(*driver, index, ordinal_of(index));
  states[index].store(state, std::memory_order_release);
  return *state;
}

int capability_of(int index) {
  require_index(index);
  if (DeviceState* state = states[index].load(std::memory_order_acquire)) [[likely]]
    return state->capability();
  const std::lock_guard lock(opening);  // guards `driver`
  int major = 0, minor = 0;
  const int ordinal = ordinal_of(index);
  Result result = driver->device_attribute(&major, DeviceAttribute::kCapabilityMajor, ordinal);
  if (result == Result::kSuccess) result = driver->device_attribute(&minor, DeviceAttribute::kCapabilityMinor, ordinal);
  if (result != Result::kSuccess)
    throw DeviceError(absl::StrCat("cuda:", index, ": cuDeviceGetAttribute: ", describe(*driver, result)));
  return 10 * major + minor;
}

DevicePlace place_of(int index) {
  require_index(index);
  const std::lock_guard lock(opening);  // guards `driver`
  const int ordinal = ordinal_of(index);
  Uuid uuid;
  char bus[16] = "";  // "0000:3b:00.0"
  const char* call = "cuDeviceGetUuid";
  Result result = driver->device_uuid(&uuid, ordinal);
  if (result == Result::kSuccess) {
    call = "cuDeviceGetPCIBusId";
    result = driver->device_bus(bus, sizeof bus, ordinal);
  }
  if (result != Result::kSuccess)
    throw DeviceError(absl::StrCat("cuda:", index, ": ", call, ": ", describe(*driver, result)));
  return {absl::BytesToHexString(absl::string_view(uuid.bytes, sizeof uuid.bytes)), absl::AsciiStrToLower(bus)};
}

std::string machine_of(int index) {
  DeviceState& state = device_state(index);
  int multiprocessors = 0, version = 0;
  state.check(state.driver().device_attribute(&multiprocessors, DeviceAttribute::kMultiprocessors, state.ordinal()),
              "cuDeviceGetAttribute");
  state.check(state.driver().driver_version(&version), "cuDriverGetVersion");
  const CublasLt* const library = find_cublas_lt(nullptr);
  return absl::StrCat(state.name(), ", sm_", state.capability(), ", ", multiprocessors, " multiprocessors, ",
                      state.total_memory() >> 20, " MiB, driver ", version / 1000, ".", version % 1000 / 10,
                      ", cuBLASLt ", library == nullptr ? "none" : std::to_string(library->version()));
}

DeviceState* device_state_if_usable(int index) noexcept {
  if (forked.load(std::memory_order_relaxed) || index < 0 || index >= kMostDevices) return nullptr;
  DeviceState* state = states[index].load(std::memory_order_acquire);
  return state != nullptr && !state->lost() ? state : nullptr;
}

bool devices_in_use() noexcept {
  return std::any_of(std::begin(states), std::end(states), [](const auto& slot) { return slot.load() != nullptr; });
}

void close_devices(absl::FunctionRef<void(DeviceState& usable)> when_idle) {
  const std::lock_guard lock(opening);
  if (n_devices.exchange(0) == 0) return;
  memory::detail::asks_for_causes.fetch_sub(1, std::memory_order_relaxed);
  DeviceState* any = nullptr;
  for (auto& slot : states)
    if (DeviceState* state = slot.load(); state != nullptr && !state->lost() && !forked.load()) {
      const ContextScope scope(*state);
      static_cast<void>(state->driver().context_synchronize());
      any = state;
    }
  if (any != nullptr) when_idle(*any);
  for (auto& slot : states) {
    const std::unique_ptr<DeviceState> state(slot.exchange(nullptr));
    if (state != nullptr && forked.load()) state->abandon();
  }
  driver = nullptr;
}

}  // namespace rondo::cuda
