// ShardTakers: the GradientShards of a DistributedDataParallel, in the order in which they were added. A bucket names
// its GradientShards by the place in this order (Bucket::taker), so places do not change once there is a plan.
#pragma once

#include <string>
#include <vector>

#include "rondo/dist/ddp/bucket.h"
#include "rondo/dist/ddp/bucket_reducer.h"
#include "rondo/dist/ddp/gradient_shards.h"

namespace rondo::dist {

class ShardTakers {
 public:
  void add(GradientShards& shards) { shards_.push_back(&shards); }
  // `planned`: true if there is a plan, which may have buckets for `shards`. If there is a plan, the place of `shards`
  // becomes empty, and later places do not move.
  void remove(GradientShards& shards, bool planned);
  // True if a place is empty, so that no GradientShards takes the averages of its buckets.
  bool any_removed() const;

  GradientTaker taker_of(const Tensor& parameter) const;
  // Returns text that the ranks compare: it must be equal on every rank.
  std::string describe() const;
  size_t size() const { return shards_.size(); }
  // True if some GradientShards wants averages before the end of the step.
  bool take_early() const;

  // Tells each GradientShards its buckets. Call when every rank knows the order of the gradients; all calls but the
  // first do nothing. `reducers`: one for each bucket.
  void begin(const std::vector<BucketReducer>& reducers);
  // before_send() and deliver() do nothing for a bucket whose averages go to .grad.
  void before_send(size_t bucket, const BucketReducer& reducer);
  // Gives the averages of a bucket to its GradientShards, once in each step. `early`: the step has not ended yet; then
  // the call does nothing unless GradientShards::takes_early().
  void deliver(size_t bucket, BucketReducer& reducer, bool early);

 private:
  // Returns the GradientShards that takes the reducer's averages, or null if none does.
  GradientShards* shards_of(const BucketReducer& reducer) const;

  std::vector<GradientShards*> shards_;  // by GradientTaker::index - 1; null: removed
  bool begun_ = false;                   // begin() has told the GradientShards their buckets
};

}  // namespace rondo::dist
