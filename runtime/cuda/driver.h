// The libraries of CUDA as tables of functions: the driver, NVRTC (compiles kernels) and cuBLASLt (matrix products).
// The first use of each library finds and opens it; nothing is linked, and no header of CUDA is needed. The
// declarations below are those of CUDA 12 and 13; tests/cuda/headers_test.cc compares them with the toolkit's.
//
// Note [Finding CUDA]. Each library is searched in
//   1. the folders of RONDO_CUDA_PATH (separated by ':'), each also as the root of a toolkit (lib64, lib), as a Python
//      site-packages folder (nvidia/*/lib), and as a Python prefix (lib/python3*/site-packages/nvidia/*/lib);
//   2. wherever the system's loader looks;
//   3. /usr/local/cuda, /usr/local/cuda-*, /opt/cuda.
// NVRTC and cuBLASLt of CUDA 13 come before those of 12, unless the driver is one of CUDA 12.
// RONDO_CUDA=off: nothing is searched, and there is no CUDA. NVRTC uses the builtins library in its own folder.
//
// Thread safety: all functions here may be called from any thread. A library that was opened is never closed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace rondo::cuda {

// ---- The driver (cuda.h)

enum class Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kStubLibrary = 34,
  kDeviceUnavailable = 46,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kNoBinaryForGpu = 209,
  kEccUncorrectable = 214,
  kPeerAccessUnsupported = 217,
  kNvlinkUncorrectable = 220,
  kContained = 226,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchOutOfResources = 701,
  kLaunchTimeout = 702,
  kPeerAccessAlreadyEnabled = 704,
  kContextIsDestroyed = 709,
  kAssert = 710,
  kTooManyPeers = 711,
  kHardwareStackError = 714,
  kIllegalInstruction = 715,
  kMisalignedAddress = 716,
  kInvalidAddressSpace = 717,
  kInvalidPc = 718,
  kLaunchFailed = 719,
  kTensorMemoryLeak = 721,
  kNotPermitted = 800,
  kNotSupported = 801,
  kSystemDriverMismatch = 803,
  kExternalDevice = 911,
  kUnknown = 999,
};

using DevicePtr = unsigned long long;  // an address of a device's memory
using Context = struct OpaqueContext*;
using StreamPtr = struct OpaqueStream*;
using EventPtr = struct OpaqueEvent*;
using ModulePtr = struct OpaqueModule*;
using FunctionPtr = struct OpaqueFunction*;
using PoolPtr = struct OpaquePool*;
using HostFunction = void (*)(void*);
struct Uuid {
  char bytes[16];
};

enum class DeviceAttribute : int {
  kMaxThreadsPerBlock = 1,
  kMaxGridX = 5,
  kMaxGridY = 6,
  kMaxGridZ = 7,
  kMultiprocessors = 16,
  kCapabilityMajor = 75,
  kCapabilityMinor = 76,
  kMaxSharedPerBlock = 97,  // the bytes that a function may ask for
  kMemoryPools = 115,
};
enum class FunctionAttribute : int {
  kMaxThreadsPerBlock = 0,
  kStaticShared = 1,
  kLocalBytes = 3,
  kRegisters = 4,
  kMaxDynamicShared = 8,
};

inline constexpr unsigned kStreamNonBlocking = 1;  // does not wait for work of the default stream
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostAllocPortable = 1;  // page-locked for all devices

