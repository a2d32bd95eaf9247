// NCCL's functions for tests, and how they are called on a stream of a fake device.
//
//   FakeCuda cuda({.devices = 2});
//   call(cuda.device(), Stream::kCommunication, [&](cuda::StreamPtr stream) {
//     return nccl().all_reduce(data, data, n, DataType::kFloat32, Reduction::kSum, communicator, stream);
//   });
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "rondo/runtime/cuda/driver.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/device/device.h"
#include "rondo/tests/fake_nccl/types.h"

namespace rondo::fake_nccl {
class Communicator;  // opaque here
}

namespace rondo::test {

using fake_nccl::Config;
using fake_nccl::DataType;
using fake_nccl::Reduction;
using fake_nccl::Status;
using fake_nccl::UniqueId;
using NcclComm = fake_nccl::Communicator*;

// F(member, exported name, signature)
#define RONDO_NCCL_FUNCTIONS(F)                                                                                    \
  F(get_version, ncclGetVersion, Status(int*))                                                                     \
  F(get_unique_id, ncclGetUniqueId, Status(UniqueId*))                                                             \
  F(init_rank, ncclCommInitRank, Status(NcclComm*, int, UniqueId, int))                                            \
  F(init_rank_config, ncclCommInitRankConfig, Status(NcclComm*, int, UniqueId, int, Config*))                      \
  F(split, ncclCommSplit, Status(NcclComm, int, int, NcclComm*, Config*))                                          \
  F(finalize, ncclCommFinalize, Status(NcclComm))                                                                  \
  F(destroy, ncclCommDestroy, Status(NcclComm))                                                                    \
  F(abort, ncclCommAbort, Status(NcclComm))                                                                        \
  F(async_error, ncclCommGetAsyncError, Status(NcclComm, Status*))                                                 \
  F(error_string, ncclGetErrorString, const char*(Status))                                                         \
  F(last_error, ncclGetLastError, const char*(NcclComm))                                                           \
  F(count, ncclCommCount, Status(const NcclComm, int*))                                                            \
  F(device, ncclCommCuDevice, Status(const NcclComm, int*))                                                        \
  F(user_rank, ncclCommUserRank, Status(const NcclComm, int*))                                                     \
  F(all_reduce, ncclAllReduce, Status(const void*, void*, size_t, DataType, Reduction, NcclComm, cuda::StreamPtr)) \
  F(broadcast, ncclBroadcast, Status(const void*, void*, size_t, DataType, int, NcclComm, cuda::StreamPtr))        \
  F(reduce_scatter, ncclReduceScatter,                                                                             \
    Status(const void*, void*, size_t, DataType, Reduction, NcclComm, cuda::StreamPtr))                            \
  F(all_gather, ncclAllGather, Status(const void*, void*, size_t, DataType, NcclComm, cuda::StreamPtr))            \
  F(group_start, ncclGroupStart, Status())                                                                         \
  F(group_end, ncclGroupEnd, Status())

struct Nccl {
#define RONDO_NCCL_MEMBER(member, symbol, ...) std::add_pointer_t<__VA_ARGS__> member;
  RONDO_NCCL_FUNCTIONS(RONDO_NCCL_MEMBER)
#undef RONDO_NCCL_MEMBER
};
const Nccl& nccl();  // of the fake's library

// Throws Error with the name of a status that is neither success nor kInProgress.
void check(Status status);
// Calls with the stream's handle, and the device current.
void call(Device device, Stream stream, const std::function<Status(cuda::StreamPtr)>& function);
// Asks for the state until it is no longer kInProgress.
Status settled(NcclComm communicator);

// A communicator over devices of one process: rank i on device i. Blocking ones.
class OneProcess {
 public:
  explicit OneProcess(const std::vector<Device>& devices);
  ~OneProcess();  // destroys those that are left
  OneProcess(const OneProcess&) = delete;
  OneProcess& operator=(const OneProcess&) = delete;
  NcclComm operator[](size_t rank) const { return communicators_[rank]; }
  void abort(size_t rank);

 private:
  std::vector<Device> devices_;
  std::vector<NcclComm> communicators_;
};

// Later work of stream `after` comes after what `before` has now.
void join(Device device, Stream before, Stream after);

}  // namespace rondo::test
