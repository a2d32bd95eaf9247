// The host's half of NCCL behind ProcessGroup: streams and events, memory in flight, errors and the end, with a NCCL of
// one rank (nccl_table.h) on the fake driver.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "rondo/dist/groups/nccl_group.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/dist/nccl_table.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo::dist {
namespace {

using test::error_of;
using test::FakeCuda;
using test::OneRankNccl;

constexpr std::chrono::milliseconds kPatient{60'000};

// A group over one process. It uses NCCL, which ProcessGroup::connect() does not do for one process.
std::shared_ptr<ProcessGroup> group_of_one(const OneRankNccl& nccl, Device device,
                                           std::chrono::milliseconds timeout = kPatient) {
  const GroupOptions options{.timeout = timeout, .device = device};
  return make_nccl_group(make_solo_group({}), options, &nccl.library, "");
}

class NcclOneRank : public testing::TestWithParam<uint64_t> {
 protected:
  FakeCuda cuda{{.seed = GetParam()}};
  const Device device = cuda.device();
  OneRankNccl nccl;
};

TEST_P(NcclOneRank, EveryCollectiveInEveryDType) {
  const auto group = group_of_one(nccl, device);
  EXPECT_EQ(nccl.blocking, 0);
  EXPECT_EQ(group->device(), device);
  for (const DType dtype : {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool}) {
    const std::vector<double> values(6, 1);
    const Tensor in = Tensor::ones({6}, {dtype, kCPU}).to(device);
    const auto empty = [&](Dims sizes) { return Tensor::zeros(sizes, {dtype, kCPU}).to(device); };
    Tensor gathered = empty({1, 6}), scattered = empty({3}), sent = in.clone();
    group->all_gather(gathered, in, "gather").wait();
    EXPECT_EQ(gathered.to_vector<double>(), values);
    group->broadcast(sent, 0, "broadcast").wait();
    EXPECT_EQ(sent.to_vector<double>(), values);
    if (dtype == kU8 || dtype == kBool) continue;
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
      if (op == ReduceOp::kAverage && !is_floating(dtype)) continue;
      const uint32_t version = sent.version();
      group->all_reduce(sent, op, "reduce").wait();
      EXPECT_NE(sent.version(), version);
      EXPECT_EQ(sent.to_vector<double>(), values);
      group->reduce_scatter(scattered, in.view({1, 6}).slice(1, {0, 3}).contiguous(), op, "scatter").wait();
      EXPECT_EQ(scattered.to_vector<double>(), std::vector<double>(3, 1));
    }
  }
  const int before = nccl.collectives;
  group->all_reduce(Tensor::zeros({0}, {kF32, kCPU}).to(device), ReduceOp::kSum, "nothing").wait();
  EXPECT_EQ(nccl.collectives, before) << "an empty tensor needs no kernel";
}

// Host tensors take the hosts' way, in the same group.
TEST_P(NcclOneRank, HostTensorsAndTextsGoOverTheHosts) {
  const auto group = group_of_one(nccl, device);
  Tensor x = Tensor::full({3}, 7);
  group->all_reduce(x, ReduceOp::kAverage, "x").wait();
  EXPECT_EQ(x.to_vector<double>(), std::vector<double>(3, 7));
  group->barrier("b").wait();
  EXPECT_EQ(group->check_sequence("said", "c"), (std::vector<std::string>{"said"}));
  EXPECT_EQ(nccl.collectives, 0);
  EXPECT_EQ(group->subgroup({0}, "me")->device(), device);
}

// A collective comes after what was enqueued before it, and before what is enqueued after wait(). The fake ends the
// process for each race, and draws an order of the streams for each seed.
TEST_P(NcclOneRank, StreamsAreJoinedAndTheHostWaitsForNothing) {
  const auto group = group_of_one(nccl, device);
  Tensor x = Tensor::ones({1000}, {kF32, kCPU}).to(device);
  Tensor y = Tensor::zeros({1, 1000}, {kF32, kCPU}).to(device);
  synchronize(device);
  const int64_t waits = cuda->counts().host_waits;
  for (int i = 0; i < 20; ++i) {
    x = x + 1.0;
    const Work work = group->all_gather(y, x, "x");
    const Tensor beside = x * 2.0;  // reads what the collective reads
    work.wait();
    x = y.view({1000}) * 0.5 + beside * 0.25;
  }
  EXPECT_EQ(cuda->counts().host_waits, waits);
  double expected = 1;
  for (int i = 0; i < 20; ++i) expected += 1;
  EXPECT_EQ(x.to_vector<double>()[999], expected);
}

// Nobody keeps the tensors, nobody waits, and their memory is used again at once.
TEST_P(NcclOneRank, MemoryInFlightIsNotGivenToOthers) {
  const auto group = group_of_one(nccl, device);
  Tensor kept = Tensor::zeros({1, 5000}, {kF32, kCPU}).to(device);
  std::vector<Work> works;
  for (int i = 0; i < 30; ++i) {
    works.push_back(group->all_gather(kept, Tensor::full({5000}, i, {kF32, kCPU}).to(device), absl::StrCat(i)));
    if (i % 3 == 1) works.back().wait();  // drops the operand, in the order of the compute stream
    if (i % 3 == 2) works.pop_back();
    const Tensor other = Tensor::full({5000}, -1.0, {kF32, kCPU}).to(device) * 2.0;
  }
  works.back().wait();
  group->all_gather(kept, Tensor::full({5000}, 77, {kF32, kCPU}).to(device), "last").wait();
  EXPECT_EQ(kept.to_vector<double>(), std::vector<double>(5000, 77));
}

TEST_P(NcclOneRank, IsDoneAndSynchronizeAskTheDevice) {
  const auto group = group_of_one(nccl, device);
  Tensor out = Tensor::zeros({1, 10}, {kF32, kCPU}).to(device);
  const Work work = group->all_gather(out, Tensor::full({10}, 3, {kF32, kCPU}).to(device), "x");
  work.synchronize();
  EXPECT_TRUE(work.is_done());
  const Work next = group->all_reduce(out, ReduceOp::kSum, "y");
  while (!next.is_done()) std::this_thread::yield();
  next.wait();
  next.synchronize();
  EXPECT_EQ(out.to_vector<double>()[9], 3);
}

TEST_P(NcclOneRank, RefusesTensorsOfOtherDevices) {
  const auto group = group_of_one(nccl, device);
  const Tensor here = Tensor::zeros({2}, {kF32, kCPU}), there = here.to(device);
  Tensor rows = Tensor::zeros({1, 2}, {kF32, kCPU});
  EXPECT_NE(error_of([&] { group->all_gather(rows, there, "x"); }).find("one tensor is on cuda:0, the result on cpu"),
            std::string::npos);
  const auto hosts = ProcessGroup::connect({});
  EXPECT_NE(error_of([&] {
              hosts->all_reduce(there, ReduceOp::kSum, "x");
            }).find("the tensor is on cuda:0, and processes exchange host memory only"),
            std::string::npos);
  EXPECT_NE(
      error_of([&] { group->all_reduce(there.to(kI64), ReduceOp::kAverage, "x"); }).find("i64 cannot be averaged"),
      std::string::npos);
  Tensor wide = Tensor::zeros({1, 4}, {kF32, kCPU}).to(device);
  const Tensor middle = wide.view({4}).slice(0, {1, 3}).view({2});
  Tensor two = wide.view({4}).slice(0, {0, 2}).view({1, 2});
  EXPECT_NE(error_of([&] { group->all_gather(two, middle, "x"); }).find("not as row 0 of it"), std::string::npos);
  group->all_gather(two, two.view({2}), "its own row").wait();
  synchronize(device);
}

// One process needs no NCCL: collectives of its tensors are copies in the order of the compute stream.
TEST_P(NcclOneRank, ConnectTakesDeviceTensorsOfOneProcessWithoutNccl) {
  const auto group = ProcessGroup::connect({}, {.device = device});
  EXPECT_EQ(group->device(), device);
  Tensor out = Tensor::zeros({1, 4}, {kF32, kCPU}).to(device);
  const Tensor in = Tensor::full({4}, 5, {kF32, kCPU}).to(device);
  group->all_gather(out, in, "x").wait();
  group->all_reduce(out, ReduceOp::kAverage, "y").wait();
  Tensor part = Tensor::zeros({4}, {kF32, kCPU}).to(device);
  group->reduce_scatter(part, out, ReduceOp::kSum, "z").wait();
  EXPECT_EQ(part.to_vector<double>(), std::vector<double>(4, 5));
  EXPECT_EQ(ProcessGroup::connect({}, {.device = kCPU})->device(), std::nullopt);
  EXPECT_NE(error_of([] { ProcessGroup::connect({}, {.device = parse_device("cuda:5")}); }).find("cuda:5"),
            std::string::npos);
}

// ---- The library's answers

TEST_P(NcclOneRank, WaitsForALibraryThatIsInProgress) {
  nccl.in_progress = 5;
  const auto group = group_of_one(nccl, device);
  EXPECT_EQ(nccl.in_progress, 0);
  nccl.answers_in_progress = true;
  nccl.in_progress = 3;
  Tensor out = Tensor::zeros({1, 4}, {kF32, kCPU}).to(device);
  group->all_gather(out, Tensor::full({4}, 2, {kF32, kCPU}).to(device), "x").wait();
  EXPECT_EQ(out.to_vector<double>()[3], 2);
}

TEST_P(NcclOneRank, ACommunicatorThatCannotBeMade) {
  nccl.error = NcclResult::kSystemError;
  EXPECT_EQ(error_of<ConnectionError>([&] { group_of_one(nccl, device); }),
            "rank 0: connecting cuda:0 over NCCL failed: as the test says (its reason in two lines)");
  EXPECT_EQ(nccl.aborted, 1);
  EXPECT_EQ(error_of([&] {
              make_nccl_group(make_solo_group({}), {.timeout = kPatient, .device = device}, nullptr, "there is none");
            }),
            "rank 0 cannot exchange tensors of its device: there is none");
}

TEST_P(NcclOneRank, ConnectingThatTakesTooLong) {
  nccl.in_progress = 1'000'000'000;
  EXPECT_EQ(error_of<TimeoutError>([&] { group_of_one(nccl, device, std::chrono::milliseconds(50)); }),
            "rank 0: connecting cuda:0 over NCCL took too long: still in progress (its reason in two lines)");
  EXPECT_EQ(nccl.aborted, 1);
}

TEST_P(NcclOneRank, ACollectiveThatIsRefused) {
  const auto group = group_of_one(nccl, device);
  Tensor x = Tensor::ones({4}, {kF32, kCPU}).to(device);
  group->all_reduce(x, ReduceOp::kSum, "fine").wait();
  nccl.refusal = NcclResult::kInvalidUsage;
  const Work work = group->all_reduce(x, ReduceOp::kSum, "refused");
  const std::string sentence =
      "rank 0: all_reduce 2 (refused; 4 f32) failed: as the test says (its reason in two lines)";
  EXPECT_EQ(error_of<ConnectionError>([&] { work.wait(); }), "all_reduce 2 (refused; 4 f32) cannot run: " + sentence);
  EXPECT_EQ(nccl.aborted, 1);
  // The device has kept it: the next wait for it throws.
  EXPECT_EQ(error_of<ConnectionError>([&] { x.to_vector<double>(); }), sentence);
  nccl.refusal = NcclResult::kSuccess;
  const int before = nccl.collectives;
  const Work later = group->all_reduce(x, ReduceOp::kSum, "later");
  EXPECT_TRUE(later.is_done());
  EXPECT_EQ(error_of<ConnectionError>([&] { later.synchronize(); }),
            "all_reduce 3 (later; 4 f32) cannot run: " + sentence);
  EXPECT_EQ(nccl.collectives, before);
}

// NCCL learns of an error while a collective is in flight: the thread that watches sees it.
TEST_P(NcclOneRank, AnErrorThatComesLate) {
  auto group = group_of_one(nccl, device);
  Tensor x = Tensor::ones({4}, {kF32, kCPU}).to(device);
  synchronize(device);
  nccl.error = NcclResult::kRemoteError;
  Work work;
  // The fake may have done a collective before the thread looks.
  while (nccl.aborted == 0) {
    work = group->all_reduce(x, ReduceOp::kSum, "x");
    const Work again = group->all_reduce(x, ReduceOp::kSum, "y");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const Work lost = group->all_reduce(x, ReduceOp::kSum, "z");
  const std::string error = error_of<ConnectionError>([&] { lost.synchronize(); });
  EXPECT_NE(error.find("failed: as the test says (its reason in two lines)"), std::string::npos) << error;
  // It stays as long as the group does, and ends with the first wait after that.
  for (int i = 0; i < 3; ++i) {
    if (i == 2) group.reset();
    EXPECT_NE(error_of<ConnectionError>([&] { synchronize(device); }).find("as the test says"), std::string::npos);
  }
  synchronize(device);
  EXPECT_EQ(nccl.aborted, 1);
}

// Kernels end when they are aborted, and their events are reached: that does not make the collectives done.
TEST_P(NcclOneRank, WhatIsAbortedIsNotDone) {
  const auto group = group_of_one(nccl, device);
  Tensor out = Tensor::zeros({1, 4}, {kF32, kCPU}).to(device);
  const Tensor in = Tensor::ones({4}, {kF32, kCPU}).to(device);
  synchronize(device);
  std::vector<Work> works;
  for (int i = 0; i < 50; ++i) works.push_back(group->all_gather(out, in, "x"));
  std::string error;
  nccl.on_abort = [&] {
    static_cast<void>(cuda::find_driver(nullptr)->context_synchronize());
    error = error_of<ConnectionError>([&] { works.back().synchronize(); });
  };
  nccl.refusal = NcclResult::kInvalidUsage;
  EXPECT_NE(error_of<ConnectionError>([&] { group->all_gather(out, in, "refused").wait(); }), "");
  EXPECT_NE(error, "");
  EXPECT_EQ(error_of<ConnectionError>([&] { works.back().wait(); }), error);
  EXPECT_NE(error_of<ConnectionError>([&] { synchronize(device); }), "");
}

// The tensors of lost collectives are freed in the order of the compute stream, too.
TEST_P(NcclOneRank, MemoryOfLostCollectivesIsNotGivenToOthers) {
  const auto group = group_of_one(nccl, device);
  Tensor out = Tensor::zeros({1, 5000}, {kF32, kCPU}).to(device);
  const Tensor source = Tensor::ones({5000}, {kF32, kCPU}).to(device);
  synchronize(device);
  nccl.error = NcclResult::kRemoteError;
  for (int i = 0; i < 200; ++i) group->all_gather(out, source.clone(), "x");
  while (nccl.aborted == 0) std::this_thread::yield();
  const Work after = group->all_gather(out, source, "the failure is over when this one knows it");
  EXPECT_NE(error_of<ConnectionError>([&] { after.wait(); }), "");
  for (int i = 0; i < 200; ++i) source.clone().fill_(2);
  EXPECT_NE(error_of<ConnectionError>([&] { synchronize(device); }), "");
}

TEST_P(NcclOneRank, EnqueueingThatTakesTooLong) {
  const auto group = group_of_one(nccl, device, std::chrono::milliseconds(100));
  Tensor x = Tensor::ones({4}, {kF32, kCPU}).to(device);
  nccl.answers_in_progress = true;
  nccl.in_progress = 1'000'000'000;
  const Work work = group->all_reduce(x, ReduceOp::kSum, "x");
  EXPECT_NE(error_of<ConnectionError>([&] {
              work.wait();
            }).find("cannot run: rank 0: all_reduce 1 (x; 4 f32) did not complete within 100 ms"),
            std::string::npos);
  EXPECT_EQ(error_of<TimeoutError>([&] { synchronize(device); }),
            "rank 0: all_reduce 1 (x; 4 f32) did not complete within 100 ms");
}

// ---- The end

TEST_P(NcclOneRank, LeavingWaitsForWhatIsInFlight) {
  Tensor out = Tensor::zeros({1, 4}, {kF32, kCPU}).to(device);
  Work work;
  {
    const auto group = group_of_one(nccl, device);
    nccl.in_progress = 4;
    work = group->all_gather(out, Tensor::full({4}, 9, {kF32, kCPU}).to(device), "x");
  }
  EXPECT_EQ(nccl.finalized, 1);
  EXPECT_EQ(nccl.destroyed, 1);
  EXPECT_EQ(nccl.aborted, 0);
  work.wait();
  EXPECT_EQ(out.to_vector<double>()[0], 9);
}

TEST_P(NcclOneRank, LeavingDoesNotWaitForEver) {
  Tensor x = Tensor::ones({4}, {kF32, kCPU}).to(device);
  const auto began = std::chrono::steady_clock::now();
  {
    const auto group = group_of_one(nccl, device);
    group->all_reduce(x, ReduceOp::kSum, "x");
    nccl.in_progress = 1'000'000'000;  // the flush does not end
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  EXPECT_EQ(nccl.finalized, 1);
  EXPECT_EQ(nccl.destroyed, 0);
  EXPECT_EQ(nccl.aborted, 1);
}

TEST_P(NcclOneRank, AnExceptionAbortsAtOnce) {
  Tensor x = Tensor::ones({4}, {kF32, kCPU}).to(device);
  Work work;
  EXPECT_EQ(error_of([&] {
              const auto group = group_of_one(nccl, device);
              work = group->all_reduce(x, ReduceOp::kSum, "x");
              throw Error("mine");
            }),
            "mine");
  // Beside the exception, by the group's thread.
  while (nccl.aborted == 0 || !work.is_done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(nccl.finalized, 0);
  EXPECT_EQ(nccl.destroyed, 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, NcclOneRank, testing::Values(1, 2, 3));

// ---- Finding the library

TEST(NcclLibrary, AbsentOrOffSaysWhyInOneLine) {
  const test::Setting off("RONDO_CUDA", "off");
  forget_nccl();
  std::string why_not;
  EXPECT_EQ(find_nccl(&why_not), nullptr);
  EXPECT_EQ(why_not, "RONDO_CUDA=off");
  forget_nccl();
}

// NCCL itself, where a toolkit or a wheel has it: all functions are there, and it says its version without a GPU.
TEST(NcclLibrary, TheRealOne) {
  forget_nccl();
  std::string why_not;
  const NcclLibrary* const library = find_nccl(&why_not);
  if (library == nullptr) GTEST_SKIP() << why_not;
  EXPECT_EQ(why_not, "");
  int version = 0;
  EXPECT_EQ(library->version(&version), NcclResult::kSuccess);
  EXPECT_EQ(library->version_text, absl::StrCat(version / 10'000, ".", version % 10'000 / 100, ".", version % 100));
  EXPECT_EQ(describe(*library, NcclResult::kSuccess, nullptr).find('\n'), std::string::npos);
  EXPECT_NE(describe(*library, NcclResult::kRemoteError, nullptr),
            describe(*library, NcclResult::kSystemError, nullptr));
  forget_nccl();
}

}  // namespace
}  // namespace rondo::dist
