// ShardTakers: the GradientShards of a DistributedDataParallel, in the order in which they were added. A bucket names
// its own by this order (Bucket::taker), so none changes its place once there is a plan.
#pragma once

#include <string>
#include <vector>

#include "rondo/dist/ddp/bucket.h"
#include "rondo/dist/ddp/gradient_shards.h"
#include "rondo/dist/ddp/parcel.h"

namespace rondo::dist {

class ShardTakers {
 public:
  void add(GradientShards& shards) { shards_.push_back(&shards); }
  // `planned`: there may be buckets for it, so its place stays and is empty.
  void remove(GradientShards& shards, bool planned);
  // A place is empty: nobody takes the averages of its buckets.
  bool lack_one() const;

  GradientTaker taker_of(const Tensor& parameter) const;
  // What must be equal on every rank.
  std::string describe() const;
  size_t size() const { return shards_.size(); }
  // Some want averages before the end of the step.
  bool take_early() const;

  // The order of the gradients is known on every rank, and `parcels` has one for each bucket. Once.
  void begin(const std::vector<Parcel>& parcels);
  // These do nothing for a bucket that goes to .grad.
  void before_send(size_t bucket, const Parcel& parcel);
  // The averages have come; once for each bucket and step. `early`: before the end of the step, if it wants them then.
  void hand_over(size_t bucket, Parcel& parcel, bool early);

 private:
  // Null: nobody.
  GradientShards* shards_of(const Parcel& parcel) const;

  std::vector<GradientShards*> shards_;  // by GradientTaker::index - 1; null: removed
  bool begun_ = false;                   // they know their buckets
};

}  // namespace rondo::dist
