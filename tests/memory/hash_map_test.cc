// HashMap and HashSet when memory runs short as they grow, and when what they hold cannot be constructed.
#include "rondo/runtime/base/hash_map.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "rondo/tests/memory/failing_memory.h"

namespace rondo {
namespace {

using test::FailingMemory;

const std::string kLong = "a key that is too long to stand in the string itself: ";

// Calls `change` with each allocation failing, until none does; `check` after each failure.
template <class Change, class Check> int64_t fail_each(Change change, Check check) {
  for (int64_t n = 1;; ++n) {
    try {
      const FailingMemory memory(n, FailingMemory::Which::kOne);
      change();
      if (FailingMemory::end() < n) return n - 1;
    } catch (const std::bad_alloc&) {
      FailingMemory::end();
      check();
    }
  }
}

TEST(HashMap, AFailedInsertionChangesNothing) {
  HashMap<std::string, std::string> map;
  int64_t failures = 0;
  for (int i = 0; i < 200; ++i) {
    const std::string key = kLong + std::to_string(i);
    failures += fail_each([&] { map.try_emplace(key, kLong); },
                          [&] {
                            ASSERT_EQ(map.size(), static_cast<size_t>(i));
                            ASSERT_FALSE(map.contains(key));
                            for (int k = 0; k < i; ++k) {
                              const auto found = map.find(kLong + std::to_string(k));
                              ASSERT_NE(found, map.end());
                              ASSERT_EQ(found->second, kLong);
                            }
                          });
    ASSERT_EQ(map.size(), static_cast<size_t>(i) + 1);
  }
  EXPECT_GT(failures, 400);  // key, value, and each growth
}

TEST(HashMap, AConstructorThatThrowsChangesNothing) {
  struct Throws {
    explicit Throws(bool now) {
      if (now) throw 1;
    }
  };
  HashMap<int, Throws> map;
  for (int i = 0; i < 100; ++i) {
    EXPECT_THROW(map.try_emplace(i, true), int);
    EXPECT_FALSE(map.contains(i));
    map.try_emplace(i, false);
  }
  EXPECT_EQ(map.size(), 100u);
}

TEST(HashMap, GrowsErasesAndClears) {
  HashMap<int64_t, std::unique_ptr<int>> map;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 5000; ++i) {  // a window that moves: erasures leave traces in the table
      map[i] = std::make_unique<int>(i);
      if (i >= 20) {
        EXPECT_EQ(map.erase(int64_t{i} - 20), 1u);
      }
    }
    ASSERT_EQ(map.size(), 20u);
    for (int i = 4980; i < 5000; ++i) ASSERT_EQ(*map.find(i)->second, i);
    map.erase_if([](const auto& element) { return element.first % 2 == 0; });
    ASSERT_EQ(map.size(), 10u);
    HashMap<int64_t, std::unique_ptr<int>> moved = std::move(map);
    EXPECT_EQ(moved.size(), 10u);
    EXPECT_TRUE(map.empty());  // NOLINT: a table that was moved is empty
    map = std::move(moved);
    EXPECT_EQ(*map.find(4999)->second, 4999);
    map.clear();
    EXPECT_TRUE(map.empty());
  }
  map.reserve(1000);
  const int64_t allocations = fail_each(
      [&] {
        for (int i = 0; i < 1000; ++i) map.try_emplace(i);
      },
      [] {});
  EXPECT_EQ(allocations, 0);
}

TEST(HashSet, AFailedInsertionChangesNothing) {
  HashSet<std::string> set;
  for (int i = 0; i < 100; ++i) {
    const std::string key = kLong + std::to_string(i);
    fail_each([&] { set.insert(key); }, [&] { ASSERT_EQ(set.size(), static_cast<size_t>(i)); });
    ASSERT_EQ(set.size(), static_cast<size_t>(i) + 1);
    EXPECT_FALSE(set.insert(key).second);
  }
}

}  // namespace
}  // namespace rondo
