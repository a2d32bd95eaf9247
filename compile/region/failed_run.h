// The tape's node for a run in which a launch threw after some results were complete.
#pragma once

#include <memory>
#include <span>

#include "rondo/compile/region/entry.h"
#include "rondo/compile/region/region_node.h"

namespace rondo::compile {

// The history of the complete results. A backward from them computes what leads to them again, op by op; the run kept
// nothing.
std::shared_ptr<RegionNode> make_node_of_failed_run(std::shared_ptr<const Binding> binding,
                                                    std::span<const Tensor> inputs);

}  // namespace rondo::compile
