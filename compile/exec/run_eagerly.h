// Runs recordings eagerly.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "rondo/compile/ir/graph.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::compile {

// Runs a recording op by op on the eager tape. Used for double backward, and when a compiled program cannot run.
// `values` holds the inputs and receives all other values. With `wanted` (by value), only nodes that make a wanted
// value run. `made` is called after each node, before its results are read. `given` may provide the results of a node,
// with their histories, instead of the node's op. It returns true if it provided them.
using MadeNode = std::function<void(const GraphNode&)>;
using GivenResults = std::function<bool(const GraphNode&, std::span<const TensorArg> operands, std::span<Tensor>)>;
void run_eagerly(const Graph& graph, std::vector<Tensor>& values, const std::vector<bool>* wanted = nullptr,
                 const MadeNode& made = nullptr, const GivenResults& given = nullptr);

}  // namespace rondo::compile
