// The fake of NCCL in one process: its states, what it refuses, whole programs of several devices in one thread.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/tensor/tensor.h"
#include "rondo/tests/cuda/kernels.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/fake_nccl/library.h"

namespace rondo::test {
namespace {

void* data(const Tensor& tensor) { return tensor.storage().data(); }

// A communicator of one rank, as a program makes it.
NcclComm alone(const FakeCuda& cuda, int blocking, Status* status) {
  const cuda::ContextScope scope(cuda::device_state(cuda.device().index));
  UniqueId id;
  check(nccl().get_unique_id(&id));
  Config config;
  config.blocking = blocking;
  NcclComm communicator = nullptr;
  *status = nccl().init_rank_config(&communicator, 1, id, 0, &config);
  return communicator;
}
Status reduce(NcclComm communicator, const Tensor& x) {
  Status status{};
  call(x.device(), Stream::kCommunication, [&](cuda::StreamPtr stream) {
    return status = nccl().all_reduce(data(x), data(x), static_cast<size_t>(x.numel()), DataType::kFloat32,
                                      Reduction::kSum, communicator, stream);
  });
  return status;
}

TEST(NcclCommunicator, Version) {
  int version = 0;
  {
    FakeCuda cuda;
    check(nccl().get_version(&version));
    EXPECT_EQ(version, 22809);
  }
  FakeCuda cuda({.nccl = "version=21701"});
  check(nccl().get_version(&version));
  EXPECT_EQ(version, 21701);
}

TEST(NcclCommunicator, AnInitialisationThatDoesNotBlock) {
  FakeCuda cuda;
  Status status{};
  const NcclComm communicator = alone(cuda, 0, &status);
  EXPECT_EQ(status, Status::kInProgress);
  EXPECT_EQ(settled(communicator), Status::kSuccess);
  EXPECT_EQ(cuda->counts().communicators, 1);
  check(nccl().finalize(communicator));
  EXPECT_EQ(settled(communicator), Status::kSuccess);
  check(nccl().destroy(communicator));
  EXPECT_EQ(cuda->counts().communicators, 0);
}

// A call of a communicator that does not block may not have reached its stream when it returns.
TEST(NcclCommunicator, CallsThatDoNotBlock) {
  int in_progress = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    FakeCuda cuda({.seed = seed});
    Status status{};
    const NcclComm communicator = alone(cuda, 0, &status);
    settled(communicator);
    const Tensor x = Tensor::full({10}, 3, {kF32, cuda.device()});
    join(x.device(), Stream::kCompute, Stream::kCommunication);
    status = reduce(communicator, x);
    in_progress += status == Status::kInProgress;
    EXPECT_EQ(cuda->counts().collectives, status == Status::kInProgress ? 0 : 1);
    EXPECT_EQ(settled(communicator), Status::kSuccess);
    EXPECT_EQ(cuda->counts().collectives, 1);
    join(x.device(), Stream::kCommunication, Stream::kCompute);
    EXPECT_EQ(x.to_vector<float>(), std::vector<float>(10, 3));
    check(nccl().destroy(communicator));
  }
  EXPECT_GT(in_progress, 0);
  EXPECT_LT(in_progress, 12);
}

// Four devices in one thread: groups, and sums with sub-communicators of one process.
TEST(NcclCommunicator, AProcessOfFourDevices) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    FakeCuda cuda({.seed = seed, .devices = 4});
    const OneProcess comms({cuda.device(0), cuda.device(1), cuda.device(2), cuda.device(3)});
    std::vector<Tensor> x, y;
    for (int r = 0; r < 4; ++r) {
      x.push_back(Tensor::full({50}, static_cast<float>(r + 1), {kF32, cuda.device(r)}));
      y.push_back(Tensor::zeros({200}, {kF32, cuda.device(r)}));
      join(cuda.device(r), Stream::kCompute, Stream::kCommunication);
    }
    check(nccl().group_start());
    for (int r = 0; r < 4; ++r)
      for (int i = 0; i < 2; ++i)
        call(cuda.device(r), Stream::kCommunication, [&](cuda::StreamPtr stream) {
          return i == 0 ? nccl().all_gather(data(x[r]), data(y[r]), 50, DataType::kFloat32, comms[r], stream)
                        : nccl().all_reduce(data(x[r]), data(x[r]), 50, DataType::kFloat32, Reduction::kAvg, comms[r],
                                            stream);
        });
    check(nccl().group_end());
    for (int r = 0; r < 4; ++r) {
      join(cuda.device(r), Stream::kCommunication, Stream::kCompute);
      EXPECT_EQ(x[r].to_vector<float>(), std::vector<float>(50, 2.5f));
      const std::vector<float> gathered = y[r].to_vector<float>();
      for (size_t i = 0; i < 200; ++i) EXPECT_EQ(gathered[i], static_cast<float>(i / 50 + 1));
    }
  }
}

