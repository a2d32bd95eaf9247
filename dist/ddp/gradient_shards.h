// GradientShards: an object that receives averaged gradients from DistributedDataParallel in place of the parameters'
// .grad. Each process gets the averages of its share of the elements. ShardedOptimizer (sharded_optimizer.h) implements
// it.
//
// Note [Shards]. A bucket of these gradients is reduced by reduce_scatter. It has a row for each rank: rank r receives
// the averages of row r. Elements fill the rows in the order of the bucket, and a parameter may continue in the next
// row. If the optimizer needs whole parameters (needs_whole()), each parameter lies in one row: that of the rank which
// has the fewest elements so far. All rows are as long as the longest, and end with the bucket's tag (Note [Tags]).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rondo/dist/ddp/bucket.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

inline constexpr int64_t kShardAlign = 32;  // elements: a piece starts at the start of a cache line

// Elements of a slot that lie side by side in one row. Every slot has at least one span, which may be empty.
struct ShardSpan {
  int rank;
  int64_t offset;  // where the span begins in its row
  int64_t begin;   // where the span begins in its slot
  int64_t numel;
};

struct ShardLayout {
  int64_t row = 0;                            // the number of elements in a row, without its tag
  std::vector<std::vector<ShardSpan>> spans;  // by slot of the bucket, in the order of their elements
};

// Decides which elements of a bucket each rank gets. `load`: for each rank, how many elements of the earlier buckets it
// has; the call adds those of this bucket.
ShardLayout lay_out_shards(const Bucket& bucket, std::vector<int64_t>& load);

struct ShardedBucket {
  size_t index;  // index of the bucket in the plan
  Bucket bucket;
  ShardLayout layout;
  Tensor sent;      // (world_size, row + tag): may be overwritten between take() and the next before_send()
  Tensor averages;  // (row + tag): the averages of this rank's row
};

class GradientShards {
 public:
  virtual ~GradientShards() = default;
  virtual bool takes(const Tensor& parameter) const = 0;
  // Returns true if one rank must have all elements of the parameter.
  virtual bool needs_whole(const Tensor& parameter) const = 0;
  // Returns text that the ranks compare: it must be equal on every rank.
  virtual std::string describe() const = 0;
  // Called once, when every rank knows the order of the gradients. The buckets stay the same from then on.
  virtual void begin(std::vector<ShardedBucket> buckets) = 0;
  // Called before a bucket is filled with gradients.
  virtual void before_send(size_t bucket) = 0;
  // Returns true if the averages may come early: from the step after begin() on, take() is called as soon as a bucket's
  // averages have arrived. On the CPU this happens before the step has ended, so the step may still fail after some
  // buckets were taken. Every rank takes the same buckets.
  virtual bool takes_early() const = 0;
  // Called when the step has ended well on every rank (or earlier: takes_early()). The averages do not change until
  // before_send(). `has_average`: for each slot, whether some rank had a gradient; the same on every rank.
  virtual void take(size_t bucket, const std::vector<bool>& has_average) = 0;
};

}  // namespace rondo::dist
#pragma GCC visibility pop
