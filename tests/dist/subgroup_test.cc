// Groups of some of the ranks.
#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "rondo/dist/groups/process_group.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/errors.h"

namespace rondo::dist {
namespace {

using test::error_of;
using test::run_ranks;
using test::with_groups;

class Subgroup : public testing::Test {
 protected:
};

TEST_F(Subgroup, EachComputesWithItsOwnRanks) {
  with_groups(4, [](ProcessGroup& all) {
    const int me = all.rank();
    const auto odd = all.subgroup({1, 3}, "odd"), even = all.subgroup({0, 2}, "even");
    EXPECT_EQ(odd != nullptr, me % 2 == 1);
    EXPECT_EQ(even != nullptr, me % 2 == 0);
    ProcessGroup& mine = me % 2 == 1 ? *odd : *even;
    EXPECT_EQ(mine.world_size(), 2);
    EXPECT_EQ(mine.rank(), me / 2);
    for (const int64_t size : {1, 100, 100'000}) {
      Tensor x = Tensor::full({size}, me);
      mine.all_reduce(x, ReduceOp::kSum, "x").wait();
      EXPECT_EQ(x.to_vector<float>(), std::vector<float>(static_cast<size_t>(size), me % 2 == 1 ? 4 : 2));
    }
    // The larger group works on, beside them.
    Tensor y = Tensor::full({3}, me);
    all.all_reduce(y, ReduceOp::kSum, "y").wait();
    EXPECT_EQ(y.to_vector<float>(), (std::vector<float>(3, 6)));
  });
}

// Rank i of a subgroup is ranks[i].
TEST_F(Subgroup, TheOrderIsTheOneThatIsGiven) {
  with_groups(3, [](ProcessGroup& all) {
    const auto turned = all.subgroup({2, 0, 1}, "turned");
    EXPECT_EQ(turned->rank(), (all.rank() + 1) % 3);
    const Tensor in = Tensor::full({2}, all.rank(), {kI64});
    Tensor out = Tensor::zeros({3, 2}, {kI64});
    turned->all_gather(out, in, "ranks").wait();
    EXPECT_EQ(out.to_vector<int64_t>(), (std::vector<int64_t>{2, 2, 0, 0, 1, 1}));
    Tensor x = Tensor::full({1000}, all.rank());
    turned->broadcast(x, 0, "from rank 2").wait();
    EXPECT_EQ(x.to_vector<double>()[999], 2);
  });
}

TEST_F(Subgroup, OneRankAloneAndGroupsOfGroups) {
  with_groups(4, [](ProcessGroup& all) {
    const auto alone = all.subgroup({2}, "alone");
    EXPECT_EQ(alone != nullptr, all.rank() == 2);
    if (alone) {
      EXPECT_EQ(alone->world_size(), 1);
      alone->barrier("nobody else").wait();
    }
    const auto three = all.subgroup({3, 1, 0}, "three");
    if (!three) return;
    const auto two = three->subgroup({2, 0}, "two");  // ranks 0 and 3 of the job
    EXPECT_EQ(two != nullptr, all.rank() != 1);
    if (!two) return;
    Tensor x = Tensor::full({5}, all.rank());
    two->all_reduce(x, ReduceOp::kSum, "x").wait();
    EXPECT_EQ(x.to_vector<double>()[4], 3);
  });
}

// The smaller group keeps what it needs of the larger one, also a store that rank 0 of the job keeps.
TEST_F(Subgroup, OutlivesTheGroupItIsOf) {
  const int port = port_of(listen_on("127.0.0.1", 0));
  for (const bool own_store : {false, true}) {
    const auto errors = run_ranks(3, [&](Environment e) {
      if (own_store) {
        e.store.clear();
        e.master_port = port;
      }
      auto all = ProcessGroup::connect(e, {.timeout = test::kPatient});
      const auto two = all->subgroup({0, 2}, "two");
      all.reset();
      if (!two) return;
      for (int i = 0; i < 5; ++i) two->barrier("still there").wait();
      const auto again = two->subgroup({1, 0}, "again");
      again->barrier("and more").wait();
    });
    EXPECT_EQ(errors, (std::vector<std::string>(3))) << own_store;
  }
}

TEST_F(Subgroup, RefusesWhatIsNoGroup) {
  with_groups(3, [](ProcessGroup& all) {
    EXPECT_NE(error_of([&] { all.subgroup({}, "none"); }).find("subgroup (none): it has no ranks"), std::string::npos);
    EXPECT_NE(error_of([&] { all.subgroup({0, 3}, "far"); }).find("there is no rank 3 among 3"), std::string::npos);
    EXPECT_NE(error_of([&] { all.subgroup({-1}, "far"); }).find("there is no rank -1"), std::string::npos);
    EXPECT_NE(error_of([&] { all.subgroup({1, 0, 1}, "twice"); }).find("rank 1 is named twice"), std::string::npos);
    all.barrier("still together").wait();
  });
  const auto errors = run_ranks(3, [](const Environment& e) {
    const auto all = ProcessGroup::connect(e, {.timeout = test::kPatient});
    all->subgroup(e.rank == 2 ? std::vector{0, 2} : std::vector{0, 1}, "pair");
  });
  for (const std::string& error : errors)
    EXPECT_EQ(error, "subgroup pair: rank 2 makes it of ranks 0, 2, rank 0 of ranks 0, 1");
}

// Messages count the ranks of the job, and name the subgroup.
TEST_F(Subgroup, FailsByItselfAndNamesRanksOfTheJob) {
  const auto errors = run_ranks(4, [](const Environment& e) {
    const auto all = ProcessGroup::connect(e, {.timeout = test::kPatient});
    const auto odd = all->subgroup({3, 1}, "odd");
    std::string error;
    if (odd) {
      Tensor x = Tensor::ones({e.rank == 1 ? 7 : 8});
      error = error_of<MismatchError>([&] { odd->all_reduce(x, ReduceOp::kSum, "x").wait(); });
    }
    all->barrier("the larger group works on").wait();
    if (!error.empty()) throw Error(error);
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(errors[2], "");
  for (const int r : {1, 3})
    EXPECT_EQ(
        errors[static_cast<size_t>(r)],
        "the ranks do not call the same collectives: rank 3 is at all_reduce 1 (x; 8 f32) of subgroup odd (ranks 3, "
        "1), rank 1 at all_reduce 1 (x; 7 f32) of subgroup odd (ranks 3, 1)");
}

TEST_F(Subgroup, ARankThatLeavesIsNamedAsTheJobCountsIt) {
  std::atomic<bool> told = false;
  const auto errors = run_ranks(3, [&](const Environment& e) {
    const auto all = ProcessGroup::connect(e, {.timeout = test::kPatient});
    auto pair = all->subgroup({1, 2}, "pair");
    if (!pair) return;
    pair->barrier("together").wait();
    if (e.rank == 2) {
      pair.reset();
      while (!told) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    const std::string error = error_of<ConnectionError>(
        [&] { pair->all_reduce(Tensor::ones({4}), ReduceOp::kSum, "x").wait(); });
    told = true;
    throw Error(error);
  });
  EXPECT_NE(
      errors[1].find("rank 1: all_reduce 2 (x; 4 f32) of subgroup pair (ranks 1, 2) failed: rank 2 is gone: it has "
                     "left the group"),
      std::string::npos)
      << errors[1];
}

}  // namespace
}  // namespace rondo::dist
