// Note [Shards]: where the elements of a bucket go.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "rondo/dist/ddp/gradient_shards.h"

namespace rondo::dist {
namespace {

BucketSlot slot_of(int64_t numel, bool in_one_row) {
  return {.name = "p", .parameter = Tensor(), .begin = 0, .numel = numel, .offset = 0, .in_one_row = in_one_row};
}

// Each element of each slot is in one row, no two are in one place, and a whole slot is in one row.
void expect_partition(const Bucket& bucket, const ShardLayout& layout, int world_size) {
  std::vector<std::vector<bool>> used(static_cast<size_t>(world_size),
                                      std::vector<bool>(static_cast<size_t>(layout.row)));
  ASSERT_EQ(layout.spans.size(), bucket.slots.size());
  for (size_t k = 0; k < bucket.slots.size(); ++k) {
    int64_t next = 0;
    ASSERT_FALSE(layout.spans[k].empty());
    EXPECT_TRUE(!bucket.slots[k].in_one_row || layout.spans[k].size() == 1);
    for (const ShardSpan& span : layout.spans[k]) {
      EXPECT_EQ(span.begin, next);
      next += span.numel;
      EXPECT_EQ(span.offset % kShardAlign, 0);
      ASSERT_LE(span.offset + span.numel, layout.row);
      for (int64_t i = span.offset; i < span.offset + span.numel; ++i) {
        EXPECT_FALSE(used[static_cast<size_t>(span.rank)][static_cast<size_t>(i)]);
        used[static_cast<size_t>(span.rank)][static_cast<size_t>(i)] = true;
      }
    }
    EXPECT_EQ(next, bucket.slots[k].numel);
  }
}

TEST(ShardLayout, EveryElementIsInOnePlace) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const int world_size = 1 + static_cast<int>(random() % 6);
    std::vector<int64_t> load(static_cast<size_t>(world_size));
    int64_t elements = 0;
    for (int b = 0; b < 4; ++b) {
      Bucket bucket{};
      const size_t n = 1 + random() % 8;
      for (size_t k = 0; k < n; ++k) {
        bucket.slots.push_back(slot_of(random() % 5 == 0 ? random() % 3 : random() % 500, random() % 3 == 0));
        elements += bucket.slots.back().numel;
      }
      expect_partition(bucket, lay_out_shards(bucket, load), world_size);
    }
    int64_t loads = 0;
    for (const int64_t l : load) loads += l;
    EXPECT_EQ(loads, elements);
  }
}

// Cut parameters are spread evenly: a row is the bucket's share, rounded up.
TEST(ShardLayout, RowsAreEqualShares) {
  Bucket bucket{};
  for (const int64_t numel : {768, 16, 3000, 1, 64}) bucket.slots.push_back(slot_of(numel, false));
  std::vector<int64_t> load(4);
  const ShardLayout layout = lay_out_shards(bucket, load);
  EXPECT_EQ(layout.row, 992);  // 768 + 32 + 3008 + 32 + 64 = 3904: 976, in units of 32
  for (const int64_t l : load) EXPECT_LE(l, layout.row);
}

// Whole parameters go to the rank that has the least, over all buckets.
TEST(ShardLayout, WholeParametersAreBalancedOverBuckets) {
  std::vector<int64_t> load(4);
  for (int b = 0; b < 12; ++b) {
    Bucket bucket{};
    for (const int64_t numel : {3, 1, 4, 4}) bucket.slots.push_back(slot_of(numel * 256, true));
    lay_out_shards(bucket, load);
  }
  const auto [least, most] = std::minmax_element(load.begin(), load.end());
  EXPECT_LE(static_cast<double>(*most), 1.1 * static_cast<double>(*least));
}

}  // namespace
}  // namespace rondo::dist
