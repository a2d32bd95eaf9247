// The driver's functions. Each refusal names the page of the manual (CUDA Driver API) that it follows.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

#include "rondo/tests/fake_cuda/machine.h"
#include "rondo/tests/fake_cuda/source.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

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
using rondo::fake_cuda::Access;
using rondo::fake_cuda::Block;
using rondo::fake_cuda::context_stack;
using rondo::fake_cuda::Enqueued;
using rondo::fake_cuda::in_callback;
using rondo::fake_cuda::Kernel;
using rondo::fake_cuda::Launch;
using rondo::fake_cuda::Machine;

namespace {

Machine& fake() { return Machine::instance(); }
std::string number(long long n) { return std::to_string(n); }

// For whole programs: RONDO_FAKE_CUDA=seed:devices:megabytes, and behind it, each after a ':',
//   answers         misuse is answered with an error
//   driver=12080    the version that the driver says it has
//   faulty=NAME     launches of the kernel NAME kill their context
rondo::fake_cuda::Options options_of_environment() {
  rondo::fake_cuda::Options options;
  const char* const text = std::getenv("RONDO_FAKE_CUDA");
  if (text == nullptr) return options;
  std::istringstream parts(text);
  std::string part;
  for (int i = 0; std::getline(parts, part, ':'); ++i) {
    if (i == 0) options.seed = std::strtoull(part.c_str(), nullptr, 10);
    else if (i == 1) options.devices = std::atoi(part.c_str());
    else if (i == 2) options.bytes = static_cast<size_t>(std::strtoull(part.c_str(), nullptr, 10)) << 20;
    else if (part == "answers") options.aborts = false, options.early = 0;
    else if (part.starts_with("driver=")) options.driver_version = std::atoi(part.c_str() + 7);
    else if (part.starts_with("faulty=")) options.faulty = part.substr(7);
    else {
      std::fprintf(stderr, "fake CUDA: RONDO_FAKE_CUDA is seed:devices:megabytes[:answers]..., not %s\n", text);
      std::abort();
    }
  }
  return options;
}

// What a call needs before it does its own work.
enum class Needs { kNothing, kInit, kContext };

// One call of a driver's function: holds the lock.
class Call {
 public:
  Call(const char* name, Needs needs) : lock_(mutex_for(name)), outer_(std::exchange(fake().call, name)) {
    if (fake().memory == nullptr) fake().reset(options_of_environment());  // a program without a test around it
    if (fake().gone) {
      result_ = Result::kDeinitialized;  // CUresult, DEINITIALIZED
      return;
    }
    // cuLaunchHostFunc: "the host function must not make any CUDA API calls".
    if (in_callback()) result_ = fake().misuse(Result::kNotPermitted, "a callback of the host calls the driver");
    else if (needs != Needs::kNothing && !fake().initialized)
      result_ = fake().misuse(Result::kNotInitialized, "cuInit was not called");  // cuInit
    if (result_ != Result::kSuccess || needs != Needs::kContext) return;
    if (context_stack().empty() || context_stack().back() == nullptr)
      result_ = fake().misuse(Result::kInvalidContext, "no context is current");  // CUresult: INVALID_CONTEXT
    else if (context().retained == 0)
      result_ = fake().misuse(Result::kInvalidContext, "the current context was released");
    else if (context().dead != Result::kSuccess)
      result_ = context().dead;  // CUresult, ILLEGAL_ADDRESS: every later call returns the same error
  }
  ~Call() { fake().call = outer_; }
  Result result() const { return result_; }
  OpaqueContext& context() const { return *context_stack().back(); }

 private:
  static std::recursive_mutex& mutex_for([[maybe_unused]] const char* name) {
#if defined(__SANITIZE_THREAD__)  // a callback has a thread of its own then (tsan.h), which would wait for ever
    if (in_callback()) {
      std::fprintf(stderr, "fake CUDA: %s: a callback of the host calls the driver\n", name);
      std::abort();
    }
#endif
    return fake().mutex;
  }

