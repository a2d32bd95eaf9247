#include "rondo/runtime/cuda/context.h"

#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"

namespace rondo::cuda {
namespace {

// True for errors after which nothing runs in this context any more (the manual says so for each of them, in its list
// of CUresult).
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

ContextScope::ContextScope(DeviceContext& device) : driver_(device.driver()) {
  device.check(driver_.context_push(device.context()), "cuCtxPushCurrent");
}
ContextScope::~ContextScope() {
  Context popped = nullptr;
  static_cast<void>(driver_.context_pop(&popped));
}

DeviceContext::DeviceContext(const Driver& driver, int index, int ordinal)
    : driver_(driver), index_(index), ordinal_(ordinal), sync_(setting(std::getenv("RONDO_CUDA_SYNC"))) {
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
  } catch (...) {
    static_cast<void>(driver_.primary_release(ordinal_));
    throw;
  }
}

DeviceContext::~DeviceContext() {
  if (!lost()) {
    try {
      const ContextScope scope(*this);
      static_cast<void>(driver_.memory_free(status_));
      for (StreamPtr stream : streams_) static_cast<void>(driver_.stream_destroy(stream));
    } catch (const Error&) {
      // The driver frees what is left when it destroys the context.
    }
  }
  if (!abandoned_) static_cast<void>(driver_.primary_release(ordinal_));
}

void DeviceContext::abandon() noexcept {
  abandoned_ = true;
  lost_.store(true);
}

void DeviceContext::fail(Result result, const char* call) {
  const std::string what = describe(driver_, result);
  if (result == Result::kOutOfMemory) throw out_of_memory(call);
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

OutOfMemoryError DeviceContext::out_of_memory(const char* call) const {
  return OutOfMemoryError(absl::StrCat("out of memory on cuda:", index_, ": ", call, ", when the device is opened"));
}

void DeviceContext::throw_lost() const {
  const std::lock_guard lock(mutex_);
  throw DeviceError(lost_message_, /*lost=*/true);
}

void DeviceContext::wait_for_launch(const char* name, StreamPtr stream) {
  check(driver_.stream_synchronize(stream), absl::StrCat("the wait for ", name, " (RONDO_CUDA_SYNC=1)").c_str());
}

void DeviceContext::wait(StreamPtr stream) { check(driver_.stream_synchronize(stream), "cuStreamSynchronize"); }
void DeviceContext::wait_all() { check(driver_.context_synchronize(), "cuCtxSynchronize"); }

void DeviceContext::throw_if_failed(const DeviceStatus& seen, uint32_t passed) {
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

DeviceContext::Callback& DeviceContext::add_callback(absl::AnyInvocable<void()> work) {
  const std::lock_guard lock(mutex_);
  Callback& added = pending_.emplace_back(*this, std::move(work));
  added.self = std::prev(pending_.end());
  return added;
}

void DeviceContext::remove_callback(Callback& callback) noexcept {
  std::list<Callback> removed;  // destroyed after the lock is gone
  const std::lock_guard lock(mutex_);
  removed.splice(removed.end(), pending_, callback.self);
}

void DeviceContext::finish(Callback& callback, std::exception_ptr error) noexcept {
  const std::lock_guard lock(mutex_);
  finished_.splice(finished_.end(), pending_, callback.self);
  has_finished_.store(true, std::memory_order_relaxed);
  if (error == nullptr) return;
  if (kept_ == nullptr) kept_ = std::move(error);
  failed_.store(true, std::memory_order_relaxed);
}

void DeviceContext::drop_finished() noexcept {
  if (!has_finished_.load(std::memory_order_relaxed)) return;
  std::list<Callback> finished;  // destroyed after the lock is gone
  const std::lock_guard lock(mutex_);
  finished.swap(finished_);
  has_finished_.store(false, std::memory_order_relaxed);
}

}  // namespace rondo::cuda