// F(member, exported name, signature)
#define RONDO_CUDA_DRIVER(F)                                                                                     \
  F(init, cuInit, Result(unsigned))                                                                              \
  F(driver_version, cuDriverGetVersion, Result(int*))                                                            \
  F(error_name, cuGetErrorName, Result(Result, const char**))                                                    \
  F(error_string, cuGetErrorString, Result(Result, const char**))                                                \
  F(device_get, cuDeviceGet, Result(int*, int))                                                                  \
  F(device_count, cuDeviceGetCount, Result(int*))                                                                \
  F(device_name, cuDeviceGetName, Result(char*, int, int))                                                       \
  F(device_attribute, cuDeviceGetAttribute, Result(int*, DeviceAttribute, int))                                  \
  F(device_total_memory, cuDeviceTotalMem_v2, Result(size_t*, int))                                              \
  F(device_uuid, cuDeviceGetUuid_v2, Result(Uuid*, int))                                                         \
  F(device_bus, cuDeviceGetPCIBusId, Result(char*, int, int))                                                    \
  F(device_can_access_peer, cuDeviceCanAccessPeer, Result(int*, int, int))                                       \
  F(primary_retain, cuDevicePrimaryCtxRetain, Result(Context*, int))                                             \
  F(primary_release, cuDevicePrimaryCtxRelease_v2, Result(int))                                                  \
  F(context_current, cuCtxGetCurrent, Result(Context*))                                                          \
  F(context_push, cuCtxPushCurrent_v2, Result(Context))                                                          \
  F(context_pop, cuCtxPopCurrent_v2, Result(Context*))                                                           \
  F(context_synchronize, cuCtxSynchronize, Result())                                                             \
  F(context_enable_peer, cuCtxEnablePeerAccess, Result(Context, unsigned))                                       \
  F(memory_info, cuMemGetInfo_v2, Result(size_t*, size_t*))                                                      \
  F(memory_allocate, cuMemAlloc_v2, Result(DevicePtr*, size_t))                                                  \
  F(memory_free, cuMemFree_v2, Result(DevicePtr))                                                                \
  F(memory_allocate_async, cuMemAllocAsync, Result(DevicePtr*, size_t, StreamPtr))                               \
  F(memory_free_async, cuMemFreeAsync, Result(DevicePtr, StreamPtr))                                             \
  F(default_pool, cuDeviceGetDefaultMemPool, Result(PoolPtr*, int))                                              \
  F(pool_trim, cuMemPoolTrimTo, Result(PoolPtr, size_t))                                                         \
  F(host_allocate, cuMemHostAlloc, Result(void**, size_t, unsigned))                                             \
  F(host_free, cuMemFreeHost, Result(void*))                                                                     \
  F(copy_to_device, cuMemcpyHtoDAsync_v2, Result(DevicePtr, const void*, size_t, StreamPtr))                     \
  F(copy_to_host, cuMemcpyDtoHAsync_v2, Result(void*, DevicePtr, size_t, StreamPtr))                             \
  F(copy_on_device, cuMemcpyDtoDAsync_v2, Result(DevicePtr, DevicePtr, size_t, StreamPtr))                       \
  F(copy_peer, cuMemcpyPeerAsync, Result(DevicePtr, Context, DevicePtr, Context, size_t, StreamPtr))             \
  F(fill_bytes, cuMemsetD8Async, Result(DevicePtr, unsigned char, size_t, StreamPtr))                            \
  F(stream_create, cuStreamCreateWithPriority, Result(StreamPtr*, unsigned, int))                                \
  F(stream_destroy, cuStreamDestroy_v2, Result(StreamPtr))                                                       \
  F(stream_synchronize, cuStreamSynchronize, Result(StreamPtr))                                                  \
  F(stream_wait_event, cuStreamWaitEvent, Result(StreamPtr, EventPtr, unsigned))                                 \
  F(launch_host, cuLaunchHostFunc, Result(StreamPtr, HostFunction, void*))                                       \
  F(event_create, cuEventCreate, Result(EventPtr*, unsigned))                                                    \
  F(event_destroy, cuEventDestroy_v2, Result(EventPtr))                                                          \
  F(event_record, cuEventRecord, Result(EventPtr, StreamPtr))                                                    \
  F(event_query, cuEventQuery, Result(EventPtr))                                                                 \
  F(event_synchronize, cuEventSynchronize, Result(EventPtr))                                                     \
  F(event_elapsed, cuEventElapsedTime, Result(float*, EventPtr, EventPtr))                                       \
  F(module_load, cuModuleLoadData, Result(ModulePtr*, const void*))                                              \
  F(module_unload, cuModuleUnload, Result(ModulePtr))                                                            \
  F(module_function, cuModuleGetFunction, Result(FunctionPtr*, ModulePtr, const char*))                          \
  F(function_attribute, cuFuncGetAttribute, Result(int*, FunctionAttribute, FunctionPtr))                        \
  F(function_set_attribute, cuFuncSetAttribute, Result(FunctionPtr, FunctionAttribute, int))                     \
  F(launch, cuLaunchKernel,                                                                                      \
    Result(FunctionPtr, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, StreamPtr, void**, \
           void**))

