// What is left after a run in which a launch threw: the tape's node of results that were complete, and random streams.
#pragma once

#include <memory>
#include <span>

#include "rondo/compile/region/entry.h"
#include "rondo/compile/region/region_node.h"

namespace rondo::compile {

// The history of the complete results. A backward from them computes what leads to them again, op by op; the run kept
// nothing. It throws Error if a collective would run again.
std::shared_ptr<RegionNode> make_node_of_failed_run(std::shared_ptr<const Binding> binding,
                                                    std::span<const Tensor> inputs);

// Note [Draws after an error]. A recording has drawn from random streams for all its ops when one of them throws. In
// eager execution those behind it have drawn nothing, so their draws are taken back.
//
// `failed`: the call of the recording that threw.
void take_back_draws(const Graph& recorded, std::span<const Tensor> inputs, size_t failed);
// The same after a run that has written nothing. Runs op by op to find that call, if anything was drawn at all. Takes
// nothing back where that would repeat a collective.
void take_back_draws(const Graph& recorded, std::span<const Tensor> inputs);

}  // namespace rondo::compile
