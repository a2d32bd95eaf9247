// Mistakes that programs make with NCCL, planted into a small one: the fake notices each, in every order of the work.
// It ends the process where the mistake is one on this device; where ranks do not fit each other the result is wrong or
// never comes, as with the real library.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/tensor/tensor.h"
#include "rondo/tests/cuda/kernels.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/fake_nccl/library.h"

namespace rondo::test {
namespace {

enum class Bug {
  kNone,
  kNoEventBefore,
  kNoEventAfter,
  kEventRecordedBefore,
  kOtherStream,
  kStreamOfAnotherDevice,
  kFreedEarly,
  kWrittenEarly,
  kWrittenWhileScattered,
  kOtherOrder,
  kAveragedTwice,
  kShardOffByOne,
  kStalePrefetch,
  kGatheredEarly,
  kOtherType,
  kOtherCount,
  kOtherRoot,
  kSkipped,
  kUsedAfterAbort,
  kBufferOfAnotherDevice,
  kNoGroup,
};
enum class Outcome { kRight, kWrong, kHangs };

constexpr int64_t kBucket = 96, kShard = kBucket;  // elements; the parameters are two of each

// Two ranks in this process, on two devices. A step: gradients in two buckets are averaged, and update the parameters;
// then gradients are scattered, each rank updates its half of the parameters, and gathers them; a buffer is broadcast.
class Program {
 public:
  Program(Bug bug, uint64_t seed, bool declared, const std::string& behaviour)
      : bug_(bug), cuda_({.seed = seed, .devices = 2, .nccl = behaviour}) {
    fake_cuda::Kernel kernel = axpy();
    if (!declared) kernel.accesses = nullptr;
    for (int r = 0; r < 2; ++r) kernels_.push_back(cuda_.kernel("axpy", kernel, r));
    comms_.emplace(std::vector{cuda_.device(0), cuda_.device(1)});
    for (int r = 0; r < 2; ++r) {
      const TensorOptions on{kF32, cuda_.device(r)};
      parameters_.push_back(Tensor::zeros({2 * kShard}, on));
      ones_.push_back(Tensor::full({2 * kBucket}, 1, on));
      buffers_.push_back(Tensor::full({kBucket}, static_cast<float>(r + 5), on));
    }
  }

  Outcome run() {
    for (int step = 0; step < 2; ++step) {
      averages(step);
      if (!came()) return hangs();
      shards(step);
      if (!came()) return hangs();
    }
    collective([&](int r, cuda::StreamPtr stream) {
      const int root = bug_ == Bug::kOtherRoot && r == 1 ? 1 : 0;
      return nccl().broadcast(at(buffers_, r), at(buffers_, r), kBucket, DataType::kFloat32, root, comm(r), stream);
    });
    if (!came()) return hangs();
    bool right = true;
    for (int r = 0; r < 2; ++r) {
      join(device(r), Stream::kCommunication, Stream::kCompute);
      const std::vector<float> values = parameters_[r].to_vector<float>();
      for (size_t i = 0; i < values.size(); ++i) right = right && values[i] == expected(i);
      for (const float value : buffers_[r].to_vector<float>()) right = right && value == 5;
    }
    return right ? Outcome::kRight : Outcome::kWrong;
  }

 private:
  static float gradient(int rank, int step) { return static_cast<float>(2 * rank + 4 * step + 1); }
  // The average of both ranks and their sum; in the second bucket 8 more.
  static float expected(size_t element) {
    float total = 0;
    for (int step = 0; step < 2; ++step)
      total += 1.5f * (gradient(0, step) + gradient(1, step)) + (element < kBucket ? 0 : 8);
    return total;
  }

  Device device(int r) const { return cuda_.device(r); }
  NcclComm comm(int r) const { return (*comms_)[static_cast<size_t>(r)]; }
  static float* at(const std::vector<Tensor>& tensors, int r, int64_t element = 0) {
    return reinterpret_cast<float*>(tensors[static_cast<size_t>(r)].storage().data()) + element;
  }
  void add(int r, float* to, const float* from, int64_t n, float factor) {
    launch_axpy(r, kernels_[static_cast<size_t>(r)], to, from, n, factor);
  }
  Stream communication() const { return bug_ == Bug::kOtherStream ? Stream::kCopy : Stream::kCommunication; }

