// Note [Spaces]. The iteration space of a kernel is (outer, cols, inner) in the order of the elements of a dense value;
// a row is one pair of (outer, inner). Reductions fix the space:
//   over the last run of dimensions    (outer, reduced, 1)
//   over a run in the middle           (outer, reduced, inner); vectors go along `inner`
//   a sum over the first run           (reduced, inner, 1): each row is added to the sums of all columns. The same is
//                                      true of other reductions with trait::Fold, unless inner is large
//   a sum over segments of the rows    (rows, columns, 1); such a kernel reduces nothing else
//   a running sum along a dimension    as for a reduction over it; such a kernel has no reductions, because
//                                      on a GPU one thread takes a row
// A pointwise node fits any space into which its dimensions can be grouped. Its own space is (all dimensions but the
// last, last dimension, 1).
#pragma once

#include <cstdint>
#include <optional>

#include "rondo/compile/ir/graph.h"
#include "rondo/compile/transform/passes.h"

namespace rondo::compile {

// Neighbouring dimensions [first, end).
struct DimRange {
  int first = 0, end = 0;
  bool contains(int d) const { return d >= first && d < end; }
};

// Returns the sizes over which a node of a kernel iterates: those of the operand that is reduced or checked, otherwise
// those of the result.
inline const Dims& domain_of(const Graph& graph, const GraphNode& node) {
  const bool of_operand = node.op->kind == OpKind::kReduction || node.op->is<trait::SumSegments>() || node.op->checks;
  return graph.value(of_operand ? node.inputs[0] : node.outputs[0]).sizes;
}

// The space of one fusible node. If `unit` is not fused, the node is a library call.
struct NodeSpace {
  Unit unit;               // without nodes
  bool takes_any = false;  // the node is pointwise
  bool sums_rows = false;  // the node is a reduction over the rows
};
NodeSpace space_of(const Graph& graph, const GraphNode& node);

// Returns the dimensions of `domain` that are the columns of a unit's space; an empty range if the domain has one
// element for each row. nullopt if the domain does not fit the space.
std::optional<DimRange> columns_of(const Unit& unit, const Dims& domain);
// Returns the stride of a group of dimensions, seen as one; 0 if the group has one element. nullopt if they have no
// common stride.
std::optional<int64_t> merged_stride(const Dims& sizes, const Dims& strides, DimRange dims);
// Returns the strides of a node's operand `i` over the node's domain; 0 for the dimension that an index selects
// (trait::Pick).
Dims strides_over(const Graph& graph, const GraphNode& node, size_t i, const Dims& domain);
// True if the reduction over `mask`, in this unit, is one over the rows.
bool sums_rows(const Unit& unit, const Dims& domain, int64_t mask);
// True if a pointwise node may be a part of a unit with this space.
bool fits(const Graph& graph, const GraphNode& node, const Unit& unit);
// True if `id`, which a node of the unit computes, is read by `consumer` only at the element that it works on, or
// once per row.
bool reads_in_place(const Graph& graph, const Unit& unit, const GraphNode& consumer, ValueId id);
// True if the node may read any element of the value, so that all of it must be in memory.
bool is_table(const GraphNode& node, ValueId id);

}  // namespace rondo::compile
