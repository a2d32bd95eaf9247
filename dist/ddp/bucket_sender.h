// BucketSender: sends the gradients of DistributedDataParallel in buckets.
//
// Buckets leave in the order of the plan, whichever is full first, and after the last one the second parts of gradients
// (Note [Two parts] in row_parcel.h). So every rank issues the same collectives in the same order.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "rondo/dist/ddp/bucket.h"
#include "rondo/dist/ddp/parcel.h"
#include "rondo/dist/ddp/shard_takers.h"
#include "rondo/dist/ddp/step_state.h"

namespace rondo::dist {

class BucketSender {
 public:
  // `plan`: made of the model, before the order is learned. Nothing is sent until set_plan().
  BucketSender(StepState& step, ShardTakers& takers, BucketPlan plan)
      : step_(step), takers_(takers), plan_(std::move(plan)) {}

  // From now on these are the buckets.
  void set_plan(BucketPlan plan);
  const BucketPlan& plan() const { return plan_; }
  std::vector<Parcel>& parcels() { return parcels_; }  // by bucket; empty until set_plan()

  // The gradient of parameter `i` may leave.
  void take(size_t i);
  // Sends what is next as long as all of it has arrived.
  void send_ready();
  // Sends the rest. Every rank sends every bucket, even one that lacks a gradient: otherwise the others would wait for
  // it. finish() tells them all.
  void send_all();
  size_t sent() const { return next_bucket_; }  // buckets before it are sent
  void start_over();

 private:
  void send(size_t bucket);
  void put(Parcel& parcel, size_t slot);
  void send_rows(size_t i);

  StepState& step_;
  ShardTakers& takers_;
  BucketPlan plan_;
  std::vector<Parcel> parcels_;
  std::vector<std::vector<size_t>> buckets_of_;  // by parameter: one for each piece
  size_t next_bucket_ = 0;
  size_t next_rows_ = 0;  // of StepState::in_two_parts: before it, rows are sent
};

}  // namespace rondo::dist
