// Writes the results of a run into the inputs that its recording writes: Note [Writes] in capture/writes.cc.
#pragma once

#include <span>

#include "rondo/compile/ir/graph.h"

namespace rondo::compile {

// Call after a run. Gives every input that the recording writes its last version, and counts as many new versions as
// eager execution would have. In `results` (of recorded.outputs), the inputs themselves replace these last versions.
void write_back(const Graph& recorded, std::span<const Tensor> inputs, std::span<Tensor> results);

// Call while a recording runs op by op: if results of the node `made` are new versions of inputs, writes them into
// these inputs.
void write_versions(const Graph& recorded, const GraphNode& made, std::span<const Tensor> inputs,
                    std::span<const Tensor> values);

// Call after a run that threw. True if the run has written an input, so that nothing may run again. `finished`: the
// results that were complete by then, or empty.
bool must_not_repeat(const Graph& recorded, std::span<const Tensor> inputs, std::span<const Tensor> finished);

}  // namespace rondo::compile
