// Chooses the values that a forward keeps for its backward: a minimum cut between the inputs and what
// the backward reads.
//
// Every value that the backward needs is either kept or recomputed. Keeping it costs its bytes. Recomputing elementwise
// ops and views costs nothing, because they are fused into the kernels that read them; recomputing another op costs its
// work times a price. At an infinite price the cut is that of Recompute::kAuto, at price zero that of kFull. Cuts are
// nested: a value that is recomputed at one price is recomputed at every lower price (Gallo, Grigoriadis, Tarjan 1989,
// "A fast parametric maximum flow algorithm"). So for a budget of bytes, the price is lowered until the budget is met.
// Values with little work per byte saved are then recomputed first, and a larger budget never recomputes more.
#pragma once

#include <span>
#include <vector>

#include "rondo/compile/ir/graph.h"
#include "rondo/compile/options.h"

namespace rondo::compile {

// Returns, by value of `forward`, whether it is kept. `forward` is decomposed, and its outputs belong to the caller.
// `needed`: the values that the backward reads. `budget`: bytes, for Recompute::kBudget.
std::vector<bool> choose_kept(const Graph& forward, std::span<const ValueId> needed, Recompute recompute,
                              int64_t budget);

// Returns the bytes kept besides inputs and outputs; several views of one memory count once.
int64_t bytes_kept(const Graph& forward, const std::vector<bool>& keep);

// Returns the floating-point operations of `node` if it is a product, or a library call with products inside; otherwise
// 0.
int64_t flops_of(const Graph& graph, const GraphNode& node);
// Returns the sum of flops_of() over the nodes that a backward recomputes: RegionReport::recomputed_flops.
int64_t recomputed_flops(const Graph& backward);

}  // namespace rondo::compile
