#include "rondo/runtime/cuda/context.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/cuda/allocator.h"
#include "rondo/runtime/cuda/module.h"
#include "rondo/runtime/cuda/staging.h"
#include "rondo/runtime/device/memory.h"

namespace rondo::cuda {
namespace {

constexpr int kMostDevices = 64;
// 12.0, the first driver that runs what NVRTC 12 compiles.
constexpr int kOldestDriver = 12000;

// A child process has a copy of this memory, and no device.
std::atomic<bool> forked{false};
std::atomic<int> n_devices{0};
std::atomic<uint64_t> serials{0};
std::atomic<DeviceState*> states[kMostDevices];
std::mutex opening;  // of the devices; guards `driver`
const Driver* driver = nullptr;

[[noreturn]] void throw_forked() {
  throw DeviceError(
      "CUDA cannot be used in a child process made by fork() after the parent has used it; fork before the first use "
      "of "
      "CUDA, or start the child as a program of its own (exec)");
}

// Errors after which nothing runs in this context any more (the manual's list of CUresult says so of each).
bool is_sticky(Result result) {
  switch (result) {
    case Result::kEccUncorrectable:
    case Result::kNvlinkUncorrectable:
    case Result::kContained:
    case Result::kIllegalAddress:
    case Result::kLaunchTimeout:
    case Result::kContextIsDestroyed:
    case Result::kAssert:
    case Result::kHardwareStackError:
    case Result::kIllegalInstruction:
    case Result::kMisalignedAddress:
    case Result::kInvalidAddressSpace:
    case Result::kInvalidPc:
    case Result::kLaunchFailed:
    case Result::kTensorMemoryLeak:
    case Result::kExternalDevice:
    case Result::kDeinitialized: return true;
    default: return false;
  }
}

bool setting(const char* value) { return value != nullptr && std::string_view(value) == "1"; }

}  // namespace

std::string describe(const Driver& driver, Result result) {
  const char *name = nullptr, *text = nullptr;
  if (driver.error_name(result, &name) != Result::kSuccess || name == nullptr)
    return absl::StrCat("CUDA error ", static_cast<int>(result));
  if (driver.error_string(result, &text) != Result::kSuccess || text == nullptr) return name;
  return absl::StrCat(name, " (", text, ")");
}

// ---- One device

ContextScope::ContextScope(DeviceState& device) : driver_(device.driver()) {
  device.check(driver_.context_push(device.context()), "cuCtxPushCurrent");
}
ContextScope::~ContextScope() {
  Context popped = nullptr;
  static_cast<void>(driver_.context_pop(&popped));
}

DeviceState::DeviceState(const Driver& driver, int index, int ordinal)
    : driver_(driver),
      index_(index),
      ordinal_(ordinal),
      serial_(++serials),
      sync_(setting(std::getenv("RONDO_CUDA_SYNC"))) {
  char name[256] = "";
  check(driver_.device_name(name, sizeof name, ordinal_), "cuDeviceGetName");
  name_ = name;
  check(driver_.device_total_memory(&total_memory_, ordinal_), "cuDeviceTotalMem");
  int major = 0, minor = 0;
  check(driver_.device_attribute(&major, DeviceAttribute::kCapabilityMajor, ordinal_), "cuDeviceGetAttribute");
  check(driver_.device_attribute(&minor, DeviceAttribute::kCapabilityMinor, ordinal_), "cuDeviceGetAttribute");
  check(driver_.device_attribute(&most_shared_, DeviceAttribute::kMaxSharedPerBlock, ordinal_), "cuDeviceGetAttribute");
  capability_ = 10 * major + minor;
  check(driver_.primary_retain(&context_, ordinal_), "cuDevicePrimaryCtxRetain");
  try {
    const ContextScope scope(*this);
    for (StreamPtr& stream : streams_) check(driver_.stream_create(&stream, kStreamNonBlocking, 0), "cuStreamCreate");
    check(driver_.memory_allocate(&status_, sizeof(DeviceStatus)), "cuMemAlloc");
    static_assert(kNothingFailed.call == 0 && offsetof(DeviceStatus, high) == 8);
    check(driver_.fill_bytes(status_, 0, 8, compute()), "cuMemsetD8Async");
    check(driver_.fill_bytes(status_ + 8, 0xFF, sizeof(DeviceStatus) - 8, compute()), "cuMemsetD8Async");
    allocator_ = std::make_unique<Allocator>(*this);
  } catch (...) {
    static_cast<void>(driver_.primary_release(ordinal_));
    throw;
  }
}

DeviceState::~DeviceState() {
  if (forked.load()) lost_.store(true);  // to a child process the driver is gone
  if (lost()) allocator_.reset();
  if (!lost()) {
    try {
      const ContextScope scope(*this);
      static_cast<void>(driver_.context_synchronize());
      drop_finished();
      if (lt_ != nullptr) static_cast<void>(lt().destroy(lt_));
      if (dnn_ != nullptr) static_cast<void>(dnn_library_.destroy(dnn_));
      for (const ModulePtr module : modules_) static_cast<void>(driver_.module_unload(module));
      allocator_.reset();
      for (const auto& events : free_events_)
        for (EventPtr event : events) static_cast<void>(driver_.event_destroy(event));
      static_cast<void>(driver_.memory_free(status_));
      for (StreamPtr stream : streams_) static_cast<void>(driver_.stream_destroy(stream));
    } catch (const Error&) {
      // The driver gives back what is left with the context.
    }
  }
  if (!forked.load()) static_cast<void>(driver_.primary_release(ordinal_));
}

void DeviceState::fail(Result result, const char* call) {
  const std::string what = describe(driver_, result);
  if (result == Result::kOutOfMemory) {
    if (allocator_ != nullptr) throw allocator_->out_of_memory(absl::StrCat("do ", call));
    throw OutOfMemoryError(absl::StrCat("out of memory on cuda:", index_, ": ", call, ", when the device is opened"));
  }
  if (!is_sticky(result)) throw DeviceError(absl::StrCat("cuda:", index_, ": ", call, ": ", what));
  {
    const std::lock_guard lock(mutex_);
    if (lost_message_.empty())
      lost_message_ = absl::StrCat(
          "cuda:", index_, " is lost: ", what, ", reported by ", call, "; the last work enqueued was ", last_.load(),
          sync_ ? "" : " (RONDO_CUDA_SYNC=1 names the work that failed)",
          "; the device's context is dead and its tensors are gone: start the program again, from a checkpoint");
    lost_.store(true, std::memory_order_release);
  }
  throw_lost();
}

void DeviceState::throw_lost() const {
  const std::lock_guard lock(mutex_);
  throw DeviceError(lost_message_, /*lost=*/true);
}

void DeviceState::wait_for_launch(const char* name, StreamPtr stream) {
  check(driver_.stream_synchronize(stream), absl::StrCat("the wait for ", name, " (RONDO_CUDA_SYNC=1)").c_str());
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
  check(driver_.event_create(&event.event, timing ? 0 : kEventDisableTiming), "cuEventCreate");
  return event;
}

void DeviceState::give_event(Event event) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    free_events_[event.timing].push_back(event.event);
  } catch (const std::bad_alloc&) {
    static_cast<void>(driver_.event_destroy(event.event));
  }
}

