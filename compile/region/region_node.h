// RegionNode: the tape's node for a run of a region.
#pragma once

#include <memory>

#include "rondo/runtime/autograd/autograd.h"

namespace rondo::compile {

class RegionNode : public Node {
 public:
  const char* name() const override { return "compiled region"; }
  // Returns the history of output number `output`.
  virtual std::shared_ptr<Node> history(int output) = 0;
};

}  // namespace rondo::compile
