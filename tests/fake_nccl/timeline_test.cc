// The virtual clock: timelines whose makespan is known, by hand and from a program on the fake driver.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/tensor/tensor.h"
#include "rondo/tests/cuda/kernels.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/fake_cuda/timeline.h"
#include "rondo/tests/fake_nccl/library.h"

namespace rondo::test {
namespace {

using fake_cuda::Enqueued;
using fake_cuda::Makespan;
using fake_cuda::makespan;
using fake_cuda::Rates;
using fake_cuda::TimedWork;
using fake_cuda::Timeline;

// A byte of memory, of a link and of the host takes a second each; nothing else takes time.
Rates seconds_for_bytes() {
  Rates rates;
  rates.memory = rates.link = rates.host = rates.products = 1;
  rates.launch = rates.collective = rates.enqueue = 0;
  return rates;
}

TimedWork kernel(size_t stream, int64_t seconds, int device = 0) {
  return {.kind = TimedWork::Kind::kWork,
          .stream = stream,
          .device = device,
          .what = {.kind = Enqueued::Kind::kKernel, .name = "k"},
          .declared = seconds};
}
TimedWork collective(size_t stream, int64_t seconds, uint64_t sequence) {
  return {
      .kind = TimedWork::Kind::kWork,
      .stream = stream,
      .what = {
          .kind = Enqueued::Kind::kCollective, .name = "c", .bytes = seconds, .communicator = 9, .sequence = sequence}};
}
TimedWork copy_in(size_t stream, int64_t seconds) {
  return {.kind = TimedWork::Kind::kWork,
          .stream = stream,
          .what = {.kind = Enqueued::Kind::kCopy, .name = "host to device", .bytes = seconds}};
}
TimedWork record(size_t stream, uint64_t event) {
  return {.kind = TimedWork::Kind::kRecord, .stream = stream, .event = event};
}
TimedWork wait(size_t stream, uint64_t event) {
  return {.kind = TimedWork::Kind::kWait, .stream = stream, .event = event};
}
TimedWork host_wait(size_t stream, uint64_t event = 0) {
  return {.kind = TimedWork::Kind::kHostWait, .stream = stream, .event = event};
}
double seconds(const std::vector<Timeline>& processes, const Rates& rates = seconds_for_bytes()) {
  return makespan(processes, rates).seconds;
}

TEST(VirtualClock, StreamsAndEngines) {
  EXPECT_EQ(seconds({{}}), 0);
  EXPECT_EQ(seconds({{kernel(0, 3), kernel(0, 4)}}), 7);
  // A device runs one kernel at a time; another device, a collective and a copy run beside it.
  EXPECT_EQ(seconds({{kernel(0, 3), kernel(1, 4)}}), 7);
  EXPECT_EQ(seconds({{kernel(0, 3), kernel(1, 4, 1)}}), 4);
  EXPECT_EQ(seconds({{kernel(0, 3), collective(1, 4, 0)}}), 4);
  EXPECT_EQ(seconds({{kernel(0, 3), collective(1, 4, 0), copy_in(2, 5)}}), 5);
  EXPECT_EQ(seconds({{collective(1, 4, 0), collective(2, 4, 1)}}), 8);
}

TEST(VirtualClock, Events) {
  EXPECT_EQ(seconds({{kernel(0, 3), record(0, 1), wait(1, 1), collective(1, 4, 0)}}), 7);
  // A record takes its place in the stream: what comes later is not waited for.
  EXPECT_EQ(seconds({{kernel(0, 3), record(0, 1), kernel(0, 9), wait(1, 1), collective(1, 4, 0)}}), 12);
  EXPECT_EQ(seconds({{kernel(0, 3), kernel(0, 9), record(0, 1), wait(1, 1), collective(1, 4, 0)}}), 16);
  // Recorded before the timeline began.
  EXPECT_EQ(seconds({{wait(1, 77), collective(1, 4, 0)}}), 4);
  EXPECT_THROW(seconds({{wait(0, 2), record(0, 1), wait(1, 1), record(1, 2)}}), Error);
}

// Three layers of backward, a bucket each: only the last one's communication shows.
TEST(VirtualClock, Overlap) {
  Timeline step;
  for (uint64_t layer = 0; layer < 3; ++layer)
    step.insert(step.end(), {kernel(0, 10), record(0, layer + 1), wait(1, layer + 1), collective(1, 6, layer)});
  step.insert(step.end(), {record(1, 9), wait(0, 9), kernel(0, 2)});
  const Makespan result = makespan({step}, seconds_for_bytes());
  EXPECT_EQ(result.seconds, 38);
  EXPECT_EQ(result.computing, 32);
  EXPECT_EQ(result.communicating, 18);
  // Where communication is slower than the layers, all of it but the first wait shows.
  Rates slow = seconds_for_bytes();
  slow.link = 0.5;
  EXPECT_EQ(seconds({step}, slow), 10 + 36 + 2);
}

TEST(VirtualClock, Hosts) {
  // The host enqueues in 2 seconds what runs in 1.
  Rates rates = seconds_for_bytes();
  rates.enqueue = 2;
  EXPECT_EQ(seconds({{kernel(0, 1), kernel(0, 1), kernel(0, 1)}}, rates), 7);
  // A wait of the host keeps back what it would enqueue.
  EXPECT_EQ(seconds({{kernel(0, 5), collective(1, 4, 0)}}), 5);
  EXPECT_EQ(seconds({{kernel(0, 5), host_wait(0), collective(1, 4, 0)}}), 9);
  EXPECT_EQ(seconds({{kernel(0, 5), record(0, 1), kernel(0, 1), host_wait(0, 1), collective(1, 4, 0)}}), 9);
}

// A wait keeps back its own thread only; the order of a stream is that of the timeline.
TEST(VirtualClock, Threads) {
  const auto by = [](TimedWork work) {
    work.thread = 1;
    return work;
  };
  EXPECT_EQ(seconds({{kernel(0, 5), host_wait(0), by(collective(1, 4, 0))}}), 5);
  EXPECT_EQ(seconds({{kernel(0, 5), by(host_wait(0)), by(collective(1, 4, 0))}}), 9);
  EXPECT_EQ(seconds({{kernel(0, 5), host_wait(0), kernel(1, 2), by(collective(1, 4, 0))}}), 11);
  // A thread waits for an event that another one records later.
  EXPECT_EQ(seconds({{kernel(0, 5), host_wait(0, 1), collective(2, 4, 0), by(kernel(3, 3, 1)), by(record(3, 1))}}), 7);
}

// A collective begins with its last rank.
TEST(VirtualClock, Ranks) {
  const Timeline early = {kernel(0, 2), record(0, 1), wait(1, 1),  collective(1, 4, 0),
                          record(1, 2), wait(0, 2),   kernel(0, 1)};
  Timeline late = early;
  late[0] = kernel(0, 8);
  EXPECT_EQ(seconds({early}), 7);
  EXPECT_EQ(seconds({early, late}), 13);
  // A rank that calls one collective less.
  Timeline more = early;
  more.push_back(collective(1, 1, 1));
  EXPECT_EQ(seconds({early, more}), 7);
  // Two of one communicator in other orders never begin.
  EXPECT_THROW(seconds({{collective(1, 1, 0), collective(1, 1, 1)}, {collective(1, 1, 1), collective(1, 1, 0)}}),
               Error);
}

TEST(VirtualClock, Durations) {
  Rates rates = seconds_for_bytes();
  TimedWork product = kernel(0, 6);
  product.what.kind = Enqueued::Kind::kProduct;
  product.what.flops = 10;
  EXPECT_EQ(seconds_of(product, rates), 10);
  rates.products = 5;
  EXPECT_EQ(seconds_of(product, rates), 6);  // its bytes take longer
  rates.launch = 7;
  EXPECT_EQ(seconds_of(product, rates), 7);
  TimedWork unknown = kernel(0, 0);
  unknown.what.threads = 5;
  rates.thread_bytes = 8;
  EXPECT_EQ(seconds_of(unknown, rates), 40);
  rates.kernel_bytes["k"] = 11;
  EXPECT_EQ(seconds_of(unknown, rates), 11);
  rates.collective = 3;
  EXPECT_EQ(seconds_of(collective(0, 4, 0), rates), 7);
}

// ---- A program: 12 layers of backward, their buckets averaged beside it, an update. Nothing of it runs.

constexpr int64_t kLayer = 6'000'000;  // elements

struct StepOptions {
  bool overlaps = true;  // false: all buckets leave behind the backward
  bool communicates = true;
};
std::vector<Timeline> step(const StepOptions& options) {
  FakeCuda cuda({.devices = 2, .bytes = size_t{8} << 30, .executes = false});
  const cuda::Kernel kernels[] = {cuda.kernel("axpy", axpy(), 0), cuda.kernel("axpy", axpy(), 1)};
  const OneProcess comms({cuda.device(0), cuda.device(1)});
  std::vector<Tensor> gradients, weights;
  for (int i = 0; i < 24; ++i) {
    gradients.push_back(Tensor::empty({kLayer}, {kF32, cuda.device(i % 2)}));
    weights.push_back(Tensor::empty({kLayer}, {kF32, cuda.device(i % 2)}));
  }
  for (int r = 0; r < 2; ++r) synchronize(cuda.device(r));
  cuda->take_timeline();
  const auto reduce = [&](size_t layer) {
    if (!options.communicates) return;
    check(nccl().group_start());
    for (int r = 0; r < 2; ++r) {
      join(cuda.device(r), Stream::kCompute, Stream::kCommunication);
      void* const bucket = gradients[2 * layer + static_cast<size_t>(r)].storage().data();
      call(cuda.device(r), Stream::kCommunication, [&](cuda::StreamPtr stream) {
        return nccl().all_reduce(bucket, bucket, kLayer, DataType::kFloat32, Reduction::kAvg,
                                 comms[static_cast<size_t>(r)], stream);
      });
    }
    check(nccl().group_end());
  };
  for (size_t layer = 0; layer < 12; ++layer) {
    for (size_t r = 0; r < 2; ++r) launch_axpy(kernels[r], gradients[2 * layer + r], weights[2 * layer + r], 1);
    if (options.overlaps) reduce(layer);
  }
  for (size_t layer = 0; layer < 12 && !options.overlaps; ++layer) reduce(layer);
  for (int r = 0; r < 2; ++r) join(cuda.device(r), Stream::kCommunication, Stream::kCompute);
  for (size_t layer = 0; layer < 12; ++layer)
    for (size_t r = 0; r < 2; ++r) launch_axpy(kernels[r], weights[2 * layer + r], gradients[2 * layer + r], 1);
  const Timeline timeline = cuda->take_timeline();
  for (int r = 0; r < 2; ++r) synchronize(cuda.device(r));
  return {timeline};
}

TEST(VirtualClock, ATrainingStepHidesItsCommunication) {
  Rates rates;
  rates.launch = 1e-6;
  rates.collective = 1e-5;
  const Makespan compute = makespan(step({.communicates = false}), rates);
  EXPECT_NEAR(compute.seconds, 24.0 * kLayer * 8 / rates.memory, 1e-9);
  EXPECT_EQ(compute.communicating, 0);
  // So that all communication takes 30% of the time of all computation.
  const double left = 0.3 * compute.seconds - 12 * rates.collective;
  rates.link = 12.0 * kLayer * 4 / left;
  const Makespan hidden = makespan(step({}), rates), behind = makespan(step({.overlaps = false}), rates);
  EXPECT_NEAR(hidden.communicating, 0.3 * compute.seconds, 1e-9);
  EXPECT_LE(hidden.seconds, 1.06 * compute.seconds);
  EXPECT_GT(hidden.seconds, compute.seconds);
  EXPECT_NEAR(behind.seconds, 1.3 * compute.seconds, 1e-3 * compute.seconds);
}

}  // namespace
}  // namespace rondo::test