void DeviceState::join(DeviceState& later_device, StreamPtr later, DeviceState& earlier_device, StreamPtr earlier) {
  const Event event = earlier_device.take_event(/*timing=*/false);
  // A wait holds on to the record that it saw, so the event may be used again at once.
  struct Give {
    DeviceState& device;
    Event event;
    ~Give() { device.give_event(event); }
  } give{earlier_device, event};
  {
    const ContextScope scope(earlier_device);
    earlier_device.check(earlier_device.driver_.event_record(event.event, earlier), "cuEventRecord");
  }
  const ContextScope scope(later_device);
  later_device.check(later_device.driver_.stream_wait_event(later, event.event, 0), "cuStreamWaitEvent");
}

void DeviceState::wait(StreamPtr stream) { check(driver_.stream_synchronize(stream), "cuStreamSynchronize"); }
void DeviceState::wait_all() { check(driver_.context_synchronize(), "cuCtxSynchronize"); }

void DeviceState::throw_if_failed(const DeviceStatus& seen, uint32_t passed) {
  std::exception_ptr kept;
  {
    const std::lock_guard lock(mutex_);
    kept = std::exchange(kept_, nullptr);
  }
  if (seen.call == 0) {
    calls_.forget_older_than(passed);
    if (kept == nullptr) return;
    failed_.store(false, std::memory_order_relaxed);
    throw_late(std::move(kept), device());
  }
  const std::string what = calls_.describe(seen);
  calls_.forget_older_than(passed);
  failed_.store(false, std::memory_order_relaxed);
  check(driver_.fill_bytes(status_, 0, 8, compute()), "cuMemsetD8Async");
  check(driver_.fill_bytes(status_ + 8, 0xFF, sizeof(DeviceStatus) - 8, compute()), "cuMemsetD8Async");
  throw_late(std::make_exception_ptr(Error(what)), device());
}

