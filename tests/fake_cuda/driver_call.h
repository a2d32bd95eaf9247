// The common part of the driver's functions: the lock, what a call needs, which handles it accepts.
#pragma once

#include <mutex>
#include <string>

#include "rondo/tests/fake_cuda/machine.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace rondo::fake_cuda {

using rondo::cuda::Context;
using rondo::cuda::DeviceAttribute;
using rondo::cuda::DevicePtr;
using rondo::cuda::EventPtr;
using rondo::cuda::FunctionAttribute;
using rondo::cuda::FunctionPtr;
using rondo::cuda::HostFunction;
using rondo::cuda::ModulePtr;
using rondo::cuda::OpaqueContext;
using rondo::cuda::OpaqueEvent;
using rondo::cuda::OpaqueFunction;
using rondo::cuda::OpaqueModule;
using rondo::cuda::OpaqueStream;
using rondo::cuda::PoolPtr;
using rondo::cuda::Result;
using rondo::cuda::StreamPtr;

inline Machine& fake() { return Machine::instance(); }
inline std::string number(long long n) { return std::to_string(n); }

// The state that a call needs before it does its own work.
enum class Needs { kNothing, kInit, kContext };

// One call of a driver's function: holds the lock.
class Call {
 public:
  Call(const char* name, Needs needs);
  ~Call() { Machine::instance().call = outer_; }
  Result result() const { return result_; }
  OpaqueContext& context() const { return *context_stack().back(); }

 private:
  static MachineMutex& mutex_for(const char* name);

  const rondo::fake_cuda::Inside inside_;
  std::lock_guard<MachineMutex> lock_;
  const char* outer_;
  Result result_ = Result::kSuccess;
};

#define FAKE_CALL(needs)                   \
  const Call call(__func__, Needs::needs); \
  if (call.result() != Result::kSuccess) return call.result()

#define FAKE_CHECK(expression) \
  if (const Result checked = expression; checked != Result::kSuccess) return checked

// The number of the piece of hardware that a program sees as this device. Another one with CUDA_VISIBLE_DEVICES.
int hardware_of(int device);

Result require_stream(const Call& call, StreamPtr stream);
Result require_event(EventPtr event);
Result require_device(int device);

// The host has waited for all that this clock counts.
void host_waited(const Clock& clock);

// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": the most shared memory of a block that
// has asked for it; and cuda.h, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: of one that has not.
int most_shared();
inline constexpr int kSharedWithoutAsking = 48 << 10;

}  // namespace rondo::fake_cuda
