// Finds the ops of a recording that one backward passes through. A compiled region is one node of the tape. On the
// eager tape each op is a node, and frees its own saved tensors: a backward through one output does not free what the
// other outputs need.
#pragma once

#include <vector>

#include "rondo/compile/ir/graph.h"

namespace rondo::compile {

// One flag for each node of a recorded graph.
using OpSet = std::vector<bool>;

// Returns the ops through which a gradient flows from these outputs (by position in recorded.outputs) to the requested
// values: `inputs` (by position in recorded.inputs; null: all that require a gradient), and `inner`, outputs from which
// other outputs are computed.
OpSet ops_passed(const Graph& recorded, const std::vector<bool>& outputs, const std::vector<bool>* inputs = nullptr,
                 const std::vector<int>& inner = {});

// True if one of the calls is a collective. Such a recording never runs a second time, not even in part, because the
// ranks would diverge (Note [Collectives are effects] in runtime/op/op.h).
bool communicates(const Graph& recorded);

// Returns the results of collectives that are needed to compute a tensor that the eager tape saves. A backward that
// runs the recording again reads them, because it cannot compute them.
std::vector<ValueId> collectives_read(const Graph& recorded);

// Returns the ops for which the eager tape saves a tensor. Only these free something; a view can go backward any number
// of times.
OpSet ops_that_save(const Graph& recorded);

// Returns, by input: true if a gradient flows to the input through these ops.
std::vector<bool> inputs_reached(const Graph& recorded, const OpSet& passed);

// Returns, by output: true if its gradient flows to one of these inputs or inner outputs.
std::vector<bool> outputs_leading_to(const Graph& recorded, const std::vector<bool>& inputs,
                                     const std::vector<int>& inner);

}  // namespace rondo::compile
