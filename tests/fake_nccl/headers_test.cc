// Our declarations of NCCL agree with its header: sizes, values and signatures. Where it is absent there is nothing to
// compare with.
#include <gtest/gtest.h>

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#define RONDO_NCCL_HEADER 1
#include <nccl.h>
#endif

#include <cstddef>
#include <type_traits>

#include "rondo/tests/fake_nccl/library.h"

namespace rondo::test {
namespace {

#ifdef RONDO_NCCL_HEADER

// NCCL's type as ours.
template <class T> struct Ours { using Type = T; };
template <class T> struct Ours<const T> { using Type = const typename Ours<T>::Type; };
template <class T> struct Ours<T*> { using Type = typename Ours<T>::Type*; };
#define SAME(theirs, ours)                                                             \
  template <> struct Ours<theirs> {                                                    \
    static_assert(sizeof(theirs) == sizeof(ours) && alignof(theirs) == alignof(ours)); \
    using Type = ours;                                                                 \
  }
SAME(ncclResult_t, Status);
SAME(ncclDataType_t, DataType);
SAME(ncclRedOp_t, Reduction);
SAME(ncclUniqueId, UniqueId);
SAME(ncclComm_t, NcclComm);
SAME(cudaStream_t, cuda::StreamPtr);
#if NCCL_VERSION_CODE >= 22807
SAME(ncclConfig_t, Config);
#else
template <> struct Ours<ncclConfig_t> { using Type = Config; };  // it grew later
#endif
#undef SAME
template <class F> struct Translated;
template <class R, class... A> struct Translated<R(A...)> {
  using Type = typename Ours<R>::Type(typename Ours<A>::Type...);
};
#define CHECK_SIGNATURE(member, symbol, ...) \
  static_assert(std::is_same_v<typename Translated<decltype(symbol)>::Type, __VA_ARGS__>, #symbol);
RONDO_NCCL_FUNCTIONS(CHECK_SIGNATURE)
#undef CHECK_SIGNATURE

#define SAME(theirs, ours) static_assert(static_cast<long long>(theirs) == static_cast<long long>(ours), #theirs)
SAME(ncclSuccess, Status::kSuccess);
SAME(ncclUnhandledCudaError, Status::kUnhandledCudaError);
SAME(ncclSystemError, Status::kSystemError);
SAME(ncclInternalError, Status::kInternalError);
SAME(ncclInvalidArgument, Status::kInvalidArgument);
SAME(ncclInvalidUsage, Status::kInvalidUsage);
SAME(ncclRemoteError, Status::kRemoteError);
SAME(ncclInProgress, Status::kInProgress);
SAME(ncclInt8, DataType::kInt8);
SAME(ncclUint8, DataType::kUint8);
SAME(ncclInt32, DataType::kInt32);
SAME(ncclUint32, DataType::kUint32);
SAME(ncclInt64, DataType::kInt64);
SAME(ncclUint64, DataType::kUint64);
SAME(ncclFloat16, DataType::kFloat16);
SAME(ncclFloat32, DataType::kFloat32);
SAME(ncclFloat64, DataType::kFloat64);
SAME(ncclBfloat16, DataType::kBfloat16);
SAME(ncclSum, Reduction::kSum);
SAME(ncclProd, Reduction::kProd);
SAME(ncclMax, Reduction::kMax);
SAME(ncclMin, Reduction::kMin);
SAME(ncclAvg, Reduction::kAvg);
SAME(NCCL_SPLIT_NOCOLOR, fake_nccl::kNoColor);
#undef SAME

TEST(NcclHeader, TheConfigurationIsInitialisedAlike) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const Config ours;
  EXPECT_EQ(theirs.magic, ours.magic);
  EXPECT_EQ(offsetof(ncclConfig_t, blocking), offsetof(Config, blocking));
  EXPECT_EQ(offsetof(ncclConfig_t, netName), offsetof(Config, net_name));
  EXPECT_EQ(offsetof(ncclConfig_t, commName), offsetof(Config, comm_name));
  EXPECT_EQ(theirs.blocking, ours.blocking);
}

#else

TEST(NcclHeader, TheConfigurationIsInitialisedAlike) { GTEST_SKIP() << "no nccl.h"; }

#endif

}  // namespace
}  // namespace rondo::test
