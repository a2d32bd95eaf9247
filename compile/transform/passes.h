// Passes: graph -> graph, or graph -> groups. They know kinds, specs and index expressions, never the names of ops.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rondo/compile/ir/graph.h"
#include "rondo/compile/transform/capabilities.h"

namespace rondo::compile {

// The passes of the pipeline (pipeline.h). Each returns nullopt if there is nothing to change.

// Replaces every op that cannot be lowered, but has a decomposition, by its parts.
std::optional<Graph> decompose(const Graph& graph);
// Sums by index of rows that kernels make: the rows are sorted, made in that order, and added up as they are made.
std::optional<Graph> sort_scattered_rows(const Graph& graph);
// One node for equal calls of equal operands.
std::optional<Graph> eliminate_common_subexpressions(const Graph& graph);
// Drops what no output needs.
std::optional<Graph> eliminate_dead_code(const Graph& graph);
// One call for calls of which each continues the one before (OpDef::chains): the gradients of all slices of a tensor
// are put together in one pass over memory.
std::optional<Graph> join_chains(const Graph& graph);
// A reduction of 16-bit numbers whose result is widened reduces the widened numbers: there is nothing to widen behind
// it. Not exact: sums are no longer rounded to 16 bits.
std::optional<Graph> widen_reductions(const Graph& graph);
// Many small products with one operand in common, or that add up, become one. Not exact.
std::optional<Graph> merge_products(const Graph& graph);
// Collectives that follow each other and are independent become one. Not exact: with other sizes, sums over the
// processes are made in another order.
std::optional<Graph> merge_collectives(const Graph& graph);
// What is computed from values that are laid side by side is computed from each, and what is computed for slices is
// computed slice by slice. `exact`: sums over the parts are not split.
std::optional<Graph> split_at_parts(const Graph& graph, bool exact);
// Where a node only lays values side by side, has their producers write them there: the copy becomes nothing.
std::optional<Graph> assemble_in_place(const Graph& graph);

// By node: the elementwise nodes that a product can do on its own result, in order; no node is in two lists. `exact`:
// only where that gives the bits of the separate ops.
using EpilogueChains = std::vector<std::vector<int32_t>>;
// BackendEntry::absorbs of an op on a target.
using AbsorbsOf = AbsorbsFn (*)(const OpDef& op);
EpilogueChains find_epilogues(const Graph& graph, bool exact, AbsorbsOf absorbs);
// A line "epilogues PRODUCT NODE ..." for each product that has some.
std::string to_string(const EpilogueChains& chains);

// Nodes that run as one kernel, or one library call. Views belong to no unit: they cost nothing. Nor do copies of
// parameters.
struct Unit {
  std::vector<int32_t> nodes;  // in graph order
  bool fused = false;          // a loop kernel; else a single library call and its epilogues
  // Fused: the iteration space. A value of the unit has one element per (row, col), per row, or (an ordered sum over
  // the rows) per col. The space is (rows / inner, cols, inner) in the order of memory: Note [Spaces] of fuse.cc.
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t inner = 1;
  ValueId starts = kNoValue;  // where segments of the rows begin, if they are added up (trait::SumSegments)
};
// In an order in which they can run. Cheap nodes are in several units where that pays: repeat_cheap_nodes().
std::vector<Unit> fuse(const Graph& graph, const EpilogueChains& epilogues = {}, const Capabilities& limits = {});
// By value: true if the caller, or a unit that does not compute it, reads it or a view of it: it must be in memory.
std::vector<bool> values_needed(const Graph& graph, const std::vector<Unit>& units);
// Elementwise nodes whose results several units read join all of them, where that costs no more than to read the
// results: repeat.cc. A node may be in several units from then on.
void repeat_cheap_nodes(const Graph& graph, const Capabilities& limits, std::vector<Unit>& units);
// Each unit with the lines of its nodes.
std::string to_string(const Graph& graph, const std::vector<Unit>& units);

// True if the node's result is a parameter's 16-bit copy (runtime/ops/lowered.h), which belongs to a step and not to a
// run: such a node is in no unit, and whoever runs the graph brings the copy.
bool is_parameter_copy(const Graph& graph, const GraphNode& node);

// Follows views that show all of a dense value in its own order (reshapes): same bytes, same linear index.
ValueId same_elements(const Graph& graph, ValueId id);
// The same, also through views that repeat each element of a dense value along some dimensions.
ValueId shown_elements(const Graph& graph, ValueId id);

}  // namespace rondo::compile