DeviceState::Callback& DeviceState::add_callback(absl::AnyInvocable<void()> work) {
  const std::lock_guard lock(mutex_);
  Callback& added = pending_.emplace_back(*this, std::move(work));
  added.self = std::prev(pending_.end());
  return added;
}

void DeviceState::remove_callback(Callback& callback) noexcept {
  std::list<Callback> removed;  // destroyed after the lock is gone
  const std::lock_guard lock(mutex_);
  removed.splice(removed.end(), pending_, callback.self);
}

void DeviceState::finish(Callback& callback, std::exception_ptr error) noexcept {
  const std::lock_guard lock(mutex_);
  finished_.splice(finished_.end(), pending_, callback.self);
  has_finished_.store(true, std::memory_order_relaxed);
  if (error == nullptr) return;
  if (kept_ == nullptr) kept_ = std::move(error);
  failed_.store(true, std::memory_order_relaxed);
}

void DeviceState::drop_finished() noexcept {
  if (!has_finished_.load(std::memory_order_relaxed)) return;
  std::list<Callback> finished;  // destroyed after the lock is gone
  const std::lock_guard lock(mutex_);
  finished.swap(finished_);
  has_finished_.store(false, std::memory_order_relaxed);
}

LtHandle DeviceState::lt_handle() {
  const CublasLt& library = lt();
  const ContextScope scope(*this);
  const std::lock_guard lock(lt_mutex_);
  if (lt_ != nullptr) return lt_;
  LtStatus status = library.create(&lt_);
  if (status == LtStatus::kAllocFailed) {
    allocator_->trim();  // it takes memory of the device, and the allocator may keep all of it
    status = library.create(&lt_);
  }
  if (status != LtStatus::kSuccess) {
    lt_ = nullptr;
    if (status == LtStatus::kAllocFailed) throw allocator_->out_of_memory("make a handle of cuBLASLt");
    throw DeviceError(absl::StrCat("cuda:", index_, ": cublasLtCreate: ", library.status_string(status)));
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
      allocator_->trim();  // it takes memory of the device, and the allocator may keep all of it
      status = library.create(&made);
    }
    if (category_of(status) == DnnStatus::kInternalError) throw allocator_->out_of_memory("make a handle of cuDNN");
    if (status == DnnStatus::kSuccess) status = library.set_stream(made, compute());
    if (status != DnnStatus::kSuccess)
      throw DeviceError(absl::StrCat("cuda:", index_, ": cudnnCreate: ", library.status_string(status)));
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
  static_cast<void>(driver_.module_unload(module));  // without the lock: Note [Locks and the driver]
}

bool DeviceState::can_access(DeviceState& other) {
  const auto at = static_cast<size_t>(other.index_);
  {
    const std::lock_guard lock(mutex_);
    if (peers_.size() <= at) peers_.resize(at + 1);
    if (peers_[at] != 0) return peers_[at] > 0;
  }
  int can = 0;
  if (driver_.device_can_access_peer(&can, ordinal_, other.ordinal_) != Result::kSuccess) can = 0;
  if (can != 0) {
    const ContextScope scope(*this);
    const Result result = driver_.context_enable_peer(other.context_, 0);
    // Somebody else in this process may have enabled it. A refusal (too many peers, a virtual machine) means copies
    // through host memory.
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

// The driver's number of a device. REQUIRES: require_index().
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
  const std::lock_guard lock(opening);  // of `driver`
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
  const std::lock_guard lock(opening);  // of `driver`
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

void close_devices() {
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
  if (any != nullptr) Staging::instance().clear(*any);
  Staging::instance().forget();
  for (auto& slot : states) delete slot.exchange(nullptr);
  driver = nullptr;
}

}  // namespace rondo::cuda