  template <class Function> void collective(Function function) {
    if (bug_ != Bug::kNoGroup) check(nccl().group_start());
    for (int r = 0; r < 2; ++r)
      call(device(r), communication(), [&](cuda::StreamPtr stream) { return function(r, stream); });
    if (bug_ != Bug::kNoGroup) check(nccl().group_end());
  }
  void before(int r) {
    if (bug_ != Bug::kNoEventBefore) join(device(r), Stream::kCompute, Stream::kCommunication);
  }
  void after(int r) {
    if (bug_ != Bug::kNoEventAfter && bug_ != Bug::kEventRecordedBefore)
      join(device(r), Stream::kCommunication, Stream::kCompute);
  }

  void averages(int step) {
    std::vector<Tensor> buckets, other;
    for (int r = 0; r < 2; ++r) buckets.push_back(Tensor::zeros({2 * kBucket}, {kF32, device(r)}));
    for (int r = 0; r < 2; ++r) add(r, at(buckets, r), at(ones_, r), 2 * kBucket, gradient(r, step));
    for (int r = 0; r < 2; ++r) add(r, at(buckets, r, kBucket), at(ones_, r), kBucket, 8);  // buckets differ
    for (int r = 0; r < 2; ++r) before(r);
    std::vector<EventHandle> early;
    for (int r = 0; r < 2; ++r) early.push_back(backend_of(device(r)).record(r, Stream::kCommunication));
    for (int i = 0; i < 2; ++i)
      collective([&](int r, cuda::StreamPtr stream) {
        const bool odd = r == 1 && i == 1 && step == 1;
        const int64_t bucket = bug_ == Bug::kOtherOrder && r == 1 ? 1 - i : i;
        if (odd && bug_ == Bug::kSkipped) return Status::kSuccess;
        const NcclComm used = comm(r);
        if (odd && bug_ == Bug::kUsedAfterAbort) comms_->abort(1);
        float* const data = at(buckets, odd && bug_ == Bug::kBufferOfAnotherDevice ? 0 : r, bucket * kBucket);
        const auto type = odd && bug_ == Bug::kOtherType ? DataType::kInt32 : DataType::kFloat32;
        const auto count = static_cast<size_t>(odd && bug_ == Bug::kOtherCount ? kBucket - 1 : kBucket);
        if (odd && bug_ == Bug::kStreamOfAnotherDevice) {
          Status status{};
          call(device(0), communication(), [&](cuda::StreamPtr wrong) {
            return status = nccl().all_reduce(data, data, count, type, Reduction::kAvg, used, wrong);
          });
          return status;
        }
        return nccl().all_reduce(data, data, count, type, Reduction::kAvg, used, stream);
      });
    if (bug_ == Bug::kWrittenEarly)
      for (int r = 0; r < 2; ++r) add(r, at(buckets, r), at(ones_, r), 1, 0);
    if (bug_ == Bug::kFreedEarly) {
      for (Tensor& bucket : buckets) bucket = Tensor();
      buckets.clear();
      for (int r = 0; r < 2; ++r) {  // the memory's next owner
        buckets.push_back(Tensor::empty({2 * kBucket}, {kF32, device(r)}));
        add(r, at(buckets, r), at(ones_, r), 2 * kBucket, 1);
      }
    }
    for (int r = 0; r < 2; ++r) {
      if (bug_ == Bug::kEventRecordedBefore) backend_of(device(r)).wait(r, Stream::kCompute, early[r]);
      backend_of(device(r)).release(r, early[r]);
      after(r);
      add(r, at(parameters_, r), at(buckets, r), 2 * kBucket, bug_ == Bug::kAveragedTwice ? 0.5f : 1.0f);
    }
  }