  const rondo::fake_cuda::Inside inside_;
  std::lock_guard<std::recursive_mutex> lock_;
  const char* outer_;
  Result result_ = Result::kSuccess;
};

#define FAKE_CALL(needs)                   \
  const Call call(__func__, Needs::needs); \
  if (call.result() != Result::kSuccess) return call.result()

#define FAKE_CHECK(expression) \
  if (const Result checked = expression; checked != Result::kSuccess) return checked

Result require_stream(const Call& call, StreamPtr stream) {
  if (stream == nullptr)
    return fake().misuse(Result::kInvalidHandle, "the default stream, which waits for all others, is not expected");
  if (!fake().handles.contains(stream)) return fake().misuse(Result::kInvalidHandle, "no stream has this handle");
  if (!stream->alive) return fake().misuse(Result::kInvalidHandle, "the stream was destroyed");
  if (stream->context != &call.context())
    return fake().misuse(Result::kInvalidHandle, "the stream is of " + fake().name_of(*stream->context) +
                                                     ", and the current context of " + fake().name_of(call.context()));
  return Result::kSuccess;
}
Result require_event(EventPtr event) {
  if (event == nullptr || !fake().handles.contains(event))
    return fake().misuse(Result::kInvalidHandle, "no event has this handle");
  if (!event->alive) return fake().misuse(Result::kInvalidHandle, "the event was destroyed");
  return Result::kSuccess;
}
Result require_device(int device) {
  return device >= 0 && device < fake().options.devices ? Result::kSuccess
                                                        : fake().misuse(Result::kInvalidDevice, "no such device");
}

// The host has waited for all that this clock counts.
void host_waited(const rondo::fake_cuda::Clock& clock) {
  fake().host.merge(clock);
  rondo::fake_cuda::acquire_order(&fake().callbacks_done);
}

uint64_t checksum(const void* data, size_t bytes) {
  uint64_t sum = 1469598103934665603u;
  const auto* at = static_cast<const unsigned char*>(data);
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    sum = (sum ^ word) * 1099511628211u, sum ^= sum >> 29;
  }
  for (size_t i = 0; i < bytes; ++i) sum = (sum ^ at[i]) * 1099511628211u;
  return sum;
}

// CUDA C++ Programming Guide, "Binary Compatibility": code runs on devices of its major revision and no lower minor
// one. "PTX Compatibility": PTX is compiled for all that are not below it. "Architecture-Specific Features": with an
// "a" both are for that one alone; "Family-Specific Features": with an "f" for later ones of the major revision.
bool runs_here(const std::string& made_for) {
  int version = 0;
  char suffix = ' ';
  const int here = fake().options.capability;
  const bool cubin = std::sscanf(made_for.c_str(), "sm_%d%c", &version, &suffix) >= 1;
  if (!cubin && std::sscanf(made_for.c_str(), "compute_%d%c", &version, &suffix) < 1) return false;
  if (suffix == 'a') return version == here;
  return version <= here && (!(cubin || suffix == 'f') || version / 10 == here / 10);
}

// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": the most shared memory of a block that
// has asked for it; and cuda.h, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: of one that has not.
int most_shared() {
  switch (fake().options.capability) {
    case 80:
    case 87: return 163 << 10;
    case 86:
    case 89:
    case 120:
    case 121: return 99 << 10;
    default: return 227 << 10;
  }
}
constexpr int kSharedWithoutAsking = 48 << 10;

// cuda.h, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: what is left beside the function's static memory, unless
// cuFuncSetAttribute() was asked for more.
int most_dynamic_shared(const OpaqueFunction& function) {
  return function.dynamic_shared >= 0
             ? function.dynamic_shared
             : std::max(0, kSharedWithoutAsking - static_cast<int>(function.kernel->static_shared));
}

const void* pointer(DevicePtr address) { return reinterpret_cast<const void*>(address); }
void* writable(DevicePtr address) { return reinterpret_cast<void*>(address); }

}  // namespace

// ---- Initialization, version, errors

