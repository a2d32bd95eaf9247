// What a graph says of a node's results, against what the node's op infers.
#pragma once

#include <string>

#include "rondo/compile/ir/graph.h"

namespace rondo::compile {

// How their dtypes or sizes differ, or "". Strides are not compared: a pass may have changed them. Throws what `infer`
// throws.
std::string difference_from_inferred(const Graph& graph, const GraphNode& node);

}  // namespace rondo::compile
