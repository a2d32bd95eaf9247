// The tape's node for one run of a compiled recording.
#pragma once

#include <memory>
#include <span>

#include "rondo/compile/region/entry.h"
#include "rondo/runtime/autograd.h"

namespace rondo::compile {

class RegionNode : public Node {
 public:
  const char* name() const override { return "compiled region"; }
  // What output `output` has as its history.
  virtual std::shared_ptr<Node> history(int output) = 0;
};

// `inputs` are the recording's, `results` those of the entry's forward.
std::shared_ptr<RegionNode> make_compiled_node(std::shared_ptr<const Binding> binding, std::span<const Tensor> inputs,
                                               std::span<const Tensor> results);
// The history of those results of a run that were complete when a launch threw. A backward from them computes what
// leads to them again, op by op; the run kept nothing.
std::shared_ptr<RegionNode> make_node_of_failed_run(std::shared_ptr<const Binding> binding,
                                                    std::span<const Tensor> inputs);

}  // namespace rondo::compile
