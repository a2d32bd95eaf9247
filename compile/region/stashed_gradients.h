// The gradients of a model, taken away for a while: by what runs steps of its own and leaves the model as it was.
#pragma once

#include <vector>

#include "rondo/modules/module.h"

namespace rondo::compile {

// While one lives, no parameter or buffer has a gradient of before; the destructor puts them back, and drops later
// ones. A gradient in memory that backward chooses (autograd::GradientHome), or that is part of other memory, is
// copied: later ones may be made there.
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