// ---- NVRTC (nvrtc.h)

enum class NvrtcResult : int { kSuccess = 0, kInvalidOption = 5, kCompilation = 6, kBuiltins = 7 };
using ProgramPtr = struct OpaqueProgram*;

#define RONDO_CUDA_NVRTC(F)                                                                          \
  F(version, nvrtcVersion, NvrtcResult(int*, int*))                                                  \
  F(error_string, nvrtcGetErrorString, const char*(NvrtcResult))                                     \
  F(n_architectures, nvrtcGetNumSupportedArchs, NvrtcResult(int*))                                   \
  F(architectures, nvrtcGetSupportedArchs, NvrtcResult(int*))                                        \
  F(create, nvrtcCreateProgram,                                                                      \
    NvrtcResult(ProgramPtr*, const char*, const char*, int, const char* const*, const char* const*)) \
  F(destroy, nvrtcDestroyProgram, NvrtcResult(ProgramPtr*))                                          \
  F(compile, nvrtcCompileProgram, NvrtcResult(ProgramPtr, int, const char* const*))                  \
  F(cubin_size, nvrtcGetCUBINSize, NvrtcResult(ProgramPtr, size_t*))                                 \
  F(cubin, nvrtcGetCUBIN, NvrtcResult(ProgramPtr, char*))                                            \
  F(ptx_size, nvrtcGetPTXSize, NvrtcResult(ProgramPtr, size_t*))                                     \
  F(ptx, nvrtcGetPTX, NvrtcResult(ProgramPtr, char*))                                                \
  F(log_size, nvrtcGetProgramLogSize, NvrtcResult(ProgramPtr, size_t*))                              \
  F(log, nvrtcGetProgramLog, NvrtcResult(ProgramPtr, char*))

// ---- cuBLASLt (cublasLt.h)

enum class LtStatus : int {
  kSuccess = 0,
  kNotInitialized = 1,
  kAllocFailed = 3,
  kInvalidValue = 7,
  kArchMismatch = 8,
  kExecutionFailed = 13,
  kInternalError = 14,
  kNotSupported = 15,
};
enum class LtType : int { kF32 = 0, kF64 = 1, kF16 = 2, kI8 = 3, kI32 = 10, kBF16 = 14 };
enum class LtCompute : int { kF32 = 68, kF32Pedantic = 69, kF64 = 70, kI32 = 72, kTF32 = 77 };
enum class LtTranspose : int { kNone = 0, kTranspose = 1 };
enum class LtEpilogue : int { kDefault = 1, kBias = 4, kGelu = 32, kGeluBias = 36, kGeluAuxBias = 164 };
enum class LtDescAttribute : int {
  kTransposeA = 3,
  kTransposeB = 4,
  kEpilogue = 7,
  kBiasPointer = 8,
  kEpilogueAuxPointer = 11,
  kEpilogueAuxLd = 12,
  kBiasType = 26,
};
enum class LtLayoutAttribute : int { kOrder = 1, kBatchCount = 5, kBatchStride = 6 };
inline constexpr uint32_t kReduceInComputeType = 2;  // a bit of kReductionSchemes
enum class LtPreferenceAttribute : int {
  kMaxWorkspace = 1,
  kReductionSchemes = 3,
  kMinAlignmentA = 5,
  kMinAlignmentB = 6,
  kMinAlignmentC = 7,
  kMinAlignmentD = 8,
};
using LtHandle = struct OpaqueLt*;
using LtDesc = struct OpaqueLtDesc*;
using LtLayout = struct OpaqueLtLayout*;
using LtPreference = struct OpaqueLtPreference*;
struct LtAlgo {
  uint64_t data[8];
};
struct LtHeuristic {
  LtAlgo algo;
  size_t workspace;
  LtStatus state;
  float waves;
  int reserved[4];
};

