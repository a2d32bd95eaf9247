#include "rondo/dist/groups/process_group.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "rondo/dist/groups/agreement.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_device/fake_device.h"

namespace rondo::dist {
namespace {

using test::error_of;
using test::run_ranks;
using test::with_groups;

class Group : public testing::TestWithParam<int> {};

// Small tensors travel with the agreement, large ones in a block for each rank, and long blocks in pieces. With three
// ranks and 393,217 f32 numbers, one rank's block has a piece more than the others'.
TEST_P(Group, SumsAndAveragesEveryFloat) {
  with_groups(GetParam(), [](ProcessGroup& group) {
    const int n = group.world_size();
    for (const DType dtype : {kF64, kF32, kBF16, kF16})
      for (const int64_t size : {0, 1, 3, 96, 97, 192, 193, 384, 385, 300'000, 393'217})
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
          // Small whole numbers: exact in every dtype.
          std::vector<float> values(static_cast<size_t>(size)), expected(values.size());
          for (size_t i = 0; i < values.size(); ++i) {
            values[i] = static_cast<float>(i % 5) + static_cast<float>(2 * group.rank());
            const float sum = static_cast<float>(n) * static_cast<float>(i % 5) + static_cast<float>(n * (n - 1));
            expected[i] = op == ReduceOp::kSum ? sum : sum / static_cast<float>(n);
          }
          Tensor tensor = Tensor::from(values, {size}).to(dtype);
          group.all_reduce(tensor, op, "numbers").wait();
          EXPECT_TRUE(test::same_bits(tensor, Tensor::from(expected, {size}).to(dtype)))
              << std::string(name_of(dtype)) << size;
        }
    Tensor counts = Tensor::from<int64_t>({int64_t{1} << 60, -group.rank()}, {2});
    group.all_reduce(counts, ReduceOp::kSum, "counts").wait();
    EXPECT_EQ(counts.to_vector<int64_t>(), (std::vector<int64_t>{n * (int64_t{1} << 60), -n * (n - 1) / 2}));
    Tensor small = Tensor::from<int32_t>({group.rank()}, {1});
    group.all_reduce(small, ReduceOp::kSum, "small counts").wait();
    EXPECT_EQ(small.to_vector<int32_t>()[0], n * (n - 1) / 2);
  });
}

// Sixteen-bit numbers are added in f32: 256 + 1 is no bf16, but 256 + 1 + 1 is.
TEST(GroupOfThree, SixteenBitsAreRoundedOnce) {
  with_groups(3, [](ProcessGroup& group) {
    Tensor x = Tensor::full({4}, group.rank() == 0 ? 256 : 1, {kBF16});
    group.all_reduce(x, ReduceOp::kSum, "x").wait();
    EXPECT_EQ(x.to_vector<float>()[3], 258);
    // Beyond f16's largest number on the way, not at the end.
    Tensor y = Tensor::full({1}, 60000, {kF16});
    group.all_reduce(y, ReduceOp::kAverage, "y").wait();
    EXPECT_EQ(y.to_vector<float>()[0], 60000);
  });
}

TEST_P(Group, SameBitsOnEveryRank) {
  with_groups(GetParam(), [](ProcessGroup& group) {
    Generator generator(static_cast<uint64_t>(group.rank()));
    Tensor x = Tensor::randn({1001}, {}, &generator);
    group.all_reduce(x, ReduceOp::kAverage, "x").wait();
    Tensor all = Tensor::zeros({group.world_size(), 1001});
    group.all_gather(all, x, "all").wait();
    for (int r = 0; r < group.world_size(); ++r) EXPECT_TRUE(test::same_bits(all[r], x)) << r;
  });
}

TEST_P(Group, BroadcastsFromAnyRankAnyDtype) {
  with_groups(GetParam(), [](ProcessGroup& group) {
    for (int root = 0; root < group.world_size(); ++root)
      for (const DType dtype : {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool}) {
        Tensor x = Tensor::full({2, 3}, group.rank() == root ? 1 : 0, {dtype});
        const uint32_t version = x.version();
        group.broadcast(x, root, "x").wait();
        EXPECT_EQ(x.to_vector<double>(), std::vector<double>(6, 1));
        // A rank that was written to says so; what autograd saved is stale there.
        EXPECT_EQ(x.version() != version, group.rank() != root);
      }
    for (int root = 0; root < group.world_size(); ++root) {  // in pieces, the last one shorter
      const Tensor numbers = Tensor::arange(0, 300'001, 1, {kF32}) + root;
      Tensor x = group.rank() == root ? numbers.clone() : Tensor::zeros({300'001});
      group.broadcast(x, root, "pieces").wait();
      EXPECT_TRUE(test::same_bits(x, numbers)) << root;
    }
  });
}

TEST_P(Group, GathersTensorsAndTexts) {
  with_groups(GetParam(), [](ProcessGroup& group) {
    const int n = group.world_size();
    const Tensor in = Tensor::full({2}, group.rank(), {kI64});
    Tensor out = Tensor::zeros({n, 2}, {kI64});
    group.all_gather(out, in, "ranks").wait();
    for (int r = 0; r < n; ++r) EXPECT_EQ(out[r].to_vector<int64_t>(), (std::vector<int64_t>{r, r}));
    const Tensor rows = Tensor::arange(0, 200'001, 1, {kF32});
    Tensor all_rows = Tensor::zeros({n, 200'001});
    group.all_gather(all_rows, rows + group.rank(), "rows").wait();
    for (int r = 0; r < n; ++r) EXPECT_TRUE(test::same_bits(all_rows[r], rows + r)) << r;
    const std::string text(static_cast<size_t>(3 * group.rank()), 'x');
    const std::vector<std::string> texts = gather_texts(group, text, 5, "texts");
    for (int r = 0; r < n; ++r)
      EXPECT_EQ(texts[static_cast<size_t>(r)], std::string(static_cast<size_t>(std::min(5, 3 * r)), 'x'));
  });
}

// Rows that travel with the agreement, whole, in one piece and in several.
TEST_P(Group, ScattersSumsAndAverages) {
  with_groups(GetParam(), [](ProcessGroup& group) {
    const int n = group.world_size();
    for (const DType dtype : {kF64, kF32, kBF16, kF16, kI64, kI32})
      for (const int64_t size : {0, 1, 2, 30, 100, 400, 131'072, 300'001})
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
          if (op == ReduceOp::kAverage && !is_floating(dtype)) continue;
          SCOPED_TRACE(absl::StrCat(std::string(name_of(dtype)), " ", size));
          // Small whole numbers: exact in every dtype.
          std::vector<float> values(static_cast<size_t>(n * size)), expected(static_cast<size_t>(size));
          for (size_t i = 0; i < values.size(); ++i)
            values[i] = static_cast<float>(i % 5) + static_cast<float>(2 * group.rank());
          for (size_t i = 0; i < expected.size(); ++i) {
            const size_t at = static_cast<size_t>(group.rank()) * expected.size() + i;
            const float sum = static_cast<float>(n) * static_cast<float>(at % 5) + static_cast<float>(n * (n - 1));
            expected[i] = op == ReduceOp::kSum ? sum : sum / static_cast<float>(n);
          }
          const Tensor in = Tensor::from(values, {n, size}).to(dtype), before = in.clone();
          Tensor out = Tensor::full({size}, 77, {dtype});
          const uint32_t version = out.version();
          group.reduce_scatter(out, in, op, "numbers").wait();
          EXPECT_TRUE(test::same_bits(out, Tensor::from(expected, {size}).to(dtype)));
          EXPECT_TRUE(test::same_bits(in, before));
          EXPECT_TRUE(size == 0 || out.version() != version);
        }
  });
}

TEST(GroupOfThree, ScatteredSixteenBitsAreRoundedOnce) {
  with_groups(3, [](ProcessGroup& group) {
    for (const int64_t size : {4, 5'000}) {
      Tensor x = Tensor::full({3, size}, group.rank() == 0 ? 256 : 1, {kBF16}), sum = Tensor::zeros({size}, {kBF16});
      group.reduce_scatter(sum, x, ReduceOp::kSum, "x").wait();
      EXPECT_EQ(sum.to_vector<float>(), std::vector<float>(static_cast<size_t>(size), 258));
      Tensor y = Tensor::full({3, size}, 60000, {kF16}), mean = Tensor::zeros({size}, {kF16});
      group.reduce_scatter(mean, y, ReduceOp::kAverage, "y").wait();
      EXPECT_EQ(mean.to_vector<float>(), std::vector<float>(static_cast<size_t>(size), 60000));
    }
  });
}

// Shards that are gathered are what all_reduce gives, but for the order of the sums; and the same bits every time.
TEST_P(Group, ScatteredAndGatheredIsReduced) {
  with_groups(GetParam(), [](ProcessGroup& group) {
    const int n = group.world_size();
    Generator generator(static_cast<uint64_t>(group.rank()) + 7);
    const Tensor mine = Tensor::randn({n, 40'000}, {}, &generator);
    const auto scatter = [&] {
      Tensor shard = Tensor::zeros({40'000}), whole = Tensor::zeros({n, 40'000});
      group.reduce_scatter(shard, mine, ReduceOp::kAverage, "shard").wait();
      group.all_gather(whole, shard, "whole").wait();
      return whole;
    };
    const Tensor once = scatter();
    EXPECT_TRUE(test::same_bits(scatter(), once));
    const Tensor reduced = mine.clone();
    group.all_reduce(reduced, ReduceOp::kAverage, "reduced").wait();
    EXPECT_LT((once - reduced).abs().max().item(), 1e-6);
  });
}

TEST_P(Group, BarriersHold) {
  std::atomic<int> come = 0;
  with_groups(GetParam(), [&](ProcessGroup& group) {
    for (int round = 1; round <= 5; ++round) {
      ++come;
      group.barrier("round").wait();
      EXPECT_GE(come, round * group.world_size());
    }
  });
}

TEST_P(Group, RunsInOrderBesideItsCaller) {
  with_groups(GetParam(), [](ProcessGroup& group) {
    std::vector<Work> works;
    Tensor x = Tensor::full({1000}, 1);
    for (int i = 0; i < 10; ++i) works.push_back(group.all_reduce(x, ReduceOp::kSum, absl::StrCat(i)));
    works.back().wait();
    for (const Work& work : works) EXPECT_TRUE(work.is_done());
    EXPECT_EQ(x.to_vector<double>()[999], std::pow(group.world_size(), 10));
    Work().wait();
    // What nobody waits for keeps its tensor alive and runs all the same.
    group.all_reduce(Tensor::ones({1000}), ReduceOp::kSum, "forgotten");
    group.barrier("end").wait();
  });
}

TEST_P(Group, RefusesWhatItCannotTake) {
  const test::FakeDevice fake;
  with_groups(GetParam(), [&fake](ProcessGroup& group) {
    const Tensor square = Tensor::zeros({2, 2}), counts = Tensor::zeros({2}, {kI64});
    EXPECT_NE(error_of([&] {
                group.all_reduce(square.t(), ReduceOp::kSum, "view");
              }).find("all_reduce (view): the tensor is not contiguous"),
              std::string::npos);
    EXPECT_NE(error_of([&] { group.all_reduce(Tensor(), ReduceOp::kSum, "none"); }).find("undefined"),
              std::string::npos);
    EXPECT_NE(error_of([&] { group.all_reduce(counts, ReduceOp::kAverage, "counts"); }).find("i64 cannot be averaged"),
              std::string::npos);
    EXPECT_NE(error_of([&] {
                group.all_reduce(Tensor::zeros({2}, {kU8}), ReduceOp::kSum, "bytes");
              }).find("u8 cannot be summed"),
              std::string::npos);
    EXPECT_NE(error_of([&] { group.broadcast(counts, group.world_size(), "x"); }).find("there is no rank"),
              std::string::npos);
    EXPECT_NE(error_of([&] { group.all_gather(square, counts, "x"); }).find("do not make"), std::string::npos);
    const Tensor rows = Tensor::zeros({group.world_size(), 2}), row = Tensor::zeros({2});
    const auto scatter_error = [&](const Tensor& out, const Tensor& in, ReduceOp op = ReduceOp::kSum) {
      return error_of([&] { group.reduce_scatter(out, in, op, "x"); });
    };
    EXPECT_NE(scatter_error(Tensor::zeros({3}), rows).find("does not part into"), std::string::npos);
    EXPECT_NE(scatter_error(counts, rows).find("does not part into"), std::string::npos);
    EXPECT_NE(
        scatter_error(counts, rows.to(kI64), ReduceOp::kAverage).find("reduce_scatter (x): i64 cannot be averaged"),
        std::string::npos);
    EXPECT_NE(scatter_error(rows[0], rows).find("lies in the operand's memory"), std::string::npos);
    EXPECT_NE(scatter_error(Tensor(), rows).find("undefined"), std::string::npos);
    EXPECT_NE(scatter_error(row, Tensor::zeros({2, group.world_size() + 1}).t()).find("not contiguous"),
              std::string::npos);
    const Device device = fake.device();
    const std::string there = "(x): the tensor is on fake:0, and processes exchange host memory only";
    EXPECT_NE(error_of([&] { group.all_reduce(square.to(device), ReduceOp::kSum, "x"); }).find(there),
              std::string::npos);
    EXPECT_NE(error_of([&] { group.broadcast(square.to(device), 0, "x"); }).find(there), std::string::npos);
    EXPECT_NE(error_of([&] { group.all_gather(square, counts.to(device), "x"); }).find(there), std::string::npos);
    EXPECT_NE(scatter_error(row.to(device), rows).find(there), std::string::npos);
    group.barrier("still together").wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Group, testing::Values(1, 2, 3, 5));

// ---- What goes wrong

class GroupFailure : public testing::Test {
 protected:
  static void expect_each(const std::vector<std::string>& errors, const std::string& part) {
    for (size_t r = 0; r < errors.size(); ++r)
      EXPECT_NE(errors[r].find(part), std::string::npos) << r << ": " << errors[r];
  }
};

TEST_F(GroupFailure, OtherCollectivesAreNamedBeforeATensorMoves) {
  const auto errors = run_ranks(3, [](const Environment& e) {
    const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
    Tensor x = Tensor::full({e.rank == 2 ? 7 : 8}, e.rank);
    try {
      group->all_reduce(x, ReduceOp::kSum, "gradients").wait();
    } catch (const MismatchError&) {
      EXPECT_EQ(x.to_vector<double>()[0], e.rank);
      // The group is of no more use.
      EXPECT_NE(error_of<ConnectionError>([&] { group->barrier("next").wait(); }).find("barrier 3 (next) cannot run"),
                std::string::npos);
      throw;
    }
  });
  expect_each(errors, "rank 0 is at all_reduce 2 (gradients; 8 f32), rank 2 at all_reduce 2 (gradients; 7 f32)");
}

TEST_F(GroupFailure, EveryPartOfACollectiveIsCompared) {
  using Call = std::function<Work(ProcessGroup&, const Tensor&)>;
  const Call sum = [](ProcessGroup& g, const Tensor& x) { return g.all_reduce(x, ReduceOp::kSum, "x"); };
  const std::vector<Call> others = {
      [](ProcessGroup& g, const Tensor& x) { return g.all_reduce(x, ReduceOp::kSum, "y"); },
      [](ProcessGroup& g, const Tensor& x) { return g.all_reduce(x, ReduceOp::kAverage, "x"); },
      [](ProcessGroup& g, const Tensor& x) { return g.all_reduce(x.to(kF64), ReduceOp::kSum, "x"); },
      [](ProcessGroup& g, const Tensor& x) { return g.broadcast(x, 0, "x"); },
      [](ProcessGroup& g, const Tensor&) { return g.barrier("x"); },
  };
  for (const Call& other : others) {
    const auto errors = run_ranks(2, [&](const Environment& e) {
      const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
      (e.rank == 0 ? sum : other)(*group, Tensor::ones({4})).wait();
    });
    expect_each(errors, "rank 0 is at all_reduce 2 (x; 4 f32), rank 1 at ");
  }
}

TEST_F(GroupFailure, ARankThatDoesNotComeIsNamed) {
  std::atomic<int> done = 0;
  const auto errors = run_ranks(3, [&](const Environment& e) {
    // Long enough for three threads to get through connecting on a busy machine.
    const auto group = ProcessGroup::connect(e, {.timeout = std::chrono::milliseconds(8'000)});
    group->barrier("together").wait();
    if (e.rank == 1) {
      while (done < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    const std::string error = error_of<DistError>(
        [&] { group->all_reduce(Tensor::ones({4}), ReduceOp::kSum, "x").wait(); });
    ++done;
    throw Error(error);
  });
  // One of the two gives up first; the other passes that on.
  const std::string sentence = "rank 1 has not come to it, and was last at barrier 2 (together)";
  EXPECT_NE(errors[0].find(sentence), std::string::npos) << errors[0];
  EXPECT_NE(errors[2].find(sentence), std::string::npos) << errors[2];
  EXPECT_NE((errors[0] + errors[2]).find("all_reduce 3 (x; 4 f32) did not complete within 8000 ms"), std::string::npos)
      << errors[0];
}

TEST_F(GroupFailure, ARankThatLeavesIsNamedAtOnce) {
  const auto began = std::chrono::steady_clock::now();
  const auto errors = run_ranks(2, [](const Environment& e) {
    const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
    group->barrier("together").wait();
    if (e.rank == 0) group->all_reduce(Tensor::ones({4}), ReduceOp::kSum, "x").wait();
  });
  EXPECT_NE(errors[0].find("rank 0: all_reduce 3 (x; 4 f32) failed: rank 1 is gone: it has left the group"),
            std::string::npos)
      << errors[0];
  EXPECT_LT(std::chrono::steady_clock::now() - began, test::kPatient);
}

TEST_F(GroupFailure, LeavingWithWorkUnderWayEndsIt) {
  std::atomic<bool> left = false;
  const auto errors = run_ranks(2, [&](const Environment& e) {
    auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
    group->barrier("together").wait();
    if (e.rank == 1) {
      while (!left) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    const Work first = group->all_reduce(Tensor::ones({4}), ReduceOp::kSum, "x"), second = group->barrier("y");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    group.reset();
    left = true;
    EXPECT_TRUE(first.is_done());
    EXPECT_NE(error_of<ConnectionError>([&] { first.wait(); }).find("closed"), std::string::npos);
    EXPECT_NE(error_of<ConnectionError>([&] { second.wait(); }), "");
  });
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
}

TEST_F(GroupFailure, ConnectingNamesWhoDidNotCome) {
  const auto errors = run_ranks(4, [](const Environment& e) {
    if (e.rank == 1 || e.rank == 2) return;
    ProcessGroup::connect(e, {.timeout = std::chrono::milliseconds(2'000)});
  });
  EXPECT_NE(errors[0].find("rank 1, rank 2 did not come within 2000 ms"), std::string::npos) << errors[0];
  EXPECT_NE(errors[3].find("rank 1, rank 2 did not come within 2000 ms"), std::string::npos) << errors[3];
}

// Two processes with one RANK, under a launcher's store and under rank 0's. `ranks`: those of the children.
std::vector<std::string> errors_of_processes(const std::vector<int>& ranks, int world_size, Environment job,
                                             std::chrono::milliseconds timeout) {
  std::vector<pid_t> children;
  const test::TempFolder folder;
  for (size_t i = 0; i < ranks.size(); ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    job.rank = ranks[i];
    job.world_size = world_size;
    std::ofstream file(folder / absl::StrCat(i));
    try {
      ProcessGroup::connect(job, {.timeout = timeout})->barrier("together").wait();
    } catch (const std::exception& e) {
      file << e.what();
    }
    file.close();
    ::_exit(0);
  }
  std::vector<std::string> errors;
  for (size_t i = 0; i < children.size(); ++i) {
    ::waitpid(children[i], nullptr, 0);
    std::ifstream file(folder / absl::StrCat(i));
    errors.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return errors;
}

TEST(GroupLife, TwoProcessesWithOneRankAreTold) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer knows no threads in a child process";
#endif
  const StoreServer server("127.0.0.1", 0);
  Environment job;
  job.store = absl::StrCat("127.0.0.1:", server.port());
  for (const int twice : {0, 1}) {
    job.run_id = absl::StrCat("twice ", twice);
    const auto errors = errors_of_processes({0, 1, twice}, 3, job, std::chrono::milliseconds(4'000));
    const std::string sentence = absl::StrCat("two processes of this job have RANK=", twice, ": process ");
    int told = 0;
    for (const std::string& error : errors) {
      told += error.find(sentence) != std::string::npos && error.find("from 0 to 2") != std::string::npos ? 1 : 0;
      EXPECT_NE(error, "");
    }
    EXPECT_EQ(told, 1) << errors[0] << "\n" << errors[1] << "\n" << errors[2];
  }
  Environment alone;  // rank 0 keeps the store itself
  alone.master_port = port_of(listen_on("127.0.0.1", 0));
  const auto errors = errors_of_processes({0, 0}, 2, alone, std::chrono::milliseconds(2'000));
  EXPECT_NE((errors[0] + errors[1]).find("Two processes of this job may have RANK=0"), std::string::npos)
      << errors[0] << errors[1];
}

TEST(GroupLife, OneRankOfThreeIsToldThatItIsAlone) {
  Environment e;
  e.world_size = 3;
  e.master_port = port_of(listen_on("127.0.0.1", 0));
  const auto alone = [&](int rank) {
    e.rank = rank;
    return error_of<TimeoutError>([&] { ProcessGroup::connect(e, {.timeout = std::chrono::milliseconds(500)}); });
  };
  EXPECT_NE(alone(0).find("rank 1, rank 2 did not come within 500 ms. All 3 processes of the job must be started"),
            std::string::npos)
      << alone(0);
  EXPECT_NE(alone(2).find("rank 2 of 3 finds no rank 0, which keeps the store of the job"), std::string::npos)
      << alone(2);
}

TEST(GroupLife, ManyCanBeMadeOneAfterTheOther) {
  const auto errors = run_ranks(2, [](const Environment& e) {
    for (int i = 0; i < 10; ++i) {
      const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
      Tensor x = Tensor::full({1}, i);
      group->all_reduce(x, ReduceOp::kSum, "x").wait();
      EXPECT_EQ(x.item(), 2 * i);
    }
  });
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
}

TEST(GroupLife, NoTimeoutIsTooLong) {
  for (const std::chrono::milliseconds timeout :
       {std::chrono::milliseconds::max(), std::chrono::milliseconds::max() / 1'000'000}) {
    const auto errors = run_ranks(2, [timeout](const Environment& e) {
      ProcessGroup::connect(e, {.timeout = timeout})->barrier("together").wait();
    });
    EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
  }
}

// A fork has the group's objects, but none of its threads. Its parent, which may keep the store, goes on.
TEST(GroupLife, AForkLeavesItToTheParent) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer knows no threads in a child process";
#endif
  for (const bool keeps_store : {false, true}) {
    SCOPED_TRACE(keeps_store);
    const int port = port_of(listen_on("127.0.0.1", 0));
    std::atomic<bool> told = false;
    const auto errors = run_ranks(3, [&](Environment e) {
      if (keeps_store) e.store.clear(), e.master_port = port;
      auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
      if (const pid_t child = e.rank == 0 ? ::fork() : -1; child == 0) {
        ::alarm(20);
        const std::string refused = error_of([&] { group->barrier("in the fork"); });
        group.reset();
        ::_exit(refused.find("this process is a fork of process ") != std::string::npos ? 7 : 8);
      } else if (child > 0) {
        int status = 0;
        ::waitpid(child, &status, 0);
        EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 7);
      }
      const auto two = group->subgroup({0, 1}, "two");  // over the store
      if (e.rank == 2) return;
      if (e.rank == 1) {
        const std::string error = error_of<ConnectionError>([&] { group->barrier("of three").wait(); });
        EXPECT_NE(error.find("rank 2 is gone: it has left the group"), std::string::npos) << error;
        EXPECT_EQ(error.find("rank 0 is gone"), std::string::npos) << error;
        told = true;
      }
      while (!told) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    EXPECT_EQ(errors, (std::vector<std::string>{"", "", ""}));
  }
}

// The first start of a job broke off while one rank was connecting. The next start shares its store.
TEST(GroupLife, ARestartedJobMeetsWhateverTheLastOneLeft) {
  for (const int restart_count : {0, 1}) {
    std::atomic<bool> restarted = false;
    const auto errors = run_ranks(2, [&restarted, restart_count](Environment e) {
      while (e.rank == 1 && !restarted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      for (int i = 0; i < 2 && e.rank == 0; ++i) {
        const std::string error = error_of<TimeoutError>(
            [&] { ProcessGroup::connect(e, {.timeout = std::chrono::milliseconds(100)}); });
        EXPECT_NE(error.find("rank 1 did not come"), std::string::npos) << error;
      }
      restarted = true;
      e.restart_count = restart_count;
      const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
      group->barrier("together").wait();
    });
    EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
  }
}

TEST(GroupLife, AnotherStartOfTheJobIsNotMet) {
  const auto errors = run_ranks(2, [](Environment e) {
    e.restart_count = e.rank;
    ProcessGroup::connect(e, {.timeout = std::chrono::milliseconds(300)});
  });
  EXPECT_NE(errors[0].find("rank 1 did not come"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("rank 0 did not come"), std::string::npos) << errors[1];
}

// An exception ends a rank while a large collective is on its way and its peer has stopped reading: the group must not
// hold the exception up until the timeout is over.
TEST(GroupLife, AnExceptionIsNotHeldUpByWorkUnderWay) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer knows no threads in a child process";
#endif
  const StoreServer server("127.0.0.1", 0);
  const auto rank = [&](int r) {
    Environment e;
    e.rank = r;
    e.world_size = 2;
    e.store = absl::StrCat("127.0.0.1:", server.port());
    return e;
  };
  const Tensor large = Tensor::ones({1 << 24});  // made here: the thread pool does not survive a fork
  const pid_t peer = ::fork();
  if (peer == 0) {
    try {
      const auto group = ProcessGroup::connect(rank(1), {.timeout = std::chrono::milliseconds(300'000)});
      for (;;) group->all_reduce(large, ReduceOp::kSum, "large").wait();
    } catch (const std::exception&) {
    }
    ::_exit(0);
  }
  const std::string error = error_of([&] {
    const auto group = ProcessGroup::connect(rank(0), {.timeout = std::chrono::milliseconds(300'000)});
    for (int i = 0; i < 3; ++i) group->all_reduce(large, ReduceOp::kSum, "large").wait();
    const Work stuck = group->all_reduce(large, ReduceOp::kSum, "large");
    ::kill(peer, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (stuck.is_done()) group->all_reduce(large, ReduceOp::kSum, "large");
    throw Error("mine");
  });
  EXPECT_EQ(error, "mine");
  ::kill(peer, SIGKILL);
  ::waitpid(peer, nullptr, 0);
}

TEST(Agreement, EveryRankHasTheSameOptions) {
  const auto errors = test::run_ranks(4, [](const Environment& e) {
    ProcessGroup::connect(
        e, {.timeout = test::kPatient + std::chrono::milliseconds(e.rank == 3), .compare_each = e.rank % 2 == 1});
  });
  for (const std::string& error : errors)
    EXPECT_EQ(
        error,
        "the ranks connect with different GroupOptions; timeout = 60000 ms on ranks 0, 1, 2; timeout = 60001 ms on "
        "rank 3; compare_each = false on ranks 0, 2; compare_each = true on ranks 1, 3");
}

TEST(Agreement, WhateverAPeerSendsIsDescribedAndRefused) {
  std::mt19937 random(3);
  for (int i = 0; i < 10'000; ++i) {
    CallMessage message;
    auto* bytes = reinterpret_cast<unsigned char*>(&message.call);
    for (size_t b = 0; b < sizeof(Call); ++b) bytes[b] = static_cast<unsigned char>(random());
    EXPECT_FALSE(describe(message.call, "x").empty());
    const std::vector<CallMessage> all = {CallMessage(), message};
    EXPECT_EQ(first_that_differs(all, 2), 1u);
  }
  Call call{.number = 1, .numel = 4, .kind = static_cast<CollectiveKind>(200), .dtype = static_cast<DType>(99)};
  EXPECT_FALSE(is_valid(call, 2));
  EXPECT_EQ(describe(call, "x"), "unknown collective 200 1 (x; 4 of an unknown dtype)");
}

// As under another launcher than ours.
TEST(GroupLife, RankZeroOpensAStoreWhereNobodyElseDoes) {
  const int port = port_of(listen_on("127.0.0.1", 0));
  const auto errors = run_ranks(2, [port](Environment e) {
    e.store.clear();
    e.master_port = port;
    const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
    group->barrier("together").wait();
  });
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
}

}  // namespace
}  // namespace rondo::dist
