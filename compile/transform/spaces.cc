#include "rondo/compile/transform/spaces.h"

#include <algorithm>

#include "rondo/runtime/ops/reduction_def.h"
#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::compile {
namespace {

// kManyRows: with at least this many rows, a reduction over the first dimensions has enough rows for vectors and
// threads. kShortRow: up to this many columns, one GPU thread takes a row quickly.
constexpr int64_t kManyRows = 1 << 10, kShortRow = 1 << 10;
// Up to this many elements, one thread reduces them faster than a library call can be launched.
constexpr int64_t kOneRow = 1 << 13;

// Returns the space of a reduction over one run: see Note [Spaces].
NodeSpace reduction_space(const Graph& graph, const GraphNode& node) {
  NodeSpace space;
  const Value& input = graph.value(node.inputs[0]);
  const ops::ReducedRun run = ops::last_run(input.sizes, node.attrs.ints[0]);
  if (!run.is_all) return space;
  Unit& unit = space.unit;
  if (run.by_columns && run.outer == 1 && node.op->is<trait::Fold>() &&
      (node.op->is_additive() || run.inner < kManyRows)) {
    space.sums_rows = true;
    unit.rows = run.reduced;
    unit.cols = run.inner;
  } else {
    unit.rows = run.outer * run.inner;
    unit.cols = run.reduced;
    unit.inner = run.inner;
    // One thread takes a whole row. This includes the single row of a decoded token, if eager execution adds it
    // in row order.
    const bool one_long_row = unit.rows == 1 &&
                              (unit.cols > kOneRow || run.by_columns ||
                               is_full_reduction(node.attrs.ints[0], node.attrs.ints[1] != 0, input.sizes.rank()));
    if (one_long_row || (run.outer == 1 && run.inner > 1 && run.inner < kManyRows && run.reduced > kShortRow))
      return space;
  }
  const std::optional<DimRange> columns = columns_of(unit, input.sizes);
  unit.fused = columns && merged_stride(input.sizes, input.strides, *columns);
  return space;
}

// Returns the space of a running sum along a dimension: each row is added up in order.
NodeSpace scan_space(const Graph& graph, const GraphNode& node) {
  NodeSpace space;
  const Value& input = graph.value(node.inputs[0]);
  const auto& scan = *node.op->as<trait::Scan>();
  const int dim = scan.dim(node.attrs);
  Unit& unit = space.unit;
  unit.cols = input.sizes[dim];
  for (int d = dim + 1; d < input.sizes.rank(); ++d) unit.inner *= input.sizes[d];
  unit.rows = input.sizes.numel() / unit.cols;
  const std::optional<DimRange> columns = columns_of(unit, input.sizes);
  unit.fused = !scan.is_reverse(node.attrs) && columns && merged_stride(input.sizes, input.strides, *columns);
  return space;
}

// Returns the space of sums over segments of the rows.
NodeSpace segment_space(const Graph& graph, const GraphNode& node) {
  NodeSpace space;
  const Value &input = graph.value(node.inputs[0]), &starts = graph.value(node.inputs[1]);
  Unit& unit = space.unit;
  unit.rows = input.sizes[0];
  unit.cols = input.sizes.numel() / unit.rows;
  const bool adds_up = input.dtype == kF32 || input.dtype == kF64 || input.dtype == kI64;
  const std::optional<DimRange> columns = columns_of(unit, input.sizes);
  unit.fused = adds_up && starts.sizes[0] > 1 && is_contiguous(starts.sizes, starts.strides) && columns &&
               merged_stride(input.sizes, input.strides, *columns);
  if (node.inputs.size() > 2) {
    const Value& onto = graph.value(node.inputs[2]);
    unit.fused = unit.fused && is_contiguous(onto.sizes, onto.strides);
  }
  unit.starts = node.inputs[1];
  space.sums_rows = true;
  return space;
}

}  // namespace

NodeSpace space_of(const Graph& graph, const GraphNode& node) {
  const OpDef& op = *node.op;
  NodeSpace space;
  const bool fusible = op.kind == OpKind::kElementwise || op.kind == OpKind::kReduction || op.is<trait::Scan>() ||
                       op.is<trait::SumSegments>() || op.checks;
  if (op.lower == nullptr || !fusible) return space;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId id = node.inputs[i];
    if (static_cast<int32_t>(i) == op.random_state()) {
      if (!is_contiguous(graph.value(id).sizes, graph.value(id).strides)) return space;
      continue;
    }
    if (id == kNoValue) return space;
  }
  const Dims& sizes = domain_of(graph, node);
  if (sizes.empty() || sizes.numel() == 0) return space;
  if (op.kind == OpKind::kReduction) return reduction_space(graph, node);
  if (op.is<trait::Scan>()) return scan_space(graph, node);
  if (op.is<trait::SumSegments>()) return segment_space(graph, node);
  space.takes_any = true;
  space.unit.cols = sizes.back();
  space.unit.rows = sizes.numel() / sizes.back();
  space.unit.fused = true;
  return space;
}

