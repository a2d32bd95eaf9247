// The driver's functions for devices and contexts. Each refusal names the page of the manual (CUDA Driver API) that
// it follows.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "rondo/tests/fake_cuda/driver_call.h"

using namespace rondo::fake_cuda;

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
// The same for all processes that see this many devices, as if they were of one machine.
FAKE_EXPORT Result cuDeviceGetUuid_v2(rondo::cuda::Uuid* uuid, int device) {
  FAKE_CALL(kInit);
  FAKE_CHECK(require_device(device));
  *uuid = {};
  std::snprintf(uuid->bytes, sizeof uuid->bytes, "fake GPU %d", hardware_of(device));
  return Result::kSuccess;
}
FAKE_EXPORT Result cuDeviceGetPCIBusId(char* bus, int length, int device) {
  FAKE_CALL(kInit);
  FAKE_CHECK(require_device(device));
  if (length < 13) return Result::kInvalidValue;  // cuDeviceGetPCIBusId: "large enough to store 13 characters"
  std::snprintf(bus, static_cast<size_t>(length), "FA4E:%02X:00.0", hardware_of(device));
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
      fake().wait_until([&] { return fake().idle(*stream); });
      fake().note_time(TimedWork::Kind::kHostWait, *stream, 0);
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
