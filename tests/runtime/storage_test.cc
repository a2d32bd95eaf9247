// The caching allocator: its limit, and giving memory back.
#include "rondo/runtime/device/storage.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>
#include <thread>
#include <vector>

#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

constexpr int64_t kMiB = 1 << 20;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCaching = false;
#else
constexpr bool kCaching = true;
#endif

class Allocator : public testing::Test {
 protected:
  void SetUp() override {
    if (!kCaching) GTEST_SKIP() << "nothing is cached under this sanitizer";
    allocator::empty_cache();
  }
  void TearDown() override { allocator::set_cache_limit(limit_); }
  static int64_t cached() { return allocator::stats().bytes_cached; }
  const int64_t limit_ = allocator::cache_limit();
};

// Review [14]: sizes that never come again.
TEST_F(Allocator, VaryingShapesStayBelowTheLimit) {
  constexpr int64_t kLimit = 24 * kMiB;
  allocator::set_cache_limit(kLimit);
  EXPECT_EQ(allocator::cache_limit(), kLimit);
  Generator random(3);
  int64_t most = 0;
  const int64_t reserved = allocator::stats().bytes_reserved;
  for (int i = 0; i < 400; ++i) {
    const auto bytes = static_cast<size_t>(philox(3, static_cast<uint64_t>(i), 0)[0] % (16 * kMiB));
    std::vector<Storage> held;
    for (size_t part = 1; part <= 4; ++part) held.push_back(Storage::allocate(bytes / part + 100));
    held.clear();
    most = std::max(most, cached());
    ASSERT_LE(cached(), kLimit);
    ASSERT_LE(allocator::stats().bytes_reserved, reserved + kLimit + 40 * kMiB);
  }
  EXPECT_GT(most, kLimit / 2);  // it does cache
}

TEST_F(Allocator, WhatWasFreedFirstGoesFirst) {
  allocator::set_cache_limit(10 * kMiB);
  void* const old = allocator::allocate(4 * kMiB);
  void* const between = allocator::allocate(kMiB);
  void* const young = allocator::allocate(5 * kMiB);
  void* const behind = allocator::allocate(3 * kMiB);
  void* const end = allocator::allocate(kMiB);
  allocator::deallocate(old, 4 * kMiB);
  allocator::deallocate(young, 5 * kMiB);
  EXPECT_EQ(cached(), 9 * kMiB);
  allocator::deallocate(behind, 3 * kMiB);  // joins the young one
  EXPECT_EQ(cached(), 10 * kMiB);
  const int64_t reserved = allocator::stats().bytes_reserved;
  EXPECT_EQ(allocator::allocate(8 * kMiB), young);
  EXPECT_EQ(cached(), 2 * kMiB);
  EXPECT_EQ(allocator::allocate(2 * kMiB), old);
  EXPECT_EQ(allocator::stats().bytes_reserved, reserved);
  allocator::deallocate(old, 2 * kMiB);
  allocator::deallocate(young, 8 * kMiB);
  allocator::deallocate(between, kMiB);
  allocator::deallocate(end, kMiB);
  EXPECT_EQ(cached(), 10 * kMiB);
}

// Memory that served some sizes serves all others.
TEST_F(Allocator, OtherSizesNeedNoMoreMemory) {
  {
    std::vector<Storage> first;
    for (int i = 0; i < 8; ++i) first.push_back(Storage::allocate(3 * kMiB));
  }
  const int64_t reserved = allocator::stats().bytes_reserved;
  for (const int64_t bytes : {70000, 500000, 1000000, 5000000, 11000000, 24000000}) {
    std::vector<Storage> held;
    for (int64_t left = 24 * kMiB; left > bytes + (64 << 10); left -= bytes + (64 << 10))
      held.push_back(Storage::allocate(static_cast<size_t>(bytes)));
  }
  EXPECT_LE(allocator::stats().bytes_reserved, reserved);
}

