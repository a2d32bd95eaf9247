// Through which ops of a recording one backward goes. A compiled region is one node of the tape. On the eager tape each
// op is a node, and frees by itself what it saved: a backward through one output leaves what the other outputs need.
#pragma once

#include <vector>

#include "rondo/compile/ir/graph.h"

namespace rondo::compile {

// By node of a recorded graph.
using OpSet = std::vector<bool>;

// The ops through which a gradient flows from these outputs (by position in recorded.outputs) to what is asked for:
// `inputs` (by position in recorded.inputs; null: all that require a gradient), and outputs among which others are
// computed, `inner`.
OpSet ops_passed(const Graph& recorded, const std::vector<bool>& outputs, const std::vector<bool>* inputs = nullptr,
                 const std::vector<int>& inner = {});

// True if one of the calls is a collective. Such a recording never runs a second time, in whole or in part: the ranks
// would part (Note [Collectives are effects] in runtime/op/op.h).
bool communicates(const Graph& recorded);

// The results of collectives from which something is computed that the eager tape saves. A backward that runs the
// recording again reads them, since it cannot compute them.
std::vector<ValueId> collectives_read(const Graph& recorded);

// Those for which the eager tape saves a tensor. Only they free something; a view goes backward any number of times.
OpSet ops_that_save(const Graph& recorded);

// By input: whether a gradient flows to it through these ops.
std::vector<bool> inputs_reached(const Graph& recorded, const OpSet& passed);

// By output: whether its gradient flows to one of these.
std::vector<bool> outputs_leading_to(const Graph& recorded, const std::vector<bool>& inputs,
                                     const std::vector<int>& inner);

}  // namespace rondo::compile
