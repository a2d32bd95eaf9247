// The inputs that a recording writes: Note [Writes] in capture/writes.cc.
#pragma once

#include <span>

#include "rondo/compile/ir/graph.h"

namespace rondo::compile {

// After a run: every input that the recording writes holds its last version, and has as many new versions as eager
// execution would have counted. These results are the inputs themselves from here on. `results`: of recorded.outputs.
void write_back(const Graph& recorded, std::span<const Tensor> inputs, std::span<Tensor> results);

// While a recording runs op by op: the values that `made` makes are written, if they are versions of inputs.
void write_versions(const Graph& recorded, const GraphNode& made, std::span<const Tensor> inputs,
                    std::span<const Tensor> values);

// After a run that threw: true if it has written an input, so that nothing may run again.
// `finished`: the results that were complete by then, or empty.
bool must_not_repeat(const Graph& recorded, std::span<const Tensor> inputs, std::span<const Tensor> finished);

}  // namespace rondo::compile
