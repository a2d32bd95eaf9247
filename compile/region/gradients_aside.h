// The gradients of a model, taken away for a while: by what runs steps of its own and leaves the model as it was.
#pragma once

#include <utility>
#include <vector>

#include "rondo/modules/module.h"

namespace rondo::compile {

// While one lives, no parameter or buffer has a gradient of before; the destructor puts them back, and drops later
// ones.
class GradientsAside {
 public:
  explicit GradientsAside(nn::ModuleBase& model);
  ~GradientsAside();
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

 private:
  std::vector<std::pair<Tensor, Tensor>> grads_;
};

}  // namespace rondo::compile
