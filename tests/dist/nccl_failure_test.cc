// What goes wrong between ranks with a device each: who is named, what ends, and that nothing hangs.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/ddp/sharded_optimizer.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/optim/optimizers.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/dist/launched.h"
#include "rondo/tests/dist/nccl_ranks.h"
#include "rondo/tests/errors.h"

namespace rondo::dist {
namespace {

using test::error_of;
using test::has;
using test::NcclRanks;

// The fault of rank 1's first collective, where every rank calls one. Numbers are those of the process, which all ranks
// share here.
std::string at_rank_1(const std::string& what, int ranks, const std::string& value = "") {
  std::vector<std::string> faults;
  for (int i = 0; i < ranks; ++i) faults.push_back(absl::StrCat(what, "@1,", i, value));
  return absl::StrJoin(faults, ":");
}

bool repeats_error(const std::string& later, const std::string& first) { return absl::EndsWith(later, first); }

class NcclFailure : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { RONDO_SKIP_WITHOUT_NCCL(); }
  // After the ranks have failed: what devices have kept is taken.
  static void clear(NcclRanks& ranks) {
    for (int r = 0; r < ranks.size(); ++r) error_of<std::exception>([&] { synchronize(ranks.cuda().device(r)); });
  }
};

// The mismatch hangs on the devices, or leaves garbage: that is NCCL. The hosts find it at the end of the step.
TEST_P(NcclFailure, AnotherCollectiveIsFoundAtTheEndOfTheStep) {
  const int n = GetParam();
  using Calls = std::function<void(ProcessGroup&, Tensor&)>;
  const Calls usual = [](ProcessGroup& g, Tensor& x) {
    g.all_reduce(x, ReduceOp::kAverage, "a").wait();
    g.all_reduce(x, ReduceOp::kAverage, "b").wait();
  };
  const std::vector<std::pair<std::string, Calls>> others = {
      {"all_reduce 2 (b; 4 i32)",
       [](ProcessGroup& g, Tensor& x) {
         g.all_reduce(x, ReduceOp::kAverage, "a").wait();
         g.all_reduce(Tensor::ones({4}, {kI32, kCPU}).to(x.device()), ReduceOp::kSum, "b");
       }},
      {"all_reduce 2 (b; 3 f32, average)",
       [](ProcessGroup& g, Tensor& x) {
         g.all_reduce(x, ReduceOp::kAverage, "a").wait();
         g.all_reduce(Tensor::ones({3}, {kF32, kCPU}).to(x.device()), ReduceOp::kAverage, "b").wait();
       }},
      {"all_reduce 1 (b; 4 f32, average)",
       [](ProcessGroup& g, Tensor& x) {
         g.all_reduce(x, ReduceOp::kAverage, "b").wait();
         g.all_reduce(x, ReduceOp::kAverage, "a").wait();
       }},
      {"the end of its calls, after 1",
       [](ProcessGroup& g, Tensor& x) { g.all_reduce(x, ReduceOp::kAverage, "a").wait(); }},
  };
  for (const auto& [differs, calls] : others) {
    SCOPED_TRACE(differs);
    NcclRanks ranks(n);
    const auto began = std::chrono::steady_clock::now();
    const auto errors = ranks.run([&](const Environment& e) {
      const auto group = ProcessGroup::connect(e, ranks.options(e.rank));
      Tensor x = Tensor::ones({4}, {kF32, kCPU}).to(*group->device());
      (e.rank == n - 1 ? calls : usual)(*group, x);
      const std::string error = error_of<MismatchError>([&] { group->check_sequence("", "end of step"); });
      // Nothing of this step can be read, and the group is of no more use, for hosts and devices.
      EXPECT_EQ(error_of<MismatchError>([&] { x.to_vector<double>(); }), error);
      EXPECT_NE(error_of<DistError>([&] { group->all_reduce(x, ReduceOp::kSum, "c").wait(); }), "");
      EXPECT_NE(error_of<ConnectionError>([&] { group->barrier("d").wait(); }).find("cannot run"), std::string::npos);
      throw Error(error);
    });
    const std::string first = absl::StartsWith(differs, "all_reduce 1") ? "all_reduce 1 (a; 4 f32, average)"
                                                                        : "all_reduce 2 (b; 4 f32, average)";
    for (const std::string& error : errors)
      EXPECT_EQ(error, absl::StrCat("the ranks do not call the same collectives on their devices: rank 0 is at ", first,
                                    ", rank ", n - 1, " at ", differs));
    EXPECT_LT(std::chrono::steady_clock::now() - began, test::kPatient / 2);
    clear(ranks);
  }
}

TEST_P(NcclFailure, ARankThatDoesNotComeIsNamed) {
  const int n = GetParam();
  NcclRanks ranks(n);
  std::atomic<int> done = 0;
  const auto errors = ranks.run([&](const Environment& e) {
    const auto group = ProcessGroup::connect(e, ranks.options(e.rank, std::chrono::milliseconds(3'000)));
    Tensor x = Tensor::ones({4}, {kF32, kCPU}).to(*group->device());
    group->all_reduce(x, ReduceOp::kAverage, "together").synchronize();
    group->barrier("on").wait();
    if (e.rank == 1) {
      while (done < n - 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    const Work work = group->all_reduce(x, ReduceOp::kAverage, "alone");
    work.wait();  // enqueues only
    // What the host waits for next says so.
    const std::string error = error_of<DistError>([&] { x.to_vector<double>(); });
    EXPECT_EQ(error_of<DistError>([&] { work.synchronize(); }), error);
    ++done;
    throw Error(error);
  });
  EXPECT_EQ(errors[1], "");
  std::string all;
  for (int r = 0; r < n; ++r) {
    if (r == 1) continue;
    all += errors[static_cast<size_t>(r)];
    // Where it was last, though it has waited for nothing.
    EXPECT_NE(errors[static_cast<size_t>(r)].find(
                  "rank 1 has not come to it, and was last at all_reduce 1 (together; 4 f32, average)"),
              std::string::npos)
        << errors[static_cast<size_t>(r)];
  }
  EXPECT_NE(all.find("all_reduce 2 (alone; 4 f32, average) did not complete within 3000 ms"), std::string::npos) << all;
  clear(ranks);
}

TEST_P(NcclFailure, ARankThatLeavesIsNamedSoon) {
  const int n = GetParam();
  NcclRanks ranks(n);
  const auto began = std::chrono::steady_clock::now();
  const auto errors = ranks.run([&](const Environment& e) {
    const auto group = ProcessGroup::connect(e, ranks.options(e.rank));
    Tensor x = Tensor::ones({4}, {kF32, kCPU}).to(*group->device());
    group->all_reduce(x, ReduceOp::kAverage, "together").synchronize();
    group->barrier("on").wait();
    if (e.rank == 1) return;
    group->all_reduce(x, ReduceOp::kAverage, "x").synchronize();
  });
  EXPECT_EQ(errors[1], "");
  for (int r = 0; r < n; ++r)
    if (r != 1) {
      EXPECT_NE(errors[static_cast<size_t>(r)].find("rank 1 is gone: it has left the group"), std::string::npos)
          << errors[static_cast<size_t>(r)];
    }
  EXPECT_LT(std::chrono::steady_clock::now() - began, test::kPatient / 2);
  clear(ranks);
}

// A rank leaves while parameters are on their way to the others. From the failure on everything that trains or saves
// throws, and so does every read.
TEST_P(NcclFailure, NothingIsTrainedOrSavedAfterwards) {
  const int n = GetParam();
  NcclRanks ranks(n);
  const auto errors = ranks.run([&](const Environment& e) {
    const auto group = ProcessGroup::connect(e, ranks.options(e.rank));
    const Device device = *group->device();
    nn::Linear model(6, 4);
    model.to(device);
    const auto loss = [&] { return ops::sum(model(Tensor::ones({2, 6}, {kF32, device}))); };
    std::optional<DistributedDataParallel> ddp(std::in_place, model, group);
    optim::AdamW optimizer(model.parameters());
    std::optional<ShardedOptimizer> shards(std::in_place, *ddp, optimizer);
    const auto step = [&] {
      loss().backward();
      ddp->finish();
      optimizer.step();
    };
    for (int i = 0; i < 2; ++i) step();
    shards->wait();
    synchronize(device);
    group->barrier("on").wait();
    loss().backward();
    ddp->finish();
    if (e.rank == 1) return;
    // Enqueues only; on a machine that is slow, the failure is known by now.
    error_of<DistError>([&] {
      optimizer.step();
      shards->wait();
    });
    const Tensor weight = model.weight;
    const std::string read = error_of<ConnectionError>([&] { weight.to_vector<float>(); });
    const std::string first = group->failure();
    EXPECT_NE(first, "");
    EXPECT_PRED2(repeats_error, read, first);
    const auto repeats = [&](const char* what, const std::function<void()>& call) {
      for (int i = 0; i < 2; ++i) EXPECT_PRED2(repeats_error, error_of<DistError>(call), first) << what;
    };
    repeats("wait", [&] { shards->wait(); });
    repeats("state_dict", [&] { shards->state_dict(); });
    repeats("step", [&] { optimizer.step(); });
    repeats("read", [&] { weight.to_vector<float>(); });
    repeats("forward", [&] { loss(); });
    repeats("backward", [&] {
      const Tensor x = Tensor::ones({2, 4}, {kF32, device});
      model.bias.set_grad(Tensor());
      ops::sum(x * model.bias).backward();
    });
    repeats("finish", [&] { ddp->finish(); });
    repeats("check_parameters", [&] { ddp->check_parameters(); });
    shards.reset();
    EXPECT_NE(error_of([&] { weight.to_vector<float>(); }).find("did not come from the other processes"),
              std::string::npos);
    throw Error(first);
  });
  for (int r = 0; r < n; ++r)
    EXPECT_EQ(errors[static_cast<size_t>(r)].find("rank 1 is gone") != std::string::npos, r != 1)
        << errors[static_cast<size_t>(r)];
  clear(ranks);
}

// Without shards, the parameters are there, and are of no use.
TEST_P(NcclFailure, GradientsAreRefusedAfterwards) {
  const int n = GetParam();
  NcclRanks ranks(n);
  const auto errors = ranks.run([&](const Environment& e) {
    const auto group = ProcessGroup::connect(e, ranks.options(e.rank));
    const Device device = *group->device();
    nn::Linear model(6, 4);
    model.to(device);
    DistributedDataParallel ddp(model, group);
    Tensor x = Tensor::ones({2, 6}, {kF32, device});
    const auto loss = [&] { return ops::sum(model(x)); };
    loss().backward();
    ddp.finish();
    group->barrier("on").wait();
    if (e.rank == 1) return;
    const Tensor sum = Tensor::ones({4}, {kF32, device});
    const std::string first = error_of<ConnectionError>([&] {
      group->all_reduce(sum, ReduceOp::kSum, "alone").wait();
      sum.to_vector<float>();
    });
    EXPECT_NE(first, "");
    for (int i = 0; i < 2; ++i) {
      EXPECT_PRED2(repeats_error, error_of<ConnectionError>([&] { loss().backward(); }), first);
      EXPECT_PRED2(repeats_error, error_of<ConnectionError>([&] { ddp.finish(); }), first);
      EXPECT_PRED2(repeats_error, error_of<ConnectionError>([&] { ddp.check_parameters(); }), first);
    }
    throw Error(first);
  });
  for (int r = 0; r < n; ++r)
    EXPECT_EQ(errors[static_cast<size_t>(r)].find("rank 1 is gone") != std::string::npos, r != 1)
        << errors[static_cast<size_t>(r)];
  clear(ranks);
}

// The abort lets the compute stream go on, with garbage. The copy stream waits behind it, as that of a batch that is
// copied ahead does. Reads are plain ones: nobody waits for the collective.
TEST_P(NcclFailure, EveryReadThrowsUntilTheGroupIsGoneAndTheProgramKnows) {
  const int n = GetParam();
  NcclRanks ranks(n);
  const auto errors = ranks.run([&](const Environment& e) {
    std::shared_ptr<ProcessGroup> group = ProcessGroup::connect(e, ranks.options(e.rank));
    const Device device = *group->device();
    const Tensor x = Tensor::ones({4}, {kF32, kCPU}).to(device), sum = Tensor::ones({4}, {kF32, kCPU}).to(device);
    group->all_reduce(sum, ReduceOp::kSum, "together").synchronize();
    group->barrier("on").wait();
    if (e.rank == 1) return;
    group->all_reduce(sum, ReduceOp::kSum, "alone").wait();
    const Tensor weight = x + sum;
    const BackendTable& table = backend_of(device);
    const EventHandle after_it = table.record(device.index, Stream::kCompute);
    table.wait(device.index, Stream::kCopy, after_it);
    table.release(device.index, after_it);
    const std::string first = error_of<ConnectionError>([&] { weight.to_vector<float>(); });
    EXPECT_EQ(first, group->failure());
    const auto reads_throw = [&] {
      for (int i = 0; i < 3; ++i)
        for (const Tensor& tensor : {weight, x, sum})
          EXPECT_EQ(error_of<ConnectionError>([&] { tensor.to_vector<float>(); }), first);
      EXPECT_EQ(error_of<ConnectionError>([&] { weight.to(ranks.cuda().device(1)); }), first);
    };
    reads_throw();
    for (int i = 0; i < 2; ++i) EXPECT_EQ(error_of<ConnectionError>([&] { synchronize(device); }), first);
    reads_throw();
    group.reset();
    reads_throw();
    EXPECT_EQ(error_of<ConnectionError>([&] { synchronize(device); }), first);
    // It starts over, with values of its own.
    synchronize(device);
    EXPECT_EQ(Tensor::full({4}, 7, {kF32, kCPU}).to(device).to_vector<float>()[3], 7);
    throw Error(first);
  });
  for (int r = 0; r < n; ++r)
    EXPECT_EQ(errors[static_cast<size_t>(r)].find("rank 1 is gone") != std::string::npos, r != 1)
        << errors[static_cast<size_t>(r)];
}

// An exception leaves the scope of a group while an average is on its way: it never comes.
TEST_P(NcclFailure, AGroupThatIsDestroyedInAStepLeavesNothingToRead) {
  const int n = GetParam();
  NcclRanks ranks(n, 1, at_rank_1("stall", 2 * n));
  std::atomic<int> gone = 0;
  const auto errors = ranks.run([&](const Environment& e) {
    const Device device = ranks.cuda().device(e.rank);
    const Tensor x = Tensor::ones({4}, {kF32, kCPU}).to(device);
    const std::string error = error_of([&] {
      const auto group = ProcessGroup::connect(e, ranks.options(e.rank));
      group->all_reduce(x, ReduceOp::kSum, "x").wait();
      throw Error("the data are gone");
    });
    EXPECT_EQ(error, "the data are gone");
    const std::string read = error_of<ConnectionError>([&] { x.to_vector<float>(); });
    EXPECT_NE(read.find("all_reduce 1 (x; 4 f32) was given up: the process group was closed"), std::string::npos)
        << read;
    EXPECT_EQ(error_of<ConnectionError>([&] { x.to_vector<float>(); }), read);
    // Others may still wait for this rank.
    for (++gone; gone < n;) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  clear(ranks);
}

// The same when the average has come, and the thread that watches may not have looked.
TEST_P(NcclFailure, WhatIsDoneIsNotLostWithTheGroup) {
  const int n = GetParam();
  NcclRanks ranks(n);
  for (int i = 0; i < 5; ++i) {
    std::atomic<int> done = 0;
    const auto errors = ranks.run([&](const Environment& e) {
      const Device device = ranks.cuda().device(e.rank);
      const Tensor x = Tensor::ones({4}, {kF32, kCPU}).to(device);
      const std::string error = error_of([&] {
        const auto group = ProcessGroup::connect(e, ranks.options(e.rank));
        group->all_reduce(x, ReduceOp::kSum, "x").wait();
        synchronize(device);
        for (++done; done < n;) std::this_thread::yield();
        throw Error("the data are gone");
      });
      EXPECT_EQ(error, "the data are gone");
      EXPECT_EQ(x.to_vector<float>()[3], n);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

// The hosts' group fails: what is in flight on the devices ends.
TEST_P(NcclFailure, AFailureOfTheHostsEndsTheDevices) {
  const int n = GetParam();
  NcclRanks ranks(n);
  const auto errors = ranks.run([&](const Environment& e) {
    const auto group = ProcessGroup::connect(e, ranks.options(e.rank));
    Tensor x = Tensor::ones({4}, {kF32, kCPU}).to(*group->device());
    Work alone;
    if (e.rank != 1) alone = group->all_reduce(x, ReduceOp::kAverage, "x");
    const std::string error = error_of<MismatchError>([&] { group->barrier(e.rank == 1 ? "a" : "b").wait(); });
    EXPECT_NE(error.find("rank 0 is at barrier"), std::string::npos) << error;
    if (e.rank != 1) alone.synchronize();
  });
  for (int r = 0; r < n; ++r)
    if (r != 1) {
      EXPECT_NE(errors[static_cast<size_t>(r)].find(
                    "all_reduce 1 (x; 4 f32, average) was given up: the ranks do not call the same collectives"),
                std::string::npos)
          << errors[static_cast<size_t>(r)];
    }
  clear(ranks);
}

// Its stream has come to the collective, and the kernel does not begin: nobody is to blame more than others.
TEST_P(NcclFailure, AKernelThatStallsEndsWithTheTimeout) {
  NcclRanks ranks(GetParam(), 1, at_rank_1("stall", GetParam()));
  const auto errors = ranks.run([&](const Environment& e) {
    const auto group = ProcessGroup::connect(e, ranks.options(e.rank, std::chrono::milliseconds(2'000)));
    Tensor x = Tensor::ones({4}, {kF32, kCPU}).to(*group->device());
    const Work work = group->all_reduce(x, ReduceOp::kAverage, "x");
    work.wait();
    const std::string error = error_of<DistError>([&] { x.to_vector<double>(); });
    EXPECT_EQ(error_of<DistError>([&] { work.wait(); }), error);
    EXPECT_TRUE(work.is_done());
    throw Error(error);
  });
  std::string all;
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("all_reduce 1 (x; 4 f32, average)"), std::string::npos) << error;
    all += error;
  }
  EXPECT_NE(all.find("did not complete within 2000 ms"), std::string::npos) << all;
  clear(ranks);
}

TEST_P(NcclFailure, AKernelThatIsLateIsWaitedFor) {
  NcclRanks ranks(GetParam(), 1, at_rank_1("late", GetParam(), ",700"));
  ranks.with_groups([](ProcessGroup& group, Device device) {
    Tensor x = Tensor::full({4}, group.rank(), {kF32, kCPU}).to(device);
    const Work work = group.all_reduce(x, ReduceOp::kSum, "x");
    group.check_sequence("", "the hosts do not wait for the devices");
    work.synchronize();
    EXPECT_EQ(x.to_vector<double>()[3], group.world_size() * (group.world_size() - 1) / 2);
  });
}

// One rank's NCCL reports an error. The others do not wait for the timeout.
TEST_P(NcclFailure, AnErrorOfOneRanksNcclIsToldToAll) {
  const int n = GetParam();
  NcclRanks ranks(n, 1, at_rank_1("error", n, ",2"));
  const auto began = std::chrono::steady_clock::now();
  const auto errors = ranks.run([&](const Environment& e) {
    const auto group = ProcessGroup::connect(e, ranks.options(e.rank));
    Tensor x = Tensor::ones({4}, {kF32, kCPU}).to(*group->device());
    group->all_reduce(x, ReduceOp::kAverage, "x").synchronize();
  });
  EXPECT_NE(errors[1].find("rank 1: all_reduce 1 (x; 4 f32, average) failed: "), std::string::npos) << errors[1];
  for (int r = 0; r < n; ++r)
    if (r != 1) {
      EXPECT_NE(
          errors[static_cast<size_t>(r)].find("rank 1 gave up (rank 1: all_reduce 1 (x; 4 f32, average) failed: "),
          std::string::npos)
          << errors[static_cast<size_t>(r)];
    }
  EXPECT_LT(std::chrono::steady_clock::now() - began, test::kPatient / 2);
  clear(ranks);
}

TEST_P(NcclFailure, ConnectingThatStallsEndsWithTheTimeout) {
  NcclRanks ranks(GetParam(), 1, "stall@1,init");
  const auto errors = ranks.run(
      [&](const Environment& e) { ProcessGroup::connect(e, ranks.options(e.rank, std::chrono::milliseconds(2'000))); });
  for (size_t r = 0; r < errors.size(); ++r)
    EXPECT_NE(
        errors[r].find(absl::StrCat("rank ", r, ": connecting cuda:", r, " over NCCL did not complete within 2000 ms")),
        std::string::npos)
        << errors[r];
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclFailure, testing::Values(2, 4));

TEST(NcclVersion, AnOldLibraryIsRefusedInOneLine) {
  RONDO_SKIP_WITHOUT_NCCL();
  NcclRanks ranks(2, 1, "version=21705");
  const auto errors = ranks.run([&](const Environment& e) { ProcessGroup::connect(e, ranks.options(e.rank)); });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 0 cannot exchange tensors of its device: "), std::string::npos) << error;
    EXPECT_NE(error.find("libnccl.so.2 is too old: it is NCCL 2.17.5, and Rondo needs 2.18.0"), std::string::npos)
        << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

// ---- Processes: the launcher names the rank that failed, however it does, and none of the others hangs.

struct Ending {
  const char* how;
  const char* says;  // the launcher, about rank 1
  friend std::ostream& operator<<(std::ostream& out, const Ending& e) { return out << e.how; }
};

class NcclProcesses : public testing::TestWithParam<Ending> {
 protected:
  void SetUp() override { RONDO_SKIP_WITHOUT_NCCL(); }
};

TEST_P(NcclProcesses, TheRankThatFailedIsNamed) {
  for (const int n : {2, 4})
    for (const char* kind : {"device", "device checked"}) {
      SCOPED_TRACE(absl::StrCat(n, " ranks, ", kind));
      const test::Finished run = test::rondorun(
          absl::StrCat("--nproc-per-node ", n, " ", tests::kRankProgram, " '", GetParam().how, "' recorded '", kind,
                       "'"),
          absl::StrCat("RONDO_CUDA_PATH=", test::fake_cuda_folder(), " RONDO_FAKE_CUDA=", n, ":", n, ":64"));
      EXPECT_NE(run.code, 0);
      EXPECT_TRUE(has(run, absl::StrCat(GetParam().says, "; the job ends"))) << run.out;
      const size_t line = run.out.rfind("rondorun: ", run.out.find("; the job ends"));
      EXPECT_EQ(run.out.substr(line, 17), "rondorun: rank 1 ") << run.out;
      EXPECT_LT(run.took, std::chrono::seconds(60)) << run.out;
    }
}

INSTANTIATE_TEST_SUITE_P(Every, NcclProcesses,
                         testing::Values(Ending{"kill", "was killed by signal 9 (SIGKILL)"},
                                         Ending{"exit 3", "exited with code 3"}, Ending{"throw", "exited with code 9"},
                                         Ending{"stop", "is stopped (SIGSTOP or SIGTSTP)"},
                                         Ending{"late", "does not take part any more"}),
                         [](const auto& info) {
                           std::string name = info.param.how;
                           for (char& c : name)
                             if (c == ' ') c = '_';
                           return name;
                         });

TEST(NcclProcessesTest, ValuesAreThoseOfThreads) {
  RONDO_SKIP_WITHOUT_NCCL();
  const test::Finished run = test::rondorun(
      absl::StrCat("--nproc-per-node 3 ", tests::kRankProgram, " 'none' recorded 'device checked'"),
      absl::StrCat("RONDO_CUDA_PATH=", test::fake_cuda_folder(), " RONDO_FAKE_CUDA=5:3:64"));
  EXPECT_EQ(run.code, 0) << run.out;
  for (const char* rank : {"0", "1", "2"}) EXPECT_TRUE(has(run, absl::StrCat("rank ", rank, " has 1"))) << run.out;
}

}  // namespace
}  // namespace rondo::dist
