// A table of the functions of NCCL, the library that moves tensors between GPUs. NCCL is searched for like CUDA's
// libraries (Note [Finding CUDA] in runtime/cuda/driver.h), and opened at first use. No header of NCCL is needed: the
// declarations here are those of NCCL 2.18, which later versions accept, too. tests/dist/nccl_headers_test.cc compares
// them with nccl.h.
//
// Thread safety: all functions here may be called from any thread. An opened library is never closed.
#pragma once

#include <climits>
#include <cstddef>
#include <string>
#include <type_traits>

namespace rondo::dist {

enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,  // another rank has ended, or the network failed
  kInProgress = 7,   // for non-blocking communicators: call async_error() until it returns another result
};
enum class NcclType : int { kU8 = 1, kI32 = 2, kI64 = 4, kF16 = 6, kF32 = 7, kF64 = 8, kBF16 = 9 };
enum class NcclOp : int { kSum = 0, kAverage = 4 };
using NcclComm = struct OpaqueNcclComm*;
struct NcclId {
  char bytes[128];
};
inline constexpr int kNcclUndefined = INT_MIN;  // the library chooses the value
// The layout of NCCL 2.18. A later library recognises it by `size` and `version`.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef, version = 21800;
  int blocking = kNcclUndefined;
  int cga_cluster_size = kNcclUndefined, min_ctas = kNcclUndefined, max_ctas = kNcclUndefined;
  const char* net_name = nullptr;
  int split_share = kNcclUndefined;
};

// F(member, exported name, signature). The stream is the last void*: CUDA's own handle (BackendTable::call_library).
#define RONDO_NCCL(F)                                                                                     \
  F(version, ncclGetVersion, NcclResult(int*))                                                            \
  F(error_string, ncclGetErrorString, const char*(NcclResult))                                            \
  F(last_error, ncclGetLastError, const char*(NcclComm))                                                  \
  F(unique_id, ncclGetUniqueId, NcclResult(NcclId*))                                                      \
  F(init_rank, ncclCommInitRankConfig, NcclResult(NcclComm*, int, NcclId, int, NcclConfig*))              \
  F(async_error, ncclCommGetAsyncError, NcclResult(NcclComm, NcclResult*))                                \
  F(finalize, ncclCommFinalize, NcclResult(NcclComm))                                                     \
  F(destroy, ncclCommDestroy, NcclResult(NcclComm))                                                       \
  F(abort, ncclCommAbort, NcclResult(NcclComm))                                                           \
  F(all_reduce, ncclAllReduce, NcclResult(const void*, void*, size_t, NcclType, NcclOp, NcclComm, void*)) \
  F(broadcast, ncclBroadcast, NcclResult(const void*, void*, size_t, NcclType, int, NcclComm, void*))     \
  F(all_gather, ncclAllGather, NcclResult(const void*, void*, size_t, NcclType, NcclComm, void*))         \
  F(reduce_scatter, ncclReduceScatter, NcclResult(const void*, void*, size_t, NcclType, NcclOp, NcclComm, void*))

#define RONDO_NCCL_MEMBER(member, symbol, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;
struct NcclLibrary {
  RONDO_NCCL(RONDO_NCCL_MEMBER)
  std::string path, version_text;  // version_text: such as "2.28.9"
};
#undef RONDO_NCCL_MEMBER

// Returns null if there is no NCCL or it is older than 2.18; then `*why_not` is the reason in one line. The result is
// cached.
const NcclLibrary* find_nccl(std::string* why_not);
// Makes the next find_nccl() search again. For tests, which change RONDO_CUDA_PATH while they run.
void forget_nccl();

// Returns the library's text for a result, and its last error if there is one: "unhandled system error (connection
// refused)".
std::string describe(const NcclLibrary& library, NcclResult result, NcclComm comm);

}  // namespace rondo::dist
