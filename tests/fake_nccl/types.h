// NCCL's types as nccl.h 2.28 declares them, under names of our own: the fake is built where that header is not.
// headers_test.cc compares them with it, where it is.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

namespace rondo::fake_nccl {

enum class Status : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum class DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};
inline constexpr int kDataTypes = 10;  // that the fake knows: not the two of 8 bits

enum class Reduction : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };
inline constexpr int kReductions = 5;

struct UniqueId {
  char internal[128];
};

inline constexpr int kUndefined = INT_MIN;
inline constexpr unsigned kConfigMagic = 0xcafebeef;
inline constexpr int kNoColor = -1;

struct Config {
  size_t size = sizeof(Config);
  unsigned magic = kConfigMagic;
  unsigned version = 22809;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined, min_ctas = kUndefined, max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined, traffic_class = kUndefined;
  const char* comm_name = nullptr;
  int collnet_enable = kUndefined, cta_policy = kUndefined, shrink_share = kUndefined, nvls_ctas = kUndefined,
      n_channels_per_net_peer = kUndefined, nvlink_centric_sched = kUndefined;
};

}  // namespace rondo::fake_nccl
