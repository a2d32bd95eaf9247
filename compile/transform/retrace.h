// A graph recorded again, node by node, with some calls made in another way.
#pragma once

#include "absl/functional/function_ref.h"
#include "rondo/compile/ir/graph.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::compile {

using Symbols = ValueMap<Tensor>;  // of the new recording, by value of the old graph; undefined: not recorded yet

// `replace` records what stands for a node, sets its outputs and returns true; false: the node is recorded as it is.
// The result has the original's inputs and outputs in number and order.
using Replace = absl::FunctionRef<bool(size_t node, const Symbols& symbols, std::span<Tensor> outputs)>;
Graph retrace(const Graph& graph, Replace replace);
// `result` records what stands for each of the graph's outputs, in order.
Graph retrace(const Graph& graph, Replace replace,
              absl::FunctionRef<Tensor(ValueId output, const Symbols& symbols)> result);

}  // namespace rondo::compile