FAKE_EXPORT Result cuInit(unsigned flags) {
  const Call call(__func__, Needs::kNothing);
  if (call.result() != Result::kSuccess) return call.result();
  if (flags != 0) return fake().misuse(Result::kInvalidValue, "the flags must be 0");  // cuInit
  if (fake().options.init_result != 0) return static_cast<Result>(fake().options.init_result);
  if (fake().options.devices == 0) return Result::kNoDevice;  // CUresult, NO_DEVICE
  fake().initialized = true;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuDriverGetVersion(int* version) {
  FAKE_CALL(kNothing);
  *version = fake().options.driver_version;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuGetErrorName(Result error, const char** name) {
  switch (error) {
    case Result::kOutOfMemory: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case Result::kInvalidValue: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case Result::kInvalidHandle: *name = "CUDA_ERROR_INVALID_HANDLE"; break;
    case Result::kInvalidImage: *name = "CUDA_ERROR_INVALID_IMAGE"; break;
    case Result::kNotFound: *name = "CUDA_ERROR_NOT_FOUND"; break;
    case Result::kIllegalAddress: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    case Result::kMisalignedAddress: *name = "CUDA_ERROR_MISALIGNED_ADDRESS"; break;
    case Result::kLaunchFailed: *name = "CUDA_ERROR_LAUNCH_FAILED"; break;
    case Result::kSystemDriverMismatch: *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"; break;
    default: *name = nullptr; return Result::kInvalidValue;  // cuGetErrorName
  }
  return Result::kSuccess;
}
FAKE_EXPORT Result cuGetErrorString(Result error, const char** text) {
  const char* name = nullptr;
  const Result result = cuGetErrorName(error, &name);
  *text = result == Result::kSuccess ? "as the fake driver says" : nullptr;
  return result;
}
// Libraries of NVIDIA ask for functions in this way. The fake serves the runtime only.
FAKE_EXPORT Result cuGetProcAddress_v2(const char* symbol, void**, int, uint64_t, void*) {
  std::fprintf(stderr, "fake CUDA: unknown call: %s\n", symbol);
  std::abort();
}
FAKE_EXPORT Result cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

// NVRTC asks the driver that it finds in its process for a table of functions of its own, and does without.
FAKE_EXPORT Result cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return Result::kNotFound;
}

// ---- Devices and contexts

FAKE_EXPORT Result cuDeviceGetCount(int* count) {
  FAKE_CALL(kInit);
  *count = fake().options.devices;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuDeviceGet(int* device, int ordinal) {
  FAKE_CALL(kInit);
  FAKE_CHECK(require_device(ordinal));
  *device = ordinal;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuDeviceGetName(char* name, int length, int device) {
  FAKE_CALL(kInit);
  FAKE_CHECK(require_device(device));
  std::snprintf(name, static_cast<size_t>(length), "%s", fake().options.name.c_str());
  return Result::kSuccess;
}
FAKE_EXPORT Result cuDeviceGetAttribute(int* value, DeviceAttribute attribute, int device) {
  FAKE_CALL(kInit);
  FAKE_CHECK(require_device(device));
  switch (attribute) {
    case DeviceAttribute::kMaxThreadsPerBlock: *value = 1024; break;
    case DeviceAttribute::kMaxGridX: *value = 0x7FFFFFFF; break;
    case DeviceAttribute::kMaxGridY: *value = 65535; break;
    case DeviceAttribute::kMaxGridZ: *value = 65535; break;
    case DeviceAttribute::kMultiprocessors: *value = 4; break;
    case DeviceAttribute::kCapabilityMajor: *value = fake().options.capability / 10; break;
    case DeviceAttribute::kCapabilityMinor: *value = fake().options.capability % 10; break;
    case DeviceAttribute::kMaxSharedPerBlock: *value = most_shared(); break;
    case DeviceAttribute::kMemoryPools: *value = 1; break;
    default: return fake().misuse(Result::kInvalidValue, "unknown attribute " + number(static_cast<int>(attribute)));
  }
  return Result::kSuccess;
}
FAKE_EXPORT Result cuDeviceTotalMem_v2(size_t* bytes, int device) {
  FAKE_CALL(kInit);
  FAKE_CHECK(require_device(device));
  *bytes = fake().memory->bytes();
  return Result::kSuccess;
}
FAKE_EXPORT Result cuDeviceCanAccessPeer(int* can, int device, int peer) {
  FAKE_CALL(kInit);
  FAKE_CHECK(require_device(device));
  FAKE_CHECK(require_device(peer));
  *can = fake().options.peers && device != peer ? 1 : 0;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuDeviceGetDefaultMemPool(PoolPtr* pool, int device) {
  FAKE_CALL(kInit);
  FAKE_CHECK(require_device(device));
  *pool = fake().pools[static_cast<size_t>(device)].get();
  return Result::kSuccess;
}
FAKE_EXPORT Result cuDevicePrimaryCtxRetain(Context* context, int device) {
  FAKE_CALL(kInit);
  FAKE_CHECK(require_device(device));
  *context = fake().contexts[static_cast<size_t>(device)].get();
  fake().counted.contexts += (*context)->retained++ == 0;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuDevicePrimaryCtxRelease_v2(int device) {
  FAKE_CALL(kInit);
  FAKE_CHECK(require_device(device));
  OpaqueContext& context = *fake().contexts[static_cast<size_t>(device)];
  if (context.retained == 0)  // cuDevicePrimaryCtxRelease
    return fake().misuse(Result::kInvalidContext, "released more often than retained");
  if (--context.retained > 0) return Result::kSuccess;
  --fake().counted.contexts;
  fake().release_context(context);
  return Result::kSuccess;
}
FAKE_EXPORT Result cuCtxGetCurrent(Context* context) {
  FAKE_CALL(kInit);
  *context = context_stack().empty() ? nullptr : context_stack().back();
  return Result::kSuccess;
}
FAKE_EXPORT Result cuCtxPushCurrent_v2(Context context) {
  FAKE_CALL(kInit);
  if (context == nullptr || context->retained == 0) return fake().misuse(Result::kInvalidContext, "no such context");
  context_stack().push(context);
  return Result::kSuccess;
}
FAKE_EXPORT Result cuCtxPopCurrent_v2(Context* context) {
  FAKE_CALL(kInit);
  if (context_stack().empty()) return fake().misuse(Result::kInvalidContext, "no context was pushed");
  *context = context_stack().back();
  context_stack().pop();
  return Result::kSuccess;
}
FAKE_EXPORT Result cuCtxSynchronize() {
  FAKE_CALL(kContext);
  ++fake().counted.host_waits;
  OpaqueContext& context = call.context();
  for (const auto& stream : fake().streams)
    if (stream->context == &context) {
      fake().run_until([&] { return fake().idle(*stream); });
      host_waited(stream->clock);
    }
  return context.dead;
}
FAKE_EXPORT Result cuCtxEnablePeerAccess(Context peer, unsigned flags) {
  FAKE_CALL(kContext);
  OpaqueContext& context = call.context();
  // All four: cuCtxEnablePeerAccess.
  if (flags != 0) return fake().misuse(Result::kInvalidValue, "the flags must be 0");
  if (peer == nullptr || peer == &context) return fake().misuse(Result::kInvalidContext, "no peer");
  if (!fake().options.peers) return Result::kPeerAccessUnsupported;
  if ((context.peers >> peer->device & 1) != 0) return Result::kPeerAccessAlreadyEnabled;
  context.peers |= 1u << peer->device;
  return Result::kSuccess;
}

// ---- Memory

FAKE_EXPORT Result cuMemGetInfo_v2(size_t* free, size_t* total) {
  FAKE_CALL(kContext);
  *total = fake().memory->bytes();
  *free = *total - fake().memory->used(call.context().device);
  return Result::kSuccess;
}
FAKE_EXPORT Result cuMemAlloc_v2(DevicePtr* address, size_t bytes) {
  FAKE_CALL(kContext);
  if (bytes == 0) return fake().misuse(Result::kInvalidValue, "0 bytes");  // cuMemAlloc
  Block* block = fake().fails_now(rondo::fake_cuda::kDeviceMemory)
                     ? nullptr
                     : fake().memory->allocate(call.context().device, bytes, false);
  if (block == nullptr) return Result::kOutOfMemory;
  fake().races.forget(block->address, bytes);
  *address = block->address;
  return Result::kSuccess;
}
// cuMemFree: the call may wait for the device, so no program may rely on it: it frees at once.
FAKE_EXPORT Result cuMemFree_v2(DevicePtr address) {
  FAKE_CALL(kContext);
  Block* block = fake().memory->find(address);
  if (block == nullptr || block->address != address)
    return fake().misuse(Result::kInvalidValue, "no block begins here");
  if (!block->live || block->freed_by_call) return fake().misuse(Result::kInvalidValue, "the block is freed twice");
  if (block->device != call.context().device)
    return fake().misuse(Result::kInvalidValue, "the block is of device " + number(block->device) +
                                                    ", and the current context of " + fake().name_of(call.context()));
  std::string user = fake().races.unordered(block->address, block->bytes, fake().host);
  for (size_t stream = 0; stream < block->uses.size(); ++stream)
    if (fake().host[stream] < block->uses[stream]) user = block->last_user;
  if (!user.empty())
    return fake().misuse(Result::kInvalidValue, "freed while " + user + " may still use it: nothing waited for that");
  if (!fake().memory->release(*block)) return fake().misuse(Result::kInvalidValue, "something wrote behind the block");
  return Result::kSuccess;
}
FAKE_EXPORT Result cuMemAllocAsync(DevicePtr* address, size_t bytes, StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  if (bytes == 0) return fake().misuse(Result::kInvalidValue, "0 bytes");
  // What the stream frees before it comes here is there again.
  if (!fake().fails_now(rondo::fake_cuda::kDeviceMemory)) {
    Block* block = fake().memory->allocate(stream->context->device, bytes, true);
    if (block == nullptr) {
      fake().run_until([&] { return fake().idle(*stream); });
      block = fake().memory->allocate(stream->context->device, bytes, true);
    }
    if (block != nullptr) {
      fake().races.forget(block->address, bytes);
      *address = block->address;
      return fake().push(*stream, "cuMemAllocAsync", {{pointer(block->address), bytes, true}},
                         [block] { fake().memory->make_live(*block); });
    }
  }
  return Result::kOutOfMemory;
}
// cuMemFreeAsync: the memory must not be used by work that is submitted after this call.
FAKE_EXPORT Result cuMemFreeAsync(DevicePtr address, StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  Block* block = fake().memory->find(address);
  if (block == nullptr || block->address != address)
    return fake().misuse(Result::kInvalidValue, "no block begins here");
  if (!block->live || block->freed_by_call) return fake().misuse(Result::kInvalidValue, "the block is freed twice");
  rondo::fake_cuda::Clock before = stream->clock;
  before.merge(fake().host);
  for (size_t other = 0; other < block->uses.size(); ++other)
    if (before[other] < block->uses[other])
      return fake().misuse(Result::kInvalidValue, std::string("freed while ") + block->last_user +
                                                      " may still use it: no event orders the two");
  block->freed_by_call = true;
  return fake().push(*stream, "cuMemFreeAsync", {{pointer(address), block->bytes, true}}, [block] {
    if (!fake().memory->release(*block))
      static_cast<void>(fake().misuse(Result::kInvalidValue, "something wrote behind a block that is freed"));
  });
}
FAKE_EXPORT Result cuMemPoolTrimTo(PoolPtr, size_t) {
  FAKE_CALL(kInit);
  return Result::kSuccess;
}
FAKE_EXPORT Result cuMemHostAlloc(void** data, size_t bytes, unsigned flags) {
  FAKE_CALL(kContext);
  if (bytes == 0) return fake().misuse(Result::kInvalidValue, "0 bytes");
  if ((flags & rondo::cuda::kHostAllocPortable) == 0)  // cuMemHostAlloc, PORTABLE
    return fake().misuse(Result::kInvalidValue, "page-locked for one context only");
  if (fake().fails_now(rondo::fake_cuda::kPinnedMemory)) return Result::kOutOfMemory;
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return Result::kOutOfMemory;
  std::memset(block, 0xFF, bytes);
  fake().pinned[reinterpret_cast<uintptr_t>(block)] = bytes;
  *data = block;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuMemFreeHost(void* data) {
  FAKE_CALL(kContext);
  const auto found = fake().pinned.find(reinterpret_cast<uintptr_t>(data));
  if (found == fake().pinned.end()) return fake().misuse(Result::kInvalidValue, "no such page-locked memory");
  const std::string user = fake().races.unordered(found->first, found->second, fake().host);
  if (!user.empty()) return fake().misuse(Result::kInvalidValue, "freed while " + user + " may still use it");
  fake().races.forget(found->first, found->second);
  munmap(data, found->second);
  fake().pinned.erase(found);
  return Result::kSuccess;
}

// ---- Copies and fills. Ranges that overlap: cuMemcpyDtoD.

FAKE_EXPORT Result cuMemcpyHtoDAsync_v2(DevicePtr to, const void* from, size_t bytes, StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  FAKE_CHECK(fake().require_device_range(*stream->context, to, bytes, "the target"));
  // "API synchronization behavior": such a copy may wait or not, so it is no asynchronous copy.
  if (!fake().is_pinned(reinterpret_cast<uintptr_t>(from), bytes))
    return fake().misuse(Result::kInvalidValue, "an asynchronous copy from pageable memory");
  ++fake().counted.copies;
  // Unless earlier work of a device will write the bytes, they must stay as they are.
  const bool written_later = !fake().races.unordered(reinterpret_cast<uintptr_t>(from), bytes, fake().host).empty();
  const uint64_t sum = written_later ? 0 : checksum(from, bytes);
  auto work = fake().noted({Enqueued::Kind::kCopy, "host to device", static_cast<int64_t>(bytes)}, [=] {
    if (!written_later && checksum(from, bytes) != sum) {
      fake().call = "cuMemcpyHtoDAsync";
      static_cast<void>(
          fake().misuse(Result::kInvalidValue, "page-locked memory was changed before the copy has read it"));
    }
    std::memcpy(writable(to), from, bytes);
  });
  return fake().push(*stream, "cuMemcpyHtoDAsync", {{from, bytes, false}, {pointer(to), bytes, true}}, std::move(work));
}
FAKE_EXPORT Result cuMemcpyDtoHAsync_v2(void* to, DevicePtr from, size_t bytes, StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  FAKE_CHECK(fake().require_device_range(*stream->context, from, bytes, "the source"));
  if (!fake().is_pinned(reinterpret_cast<uintptr_t>(to), bytes))
    return fake().misuse(Result::kInvalidValue, "an asynchronous copy to pageable memory");
  ++fake().counted.copies;
  fake().noted({Enqueued::Kind::kCopy, "device to host", static_cast<int64_t>(bytes)}, {});
  return fake().push(*stream, "cuMemcpyDtoHAsync", {{pointer(from), bytes, false}, {to, bytes, true}}, [=] {
    if (fake().options.executes) std::memcpy(to, pointer(from), bytes);
    else std::memset(to, 0, bytes);
  });
}
FAKE_EXPORT Result cuMemcpyDtoDAsync_v2(DevicePtr to, DevicePtr from, size_t bytes, StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  FAKE_CHECK(fake().require_device_range(*stream->context, to, bytes, "the target"));
  FAKE_CHECK(fake().require_device_range(*stream->context, from, bytes, "the source"));
  if (to < from + bytes && from < to + bytes) return fake().misuse(Result::kInvalidValue, "the two ranges overlap");
  ++fake().counted.copies;
  return fake().push(*stream, "cuMemcpyDtoDAsync", {{pointer(from), bytes, false}, {pointer(to), bytes, true}},
                     fake().noted({Enqueued::Kind::kCopy, "device to device", static_cast<int64_t>(bytes)},
                                  [=] { std::memcpy(writable(to), pointer(from), bytes); }));
}
FAKE_EXPORT Result cuMemcpyPeerAsync(DevicePtr to, Context to_context, DevicePtr from, Context from_context,
                                     size_t bytes, StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  for (const Context context : {to_context, from_context})
    if (context == nullptr || context->retained == 0) return fake().misuse(Result::kInvalidContext, "no such context");
  FAKE_CHECK(fake().require_device_range(*to_context, to, bytes, "the target"));
  FAKE_CHECK(fake().require_device_range(*from_context, from, bytes, "the source"));
  ++fake().counted.copies;
  auto work = fake().noted({Enqueued::Kind::kCopy, "between devices", static_cast<int64_t>(bytes)}, [=] {
    fake().memory->open(1u << to_context->device | 1u << from_context->device);
    std::memcpy(writable(to), pointer(from), bytes);
  });
  return fake().push(*stream, "cuMemcpyPeerAsync", {{pointer(from), bytes, false}, {pointer(to), bytes, true}},
                     std::move(work));
}
FAKE_EXPORT Result cuMemsetD8Async(DevicePtr to, unsigned char byte, size_t bytes, StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  FAKE_CHECK(fake().require_device_range(*stream->context, to, bytes, "the target"));
  return fake().push(*stream, "cuMemsetD8Async", {{pointer(to), bytes, true}},
                     fake().noted({Enqueued::Kind::kFill, "fill", static_cast<int64_t>(bytes)},
                                  [=] { std::memset(writable(to), byte, bytes); }));
}

// ---- Streams and events

FAKE_EXPORT Result cuStreamCreateWithPriority(StreamPtr* stream, unsigned flags, int) {
  FAKE_CALL(kContext);
  if (flags != rondo::cuda::kStreamNonBlocking)
    return fake().misuse(Result::kInvalidValue, "a stream that waits for the default stream is not expected");
  auto made = std::make_unique<OpaqueStream>();
  made->context = &call.context();
  made->number = fake().streams.size();
  *stream = made.get();
  fake().handles.insert(made.get());
  fake().streams.push_back(std::move(made));
  ++fake().counted.streams;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuStreamDestroy_v2(StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  stream->alive = false;  // cuStreamDestroy: what is queued still runs
  --fake().counted.streams;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuStreamSynchronize(StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  ++fake().counted.host_waits;
  fake().run_until([&] { return fake().idle(*stream); });
  host_waited(stream->clock);
  return stream->context->dead;
}
FAKE_EXPORT Result cuStreamWaitEvent(StreamPtr stream, EventPtr event, unsigned flags) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  FAKE_CHECK(require_event(event));
  if (flags != 0) return fake().misuse(Result::kInvalidValue, "the flags must be 0");
  // cuEventRecord: an event that was never recorded stands for no work. To wait for one is a mistake.
  if (event->last == nullptr) return fake().misuse(Result::kInvalidValue, "the event was never recorded");
  stream->clock.merge(event->last->clock);
  if (!event->last->passed) {
    stream->items.push_back({"cuStreamWaitEvent", nullptr, nullptr, event->last, false});
    return fake().note_queued();
  }
  return Result::kSuccess;
}
FAKE_EXPORT Result cuLaunchHostFunc(StreamPtr stream, HostFunction function, void* data) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  const auto enqueued = std::make_shared<char>();
  rondo::fake_cuda::release_order(enqueued.get());
  return fake().push(
      *stream, "a callback of the host", {},
      [=] { rondo::fake_cuda::run_as_driver(function, data, enqueued.get(), &fake().callbacks_done); },
      /*touches_memory=*/false);
}
FAKE_EXPORT Result cuEventCreate(EventPtr* event, unsigned flags) {
  FAKE_CALL(kContext);
  auto made = std::make_unique<OpaqueEvent>();
  made->context = &call.context();
  made->timing = (flags & rondo::cuda::kEventDisableTiming) == 0;
  *event = made.get();
  fake().handles.insert(made.get());
  fake().events.push_back(std::move(made));
  ++fake().counted.events;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuEventDestroy_v2(EventPtr event) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_event(event));
  event->alive = false;
  --fake().counted.events;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuEventRecord(EventPtr event, StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  FAKE_CHECK(require_event(event));
  if (event->context != stream->context)  // cuEventRecord
    return fake().misuse(Result::kInvalidHandle, "the event is of " + fake().name_of(*event->context) +
                                                     ", and the stream of " + fake().name_of(*stream->context));
  auto record = std::make_shared<OpaqueStream::Record>();
  stream->clock.merge(fake().host);
  record->clock = stream->clock;
  event->last = record;
  stream->items.push_back({"cuEventRecord", nullptr, record, nullptr, false});
  return fake().note_queued();
}
FAKE_EXPORT Result cuEventQuery(EventPtr event) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_event(event));
  if (event->last == nullptr) return Result::kSuccess;  // cuEventRecord: before the first record
  if (event->last->passed) {
    host_waited(event->last->clock);
    return event->context->dead;
  }
  fake().run_some();  // time passes
  return Result::kNotReady;
}
FAKE_EXPORT Result cuEventSynchronize(EventPtr event) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_event(event));
  if (event->last == nullptr) return Result::kSuccess;
  ++fake().counted.host_waits;
  const auto last = event->last;
  fake().run_until([&] { return last->passed; });
  host_waited(last->clock);
  return event->context->dead;
}
FAKE_EXPORT Result cuEventElapsedTime(float* milliseconds, EventPtr from, EventPtr to) {
  FAKE_CALL(kContext);
  // All: cuEventElapsedTime.
  for (const EventPtr event : {from, to}) {
    FAKE_CHECK(require_event(event));
    if (event->last == nullptr) return fake().misuse(Result::kInvalidHandle, "the event was never recorded");
    if (!event->timing) return fake().misuse(Result::kInvalidHandle, "the event was made without timing");
    if (!event->last->passed) return Result::kNotReady;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(to->last->time - from->last->time).count();
  return Result::kSuccess;
}

// ---- Modules and launches

FAKE_EXPORT Result cuModuleLoadData(ModulePtr* module, const void* image) {
  FAKE_CALL(kContext);
  if (fake().fails_now(rondo::fake_cuda::kCodeMemory))
    return Result::kOutOfMemory;  // cuModuleLoadData: code takes memory, too
  const std::string text(static_cast<const char*>(image));
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  auto made = std::make_unique<OpaqueModule>();
  made->context = &call.context();
  if (line == "fake CUDA image") {
    while (std::getline(lines, line)) {
      const auto found = fake().kernels.find(line);
      if (found == fake().kernels.end())
        return fake().misuse(Result::kInvalidImage, "no kernel is registered as " + line);
      made->functions[line] = {made.get(), line, std::make_shared<const Kernel>(found->second)};
    }
  } else if (fake().loader) {
    for (auto& [name, kernel] : fake().loader(text))
      made->functions[name] = {made.get(), name, std::make_shared<const Kernel>(std::move(kernel))};
  } else {
    size_t begin = 0;
    if (line.starts_with(rondo::fake_cuda::kMadeFor)) {
      if (!runs_here(line.substr(rondo::fake_cuda::kMadeFor.size()))) return Result::kNoBinaryForGpu;
      begin = line.size() + 1;
    }
    const std::string source = fake().edit ? fake().edit(text.substr(begin)) : text.substr(begin);
    for (auto& [name, kernel] : fake().options.executes
                                    ? rondo::fake_cuda::kernels_of_source(source, fake().options.seed)
                                    : rondo::fake_cuda::names_in_source(source))
      made->functions[name] = {made.get(), name, std::make_shared<const Kernel>(std::move(kernel))};
  }
  if (made->functions.empty()) return Result::kInvalidImage;  // CUresult, INVALID_IMAGE
  for (const auto& entry : made->functions) fake().handles.insert(&entry.second);
  fake().handles.insert(made.get());
  *module = made.get();
  fake().modules.push_back(std::move(made));
  ++fake().counted.modules;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuModuleUnload(ModulePtr module) {
  FAKE_CALL(kContext);
  if (!fake().handles.contains(module) || !module->alive)
    return fake().misuse(Result::kInvalidHandle, "no module has this handle, or it was unloaded");
  // cuda.h does not say whether the call waits for the device. A caller must be right if it does, so here it does: with
  // the kernels it waits for the callbacks among them, and must hold nothing that a callback takes.
  for (const auto& stream : fake().streams)
    if (stream->context == module->context) {
      fake().run_until([&] { return fake().idle(*stream); });
      host_waited(stream->clock);
    }
  module->alive = false;
  --fake().counted.modules;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuModuleGetFunction(FunctionPtr* function, ModulePtr module, const char* name) {
  FAKE_CALL(kContext);
  if (!fake().handles.contains(module) || !module->alive)
    return fake().misuse(Result::kInvalidHandle, "no module has this handle, or it was unloaded");
  const auto found = module->functions.find(name);
  if (found == module->functions.end()) return Result::kNotFound;  // cuModuleGetFunction
  *function = &found->second;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuFuncGetAttribute(int* value, FunctionAttribute attribute, FunctionPtr function) {
  FAKE_CALL(kContext);
  if (!fake().handles.contains(function)) return fake().misuse(Result::kInvalidHandle, "no function has this handle");
  switch (attribute) {
    case FunctionAttribute::kMaxThreadsPerBlock: *value = function->kernel->most_threads; break;
    case FunctionAttribute::kStaticShared: *value = static_cast<int>(function->kernel->static_shared); break;
    case FunctionAttribute::kLocalBytes: *value = 0; break;
    case FunctionAttribute::kRegisters: *value = 32; break;
    case FunctionAttribute::kMaxDynamicShared: *value = most_dynamic_shared(*function); break;
  }
  return Result::kSuccess;
}
FAKE_EXPORT Result cuFuncSetAttribute(FunctionPtr function, FunctionAttribute attribute, int value) {
  FAKE_CALL(kContext);
  if (!fake().handles.contains(function)) return fake().misuse(Result::kInvalidHandle, "no function has this handle");
  // Both: cuFuncSetAttribute.
  if (attribute != FunctionAttribute::kMaxDynamicShared)
    return fake().misuse(Result::kInvalidValue, "the attribute cannot be set");
  if (value < 0 || value + static_cast<int>(function->kernel->static_shared) > most_shared())
    return Result::kInvalidValue;
  function->dynamic_shared = value;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuLaunchKernel(FunctionPtr function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                  unsigned bz, unsigned shared, StreamPtr stream, void** args, void** extra) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  if (!fake().handles.contains(function)) return fake().misuse(Result::kInvalidHandle, "no function has this handle");
  const Kernel& kernel = *function->kernel;
  const std::string name = "kernel " + function->name;
  if (!function->module->alive) return fake().misuse(Result::kInvalidHandle, name + ": its module was unloaded");
  if (function->module->context != stream->context)
    return fake().misuse(Result::kInvalidHandle, name + " was loaded on " + fake().name_of(*function->module->context) +
                                                     ", and the stream is of " + fake().name_of(*stream->context));
  if (extra != nullptr) return fake().misuse(Result::kInvalidValue, "extra arguments");
  // CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
  const uint64_t threads = uint64_t{bx} * by * bz;
  if (gx == 0 || gy == 0 || gz == 0 || threads == 0 || gx > 0x7FFFFFFF || gy > 65535 || gz > 65535 || bz > 64 ||
      threads > static_cast<uint64_t>(kernel.most_threads))
    return fake().misuse(Result::kInvalidValue, name + ": oversized or empty launch: grid [" + number(gx) + ", " +
                                                    number(gy) + ", " + number(gz) + "], block [" + number(bx) + ", " +
                                                    number(by) + ", " + number(bz) + "]");
  // cuda.h, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: "the launch will fail".
  if (shared > static_cast<unsigned>(most_dynamic_shared(*function)))
    return fake().misuse(Result::kInvalidValue, name + ": " + number(shared) +
                                                    " bytes of shared memory, and the function may have " +
                                                    number(most_dynamic_shared(*function)) + " beside its static " +
                                                    number(kernel.static_shared));
  // The arguments are copied by the call: cuLaunchKernel.
  struct Arguments {
    std::vector<std::vector<uint64_t>> words;
    std::vector<void*> pointers;
  };
  const auto copies = std::make_shared<Arguments>();
  for (size_t i = 0; i < kernel.argument_bytes.size(); ++i) {
    copies->words.emplace_back((kernel.argument_bytes[i] + 7) / 8);
    std::memcpy(copies->words.back().data(), args[i], kernel.argument_bytes[i]);
  }
  for (auto& words : copies->words) copies->pointers.push_back(words.data());
  const Launch launch{function->name.c_str(), {gx, gy, gz}, {bx, by, bz}, shared, copies->pointers.data()};
  for (size_t i = 0; i < kernel.argument_bytes.size(); ++i) {
    const uintptr_t address = copies->words[i].empty() ? 0 : copies->words[i][0];
    if (kernel.argument_bytes[i] != 8 || !fake().memory->contains(address)) continue;
    FAKE_CHECK(
        fake().require_device_range(*stream->context, address, 0, name + ": argument " + number(static_cast<int>(i))));
    Block& block = *fake().memory->find(address);
    if (block.uses.size() <= stream->number) block.uses.resize(stream->number + 1);
    block.uses[stream->number] = stream->clock[stream->number] + 1;  // the number that this launch gets
    block.last_user = function->name.c_str();
  }
  std::vector<Access> accesses;
  if (kernel.accesses) accesses = kernel.accesses(launch);
  for (const Access& access : accesses)
    FAKE_CHECK(fake().require_device_range(*stream->context, reinterpret_cast<uintptr_t>(access.address), access.bytes,
                                           name + ": what it touches"));
  ++fake().counted.launches;
  return fake().push(*stream, name, accesses,
                     fake().noted({Enqueued::Kind::kKernel, function->name},
                                  [copies, launch, kernel = function->kernel] { kernel->run(launch); }));
}
