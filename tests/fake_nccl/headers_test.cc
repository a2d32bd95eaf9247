// Our declarations of NCCL agree with its header: sizes, values and signatures. Where it is absent there is nothing to
// compare with.
#include <dlfcn.h>
#include <gtest/gtest.h>

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#define RONDO_NCCL_HEADER 1
#include <nccl.h>
#endif

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "rondo/tests/declared_alike.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/fake_nccl/library.h"

namespace rondo::test {
namespace {

#ifdef RONDO_NCCL_HEADER

#if NCCL_VERSION_CODE >= 22807
using SameConfig = Same<ncclConfig_t, Config>;
#else
using SameConfig = Means<ncclConfig_t, Config>;  // it grew later
#endif
using Types = test::Types<Same<ncclResult_t, Status>, Same<ncclDataType_t, DataType>, Same<ncclRedOp_t, Reduction>,
                          Same<ncclUniqueId, UniqueId>, Same<ncclComm_t, NcclComm>, Same<cudaStream_t, cuda::StreamPtr>,
                          SameConfig>;
RONDO_NCCL_FUNCTIONS(CHECK_SIGNATURE)

CHECK_VALUE(Status::kSuccess, ncclSuccess);
CHECK_VALUE(Status::kUnhandledCudaError, ncclUnhandledCudaError);
CHECK_VALUE(Status::kSystemError, ncclSystemError);
CHECK_VALUE(Status::kInternalError, ncclInternalError);
CHECK_VALUE(Status::kInvalidArgument, ncclInvalidArgument);
CHECK_VALUE(Status::kInvalidUsage, ncclInvalidUsage);
CHECK_VALUE(Status::kRemoteError, ncclRemoteError);
CHECK_VALUE(Status::kInProgress, ncclInProgress);
CHECK_VALUE(DataType::kInt8, ncclInt8);
CHECK_VALUE(DataType::kUint8, ncclUint8);
CHECK_VALUE(DataType::kInt32, ncclInt32);
CHECK_VALUE(DataType::kUint32, ncclUint32);
CHECK_VALUE(DataType::kInt64, ncclInt64);
CHECK_VALUE(DataType::kUint64, ncclUint64);
CHECK_VALUE(DataType::kFloat16, ncclFloat16);
CHECK_VALUE(DataType::kFloat32, ncclFloat32);
CHECK_VALUE(DataType::kFloat64, ncclFloat64);
CHECK_VALUE(DataType::kBfloat16, ncclBfloat16);
CHECK_VALUE(Reduction::kSum, ncclSum);
CHECK_VALUE(Reduction::kProd, ncclProd);
CHECK_VALUE(Reduction::kMax, ncclMax);
CHECK_VALUE(Reduction::kMin, ncclMin);
CHECK_VALUE(Reduction::kAvg, ncclAvg);
CHECK_VALUE(fake_nccl::kNoColor, NCCL_SPLIT_NOCOLOR);

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

#ifdef RONDO_REAL_NCCL
// What the real library says where there is no GPU.
TEST(NcclHeader, TheRealLibraryAnswersAlike) {
  void* const library = dlopen(RONDO_REAL_NCCL, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) GTEST_SKIP() << dlerror();
  const Nccl theirs = {
#define RONDO_NCCL_MEMBER(member, symbol, ...) \
  reinterpret_cast<std::add_pointer_t<__VA_ARGS__>>(dlsym(library, #symbol)),
      RONDO_NCCL_FUNCTIONS(RONDO_NCCL_MEMBER)
#undef RONDO_NCCL_MEMBER
  };
  FakeCuda cuda({.aborts = false});
  synchronize(cuda.device());  // the driver is up
  for (int i = 0; i < 10; ++i)
    EXPECT_STREQ(theirs.error_string(static_cast<Status>(i)), nccl().error_string(static_cast<Status>(i)));
  for (const Nccl* library_of : {&theirs, &nccl()}) {
    EXPECT_EQ(library_of->group_end(), Status::kInvalidUsage);
    EXPECT_EQ(library_of->group_start(), Status::kSuccess);
    EXPECT_EQ(library_of->group_end(), Status::kSuccess);
    EXPECT_EQ(library_of->destroy(nullptr), Status::kSuccess);
    EXPECT_EQ(library_of->abort(nullptr), Status::kSuccess);
    EXPECT_EQ(library_of->all_reduce(nullptr, nullptr, 1, DataType::kFloat32, Reduction::kSum, nullptr, nullptr),
              Status::kInvalidArgument);
    UniqueId one{}, other{};
    EXPECT_EQ(library_of->get_unique_id(&one), Status::kSuccess);
    EXPECT_EQ(library_of->get_unique_id(&other), Status::kSuccess);
    EXPECT_NE(std::memcmp(&one, &other, sizeof one), 0);
  }
}
#endif

}  // namespace
}  // namespace rondo::test
