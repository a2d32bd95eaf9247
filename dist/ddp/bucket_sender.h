// BucketSender: sends the gradients of DistributedDataParallel in buckets.
//
// Buckets are sent in the order of the plan, even if a later one is full first. After the last bucket, the second parts
// of gradients are sent (Note [Two parts] in row_gather.h). So every rank issues the same collectives in the same
// order.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "rondo/dist/ddp/bucket.h"
#include "rondo/dist/ddp/bucket_reducer.h"
#include "rondo/dist/ddp/shard_takers.h"
#include "rondo/dist/ddp/step_state.h"

namespace rondo::dist {

class BucketSender {
 public:
  // `plan`: made from the model, before the order of the gradients is learned. Nothing is sent until set_plan().
  BucketSender(StepState& step, ShardTakers& takers, BucketPlan plan)
      : step_(step), takers_(takers), plan_(std::move(plan)) {}

  // Replaces the plan, and makes a reducer for each bucket.
  void set_plan(BucketPlan plan);
  const BucketPlan& plan() const { return plan_; }
  std::vector<BucketReducer>& reducers() { return reducers_; }  // by bucket; empty until set_plan()

  // Call when the gradient of parameter `i` is ready to be sent.
  void take(size_t i);
  // Sends buckets and second parts in order, and stops at the first one that still lacks a gradient.
  void send_ready();
  // Sends all that is left. Every rank sends every bucket, even one that lacks a gradient: otherwise the other ranks
  // would wait for it. finish() tells all ranks what was missing.
  void send_all();
  size_t sent() const { return next_bucket_; }  // the number of buckets that are sent in this step
  void start_over();

 private:
  void send(size_t bucket);
  void put(BucketReducer& reducer, size_t slot);
  void send_rows(size_t i);

  StepState& step_;
  ShardTakers& takers_;
  BucketPlan plan_;
  std::vector<BucketReducer> reducers_;
  std::vector<std::vector<size_t>> buckets_of_;  // by parameter: the bucket of each of its pieces
  size_t next_bucket_ = 0;
  size_t next_rows_ = 0;  // index into StepState::in_two_parts: the second parts of the entries before it are sent
};

}  // namespace rondo::dist
