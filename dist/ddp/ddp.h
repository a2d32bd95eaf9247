// DistributedDataParallel: START HERE. Each process trains the same model on its own share of the batch; gradients are
// averaged over the processes while backward still runs.
//
//   const auto group = dist::ProcessGroup::connect(dist::Environment::from_process());   // under rondorun
//   dist::DistributedDataParallel ddp(model, group);       // every rank now has rank 0's parameters
//   compile::compile_regions(model);                       // or before, or not at all
//   for (...) {
//     model.loss(x, y).backward();                         // sends each bucket when its gradients are final
//     ddp.finish();                                        // the gradients are the averages
//     optimizer.step();
//     optimizer.zero_grad();
//   }
//
// A model on a GPU needs a group that is connected with {.device = device}. Each rank reads its own batches:
// data::BatchShare (runtime/data/batch_share.h) over a DataLoader gives a rank its share, in an order that holds for
// any number of ranks. Rank 0 saves, and all ranks load (examples/job.h). When a step has several backward passes, all
// but the last run under `const auto local = ddp.no_sync();`.
//
// Every rank makes the same updates. After an error of the group, load the last checkpoint.
// The model must outlive this object. Thread safety: the thread that runs backward.
//
// More at the end of this file: Note [Buffers], [When a gradient leaves], [What is an error], [Equal updates],
// [Updates in backward], [Averages on a device].
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/dist/ddp/bucket.h"
#include "rondo/dist/ddp/gradient_shards.h"
#include "rondo/dist/groups/process_group.h"
#include "rondo/modules/module.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/optim/update_facts.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

class AverageDelivery;
class BucketSender;
class SharedBuffers;
class ShardTakers;
struct StepGradient;
struct StepState;

class DistributedDataParallel final : public optim::GradientSource, public UpdateListener {
 public:
  // A collective: compares the plans, then broadcasts rank 0's parameters and buffers. Throws MismatchError on every
  // rank if the plans differ. Throws Error on every rank if a parameter or buffer of one rank is in the wrong place
  // (not on the group's device, or not in host memory if the group has no device), and if no parameter requires a
  // gradient. Throws Error if the group is null, if the model has a DistributedDataParallel already, or if an
  // UpdateAtSeams would use the gradients before they are averaged.
  DistributedDataParallel(nn::ModuleBase& model, std::shared_ptr<ProcessGroup> group, BucketOptions options = {});
  ~DistributedDataParallel() override;
  // Throws Error unless a model on this device can be wrapped together with a group. Call this before the group or the
  // model is made, if the device is known by then. `what`: the name of the model in the message.
  static void check_device(Device device, std::string_view what = "the model");
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  nn::ModuleBase& module() const { return model_; }

  // Ends a step: waits until every bucket is averaged and the buffers are shared. (On a device the host does not wait:
  // work that is enqueued later waits.) A collective. Throws MismatchError on every rank if the step went wrong on one
  // of them (Note [What is an error]). After this error, do not use the gradients of this step. The next step may be
  // tried, unless the ranks had issued different collectives on a device.
  void finish();
  // Call this instead of finish() if this rank's part of the batch is empty, so that it has run no backward outside of
  // no_sync(). It sends zeros, or the gradients that backwards under no_sync() have accumulated. Averages divide by
  // world_size, which includes this rank: if the loss is a mean, scale it by world_size over the number of ranks with a
  // part that is not empty. Do not use this if layers of the model wait for all ranks (a synchronised BatchNorm): run
  // forward and backward on a batch of 0 rows, and call finish().
  void finish_with_zeros();

  // Returns the names of the parameters that got no gradient on this rank, in the step that the last finish() ended.
  // Empty without BucketOptions::allow_unused.
  const std::vector<std::string>& unused_parameters() const { return unused_; }

  // For UpdateAtSeams. If there is a listener and a bucket fails during backward, backward() throws the error that
  // finish() would throw.
  int64_t on_final(Listener listener) override;
  void remove_on_final(int64_t id) override;
  void check_finished() const override;

  // Called when an optimizer has updated parameters. The next finish() compares the facts of all ranks.
  void on_update(UpdateFacts facts) override { updates_.push_back(std::move(facts)); }

  // From the first step on, `shards` gets the averages of the parameters that it takes, and these parameters have no
  // .grad after finish(). See Note [Shards]. add_shards() throws Error after the first backward. After remove_shards(),
  // finish() throws Error if the plan has buckets for `shards`.
  void add_shards(GradientShards& shards);
  void remove_shards(GradientShards& shards);

  // While a NoSync lives, backward accumulates gradients in this process and sends nothing.
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

