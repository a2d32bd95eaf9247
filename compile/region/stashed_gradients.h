// Takes the gradients of a model away for a while: for code that runs its own steps and leaves the model as it was.
#pragma once

#include <vector>

#include "rondo/modules/module.h"

namespace rondo::compile {

// The constructor takes the gradients from all parameters and buffers. The destructor puts them back, and drops
// gradients that were made meanwhile. A gradient is copied if it lies in memory that backward chooses
// (autograd::GradientHome), or in a part of other memory, because later gradients may be written there.
class StashedGradients {
 public:
  explicit StashedGradients(nn::ModuleBase& model);
  ~StashedGradients();
  StashedGradients(const StashedGradients&) = delete;
  StashedGradients& operator=(const StashedGradients&) = delete;

 private:
  struct Stashed {
    Tensor tensor, grad, copy;
  };
  std::vector<Stashed> grads_;
};

}  // namespace rondo::compile
