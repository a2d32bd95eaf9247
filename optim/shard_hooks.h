// ShardHooks: what the steps of an optimizer ask of an object that spreads its states over several processes
// (dist/ddp/sharded_optimizer.h). The optimizer's slots are then pieces of parameters, or the parameters of this
// process.
#pragma once

#include <cstddef>
#include <vector>

#include "rondo/optim/update_facts.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::optim {

class GradientSource;

class ShardHooks {
 public:
  virtual ~ShardHooks() = default;
  // Called when a step begins. Throws Error if the step may not begin; then nothing has changed. `allow_no_gradients`:
  // as in StepOptions.
  virtual void before_step(bool allow_no_gradients) = 0;
  // Adds up the parts of all processes. `sum`: one f64 on the parameters' device, at first this process's part. In
  // stream order it becomes the sum of all parts, with the same bits in every process.
  virtual void sum_over_ranks(const Tensor& sum) = 0;
  // Called when the launches of the step are enqueued.
  virtual void after_step() = 0;
  // Returns true if some process has a gradient in this step. The answer is the same in every process.
  virtual bool has_gradients() const = 0;
  // Returns the source that tells an UpdateAtSeams when the gradients of slots are final. The steps of an UpdateAtSeams
  // do not call before_step().
  virtual GradientSource& source() = 0;
  // Returns the slots of a parameter of the model.
  virtual std::vector<size_t> slots_of(const Tensor& parameter) const = 0;
  // Returns the listener that is told those facts of a step that must be equal in all processes.
  virtual UpdateListener& listener() = 0;
  // Called by Optimizer::zero_grad(). Clears the gradients that do not belong to slots.
  virtual void zero_grad(bool set_to_none) = 0;
};

}  // namespace rondo::optim
