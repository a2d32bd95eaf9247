// ShardedOptimizer: the states of an optimizer spread over the processes of a DistributedDataParallel (ZeRO-1:
// Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020, section 5.1). Each
// rank keeps the states of its share of the elements, updates that share, and gets the others' from their ranks.
//
//   dist::DistributedDataParallel ddp(model, group);
//   optim::AdamW optimizer(model.parameters(), {.lr = 3e-4});
//   dist::ShardedOptimizer shards(ddp, optimizer);       // before the first backward
//   for (...) {
//     model.loss(x, y).backward();
//     ddp.finish();                                      // this rank has the averages of its share
//     optimizer.step({.max_norm = 1.0});                 // updates the share; parameters are under way when it returns
//     optimizer.zero_grad();
//   }
//   io::save_checkpoint(..., {.model = model.state_dict(), .optimizer = shards.state_dict()});   // on every rank
//
// `ddp` and `optimizer` must outlive this. Several optimizers of one model have a ShardedOptimizer each. After it is
// gone, neither can be used for another step. Thread safety: the thread that trains.
//
// More at the end of this file: Note [Beside a plain optimizer] (the differences), [How states are cut], [Numbers of a
// sharded step].
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "rondo/dist/ddp/ddp.h"
#include "rondo/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

class ShardedOptimizer {
 public:
  // Throws Error after the first backward, if a parameter that requires a gradient is not one of `ddp`, if the
  // optimizer has none of its parameters, or if somebody else uses its gradients (UpdateAtSeams, another
  // ShardedOptimizer).
  ShardedOptimizer(DistributedDataParallel& ddp, optim::Optimizer& optimizer);
  ~ShardedOptimizer();
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  // Every parameter that is read from now on has arrived. Host memory: returns when it is so. On a device: later work
  // there comes after the arrival, and this thread does not wait. Throws DistError, and so do state_dict() and the
  // optimizer's step(), every time once the group has failed; a parameter whose values did not come then cannot be read
  // any more.
  void wait();

  // Collectives. The state of whole parameters, as Optimizer::state_dict() has it, on the CPU: it does not depend on
  // world_size, and a plain optimizer loads it. On all ranks, or on one and empty on the others.
  nn::StateDict state_dict(std::optional<int> only_on = std::nullopt);
  // Copies of the averages, whole, in the order of the optimizer's parameters. Throws Error unless they are tracked.
  std::vector<Tensor> averages();

  // A whole state, also of a plain optimizer, equal on every rank. Throws nn::StateDictError, before anything is
  // changed. Not a collective.
  void load_state_dict(const nn::StateDict& state);
  // The copies that Optimizer::keep_copies() made before this: whole, updated in place when parameters arrive.
  std::vector<Tensor> copies() const;
  const optim::Optimizer& optimizer() const;
  // How many elements this rank updates; 0 before the first finish().
  int64_t elements() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace rondo::dist
#pragma GCC visibility pop

// Note [Beside a plain optimizer]. The differences:
// - After finish(), parameters have no .grad: clip by step({.max_norm = ...}), not by clip_grad_norm_.
// - step() is a collective. A parameter that is under way arrives when somebody reads it through its handle, so a
//   forward waits for each block when it comes to it (parameter_gather.h, Note [Values under way]). Call wait() before
//   another thread reads the model, or if you read through views that are older than the step.
// - The optimizer's state_dict(), load_state_dict(), averages(), copies(), keep_copies() and add_param_group() throw
//   Error. The first three of them are here.
// - optim::Trainer is told of the shards: TrainerReplicasOptions::shards.
// - UpdateAtSeams(ddp, optimizer) is made after this. A rank updates its pieces of a bucket when their averages are
//   there; the parameters leave in UpdateAtSeams::finish().
// - Options and loaded states must be equal on all ranks. The next finish() compares them, as without shards (ddp.h).
// - The shares are decided when the first finish() knows the order of the gradients. States that were loaded before are
//   whole on every rank until then.
//
// Note [How states are cut]. An optimizer that changes each element by itself (Adam, AdamW, SGD, Lion, RMSprop,
// Adagrad, with states in full or in bf16) is cut anywhere: a rank keeps 1/world_size of its states. One that needs
// whole parameters (Muon, Adafactor, LAMB, and states of 8 bits) is divided by parameters, so large parameters decide
// how evenly. The optimizer itself says which it is (UpdatePlan).
//
// Note [Numbers of a sharded step]. They are those of the optimizer without shards if the gradients are: two ranks give
// the same bits. With more ranks, reduce_scatter adds in another order than all_reduce does. A norm is added up in
// another order, too: its last bits may differ. All ranks have the same norm, and skip the same steps. A rank keeps the
// f32 weights of its share of 16-bit parameters (optim/optimizer.h, Note [Master weights]), and uses the gradients'
// averages as they are, in f32.
