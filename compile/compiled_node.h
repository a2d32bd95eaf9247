// The tape's node for one run of a compiled recording, and the recording run op by op on the eager tape.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "rondo/compile/region.h"
#include "rondo/runtime/autograd.h"

namespace rondo::compile {

// `inputs` are the recording's, `results` those of entry->forward.
std::shared_ptr<Node> make_compiled_node(std::shared_ptr<const Entry> entry, std::span<const Tensor> inputs,
                                         std::span<const Tensor> results);
// Makes `tensor` output `output` of what make_compiled_node() returned.
void set_history(Tensor& tensor, const std::shared_ptr<Node>& compiled_node, int output);

// Runs a recording op by op on the eager tape. Double backward differentiates it, and it runs when a compiled program
// cannot. `values` holds the inputs and receives all other values. With `wanted` (by value), only nodes that make a
// wanted value run. `made` is called after each node that has run, before another reads its results.
void run_eagerly(const Graph& graph, std::vector<Tensor>& values, const std::vector<bool>* wanted = nullptr,
                 const std::function<void(const GraphNode&)>& made = nullptr);

}  // namespace rondo::compile
