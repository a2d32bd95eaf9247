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
// Changes sums by index, if a kernel makes the rows that are added up: sorts the rows by index, makes them in that
// order, and adds up each row as it is made.
std::optional<Graph> sort_scattered_rows(const Graph& graph);
// Replaces equal calls with equal operands by one node.
std::optional<Graph> eliminate_common_subexpressions(const Graph& graph);
// Drops the nodes that no output needs.
std::optional<Graph> eliminate_dead_code(const Graph& graph);
// Makes one call of several calls, each of which continues the one before (OpDef::chains). For example, the gradients
// of all slices of a tensor are put together in one pass over memory.
std::optional<Graph> join_chains(const Graph& graph);
// If the result of a reduction of 16-bit numbers is widened, widens the numbers before the reduction instead. Not
// exact: sums are no longer rounded to 16 bits.
std::optional<Graph> widen_reductions(const Graph& graph);
// Merges many small products into one, if they have an operand in common or are added up. Not exact.
std::optional<Graph> merge_products(const Graph& graph);
// Merges independent collectives that follow each other. Not exact: with other sizes, sums over the processes are made
// in another order.
std::optional<Graph> merge_collectives(const Graph& graph);
// Splits computations. If an op reads a value that is made of parts side by side, the op is computed for each part. If
// a value is only read in slices, the value is computed slice by slice. `exact`: sums over the parts are not split.
std::optional<Graph> split_at_parts(const Graph& graph, bool exact);
// Removes nodes that only copy values side by side: the producers of these values write into the node's result
// directly.
std::optional<Graph> assemble_in_place(const Graph& graph);

// By node: the elementwise nodes that a product can apply to its own result, in order; no node is in two lists.
// `exact`: only if the result has the bits of the separate ops.
using EpilogueChains = std::vector<std::vector<int32_t>>;
// BackendEntry::absorbs of an op on a target.
using AbsorbsOf = AbsorbsFn (*)(const OpDef& op);
EpilogueChains find_epilogues(const Graph& graph, bool exact, AbsorbsOf absorbs);
// Returns a line "epilogues PRODUCT NODE ..." for each product that has epilogues.
std::string to_string(const EpilogueChains& chains);

// Nodes that run as one kernel, or one library call. Views belong to no unit, because they cost nothing. Copies of
// parameters belong to no unit either.
struct Unit {
  std::vector<int32_t> nodes;  // in graph order
  bool fused = false;          // a loop kernel; else a single library call and its epilogues
  // Fused: the iteration space. A value of the unit has one element per (row, col), per row, or (an ordered sum over
  // the rows) per col. The space is (rows / inner, cols, inner) in the order of memory: Note [Spaces] in spaces.h.
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t inner = 1;
  ValueId starts = kNoValue;  // where segments of the rows begin, if they are added up (trait::SumSegments)
};
// Returns units in an order in which they can run. Cheap nodes are in several units if that pays: repeat_cheap_nodes().
std::vector<Unit> fuse(const Graph& graph, const EpilogueChains& epilogues = {}, const Capabilities& limits = {});
// Returns, by value: true if it must be in memory, because the caller, or a unit that does not compute it, reads it or
// a view of it.
std::vector<bool> values_needed(const Graph& graph, const std::vector<Unit>& units);
// Adds an elementwise node to all units that read its result, if that costs no more than reading the result: repeat.cc.
// A node may be in several units from then on.
void repeat_cheap_nodes(const Graph& graph, const Capabilities& limits, std::vector<Unit>& units);
// Returns the text of each unit, with the lines of its nodes.
std::string to_string(const Graph& graph, const std::vector<Unit>& units);

// True if the node's result is a parameter's 16-bit copy (runtime/ops/lowered.h), which is made once in a step, not in
// each run. Such a node is in no unit; the code that runs the graph provides the copy.
bool is_parameter_copy(const Graph& graph, const GraphNode& node);

// Follows views that show all of a dense value in its own order (reshapes), and returns that value: same bytes, same
// linear index.
ValueId same_elements(const Graph& graph, ValueId id);
// Does what same_elements() does, but also follows views that repeat each element of a dense value along some
// dimensions.
ValueId shown_elements(const Graph& graph, ValueId id);

}  // namespace rondo::compile
