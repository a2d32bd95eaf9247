// A recording, run op by op on the eager tape.
#pragma once

#include <functional>
#include <vector>

#include "rondo/compile/ir/graph.h"
#include "rondo/runtime/tensor.h"

namespace rondo::compile {

// Runs a recording op by op on the eager tape. Double backward differentiates it, and it runs when a compiled program
// cannot. `values` holds the inputs and receives all other values. With `wanted` (by value), only nodes that make a
// wanted value run. `made` is called after each node that has run, before another reads its results.
void run_eagerly(const Graph& graph, std::vector<Tensor>& values, const std::vector<bool>* wanted = nullptr,
                 const std::function<void(const GraphNode&)>& made = nullptr);

}  // namespace rondo::compile