// What a program sees of a result before its end.
TEST(NcclCommunicator, AnAbortLeavesPoison) {
  FakeCuda cuda({.devices = 2});
  OneProcess comms({cuda.device(0), cuda.device(1)});
  const Tensor x = Tensor::full({50}, 1, {kF32, cuda.device()});
  join(cuda.device(), Stream::kCompute, Stream::kCommunication);
  reduce(comms[0], x);
  const EventHandle end = backend_of(cuda.device()).record(0, Stream::kCommunication);
  for (int i = 0; i < 2000; ++i) EXPECT_FALSE(backend_of(cuda.device()).reached(0, end));  // rank 1 does not come
  comms.abort(0);
  backend_of(cuda.device()).wait(0, Stream::kCompute, end);
  backend_of(cuda.device()).release(0, end);
  EXPECT_TRUE(std::isnan(x.to_vector<float>()[7]));
  comms.abort(1);
}

// The journal holds collectives, with the bytes that a rank sends.
TEST(NcclCommunicator, Journal) {
  FakeCuda cuda({.devices = 2});
  const OneProcess comms({cuda.device(0), cuda.device(1)});
  std::vector<Tensor> x;
  for (int r = 0; r < 2; ++r) x.push_back(Tensor::zeros({100}, {kF32, cuda.device(r)}));
  for (int r = 0; r < 2; ++r) join(cuda.device(r), Stream::kCompute, Stream::kCommunication);
  cuda->take_journal();
  check(nccl().group_start());
  for (int r = 0; r < 2; ++r) reduce(comms[r], x[r]);
  check(nccl().group_end());
  const std::vector<fake_cuda::Enqueued> journal = cuda->take_journal();
  ASSERT_EQ(journal.size(), 2u);
  EXPECT_EQ(journal[0].name, "ncclAllReduce of 100 f32, sum");
  EXPECT_EQ(journal[0].bytes, 400);  // twice a half
  EXPECT_EQ(journal[0].communicator, journal[1].communicator);
  for (int r = 0; r < 2; ++r) join(cuda.device(r), Stream::kCommunication, Stream::kCompute);
}

// A collective of many elements moves none where nothing is executed, and still needs all ranks.
TEST(NcclCommunicator, NothingIsExecuted) {
  FakeCuda cuda({.devices = 2, .bytes = size_t{60} << 30, .executes = false});
  const OneProcess comms({cuda.device(0), cuda.device(1)});
  std::vector<Tensor> x;
  for (int r = 0; r < 2; ++r) x.push_back(Tensor::empty({int64_t{1} << 31}, {kF32, cuda.device(r)}));
  check(nccl().group_start());
  for (int r = 0; r < 2; ++r) reduce(comms[r], x[r]);
  check(nccl().group_end());
  for (int r = 0; r < 2; ++r) synchronize(cuda.device(r));
}

