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
  // A step begins. Throws Error if it may not: it then changes nothing. `allow_no_gradients`: StepOptions'.
  virtual void before_step(bool allow_no_gradients) = 0;
  // `sum`: one f64 on the parameters' device, this process's part. In stream order it becomes the sum of all parts,
  // with the same bits in every process.
  virtual void sum_over_ranks(const Tensor& sum) = 0;
  // The launches of the step are enqueued.
  virtual void after_step() = 0;
  // Some process has a gradient in this step. The same in every process.
  virtual bool has_gradients() const = 0;
  // For UpdateAtSeams: says when gradients of slots are final. It takes the part of before_step().
  virtual GradientSource& source() = 0;
  // The slots of a parameter of the model.
  virtual std::vector<size_t> slots_of(const Tensor& parameter) const = 0;
  // Who learns of the step what must be equal in all processes.
  virtual UpdateListener& listener() = 0;
  // Optimizer::zero_grad() was called: for gradients that are not those of slots.
  virtual void zero_grad(bool set_to_none) = 0;
};

}  // namespace rondo::optim
