#include "rondo/runtime/base/recent_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace rondo {
namespace {

using Numbers = RecentCache<int, int>;

TEST(RecentCache, DropsWhatWasUsedLeastRecently) {
  Numbers cache(3);
  int made = 0;
  const auto get = [&](int key) {
    return *cache.get(key, [&] { return ++made, std::make_shared<const int>(10 * key); });
  };
  for (const int key : {1, 2, 3}) EXPECT_EQ(get(key), 10 * key);
  EXPECT_EQ(get(1), 10);  // 2 is now the oldest
  EXPECT_EQ(made, 3);
  EXPECT_EQ(get(4), 40);
  EXPECT_EQ(cache.find(2), nullptr);
  for (const int key : {1, 3, 4}) EXPECT_NE(cache.find(key), nullptr) << key;
  EXPECT_EQ(made, 4);
}

TEST(RecentCache, TheFirstThatAddsWins) {
  Numbers cache(2);
  const auto first = std::make_shared<const int>(1), second = std::make_shared<const int>(2);
  EXPECT_EQ(cache.add(7, first), first);
  EXPECT_EQ(cache.add(7, second), first);
  EXPECT_EQ(cache.find(7), first);
}

TEST(RecentCache, WhatIsInUseOutlivesTheCache) {
  Numbers cache(1);
  const auto kept = cache.get(1, [] { return std::make_shared<const int>(5); });
  cache.clear();
  EXPECT_EQ(cache.find(1), nullptr);
  EXPECT_EQ(*kept, 5);
}

TEST(RecentCache, ThreadsShareIt) {
  Numbers cache(8);
  std::atomic<int> made{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 400; ++i)
        EXPECT_EQ(*cache.get(i % 8, [&] { return ++made, std::make_shared<const int>(i % 8); }), i % 8);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 8);
}

}  // namespace
}  // namespace rondo
