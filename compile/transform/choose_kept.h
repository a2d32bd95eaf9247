// The choice of what a forward keeps for its backward: a minimum cut between the inputs and what the backward reads.
//
// Every value that the backward needs is kept, which costs its bytes, or computed again, which has a price: none for
// elementwise ops and views, which join the kernels that read them; for the others, their work times the price of work.
// At an infinite price the cut is that of Recompute::kAuto, at price zero that of kFull. Cuts are nested: what is
// computed again at one price is so at every lower one (Gallo, Grigoriadis, Tarjan 1989, "A fast parametric maximum
// flow algorithm"). So for a budget of bytes the price falls until the budget is kept, which adds values in order of
// work per byte saved, and a larger budget never computes more again.
#pragma once

#include <span>
#include <vector>

#include "rondo/compile/ir/graph.h"
#include "rondo/compile/options.h"

namespace rondo::compile {

// By value of `forward`: whether it is kept. `forward` is decomposed, its outputs are the caller's; `needed`: what the
// backward reads. `budget`: bytes, for Recompute::kBudget.
std::vector<bool> choose_kept(const Graph& forward, std::span<const ValueId> needed, Recompute recompute,
                              int64_t budget);

// Bytes kept besides inputs and outputs; views of one memory count once.
int64_t bytes_kept(const Graph& forward, const std::vector<bool>& keep);

// Floating-point operations of the products among `node`, also of those that a library call does inside.
int64_t flops_of(const Graph& graph, const GraphNode& node);
// Those of a backward that it computes again: RegionReport::recomputed_flops.
int64_t recomputed_flops(const Graph& backward);

}  // namespace rondo::compile
