// GradientShards: an object that takes averaged gradients from DistributedDataParallel in the place of .grad, each
// process its share. ShardedOptimizer (sharded_optimizer.h) is one.
//
// Note [Shards]. A bucket of such gradients leaves by reduce_scatter. It has a row for each rank: rank r receives the
// averages of row r. Elements are laid into rows in the order of the bucket, and a parameter may continue in the next
// row. An optimizer that needs whole parameters says so: such a parameter lies in one row, that of the rank which has
// the fewest elements so far. A row is as long as the longest one, and ends with the tag of the bucket (Note [Tags]).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rondo/dist/ddp/bucket.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

inline constexpr int64_t kShardAlign = 32;  // elements: pieces start where a cache line does

// Elements of a slot that lie side by side in one row. Every slot has at least one span, which may be empty.
struct ShardSpan {
  int rank;
  int64_t offset;  // from the start of the row
  int64_t begin;   // from the start of the slot
  int64_t numel;
};

struct ShardLayout {
  int64_t row = 0;                            // elements of a row, without its tag
  std::vector<std::vector<ShardSpan>> spans;  // by slot of the bucket, in the order of their elements
};

// `load`: how many elements each rank has of the earlier buckets. The call adds those of this bucket.
ShardLayout lay_out_shards(const Bucket& bucket, std::vector<int64_t>& load);

struct ShardedBucket {
  size_t index;  // in the plan
  Bucket bucket;
  ShardLayout layout;
  Tensor sent;      // (world_size, row + tag): its memory is free from take() to before_send()
  Tensor averages;  // (row + tag): the averages of this rank's row
};

class GradientShards {
 public:
  virtual ~GradientShards() = default;
  virtual bool takes(const Tensor& parameter) const = 0;
  // True if one rank must have all elements of the parameter.
  virtual bool needs_whole(const Tensor& parameter) const = 0;
  // Describes what must be equal on every rank.
  virtual std::string describe() const = 0;
  // The order of the gradients is known on every rank: these are the buckets from now on.
  virtual void begin(std::vector<ShardedBucket> buckets) = 0;
  // A bucket is about to be filled.
  virtual void before_send(size_t bucket) = 0;
  // True: take() is called as soon as a bucket's averages are there, from the step after begin() on. On the CPU that is
  // before the end of the step, so the step may fail on every rank after some buckets were taken: the same on each.
  virtual bool takes_early() const = 0;
  // The step has ended well on every rank. The averages stay as they are until before_send(). `has_average`, by
  // slot: some rank had a gradient. It is the same on every rank.
  virtual void take(size_t bucket, const std::vector<bool>& has_average) = 0;
};

}  // namespace rondo::dist
#pragma GCC visibility pop