std::optional<DimRange> columns_of(const Unit& unit, const Dims& domain) {
  const int64_t n = domain.numel(), rank = domain.rank();
  if (n != unit.rows * unit.cols) return n == unit.rows ? std::optional(DimRange{}) : std::nullopt;
  int d = static_cast<int>(rank);
  const auto take = [&](int64_t size) {
    int64_t taken = 1;
    while (taken < size && d > 0) taken *= domain[--d];
    return taken == size;
  };
  DimRange columns;
  if (!take(unit.inner)) return std::nullopt;
  columns.end = d;
  if (!take(unit.cols)) return std::nullopt;
  columns.first = d;
  return columns;
}

std::optional<int64_t> merged_stride(const Dims& sizes, const Dims& strides, DimRange dims) {
  int64_t stride = 0, size = 1;
  for (int d = dims.end - 1; d >= dims.first; --d) {
    if (sizes[d] == 1) continue;
    if (size > 1 && strides[d] != stride * size) return std::nullopt;
    if (size == 1) stride = strides[d];
    size *= sizes[d];
  }
  return stride;
}

Dims strides_over(const Graph& graph, const GraphNode& node, size_t i, const Dims& domain) {
  const Value& value = graph.value(node.inputs[i]);
  const auto* const pick = node.op->as<trait::Pick>();
  if (pick == nullptr || i != 0) return broadcast_strides(value.sizes, value.strides, domain);
  Dims strides = value.strides;
  strides[pick->dim(node.attrs)] = 0;
  return strides;
}

bool sums_rows(const Unit& unit, const Dims& domain, int64_t mask) {
  return unit.inner == 1 && ops::last_run(domain, mask).by_columns;
}

bool fits(const Graph& graph, const GraphNode& node, const Unit& unit) {
  const Dims& domain = domain_of(graph, node);
  const std::optional<DimRange> columns = columns_of(unit, domain);
  // Kernels whose `inner` is above 1 have no code for lookups, checks and random numbers.
  const bool row_by_row = node.op->is<trait::Pick>() || node.op->checks || node.op->random_state() >= 0;
  if (!columns || (unit.inner > 1 && row_by_row)) return false;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (static_cast<int32_t>(i) == node.op->random_state()) continue;
    if (!merged_stride(domain, strides_over(graph, node, i, domain), *columns)) return false;
  }
  // A part of a larger value must be writable row by row.
  return std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
    const Value& value = graph.value(id);
    return value.root == id || (unit.inner == 1 && merged_stride(domain, value.strides, *columns));
  });
}

namespace {

// True if the view repeats one element for each row, along the whole row.
bool shows_rows(const Graph& graph, const Unit& unit, ValueId id, const Dims& domain, DimRange columns) {
  const Value& view = graph.value(id);
  if (shown_elements(graph, id) != view.root || graph.value(view.root).sizes.numel() != unit.rows ||
      !(view.sizes == domain))
    return false;
  for (int d = 0; d < domain.rank(); ++d)
    if (domain[d] > 1 && (view.strides[d] == 0) != columns.contains(d)) return false;
  return true;
}

// True if the shapes are equal except for leading dimensions of size 1, as for a vector in a domain with a single row.
bool is_same_shape(const Dims& seen, const Dims& domain) {
  const int lead = domain.rank() - seen.rank();
  if (lead < 0) return false;
  for (int d = 0; d < domain.rank(); ++d)
    if (domain[d] != (d < lead ? 1 : seen[d - lead])) return false;
  return true;
}

}  // namespace

bool is_table(const GraphNode& node, ValueId id) {
  return (node.op->is<trait::Pick>() && node.inputs[0] == id) ||
         (node.op->is<trait::SumSegments>() && node.inputs.size() > 2 && node.inputs[2] == id);
}

bool reads_in_place(const Graph& graph, const Unit& unit, const GraphNode& consumer, ValueId id) {
  const ValueId same = same_elements(graph, id);
  const Value& value = graph.value(same);
  const Dims &seen = graph.value(id).sizes, &domain = domain_of(graph, consumer);
  const std::optional<DimRange> columns = columns_of(unit, domain);
  if (!columns) return false;
  if (same != value.root) return shows_rows(graph, unit, id, domain, *columns);
  // The order of elements must be that of the space.
  const int64_t n = value.sizes.numel();
  if (n == unit.rows * unit.cols) return is_same_shape(seen, domain);
  if (n != unit.rows) return false;
  // The value has one element for each row.
  const int lead = domain.rank() - seen.rank();
  for (int d = 0; d < domain.rank(); ++d)
    if ((d < lead ? 1 : seen[d - lead]) != (columns->contains(d) ? 1 : domain[d])) return false;
  return true;
}

}  // namespace rondo::compile