  // A collective. Throws MismatchError on every rank unless each parameter has the same bits on all of them. Returns a
  // hash of all parameters.
  uint64_t check_parameters();

  // Returns the plan of buckets. Until the first finish() it is made from the model and the options; afterwards it has
  // the learned order.
  const BucketPlan& plan() const;
  ProcessGroup& group() const { return *group_; }
  const std::shared_ptr<ProcessGroup>& shared_group() const { return group_; }

 private:
  void watch_uses();
  void set_claim(StepGradient& gradient, bool claims);
  void arrive(size_t parameter);
  void take(size_t parameter);
  void send_ready();
  void start_over();

  nn::ModuleBase& model_;
  const std::shared_ptr<ProcessGroup> group_;
  const std::unique_ptr<const SharedBuffers> buffers_;
  const std::unique_ptr<ShardTakers> takers_;
  std::shared_ptr<StepState> step_;  // shared with hooks of the parameters, which a tape may keep alive
  std::unique_ptr<BucketSender> sender_;
  std::unique_ptr<AverageDelivery> delivery_;
  bool learned_ = false;              // the plan has the order in which gradients become final
  std::vector<UpdateFacts> updates_;  // made by optimizers since the last exchange
  std::vector<std::string> unused_;   // the unused parameters of the last step that finish() ended
};

}  // namespace rondo::dist
#pragma GCC visibility pop

// Note [Buffers]. Each rank's forward writes buffers, such as BatchNorm's running statistics, from its own batches.
// finish() sends rank 0's to every rank, so each training forward begins with them, and evaluations and checkpoints
// have the same values on every rank. BucketOptions::buffers can average them instead, or leave each rank its own
// values. For statistics over the batches of all ranks, use convert_sync_batchnorm() (group_communicator.h).
//
// Note [When a gradient leaves]. A gradient is sent when all uses of its parameter have contributed, including uses in
// functions that autograd::checkpoint() runs again. It is sent once per step. A tied embedding's gradient is sent in
// two parts, so that backward overlaps with its all-reduce, too: Note [Two parts] in row_gather.h. The first step
// learns the order in which gradients become final (Note [Bucket order] in bucket.h): the first step sends its buckets
// in finish(), later steps send theirs during backward. The average differs from the gradient that one process computes
// for the whole batch only by rounding: sums are made in another order. From the moment its gradient is taken for
// sending, a parameter has no grad() until finish(), and Optimizer::step() throws. After finish(), grad() is the
// average. It is a view of the bucket if the dtypes agree and the bucket holds the whole parameter. It is valid until
// the next backward, which writes its gradients into the same memory (Note [Born in the bucket] in bucket_reducer.h).
//
// Note [What is an error]. The plan is equal on every rank. These are errors on every rank, which name the rank and the
// parameter: a gradient that changes after it was sent, a gradient that is missing at finish() (unless
// BucketOptions::allow_unused), a parameter in no bucket, and an all-reduce that did not happen.
//
// Note [Equal updates]. finish() compares the updates that optimizers have made since the previous finish(), by a hash
// in the exchange that it makes anyway. These differences are a MismatchError on every rank, which names the rank and
// the option: a different learning rate or other option, different groups of parameters, different loaded states
// (compared at the first step after loading), and a step that one rank did not make. So the error comes one step late,
// and the updates of the last step of a run are not compared. Groups of parameters without options have the optimizer's
// defaults on every rank.
//
// Note [Updates in backward]. With an optimizer in backward (optim/update_at_seams.h), a bucket is updated when its
// average has arrived: during the backward of a later block, or in finish(), while later buckets are still under way.
// Every rank updates the same buckets: all those before the first bucket for which some rank lacks a gradient.
//   optim::UpdateAtSeams updates(ddp, optimizer);
//   for (...) { model.loss(x, y).backward(); ddp.finish(); updates.finish(); }
// Optimizer states may be spread over the processes: dist::ShardedOptimizer (sharded_optimizer.h).
//
// Note [Averages on a device]. On a CUDA GPU everything is enqueued: one all-reduce for each bucket on the
// communication stream while backward goes on, and the optimizer's work waits for it by events. The host waits only in
// finish(), and only for the other hosts: in one small exchange, made while the devices compute, the ranks compare the
// collectives that they have issued. If these differ, the step gives no gradients. The listeners are called in
// finish(), not earlier, because an update in the middle of backward would make backward wait for an average. After an
// error of the group, parameters may hold meaningless numbers, because steps that were enqueued behind the aborted
// all-reduce may have run. From then on, backward, finish() and check_parameters() throw every time (Note [Where an
// error surfaces] in process_group.h).
