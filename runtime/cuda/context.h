// DeviceContext: a CUDA device's primary context, with its three streams, its status block, callbacks of the host, and
// the record of its failure. The base of DeviceState.
//
// Thread safety: all functions may be called from any thread. The context is made current for the length of a call
// (ContextScope), so a host program may use CUDA in its own way beside Rondo.
//
// Note [Locks and the driver]. A call of the driver may wait for work of the device (cuModuleUnload, cuMemFree and
//   others do), and that work may be a callback of the host, which takes `mutex_` when it has run. So no function of
//   the driver is called while `mutex_` is held.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <list>
#include <mutex>
#include <string>

#include "absl/functional/any_invocable.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/cuda/driver.h"
#include "rondo/runtime/cuda/status.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::cuda {

class DeviceContext {
 public:
  DeviceContext(const Driver& driver, int index, int ordinal);
  virtual ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  const Driver& driver() const { return driver_; }
  int index() const { return index_; }
  Device device() const { return {Backend::kCUDA, static_cast<int8_t>(index_)}; }
  int ordinal() const { return ordinal_; }
  Context context() const { return context_; }
  StreamPtr stream(Stream stream) const { return streams_[static_cast<size_t>(stream)]; }
  StreamPtr compute() const { return stream(Stream::kCompute); }
  const std::string& name() const { return name_; }
  size_t total_memory() const { return total_memory_; }
  // Compute capability: 90 is 9.0.
  int capability() const { return capability_; }
  // The most bytes of shared memory that a block of a kernel can have.
  int most_shared() const { return most_shared_; }

  // Throws DeviceError unless the call succeeded. An error that the context does not survive is kept: from then on
  // require_usable() throws it.
  void check(Result result, const char* call) {
    if (result != Result::kSuccess) [[unlikely]]
      fail(result, call);
  }
  void require_usable() const {
    if (lost_.load(std::memory_order_acquire)) [[unlikely]]
      throw_lost();
  }
  bool lost() const { return lost_.load(std::memory_order_acquire); }
  // Call in a child process made by fork(). From then on, no function of the driver may be called.
  void abandon() noexcept;

  // After work was enqueued: remembers its name for the message of a later error, and with RONDO_CUDA_SYNC=1 waits for
  // it. `name` lives as long as the process.
  void enqueued(const char* name, StreamPtr stream) {
    last_.store(name, std::memory_order_relaxed);
    if (sync_) [[unlikely]]
      wait_for_launch(name, stream);
  }
  // Waits until all work that is enqueued on `stream` so far has run.
  void wait(StreamPtr stream);
  void wait_all();  // waits for all streams

  // ---- The device status (status.h)
  DevicePtr status() const { return status_; }
  Calls& calls() { return calls_; }
  bool failed() const { return lost() || failed_.load(std::memory_order_relaxed); }
  // Throws the error that a kernel or a callback has left, if any, and clears it. `seen`: a copy of the status, read
  // after a wait. `passed`: Calls::next() before this copy was enqueued.
  void throw_if_failed(const DeviceStatus& seen, uint32_t passed);

  // ---- Callbacks of the host (BackendTable::enqueue). The device owns them: if it is lost, some of them never run.
  struct Callback {
    DeviceContext& device;
    absl::AnyInvocable<void()> work;
    std::list<Callback>::iterator self;
  };
  Callback& add_callback(absl::AnyInvocable<void()> work);
  void remove_callback(Callback& callback) noexcept;  // removes a callback that will not run
  // Call when a callback has run. `error`, if not null, is thrown after the next wait. drop_finished() destroys the
  // callback on a thread that may call the driver, because the callback may hold memory of the device.
  void finish(Callback& callback, std::exception_ptr error) noexcept;
  void drop_finished() noexcept;

 private:
  [[noreturn]] void fail(Result result, const char* call);
  [[noreturn]] void throw_lost() const;
  void wait_for_launch(const char* name, StreamPtr stream);
  // Makes the error for a call that found no memory.
  virtual OutOfMemoryError out_of_memory(const char* call) const;

  const Driver& driver_;
  const int index_, ordinal_;
  Context context_ = nullptr;
  StreamPtr streams_[3] = {};
  DevicePtr status_ = 0;
  std::string name_;
  size_t total_memory_ = 0;
  int capability_ = 0, most_shared_ = 0;
  const bool sync_;
  bool abandoned_ = false;
  Calls calls_;
  std::atomic<const char*> last_{"the start"};
  std::atomic<bool> lost_{false}, failed_{false};
  mutable std::mutex mutex_;  // guards the members below
  std::string lost_message_;
  std::exception_ptr kept_;
  std::list<Callback> pending_, finished_;
  std::atomic<bool> has_finished_{false};
};

// Makes a device's context current for the lifetime of the ContextScope.
class ContextScope {
 public:
  explicit ContextScope(DeviceContext& device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Driver& driver_;
};

// Returns, for example, "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)".
std::string describe(const Driver& driver, Result result);

}  // namespace rondo::cuda