  void shards(int step) {
    std::vector<Tensor> gradients, shard;
    for (int r = 0; r < 2; ++r) {
      gradients.push_back(Tensor::zeros({2 * kShard}, {kF32, device(r)}));
      shard.push_back(Tensor::zeros({kShard}, {kF32, device(r)}));
      add(r, at(gradients, r), at(ones_, r), 2 * kShard, gradient(r, step));
      join(device(r), Stream::kCompute, Stream::kCommunication);
    }
    collective([&](int r, cuda::StreamPtr stream) {
      return nccl().reduce_scatter(at(gradients, r), at(shard, r), static_cast<size_t>(kShard), DataType::kFloat32,
                                   Reduction::kSum, comm(r), stream);
    });
    for (int r = 0; r < 2; ++r) {
      if (bug_ == Bug::kWrittenWhileScattered) add(r, at(gradients, r, 7), at(ones_, r), 1, 0);
      join(device(r), Stream::kCommunication, Stream::kCompute);
      add(r, at(parameters_, r, r * kShard), at(shard, r), kShard, 1);
      if (bug_ != Bug::kGatheredEarly) join(device(r), Stream::kCompute, Stream::kCommunication);
    }
    collective([&](int r, cuda::StreamPtr stream) {
      const int64_t first = r * kShard - (bug_ == Bug::kShardOffByOne && r == 1 ? 1 : 0);
      return nccl().all_gather(at(parameters_, r, first), at(parameters_, r), static_cast<size_t>(kShard),
                               DataType::kFloat32, comm(r), stream);
    });
    for (int r = 0; r < 2; ++r) {
      // The next step's forward reads them.
      if (bug_ != Bug::kStalePrefetch) join(device(r), Stream::kCommunication, Stream::kCompute);
      add(r, at(ones_, r), at(parameters_, r), kShard, 0);
      if (bug_ == Bug::kStalePrefetch) join(device(r), Stream::kCommunication, Stream::kCompute);
    }
  }

  // All that was enqueued is over. Every question lets some work run, so many are enough if anything can.
  bool came() {
    for (int r = 0; r < 2; ++r) {
      const BackendTable& table = backend_of(device(r));
      const EventHandle end = table.record(r, communication());
      bool reached = false;
      for (int i = 0; i < 5000 && !reached; ++i) reached = table.reached(r, end);
      table.release(r, end);
      if (!reached) return false;
    }
    return true;
  }
  Outcome hangs() {
    for (size_t r = 0; r < 2; ++r) comms_->abort(r);
    return Outcome::kHangs;
  }

