// ShardedOptimizer: the states of an optimizer spread over the processes of a DistributedDataParallel (ZeRO-1:
// Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020, section 5.1). Each
// rank keeps the states of its share of the elements, updates that share, and receives the other ranks' shares.
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
// `ddp` and `optimizer` must outlive this object. Each optimizer of a model has its own ShardedOptimizer. When that is
// destroyed, its `ddp` and `optimizer` cannot make another step. Thread safety: the thread that trains.
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
  // Throws Error after the first backward; if a parameter of the optimizer requires a gradient and is not one of
  // `ddp`; if the optimizer has no parameter of `ddp`; or if UpdateAtSeams or another ShardedOptimizer already uses
  // the gradients of this optimizer's parameters.
  ShardedOptimizer(DistributedDataParallel& ddp, optim::Optimizer& optimizer);
  ~ShardedOptimizer();
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  // Waits for the parameters under way. Host memory: returns when all have arrived. On a device: this thread does not
  // wait, and work that is enqueued later runs after the arrival. Once the group has failed, this function,
  // state_dict() and the optimizer's step() throw DistError every time, and parameters that have not arrived can no
  // longer be read.
  void wait();

  // A collective. Returns the state of whole parameters, as Optimizer::state_dict() does, on the CPU. It does not
  // depend on world_size, and a plain optimizer can load it. `only_on`: all other ranks get an empty state.
  nn::StateDict state_dict(std::optional<int> only_on = std::nullopt);
  // A collective. Returns copies of the whole averages, in the order of the optimizer's parameters. Throws Error
  // unless the optimizer's track_average() was called.
  std::vector<Tensor> averages();

  // Loads the state of whole parameters, equal on every rank; it may be that of a plain optimizer. If it does not fit,
  // throws nn::StateDictError before anything is changed. Not a collective.
  void load_state_dict(const nn::StateDict& state);
  // Returns the copies of whole parameters that Optimizer::keep_copies() made before this object. They are updated in
  // place when parameters arrive.
  std::vector<Tensor> copies() const;
  const optim::Optimizer& optimizer() const;
  // Returns how many elements this rank updates; 0 before the first finish().
  int64_t elements() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace rondo::dist
#pragma GCC visibility pop

// Note [Beside a plain optimizer]. The differences:
// - After finish(), parameters have no .grad: clip by step({.max_norm = ...}), not by clip_grad_norm_.
// - step() is a collective. The first read of a parameter under way, through its handle, waits until it has arrived. So
//   a forward waits for one block after another (parameter_gather.h, Note [Values under way]). Call wait() before
//   another thread reads the model, or if you read through views that are older than the step.
// - The optimizer's state_dict(), load_state_dict(), averages(), copies(), keep_copies() and add_param_group() throw
//   Error. ShardedOptimizer has the first four itself.
// - If optim::Trainer runs the steps, give it the shards as TrainerReplicasOptions::shards.
// - Make UpdateAtSeams(ddp, optimizer) after the ShardedOptimizer. A rank updates its pieces of a bucket when their
//   averages have arrived; the parameters are sent in UpdateAtSeams::finish().
// - Options and loaded states must be equal on all ranks. The next finish() compares them, as without shards (ddp.h).
// - The shares are decided when the first finish() knows the order of the gradients. States that were loaded before are
//   whole on every rank until then.
//
// Note [How states are cut]. An optimizer that changes each element by itself (Adam, AdamW, SGD, Lion, RMSprop,
// Adagrad, with states in full or in bf16) is cut anywhere: a rank keeps 1/world_size of its states. One that needs
// whole parameters (Muon, Adafactor, LAMB, and states of 8 bits) is divided by parameters, so large parameters may make
// the shares uneven. The optimizer's UpdatePlan says which kind it is.
//
// Note [Numbers of a sharded step]. From equal gradients, the update has the same bits as without shards. With two
// ranks the gradients are equal to those without shards. With more ranks, reduce_scatter adds in another order than
// all_reduce does. A norm is also summed in another order, so its last bits may differ. All ranks have the same norm,
// and skip the same steps. A rank keeps the f32 weights of its share of 16-bit parameters (optim/optimizer.h, Note
// [Master weights]), and uses the averages of the gradients in f32, unrounded.
