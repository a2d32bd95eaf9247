// Our declarations of NCCL agree with nccl.h: sizes, values and signatures. Where the header is absent there is nothing
// to compare with.
#include <gtest/gtest.h>

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#define RONDO_NCCL_HEADER 1
#include <nccl.h>
#endif

#include <cstddef>

#include "rondo/dist/groups/nccl_library.h"
#include "rondo/tests/declared_alike.h"

namespace rondo::dist {
namespace {

#ifdef RONDO_NCCL_HEADER

using test::Same;
using Types = test::Types<Same<ncclResult_t, NcclResult>, Same<ncclComm_t, NcclComm>, Same<ncclUniqueId, NcclId>,
                          Same<ncclDataType_t, NcclType>, Same<ncclRedOp_t, NcclOp>, Same<cudaStream_t, void*>,
                          test::Means<ncclConfig_t, NcclConfig>>;
// It has grown since 2.18, at its end.
static_assert(sizeof(ncclConfig_t) >= sizeof(NcclConfig) && alignof(ncclConfig_t) == alignof(NcclConfig));
RONDO_NCCL(CHECK_SIGNATURE)

CHECK_VALUE(NcclResult::kSuccess, ncclSuccess);
CHECK_VALUE(NcclResult::kUnhandledCudaError, ncclUnhandledCudaError);
CHECK_VALUE(NcclResult::kSystemError, ncclSystemError);
CHECK_VALUE(NcclResult::kInternalError, ncclInternalError);
CHECK_VALUE(NcclResult::kInvalidArgument, ncclInvalidArgument);
CHECK_VALUE(NcclResult::kInvalidUsage, ncclInvalidUsage);
CHECK_VALUE(NcclResult::kRemoteError, ncclRemoteError);
CHECK_VALUE(NcclResult::kInProgress, ncclInProgress);
CHECK_VALUE(NcclType::kU8, ncclUint8);
CHECK_VALUE(NcclType::kI32, ncclInt32);
CHECK_VALUE(NcclType::kI64, ncclInt64);
CHECK_VALUE(NcclType::kF16, ncclFloat16);
CHECK_VALUE(NcclType::kF32, ncclFloat32);
CHECK_VALUE(NcclType::kF64, ncclFloat64);
CHECK_VALUE(NcclType::kBF16, ncclBfloat16);
CHECK_VALUE(NcclOp::kSum, ncclSum);
CHECK_VALUE(NcclOp::kAverage, ncclAvg);
CHECK_VALUE(kNcclUndefined, NCCL_CONFIG_UNDEF_INT);
static_assert(sizeof(NcclId) == NCCL_UNIQUE_ID_BYTES);

#define CHECK_FIELD(ours, theirs)                                              \
  static_assert(offsetof(NcclConfig, ours) == offsetof(ncclConfig_t, theirs)); \
  static_assert(sizeof(NcclConfig::ours) == sizeof(ncclConfig_t::theirs))
CHECK_FIELD(size, size);
CHECK_FIELD(magic, magic);
CHECK_FIELD(version, version);
CHECK_FIELD(blocking, blocking);
CHECK_FIELD(cga_cluster_size, cgaClusterSize);
CHECK_FIELD(min_ctas, minCTAs);
CHECK_FIELD(max_ctas, maxCTAs);
CHECK_FIELD(net_name, netName);
CHECK_FIELD(split_share, splitShare);

TEST(NcclHeaders, TheDefaultConfiguration) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const NcclConfig ours;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_EQ(ours.version, static_cast<unsigned>(NCCL_VERSION(2, 18, 0)));
  EXPECT_LE(ours.version, theirs.version);
  EXPECT_EQ(ours.size, sizeof ours);
  EXPECT_EQ(ours.blocking, theirs.blocking);
  EXPECT_EQ(ours.cga_cluster_size, theirs.cgaClusterSize);
  EXPECT_EQ(ours.min_ctas, theirs.minCTAs);
  EXPECT_EQ(ours.max_ctas, theirs.maxCTAs);
  EXPECT_EQ(ours.net_name, theirs.netName);
  EXPECT_EQ(ours.split_share, theirs.splitShare);
}

#else

TEST(NcclHeaders, TheDefaultConfiguration) { GTEST_SKIP() << "no nccl.h here"; }

#endif

}  // namespace
}  // namespace rondo::dist