// Kernels of CUDA source say which of their pointers are to constants: they may read what a collective reads.
void use_while_it_is_sent(bool writes) {
  FakeCuda cuda;
  Status status{};
  const NcclComm communicator = alone(cuda, 1, &status);
  Tensor x = Tensor::full({50}, 2, {kF32, cuda.device()});
  const Tensor y = Tensor::zeros({50}, {kF32, cuda.device()});
  join(x.device(), Stream::kCompute, Stream::kCommunication);
  call(x.device(), Stream::kCommunication, [&](cuda::StreamPtr stream) {
    return nccl().all_reduce(data(x), data(y), 50, DataType::kFloat32, Reduction::kSum, communicator, stream);
  });
  if (writes) x.fill_(3);
  const Tensor doubled = ops::add(x, x);
  EXPECT_EQ(doubled.to_vector<float>(), std::vector<float>(50, 4));
  join(x.device(), Stream::kCommunication, Stream::kCompute);
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(50, 2));
  check(nccl().destroy(communicator));
}
TEST(NcclCommunicator, WhatIsSentMayBeRead) { use_while_it_is_sent(false); }

class NcclMisuseDeathTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(NcclMisuseDeathTest, States) {
  const auto with = [](const std::function<void(FakeCuda&, NcclComm)>& misuse, int blocking) {
    FakeCuda cuda({.seed = 5});
    Status status{};
    misuse(cuda, alone(cuda, blocking, &status));
  };
  EXPECT_DEATH(with(
                   [](FakeCuda& cuda, NcclComm c) {
                     reduce(c, Tensor::zeros({5}, {kF32, cuda.device()}));
                   },
                   0),
               "ncclAllReduce: the communicator is still being initialised");
  EXPECT_DEATH(with([](FakeCuda&, NcclComm c) { nccl().destroy(c); }, 0), "still being initialised");
  EXPECT_DEATH(with(
                   [](FakeCuda& cuda, NcclComm c) {
                     settled(c);
                     const Tensor x = Tensor::zeros({5}, {kF32, cuda.device()});
                     join(x.device(), Stream::kCompute, Stream::kCommunication);
                     for (int i = 0; i < 20; ++i) reduce(c, x);
                   },
                   0),
               "the call before it has not returned ncclSuccess yet");
  // An event that is recorded meanwhile does not hold the collective.
  EXPECT_DEATH(with(
                   [](FakeCuda& cuda, NcclComm c) {
                     settled(c);
                     const cuda::Kernel kernel = cuda.kernel("axpy", axpy());
                     const Tensor x = Tensor::zeros({5}, {kF32, cuda.device()});
                     for (int i = 0; i < 20; ++i) {
                       join(x.device(), Stream::kCompute, Stream::kCommunication);
                       reduce(c, x);
                       join(x.device(), Stream::kCommunication, Stream::kCompute);
                       settled(c);
                       launch_axpy(kernel, x, Tensor::zeros({5}, {kF32, cuda.device()}), 1);
                     }
                   },
                   0),
               "race: kernel axpy");
  EXPECT_DEATH(with(
                   [](FakeCuda&, NcclComm c) {
                     nccl().destroy(c);
                     nccl().destroy(c);
                   },
                   1),
               "the communicator was destroyed");
  EXPECT_DEATH(with(
                   [](FakeCuda& cuda, NcclComm c) {
                     nccl().finalize(c);
                     reduce(c, Tensor::zeros({5}, {kF32, cuda.device()}));
                   },
                   1),
               "the communicator was finalized");
  EXPECT_DEATH(with(
                   [](FakeCuda&, NcclComm c) {
                     nccl().abort(c);
                     int n = 0;
                     nccl().count(c, &n);
                   },
                   1),
               "ncclCommCount: the communicator is used after its abort");
}

