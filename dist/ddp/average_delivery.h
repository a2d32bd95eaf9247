// AverageDelivery: gives the averages of a step to the parameters' .grad or to GradientShards, and tells listeners.
//
// Buckets are delivered in the order in which they were sent, each once. If a bucket's average must not be used, every
// rank leaves out that bucket and all later ones in this step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "rondo/dist/ddp/bucket_sender.h"
#include "rondo/dist/ddp/shard_takers.h"
#include "rondo/dist/ddp/step_state.h"
#include "rondo/optim/update_at_seams.h"

namespace rondo::dist {

class AverageDelivery {
 public:
  using Listener = optim::GradientSource::Listener;
  AverageDelivery(StepState& step, ShardTakers& takers, BucketSender& sender)
      : step_(step), takers_(takers), sender_(sender) {}

  // See optim::GradientSource. add_listener() returns the id that remove_listener() expects.
  int64_t add_listener(Listener listener);
  void remove_listener(int64_t id);

  // For gradients in host memory: delivers the averages that have arrived so far, if a listener or a GradientShards
  // wants them before finish(). The time of delivery differs from run to run; the result does not.
  void deliver_ready();
  void deliver_all();
  // For gradients in host memory: waits for the second parts (Note [Two parts] in row_gather.h). A second part that has
  // not arrived is recorded as an error of the step.
  void check_rows();

  // Call these two when the step has ended well on every rank. deliver_second_parts() is a collective.
  void deliver_second_parts();
  void deliver_to_shards();
  // Call when the step has failed: waits for the collectives under way, because the next step writes into the buckets.
  void abandon();
  void start_over();

 private:
  void deliver(size_t bucket);
  bool is_usable(size_t bucket, const BucketReducer& reducer);
  void deliver_to_grads(BucketReducer& reducer, const std::vector<bool>& flags);
  void tell(std::span<const Tensor> final_ones) const;

  StepState& step_;
  ShardTakers& takers_;
  BucketSender& sender_;
  std::vector<std::pair<int64_t, Listener>> listeners_;
  size_t next_ = 0;           // all buckets with a smaller index are delivered
  bool step_failed_ = false;  // no further average of this step may be used
};

}  // namespace rondo::dist