TEST_F(Allocator, TrimAndLimitZero) {
  {
    std::vector<Storage> held;
    for (size_t i = 1; i <= 4; ++i) held.push_back(Storage::allocate(i * kMiB));
  }
  EXPECT_EQ(cached(), 10 * kMiB);
  allocator::trim(8 * kMiB);
  EXPECT_EQ(cached(), 8 * kMiB);
  allocator::trim(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(cached(), 8 * kMiB);
  allocator::set_cache_limit(0);
  EXPECT_EQ(cached(), 0);
  Storage::allocate(kMiB);
  EXPECT_EQ(cached(), 0);
  EXPECT_NE(test::error_of([] { allocator::set_cache_limit(-1); }), "");
}

TEST_F(Allocator, ADefaultLimitThatFitsTheMachine) {
  EXPECT_GT(limit_, 64 * kMiB);
  EXPECT_LT(limit_, int64_t{1} << 50);
}

// Everything that is kept goes back, small blocks too, and what is needed again is made again.
TEST_F(Allocator, MemoryTrimEmptiesEveryCache) {
  const auto compute = [] {
    Generator generator(1);
    const Tensor a = Tensor::randn({300, 300}, {}, &generator);
    return ops::sum(ops::exp(ops::matmul(a, a)), {0});
  };
  const Tensor before = compute();
  std::vector<Storage> small;
  for (int i = 0; i < 20; ++i) small.push_back(Storage::allocate(60000));
  small.clear();
  EXPECT_GT(cached(), 0);
  const int64_t reserved = allocator::stats().bytes_reserved;
  memory::trim();
  EXPECT_EQ(cached(), 0);
  EXPECT_LT(allocator::stats().bytes_reserved, reserved - 20 * 60000);
  EXPECT_TRUE(test::same_bits(compute(), before));
}

TEST_F(Allocator, ThreadsShareTheLimit) {
  allocator::set_cache_limit(8 * kMiB);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 300; ++i) {
        const Storage one = Storage::allocate(static_cast<size_t>((i * 37 + t * 11) % 60 + 1) * 70000);
        const Storage two = Storage::allocate(static_cast<size_t>(i % 7 + 1) * 1000);
        if (i % 50 == 0) memory::trim();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(cached(), 8 * kMiB);
}

TEST(Storage, TensorsLieInside) {
  const Storage storage = Storage::allocate(24);
  EXPECT_EQ(Tensor::from_storage(storage, 0, {2, 3}, {3, 1}, kF32).numel(), 6);
  EXPECT_EQ(Tensor::from_storage(storage, 1, {2, 4}, {1, 1}, kF32).numel(), 8);  // overlapping
  EXPECT_EQ(Tensor::from_storage(storage, 5, {100}, {0}, kF32).numel(), 100);
  EXPECT_EQ(Tensor::from_storage(storage, 6, {0, 7}, {7, 1}, kF32).numel(), 0);
  EXPECT_TRUE(test::error_of([] {
                Tensor::from_storage({}, 0, {2}, {1}, kF32);
              }).starts_with("Tensor::from_storage: the storage is empty"));
  EXPECT_TRUE(test::error_of([&] {
                Tensor::from_storage(storage, 1, {2, 3}, {3, 1}, kF32);
              })
                  .starts_with("Tensor::from_storage: an element lies outside of the storage: sizes [2, 3], strides "
                               "[3, 1], offset 1, 24 bytes of f32"));
  EXPECT_THROW(Tensor::from_storage(storage, 0, {2, 3}, {3, 1}, kF64), Error);
  EXPECT_THROW(Tensor::from_storage(storage, -1, {1}, {1}, kF32), Error);
  EXPECT_THROW(Tensor::from_storage(storage, 2, {2}, {-1}, kF32), Error);
  EXPECT_THROW(Tensor::from_storage(storage, 0, {-2}, {1}, kF32), Error);
  EXPECT_THROW(Tensor::from_storage(storage, 0, {2, 2}, {1}, kF32), Error);
  EXPECT_THROW(Tensor::from_storage(storage, 0, {int64_t{1} << 32, 2}, {int64_t{1} << 40, 1}, kF32), Error);
  EXPECT_THROW(Tensor::from_storage(storage, INT64_MAX, {2}, {1}, kF32), Error);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Addresses are reserved for more than that, and untouched pages take nothing: it must be an error all the same.
TEST_F(Allocator, ABlockLargerThanTheMemory) {
  const int64_t before = allocator::stats().bytes_reserved;
  const int64_t memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  for (const int64_t bytes : {memory + (1 << 20), 2 * memory, 8 * memory})
    EXPECT_THROW(Tensor::empty({bytes}, {kU8}), OutOfMemoryError) << bytes;
  EXPECT_LE(allocator::stats().bytes_reserved, before);
}
#endif

}  // namespace
}  // namespace rondo
