// Changes sums by index of rows that kernels make (message passing in graphs: gather, combine, add up). As recorded, a
// kernel writes all rows, and a library call reads them again in the order of the index. With this pass, the indices
// are sorted first. Then a kernel makes the rows in sorted order, each from the same operands as before, adds up
// consecutive rows with one index, and writes each sum once.
//
// Note [Rows in another order]. An elementwise node makes row i of its result from row i of its operands, from elements
//   that are the same for all rows, or (trait::Pick) from a table's row that an index names. So if the operands' rows
//   are reordered, the result's rows are reordered in the same way. This does not hold if no operand has such rows, or
//   if the node draws random numbers, which depend on the position. What counts is the role of the operand, not the
//   value: reads_rows() says which operands are read row by row. One value may have both roles, like h in gather(h, 0,
//   index) + h. Such a value is computed in its own order, and its rows are picked from it.
#include <algorithm>

#include "rondo/compile/transform/passes.h"
#include "rondo/compile/transform/retrace.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/segments.h"

namespace rondo::compile {
namespace {

class RowSorter {
 public:
  explicit RowSorter(const Graph& graph) : graph_(graph), reads_(graph), is_seen_(graph, false) {
    for (ValueId id : graph.outputs) is_seen_[graph.value(id).root] = true;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      if (graph.nodes[n].op->kind == OpKind::kView) continue;
      const ValueIds& inputs = graph.nodes[n].inputs;
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i] == kNoValue) continue;
        const ValueId value = whole(inputs[i]);
        reads_[value].push_back({static_cast<int32_t>(n), i});
        if (value != graph.value(value).root) is_seen_[graph.value(value).root] = true;
      }
    }
  }

  // True if node `n` adds up, by index, rows that a kernel makes and only this node needs. Finds the nodes
  // that make them.
  bool find(size_t n) {
    const GraphNode& node = graph_.nodes[n];
    made_.clear();
    sum_ = static_cast<int32_t>(n);
    if (!node.op->is<trait::SumByIndex>()) return false;
    const Value &values = graph_.value(node.inputs[0]), &index = graph_.value(node.inputs[1]);
    rows_ = values.sizes.empty() ? 0 : values.sizes[0];
    const bool adds_up = values.dtype == kF32 || values.dtype == kF64 || values.dtype == kI64;
    if (!adds_up || rows_ < 2 || values.sizes.numel() == 0 || graph_.value(node.outputs[0]).sizes.numel() == 0 ||
        !names_rows(node, values, index))
      return false;
    collect(node.inputs[0]);
    return !made_.empty();
  }

  // Records the replacement of node `n`. REQUIRES: find(n).
  Tensor record(size_t n, const Symbols& symbols) const {
    const GraphNode& node = graph_.nodes[n];
    const Value& out = graph_.value(node.outputs[0]);
    const Tensor index = one_for_each_row(symbols[node.inputs[1]]);
    const ops::SortedRows sorted = ops::sort_segments(*node.op, ops::reshape(index, {rows_}), out.sizes[0]);
    Symbols ordered(graph_);  // results of the nodes in made_
    for (int32_t m : made_) {
      const GraphNode& maker = graph_.node(m);
      std::vector<Tensor> results(maker.outputs.size()), inputs;
      for (size_t i = 0; i < maker.inputs.size(); ++i)
        inputs.push_back(operand(maker, i, symbols, ordered, sorted.order));
      std::vector<TensorArg> args;
      for (const Tensor& input : inputs) args.emplace_back(input, maker.where);
      call(*maker.op, args, maker.attrs, results);
      for (size_t i = 0; i < results.size(); ++i) ordered[maker.outputs[i]] = results[i];
    }
    const Tensor& values = ordered[whole(node.inputs[0])];
    const ValueId onto = node.inputs.size() > 2 ? node.inputs[2] : kNoValue;
    // A sum starts at 0, so it is never -0, and adding it to zeros would not change it.
    if (onto == kNoValue || is_zeros(onto)) return ops::sum_segments(values, sorted.starts, Tensor());
    if (is_contiguous(out.sizes, graph_.value(onto).strides))
      return ops::sum_segments(values, sorted.starts, symbols[onto]);
    return symbols[onto] + ops::sum_segments(values, sorted.starts, Tensor());
  }

 private:
  // Returns the value whose elements `id` shows, if the shape is the same; otherwise `id`.
  ValueId whole(ValueId id) const {
    const ValueId same = same_elements(graph_, id);
    return graph_.value(same).sizes == graph_.value(id).sizes ? same : id;
  }
  bool is_zeros(ValueId id) const {
    const int32_t maker = graph_.value(graph_.value(id).root).producer;
    return maker >= 0 && graph_.node(maker).op->fills_zeros();
  }

  // True if each row of the values has one index, which names a row of the result.
  bool names_rows(const GraphNode& node, const Value& values, const Value& index) const {
    if (index.sizes.rank() + 1 == values.sizes.rank()) return index.sizes.rank() == 1;
    const Dims& result = graph_.value(node.outputs[0]).sizes;
    if (index.sizes.rank() != values.sizes.rank() || node.op->as<trait::SumByIndex>()->dim(node.attrs) != 0)
      return false;
    for (int d = 1; d < index.sizes.rank(); ++d)
      if (index.sizes[d] != result[d] || (index.sizes[d] > 1 && index.strides[d] != 0)) return false;
    return true;
  }

  bool has_rows(const Dims& sizes, int rank) const { return sizes.rank() == rank && sizes[0] == rows_; }

  // Note [Rows in another order]. True if row i of the node's result is made from row i of operand `at` and no other
  // row of it: the operand is neither a table nor broadcast to all rows.
  bool reads_rows(const GraphNode& node, size_t at) const {
    const ValueId id = node.inputs[at];
    const bool is_table = node.op->is<trait::Pick>() && at == 0;
    return id != kNoValue && !is_table && has_rows(graph_.value(id).sizes, graph_.value(node.outputs[0]).sizes.rank());
  }
  bool keeps_rows(const GraphNode& node) const {
    if (node.op->kind != OpKind::kElementwise || node.op->lower == nullptr || node.op->random_state() >= 0 ||
        node.op->checks)
      return false;
    const int rank = graph_.value(node.outputs[0]).sizes.rank();
    if (const auto* pick = node.op->as<trait::Pick>(); pick != nullptr && pick->dim(node.attrs) != 0) return false;
    bool any = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) any = any || reads_rows(node, i);
    return any && std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
             return graph_.value(id).root == id && has_rows(graph_.value(id).sizes, rank);
           });
  }

  // An operand of a node, by position.
  struct Read {
    int32_t node;
    size_t operand;
  };
  // True if this operand belongs to the sum or to a node of made_, and is read row by row.
  bool takes_rows(const Read& read) const {
    if (read.node == sum_) return read.operand == 0;
    return contains(read.node) && reads_rows(graph_.node(read.node), read.operand);
  }
  // Adds the node that makes `id` to made_, and the nodes that make its operands, in graph order, if all their readers
  // use the rows for the sum only.
  void collect(ValueId id) {
    const ValueId value = whole(id);
    const int32_t maker = graph_.value(value).producer;
    if (maker < 0 || graph_.value(value).root != value || contains(maker)) return;
    const GraphNode& node = graph_.node(maker);
    for (ValueId out : node.outputs)
      if (is_seen_[out] ||
          !std::all_of(reads_[out].begin(), reads_[out].end(), [&](const Read& read) { return takes_rows(read); }))
        return;
    if (!keeps_rows(node)) return;
    made_.insert(std::lower_bound(made_.begin(), made_.end(), maker), maker);
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (reads_rows(node, i)) collect(node.inputs[i]);
  }
  bool contains(int32_t n) const { return std::binary_search(made_.begin(), made_.end(), n); }

  // Returns the tensor without the dimensions that repeat one element per row.
  static Tensor one_for_each_row(Tensor t) {
    for (int d = 1; d < t.rank(); ++d)
      if (t.sizes()[d] > 1 && t.strides()[d] == 0) t = t.slice(d, {0, 1});
    return t;
  }

  // Returns operand `i` of a node of made_. If the node reads the operand row by row, its rows are in sorted order.
  Tensor operand(const GraphNode& node, size_t i, const Symbols& symbols, const Symbols& ordered,
                 const Tensor& order) const {
    const ValueId id = node.inputs[i];
    if (id == kNoValue) return Tensor();
    const Tensor& given = symbols[id];
    if (!reads_rows(node, i)) return given;
    if (const Tensor& made = ordered[whole(id)]; made.defined()) return made;
    return ops::expand(ops::in_order(one_for_each_row(given), order), graph_.value(id).sizes);
  }

  const Graph& graph_;
  ValueMap<std::vector<Read>> reads_;  // by value: the nodes that read it, except views
  ValueMap<bool> is_seen_;             // by value: returned, or read as a partial view
  int32_t sum_ = -1;                   // the node that adds up the rows
  int64_t rows_ = 0;
  std::vector<int32_t> made_;  // the nodes that make the rows, in graph order
};

}  // namespace

std::optional<Graph> sort_scattered_rows(const Graph& graph) {
  if (std::none_of(graph.nodes.begin(), graph.nodes.end(),
                   [](const GraphNode& n) { return n.op->is<trait::SumByIndex>(); }))
    return std::nullopt;
  RowSorter sorter(graph);
  bool any = false;
  for (size_t n = 0; n < graph.nodes.size() && !any; ++n) any = sorter.find(n);
  if (!any) return std::nullopt;
  return retrace(graph, [&](size_t n, const Symbols& symbols, std::span<Tensor> outputs) {
    if (!sorter.find(n)) return false;
    outputs[0] = sorter.record(n, symbols);
    return true;
  });
}

}  // namespace rondo::compile