  const Bug bug_;
  FakeCuda cuda_;
  std::vector<cuda::Kernel> kernels_;
  std::optional<OneProcess> comms_;
  std::vector<Tensor> parameters_, ones_, buffers_;
};

Outcome run(Bug bug, uint64_t seed, bool declared = true, const std::string& behaviour = "") {
  return Program(bug, seed, declared, behaviour).run();
}

TEST(PlantedNccl, TheProgramIsRightInEveryOrder) {
  for (uint64_t seed = 1; seed <= 8; ++seed)
    for (const bool declared : {true, false}) EXPECT_EQ(run(Bug::kNone, seed, declared), Outcome::kRight) << seed;
}

// ---- On one device: the fake ends the process, whatever the order

class PlantedNcclDeathTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  // `declared`: kernels say what they touch. Generated ones do not; they are known by their pointers.
  static void expect_caught(Bug bug, const std::string& message, bool declared = true) {
    EXPECT_DEATH(run(bug, 3, declared), message) << "declared: " << declared;
  }
};

TEST_F(PlantedNcclDeathTest, AMissingEventBefore) {
  expect_caught(Bug::kNoEventBefore, "ncclGroupEnd: race: .* and no event and no wait orders the two");
  expect_caught(Bug::kNoEventBefore, "race: the (send|receive) buffer holds bytes that kernel axpy", false);
}
TEST_F(PlantedNcclDeathTest, AMissingEventAfter) {
  expect_caught(Bug::kNoEventAfter, "race: kernel axpy .* reads bytes that ncclAllReduce");
  expect_caught(Bug::kNoEventAfter, "race: kernel axpy has a pointer into bytes that ncclAllReduce", false);
}
TEST_F(PlantedNcclDeathTest, AnEventRecordedBeforeTheCollective) {
  expect_caught(Bug::kEventRecordedBefore, "race: kernel axpy .* reads bytes that ncclAllReduce");
  expect_caught(Bug::kEventRecordedBefore, "race: kernel axpy has a pointer into bytes that ncclAllReduce", false);
}
TEST_F(PlantedNcclDeathTest, ACollectiveOnTheWrongStream) {
  expect_caught(Bug::kOtherStream, "ncclGroupEnd: race: .* and no event and no wait orders the two");
  expect_caught(Bug::kOtherStream, "race: the (send|receive) buffer holds", false);
}
TEST_F(PlantedNcclDeathTest, AStreamOfAnotherDevice) {
  expect_caught(Bug::kStreamOfAnotherDevice, "the stream is of device 0, and the communicator of device 1");
}
TEST_F(PlantedNcclDeathTest, ABufferOfAnotherDevice) {
  expect_caught(Bug::kBufferOfAnotherDevice, "memory of device 0, and the communicator is of device 1");
}
TEST_F(PlantedNcclDeathTest, ABucketThatIsFreedEarly) {
  expect_caught(Bug::kFreedEarly, "race: kernel axpy .* writes bytes that ncclAllReduce");
  expect_caught(Bug::kFreedEarly, "race: kernel axpy has a pointer into bytes that ncclAllReduce", false);
}
TEST_F(PlantedNcclDeathTest, ABucketThatIsWrittenEarly) {
  expect_caught(Bug::kWrittenEarly, "race: kernel axpy .* writes bytes that ncclAllReduce");
  expect_caught(Bug::kWrittenEarly, "race: kernel axpy has a pointer into bytes that ncclAllReduce", false);
}
TEST_F(PlantedNcclDeathTest, GradientsThatAreWrittenWhileTheyAreScattered) {
  expect_caught(Bug::kWrittenWhileScattered, "race: kernel axpy .* writes bytes that ncclReduceScatter");
  expect_caught(Bug::kWrittenWhileScattered, "race: kernel axpy has a pointer into bytes that ncclReduceScatter",
                false);
}
TEST_F(PlantedNcclDeathTest, AStalePrefetch) {
  expect_caught(Bug::kStalePrefetch, "race: kernel axpy .* reads bytes that ncclAllGather");
  expect_caught(Bug::kStalePrefetch, "race: kernel axpy has a pointer into bytes that ncclAllGather", false);
}
TEST_F(PlantedNcclDeathTest, ParametersThatAreGatheredBeforeTheirUpdate) {
  expect_caught(Bug::kGatheredEarly, "race: ncclAllGather of 96 f32");
  expect_caught(Bug::kGatheredEarly, "race: the (send|receive) buffer holds bytes that kernel axpy", false);
}
TEST_F(PlantedNcclDeathTest, AShardBoundaryOffByOne) {
  expect_caught(Bug::kShardOffByOne, "the two buffers overlap without being in place");
}
TEST_F(PlantedNcclDeathTest, ACommunicatorThatIsUsedAfterItsAbort) {
  expect_caught(Bug::kUsedAfterAbort, "the communicator is used after its abort");
}
TEST_F(PlantedNcclDeathTest, OneThreadForTwoRanksWithoutAGroup) {
  expect_caught(Bug::kNoGroup, "this thread calls for ranks 0 and 1 of a communicator, outside of a group");
}

// ---- Between ranks

TEST(PlantedNccl, RanksThatDoNotFitWait) {
  for (const Bug bug : {Bug::kOtherType, Bug::kOtherCount, Bug::kSkipped})
    for (uint64_t seed = 1; seed <= 4; ++seed)
      EXPECT_EQ(run(bug, seed, true, "mismatch=hang"), Outcome::kHangs) << static_cast<int>(bug) << ", " << seed;
}
TEST(PlantedNccl, RanksThatDoNotFitComputeGarbage) {
  for (const Bug bug : {Bug::kOtherType, Bug::kOtherCount, Bug::kOtherRoot})
    for (uint64_t seed = 1; seed <= 4; ++seed)
      EXPECT_EQ(run(bug, seed, true, "mismatch=garbage"), Outcome::kWrong) << static_cast<int>(bug) << ", " << seed;
}
// Equal sizes: nothing waits.
TEST(PlantedNccl, RanksInDifferentOrder) {
  for (uint64_t seed = 1; seed <= 4; ++seed) EXPECT_EQ(run(Bug::kOtherOrder, seed), Outcome::kWrong);
}
TEST(PlantedNccl, AnAverageDividedTwice) {
  for (uint64_t seed = 1; seed <= 4; ++seed) EXPECT_EQ(run(Bug::kAveragedTwice, seed), Outcome::kWrong);
}

}  // namespace
}  // namespace rondo::test