TEST_F(NcclMisuseDeathTest, Arguments) {
  const auto with = [](const std::function<Status(FakeCuda&, NcclComm, cuda::StreamPtr)>& misuse) {
    FakeCuda cuda;
    Status status{};
    const NcclComm communicator = alone(cuda, 1, &status);
    call(cuda.device(), Stream::kCommunication,
         [&](cuda::StreamPtr stream) { return misuse(cuda, communicator, stream); });
  };
  const auto all_reduce = [&](void* from, void* to, DataType dtype, int reduction) {
    with([=](FakeCuda& cuda, NcclComm c, cuda::StreamPtr stream) {
      const Tensor x = Tensor::zeros({64}, {kF32, cuda.device()});
      auto* const bytes = static_cast<std::byte*>(data(x));
      const auto at = [&](void* offset) {
        const auto n = reinterpret_cast<uintptr_t>(offset);
        return n < 1000 ? bytes + n : static_cast<std::byte*>(offset);
      };
      return nccl().all_reduce(at(from), at(to), 32, dtype, static_cast<Reduction>(reduction), c, stream);
    });
  };
  const auto offset = [](uintptr_t n) { return reinterpret_cast<void*>(n); };
  float host[64];
  EXPECT_DEATH(all_reduce(offset(0), host, DataType::kFloat32, 0), "the receive buffer is no device memory");
  EXPECT_DEATH(all_reduce(host, offset(0), DataType::kFloat32, 0), "the send buffer is no device memory");
  EXPECT_DEATH(all_reduce(offset(0), offset(64), DataType::kFloat32, 0), "overlap without being in place");
  EXPECT_DEATH(all_reduce(offset(0), offset(130), DataType::kFloat32, 0), "not aligned");
  EXPECT_DEATH(all_reduce(offset(0), offset(0), DataType::kFloat32, 7), "unknown reduction 7");
  EXPECT_DEATH(all_reduce(offset(0), offset(0), static_cast<DataType>(11), 0), "unknown type 11");
  EXPECT_DEATH(with([](FakeCuda& cuda, NcclComm c, cuda::StreamPtr stream) {
                 const Tensor x = Tensor::zeros({8}, {kF32, cuda.device()});
                 return nccl().broadcast(data(x), data(x), 8, DataType::kFloat32, 1, c, stream);
               }),
               "the root is 1 of 1 ranks");
  EXPECT_DEATH(with([](FakeCuda& cuda, NcclComm c, cuda::StreamPtr) {
                 const Tensor x = Tensor::zeros({8}, {kF32, cuda.device()});
                 return nccl().all_gather(data(x), data(x), 8, DataType::kFloat32, c, nullptr);
               }),
               "no stream has this handle");
  EXPECT_DEATH(with([](FakeCuda&, NcclComm, cuda::StreamPtr) { return nccl().group_end(); }), "no ncclGroupStart");
  EXPECT_DEATH(with([](FakeCuda&, NcclComm, cuda::StreamPtr) {
                 Config config;
                 config.magic = 0;
                 UniqueId id;
                 nccl().get_unique_id(&id);
                 NcclComm other = nullptr;
                 return nccl().init_rank_config(&other, 1, id, 0, &config);
               }),
               "NCCL_CONFIG_INITIALIZER");
}

// Memory that is taken from the driver, block by block: RONDO_CUDA_CACHE=0.
TEST_F(NcclMisuseDeathTest, ABlockThatIsFreedWhileItIsReduced) {
  const Setting no_cache("RONDO_CUDA_CACHE", "0");
  EXPECT_DEATH(
      {
        FakeCuda cuda;
        Status status{};
        const NcclComm c = alone(cuda, 1, &status);
        Tensor x = Tensor::zeros({64}, {kF32, cuda.device()});
        join(x.device(), Stream::kCompute, Stream::kCommunication);
        reduce(c, x);
        x = Tensor();
      },
      "race: cuMemFreeAsync .* writes bytes that ncclAllReduce");
}

TEST_F(NcclMisuseDeathTest, WhatIsSentMayNotBeWritten) {
  EXPECT_DEATH(use_while_it_is_sent(true), "race: kernel rondo_fill has a pointer into bytes that ncclAllReduce");
}

TEST_F(NcclMisuseDeathTest, AnUnknownFault) {
  EXPECT_DEATH(
      {
        FakeCuda cuda({.nccl = "explode@1,2"});
        int version;
        nccl().get_version(&version);
      },
      "explode@1,2 is nothing that it knows");
}

// A communicator that is left shows at the end.
TEST(NcclCommunicator, IsMissedWhereItIsLeft) {
  FakeCuda cuda;
  Status status{};
  const NcclComm communicator = alone(cuda, 1, &status);
  EXPECT_EQ(cuda->counts().communicators, 1);
  EXPECT_EQ(cuda->counts().contexts, 1);
  check(nccl().abort(communicator));
  EXPECT_EQ(cuda->counts().communicators, 0);
}

}  // namespace
}  // namespace rondo::test
