// The tape's node for one run of a compiled recording: its backward runs compiled, or op by op (eager_backward.h).
#pragma once

#include <memory>
#include <span>

#include "rondo/compile/region/entry.h"
#include "rondo/compile/region/region_node.h"

namespace rondo::compile {

// Makes the node. `inputs`: those of the recording. `results`: those of the entry's forward.
std::shared_ptr<RegionNode> make_compiled_node(std::shared_ptr<const Binding> binding, std::span<const Tensor> inputs,
                                               std::span<const Tensor> results);

}  // namespace rondo::compile
