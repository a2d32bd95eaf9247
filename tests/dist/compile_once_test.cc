#include "rondo/dist/groups/compile_once.h"

#include <gtest/gtest.h>

#include <atomic>

#include "rondo/tests/dist/ranks.h"

namespace rondo::dist {
namespace {

using test::run_ranks;
using test::with_groups;

// The ranks of this test share their code, being threads of one process; ranks that do not: examples/compiler_test.cc.
TEST(CompileOnce, RankZeroIsFirst) {
  std::atomic<int> done = 0;
  std::atomic<bool> first = false;
  with_groups(3, [&](ProcessGroup& group) {
    const int loaded = compile_once(group, [&] {
      if (group.rank() == 0) first = done == 0;
      ++done;
    });
    EXPECT_TRUE(loaded == 0 || group.rank() > 0) << loaded;
    group.barrier("later collectives run").wait();
  });
  EXPECT_EQ(done, 3);
  EXPECT_TRUE(first);
}

TEST(CompileOnce, WhatRankZeroThrowsEveryRankHears) {
  std::atomic<int> calls = 0;
  const std::vector<std::string> errors = run_ranks(3, [&](const Environment& environment) {
    const auto group = ProcessGroup::connect(environment, {.timeout = test::kPatient});
    compile_once(*group, [&] {
      ++calls;
      throw Error("no such shape");
    });
  });
  EXPECT_EQ(errors[0], "no such shape");
  for (size_t r = 1; r < 3; ++r) EXPECT_EQ(errors[r], "compile_once: rank 0 failed: no such shape");
  EXPECT_EQ(calls, 1);
}

TEST(CompileOnce, AlsoWhatIsNoException) {
  std::atomic<int> numbers = 0;
  const std::vector<std::string> errors = run_ranks(2, [&](const Environment& environment) {
    const auto group = ProcessGroup::connect(environment, {.timeout = test::kPatient});
    try {
      compile_once(*group, [] { throw 42; });
    } catch (int) {
      ++numbers;
    }
  });
  EXPECT_EQ(numbers, 1);
  EXPECT_EQ(errors[1], "compile_once: rank 0 failed: by something that is no std::exception");
}

TEST(CompileOnce, OneProcessAlone) {
  int calls = 0;
  with_groups(1, [&](ProcessGroup& group) { EXPECT_EQ(compile_once(group, [&] { ++calls; }), 0); });
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace rondo::dist
