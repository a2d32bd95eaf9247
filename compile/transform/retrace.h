// Records a graph again, node by node, and replaces some calls.
#pragma once

#include "absl/functional/function_ref.h"
#include "rondo/compile/ir/graph.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::compile {

using Symbols = ValueMap<Tensor>;  // in the new recording, by value of the old graph; undefined: not recorded yet

// Records a graph again. `replace` either records a node's replacement, sets its outputs and returns true; or it
// returns false, and the node is recorded unchanged. The new graph has as many inputs and outputs as the original, in
// the same order.
using Replace = absl::FunctionRef<bool(size_t node, const Symbols& symbols, std::span<Tensor> outputs)>;
Graph retrace(const Graph& graph, Replace replace);
// `result` records an output's replacement. It is called for each of the graph's outputs, in order.
Graph retrace(const Graph& graph, Replace replace,
              absl::FunctionRef<Tensor(ValueId output, const Symbols& symbols)> result);

}  // namespace rondo::compile
