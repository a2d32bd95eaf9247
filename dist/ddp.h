// DistributedDataParallel: START HERE. Each process trains the same model on its own share of the batch; gradients are
// averaged over the processes while backward still runs.
//
//   const auto group = dist::ProcessGroup::connect(dist::Environment::from_process());   // under rondorun
//   dist::DistributedDataParallel ddp(model, group);       // every rank now has rank 0's parameters
//   compile::compile_regions(model);                       // or before, or not at all
//   for (...) {
//     model.loss(x, y).backward();                         // buckets leave at the seams of the model's blocks
//     ddp.finish();                                        // the gradients are the averages
//     optimizer.step();
//     optimizer.zero_grad();
//   }
//
// Accumulation: all but the last backward of a step run under `const auto local = ddp.no_sync();`.
//
// The optimizer in backward (optim/update_at_seams.h): a bucket is updated once its average is there, at the first seam
// that finds it, or in finish(), while the ones behind it are still on their way. On every rank the same buckets are
// updated: none from the first one on for which some rank lacks a gradient.
//   optim::UpdateAtSeams updates(ddp, optimizer);
//   for (...) { model.loss(x, y).backward(); ddp.finish(); updates.finish(); }
//
// Invariants. The plan (bucket.h) is fixed when this is made, and equal on every rank. A gradient is sent once per
// step: one that changes after that, or that never comes, a parameter that is in no bucket, and an all-reduce that did
// not happen are errors, on every rank, that name the rank and the parameter. Once its bucket has left, a parameter has
// no grad() until finish(); then it is a view of the bucket, if dtypes agree, and holds until the next step's gradients
// leave.
//
// The model must outlive this. Thread safety: the thread that runs backward.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/compile/seam.h"
#include "rondo/dist/bucket.h"
#include "rondo/dist/process_group.h"
#include "rondo/modules/module.h"
#include "rondo/optim/update_at_seams.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

class DistributedDataParallel final : public optim::GradientSource {
 public:
  // A collective: compares the plans, then broadcasts rank 0's parameters and buffers. Throws MismatchError, on every
  // rank; Error if another one has the model, or an UpdateAtSeams would use the gradients before they are averaged.
  DistributedDataParallel(nn::ModuleBase& model, std::shared_ptr<ProcessGroup> group, BucketOptions options = {});
  ~DistributedDataParallel() override;
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // Ends a step: waits until every bucket is averaged. A collective. Throws MismatchError, on every rank; the gradients
  // are then of no use, but the next step may be tried.
  void finish();

  // For UpdateAtSeams. With a listener, backward() throws what finish() would if a bucket fails early.
  int64_t on_final(Listener listener) override;
  void remove_on_final(int64_t id) override;
  void check_finished() const override;

  // While it lives, backward only adds to the gradients of this process.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(DistributedDataParallel& ddp);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DistributedDataParallel& ddp_;
  };
  NoSync no_sync() { return NoSync(*this); }

  // A collective for those who want to be sure: throws MismatchError, on every rank, unless each parameter has the same
  // bits on all of them. Returns a hash of all parameters.
  uint64_t check_parameters();

  const BucketPlan& plan() const { return plan_; }
  ProcessGroup& group() const { return *group_; }

 private:
  struct Parcel;  // a bucket under way
  struct Arrivals;
  void compare_plans();
  void broadcast_state();
  void reach_seam(const compile::Seam& seam);
  void send(size_t bucket, bool complete);
  void deliver(size_t bucket);
  bool check_tag(size_t bucket);
  void check_no_stranger();
  void note(std::string trouble);

  nn::ModuleBase& model_;
  const std::shared_ptr<ProcessGroup> group_;
  std::unique_ptr<compile::Seams> seams_;
  BucketPlan plan_;
  std::vector<Parcel> parcels_;         // by bucket
  std::shared_ptr<Arrivals> arrivals_;  // what backward's callbacks write to
  size_t next_seam_ = 0, next_bucket_ = 0;
  size_t next_delivered_ = 0;  // buckets before it are averages, and their parameters have them
  bool spoilt_ = false;        // no further average of this step is of use
  std::vector<std::pair<int64_t, Listener>> listeners_;
  int64_t step_ = 1;
  std::string trouble_;  // of this rank, in this step
};

}  // namespace rondo::dist
#pragma GCC visibility pop
