// The heap that large blocks of host memory come from: freed neighbours are joined, pages are kept or returned.
#include "rondo/runtime/device/page_heap.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "rondo/runtime/random/random.h"

namespace rondo::allocator {
namespace {

constexpr size_t kMiB = 1 << 20;

// As the allocator does; `fresh`, if given, counts what the system is asked for.
void* take(PageHeap& heap, size_t bytes, size_t* fresh = nullptr) {
  if (void* data = heap.take_kept(bytes)) return data;
  const PageHeap::Place place = heap.cheapest(bytes);
  if (place.range == nullptr) return nullptr;
  if (fresh != nullptr) *fresh += place.fresh;
  return heap.take(place, bytes);
}
char* at(void* data, size_t bytes) { return static_cast<char*>(data) + bytes; }

// Pages of these bytes that have memory.
size_t resident(void* data, size_t bytes) {
  std::vector<unsigned char> pages(bytes / PageHeap::round_up(1));
  EXPECT_EQ(mincore(data, bytes, pages.data()), 0);
  return static_cast<size_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
}

TEST(PageHeap, NeighboursAreJoinedForOtherSizes) {
  PageHeap heap(64 * kMiB);
  void* const a = take(heap, kMiB);
  void* const b = take(heap, 2 * kMiB);
  void* const c = take(heap, 3 * kMiB);
  void* const end = take(heap, kMiB);
  EXPECT_EQ(heap.used_bytes(), 7 * kMiB);
  heap.put(a);
  heap.put(c);
  heap.put(b);  // joins both
  EXPECT_EQ(heap.kept_bytes(), 6 * kMiB);
  EXPECT_EQ(heap.take_kept(6 * kMiB), a);
  EXPECT_EQ(heap.kept_bytes(), 0);
  heap.put(a);
  heap.put(end);
  EXPECT_EQ(heap.kept_bytes(), 7 * kMiB);
  EXPECT_EQ(heap.used_bytes(), 0);
}

TEST(PageHeap, TheFirstRangeThatFits) {
  PageHeap heap(64 * kMiB);
  std::vector<void*> blocks;
  for (const size_t size : {4, 1, 2, 1, 3, 1}) blocks.push_back(take(heap, size * kMiB));
  for (const size_t i : {4, 2, 0}) heap.put(blocks[i]);  // the holes: 4, 2, 3 MiB
  EXPECT_EQ(heap.take_kept(2 * kMiB), blocks[0]);
  EXPECT_EQ(heap.take_kept(3 * kMiB), blocks[4]);
  EXPECT_EQ(heap.take_kept(2 * kMiB), at(blocks[0], 2 * kMiB));
  EXPECT_EQ(heap.take_kept(2 * kMiB), blocks[2]);
  EXPECT_EQ(heap.take_kept(kMiB), nullptr);
}

TEST(PageHeap, WhatIsKeptGrowsByWhatIsMissing) {
  PageHeap heap(64 * kMiB);
  void* const a = take(heap, 2 * kMiB);
  void* const b = take(heap, kMiB);
  void* const c = take(heap, 4 * kMiB);
  heap.put(a);
  heap.put(c);
  // Behind c lie addresses that were never used.
  const PageHeap::Place place = heap.cheapest(5 * kMiB);
  EXPECT_EQ(place.fresh, kMiB);
  EXPECT_EQ(heap.take(place, 5 * kMiB), c);
  EXPECT_EQ(heap.kept_bytes(), 2 * kMiB);
  heap.put(b);
  EXPECT_EQ(heap.kept_bytes(), 3 * kMiB);
}

TEST(PageHeap, GivesBackWhatWasKeptLongest) {
  PageHeap heap(64 * kMiB);
  void* const old = take(heap, 4 * kMiB);
  void* const wall = take(heap, kMiB);
  void* const young = take(heap, 4 * kMiB);
  void* const last = take(heap, kMiB);
  const size_t page = PageHeap::round_up(1);
  std::memset(old, 1, 4 * kMiB);
  std::memset(young, 2, 4 * kMiB);
  EXPECT_EQ(resident(old, 4 * kMiB), 4 * kMiB / page);
  heap.put(old);
  heap.put(young);
  EXPECT_EQ(heap.give_back(kMiB + 1), kMiB + page);  // the end of it
  EXPECT_EQ(resident(old, 4 * kMiB), (3 * kMiB - page) / page);
  EXPECT_EQ(resident(young, 4 * kMiB), 4 * kMiB / page);
  EXPECT_EQ(heap.kept_bytes(), 7 * kMiB - page);
  // A block across both takes what is missing, and no more.
  const PageHeap::Place place = heap.cheapest(4 * kMiB);
  EXPECT_EQ(place.fresh, 0u);  // the young one
  heap.take(place, 4 * kMiB);
  const PageHeap::Place across = heap.cheapest(4 * kMiB);
  EXPECT_EQ(across.fresh, kMiB + page);
  EXPECT_EQ(heap.take(across, 4 * kMiB), old);
  EXPECT_EQ(*at(old, 0), 1);
  EXPECT_EQ(*at(old, 4 * kMiB - 1), 0);  // the system's, anew
  for (void* data : {old, wall, young, last}) heap.put(data);
  EXPECT_EQ(heap.give_back(SIZE_MAX / 2), 10 * kMiB);
  EXPECT_EQ(resident(old, 10 * kMiB), 0u);
  EXPECT_EQ(heap.give_back(1), 0u);
}

TEST(PageHeap, NoAddressesLeft) {
  PageHeap heap(4 * kMiB);
  void* const a = take(heap, 3 * kMiB);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(heap.cheapest(2 * kMiB).range, nullptr);
  EXPECT_NE(heap.cheapest(kMiB).range, nullptr);
  EXPECT_TRUE(heap.contains(at(a, 4 * kMiB - 1)));
  EXPECT_FALSE(heap.contains(at(a, 4 * kMiB)));
  PageHeap none(0);
  EXPECT_EQ(none.cheapest(kMiB).range, nullptr);
  EXPECT_FALSE(none.contains(a));
  // More than there are addresses: as many as the system gives.
  PageHeap huge(size_t{1} << 60);
  EXPECT_NE(take(huge, kMiB), nullptr);
}

// After any order of calls no two blocks overlap, each has the bytes that were written to it, and the counts are right.
TEST(PageHeap, KeepsBlocksApart) {
  constexpr uint64_t kSeed = 11;
  PageHeap heap(256 * kMiB);
  std::map<char*, size_t> blocks;
  size_t used = 0, reserved = 0;
  for (uint64_t i = 0; i < 6000; ++i) {
    const auto draw = philox(kSeed, i, 0);
    if (draw[0] % 11 < 6 && used < 64 * kMiB) {
      const size_t bytes = PageHeap::round_up(draw[1] % (draw[2] % 8 == 0 ? 4 * kMiB : kMiB / 4) + 1);
      auto* const data = static_cast<char*>(take(heap, bytes, &reserved));
      ASSERT_NE(data, nullptr);
      const auto next = blocks.lower_bound(data);
      if (next != blocks.end()) {
        ASSERT_LE(data + bytes, next->first);
      }
      if (next != blocks.begin()) {
        ASSERT_LE(std::prev(next)->first + std::prev(next)->second, data);
      }
      blocks.emplace(data, bytes);
      used += bytes;
      data[0] = data[bytes - 1] = static_cast<char>(bytes / 4096);
    } else if (!blocks.empty()) {
      const auto chosen = std::next(blocks.begin(), static_cast<int64_t>(draw[1] % blocks.size()));
      const auto [data, bytes] = *chosen;
      ASSERT_EQ(data[0], static_cast<char>(bytes / 4096));
      ASSERT_EQ(data[bytes - 1], static_cast<char>(bytes / 4096));
      blocks.erase(chosen);
      used -= bytes;
      heap.put(data);
    }
    if (draw[3] % 50 == 0) reserved -= heap.give_back(draw[3] % (8 * kMiB));
    ASSERT_EQ(heap.used_bytes(), used);
    ASSERT_EQ(heap.used_bytes() + heap.kept_bytes(), reserved);
  }
  for (const auto& [data, bytes] : blocks) heap.put(data);
  while (const size_t bytes = heap.give_back(SIZE_MAX / 2)) reserved -= bytes;
  EXPECT_EQ(reserved, 0u);
  EXPECT_EQ(heap.cheapest(256 * kMiB).fresh, 256 * kMiB);  // all of it is one range again
}

// Forwards that save, backwards that free: the second step needs no new memory, and the heap is little more than what
// is in use at the peak.
TEST(PageHeap, StepsOfTrainingFitIntoTheirPeak) {
  PageHeap heap(1024 * kMiB);
  size_t fresh = 0, used_most = 0, first_step = 0;
  std::vector<void*> kept;  // as an optimizer's states, made in the first step
  for (int step = 0; step < 3; ++step) {
    std::vector<std::pair<void*, void*>> saved;
    for (size_t layer = 0; layer < 24; ++layer) {
      const size_t bytes = PageHeap::round_up((5 + layer % 7) * 300000);
      void* const work = take(heap, 2 * bytes, &fresh);
      saved.emplace_back(take(heap, bytes, &fresh), take(heap, PageHeap::round_up(bytes / 3), &fresh));
      used_most = std::max(used_most, heap.used_bytes());
      heap.put(work);
    }
    std::vector<void*> gradients;
    for (size_t layer = 24; layer-- > 0;) {
      void* const work = take(heap, PageHeap::round_up((5 + layer % 7) * 500000), &fresh);
      gradients.push_back(take(heap, PageHeap::round_up((1 + layer % 5) * 100000), &fresh));
      used_most = std::max(used_most, heap.used_bytes());
      heap.put(saved[layer].first);
      heap.put(saved[layer].second);
      heap.put(work);
    }
    if (step == 0)
      for (size_t layer = 0; layer < 24; ++layer)
        kept.push_back(take(heap, PageHeap::round_up((1 + layer % 5) * 100000)));
    for (void* gradient : gradients) heap.put(gradient);
    if (step == 1) first_step = fresh;
  }
  EXPECT_EQ(fresh, first_step) << "the third step asks for nothing";
  EXPECT_LE(heap.used_bytes() + heap.kept_bytes(), used_most + used_most / 12);
}

// More ranges than a call looks at: none overlaps another, and all that is freed goes back.
TEST(PageHeap, ManyRanges) {
  constexpr size_t kBlocks = 6000;
  const size_t kPage = PageHeap::round_up(1);
  PageHeap heap(size_t{1} << 32);
  const auto allocate = [&](size_t bytes) {
    void* data = heap.take_kept(bytes);
    if (data == nullptr) data = heap.take(heap.cheapest(bytes), bytes);
    return static_cast<char*>(data);
  };
  std::map<char*, size_t> used;
  const auto add = [&](size_t bytes) {
    char* const data = allocate(bytes);
    ASSERT_NE(data, nullptr);
    const auto [at, added] = used.emplace(data, bytes);
    ASSERT_TRUE(added);
    const auto next = std::next(at);
    if (next != used.end()) {
      ASSERT_LE(data + bytes, next->first);
    }
    if (at != used.begin()) {
      ASSERT_LE(std::prev(at)->first + std::prev(at)->second, data);
    }
  };
  for (size_t i = 0; i < kBlocks; ++i) add((17 + i % 5) * kPage);
  size_t n = 0;
  for (auto at = used.begin(); at != used.end(); ++n) {
    if (n % 2 == 0) {
      ++at;
      continue;
    }
    heap.put(at->first);
    at = used.erase(at);
  }
  for (size_t i = 0; i < 500; ++i) add((40 + i % 3) * kPage), add(18 * kPage);
  size_t bytes = 0;
  for (const auto& [data, size] : used) bytes += size;
  EXPECT_EQ(heap.used_bytes(), bytes);
  while (heap.give_back(SIZE_MAX / 2) > 0) {
  }
  EXPECT_EQ(heap.kept_bytes(), 0u);
  for (size_t i = 0; i < 500; ++i) add((16 + i % 3) * kPage);
  for (const auto& [data, size] : used) heap.put(data);
  EXPECT_EQ(heap.used_bytes(), 0u);
}

}  // namespace
}  // namespace rondo::allocator