#define RONDO_CUDA_LT(F)                                                                                            \
  F(version, cublasLtGetVersion, size_t())                                                                          \
  F(status_string, cublasLtGetStatusString, const char*(LtStatus))                                                  \
  F(create, cublasLtCreate, LtStatus(LtHandle*))                                                                    \
  F(destroy, cublasLtDestroy, LtStatus(LtHandle))                                                                   \
  F(desc_create, cublasLtMatmulDescCreate, LtStatus(LtDesc*, LtCompute, LtType))                                    \
  F(desc_destroy, cublasLtMatmulDescDestroy, LtStatus(LtDesc))                                                      \
  F(desc_set, cublasLtMatmulDescSetAttribute, LtStatus(LtDesc, LtDescAttribute, const void*, size_t))               \
  F(layout_create, cublasLtMatrixLayoutCreate, LtStatus(LtLayout*, LtType, uint64_t, uint64_t, int64_t))            \
  F(layout_destroy, cublasLtMatrixLayoutDestroy, LtStatus(LtLayout))                                                \
  F(layout_set, cublasLtMatrixLayoutSetAttribute, LtStatus(LtLayout, LtLayoutAttribute, const void*, size_t))       \
  F(preference_create, cublasLtMatmulPreferenceCreate, LtStatus(LtPreference*))                                     \
  F(preference_destroy, cublasLtMatmulPreferenceDestroy, LtStatus(LtPreference))                                    \
  F(preference_set, cublasLtMatmulPreferenceSetAttribute,                                                           \
    LtStatus(LtPreference, LtPreferenceAttribute, const void*, size_t))                                             \
  F(heuristic, cublasLtMatmulAlgoGetHeuristic,                                                                      \
    LtStatus(LtHandle, LtDesc, LtLayout, LtLayout, LtLayout, LtLayout, LtPreference, int, LtHeuristic*, int*))      \
  F(matmul, cublasLtMatmul,                                                                                         \
    LtStatus(LtHandle, LtDesc, const void*, const void*, LtLayout, const void*, LtLayout, const void*, const void*, \
             LtLayout, void*, LtLayout, const LtAlgo*, void*, size_t, StreamPtr))

// ---- The tables

#define RONDO_CUDA_MEMBER(member, symbol, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;
struct Driver {
  RONDO_CUDA_DRIVER(RONDO_CUDA_MEMBER)
};
struct Nvrtc {
  RONDO_CUDA_NVRTC(RONDO_CUDA_MEMBER)
  std::string path;  // the path of the library
};
struct CublasLt {
  RONDO_CUDA_LT(RONDO_CUDA_MEMBER)
};
#undef RONDO_CUDA_MEMBER

// ---- Functions that find the libraries (find_libraries.cc)

// Return a library's table, or null if the library is not found; `*why_not` is then the reason in one line. Later calls
// give the same answer.
const Driver* find_driver(std::string* why_not);
const Nvrtc* find_nvrtc(std::string* why_not);
const CublasLt* find_cublas_lt(std::string* why_not);
// Like find_cublas_lt(), but throws DeviceError with the reason instead of returning null.
const CublasLt& require_cublas_lt();

// Makes find_driver(), find_cublas_lt() and find_cudnn() return these tables from now on (absent.h). If an argument is
// null, that function returns the table of its library again.
struct Cudnn;
void use_libraries(const Driver* driver, const CublasLt* lt, const Cudnn* dnn = nullptr);
// Forgets the answers of the find_*() functions: their next calls search again. Tables that were found stay valid: a
// device that is open uses its own. Used by tests, which change RONDO_CUDA_PATH while they run.
void forget_libraries();

}  // namespace rondo::cuda
