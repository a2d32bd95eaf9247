// The tape's node for one call of a compiled recording, and the recording itself on the eager tape.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "rondo/compile/region.h"
#include "rondo/runtime/autograd.h"

namespace rondo::compile {

// `inputs` as the recording's; `results` as those of entry->forward.
std::shared_ptr<Node> make_compiled_node(std::shared_ptr<const Entry> entry, std::span<const Tensor> inputs,
                                         std::span<const Tensor> results);

// Runs a recording op by op on the eager tape: what double backward differentiates, and what runs where compiling is
// not wanted. `values` has the inputs in their places and receives everything else; with `wanted`, by value, what is,
// and whatever else its nodes give.
void run_eagerly(const Graph& graph, std::vector<Tensor>& values, const std::vector<bool>* wanted = nullptr);

}  // namespace rondo::compile
