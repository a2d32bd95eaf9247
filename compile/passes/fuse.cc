// Fusion: pointwise chains and reductions with their producers and consumers, greedily by bytes saved.
//
// Every fusible node has an iteration space of rows x cols, cols being the size of the last dimension; two units may
// become one kernel if their spaces agree, no path through a third unit would close a cycle, and neither needs a result
// of the other that exists only when all rows are done (a column sum).
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "rondo/compile/passes/passes.h"

namespace rondo::compile {

ValueId same_elements(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  if (value.root == id) return id;
  const Value& root = graph.value(value.root);
  const bool whole = value.offset == 0 && value.sizes.numel() == root.sizes.numel() &&
                     is_contiguous(value.sizes, value.strides) && is_contiguous(root.sizes, root.strides);
  return whole ? value.root : id;
}

namespace {

bool lowerable_dtype(DType t) { return is_floating(t) || t == kBool; }

struct Space {
  bool fusible = false;
  bool column_sum = false;  // reduces the rows
  int64_t rows = 0, cols = 0;
};

Space space_of(const Graph& graph, const GraphNode& node) {
  const OpDef& op = *node.op;
  Space space;
  if (op.lower == nullptr || (op.kind != OpKind::kElementwise && op.kind != OpKind::kReduction)) return space;
  for (ValueId id : node.inputs)
    if (id == kNoValue || !lowerable_dtype(graph.value(id).dtype)) return space;
  for (ValueId id : node.outputs)
    if (!lowerable_dtype(graph.value(id).dtype)) return space;
  const Dims& sizes = op.kind == OpKind::kReduction ? graph.value(node.inputs[0]).sizes : graph.value(node.outputs[0]).sizes;
  if (sizes.empty() || sizes.numel() == 0) return space;
  space.cols = sizes.back();
  space.rows = sizes.numel() / space.cols;
  if (op.kind == OpKind::kReduction) {
    // Rows are reduced along the last dimension, or columns summed along all the others; anything else is a library call.
    const int64_t mask = node.attrs.ints[0], all = (int64_t{1} << sizes.rank()) - 1, last = int64_t{1} << (sizes.rank() - 1);
    const Value& input = graph.value(node.inputs[0]);
    if (op.additive && mask == all - last && sizes.rank() > 1 && is_contiguous(input.sizes, input.strides))
      space.column_sum = true;
    else if (mask != last || space.rows == 1) return space;
  }
  space.fusible = true;
  return space;
}

class Fuser {
 public:
  explicit Fuser(const Graph& graph) : graph_(graph), unit_of_(graph.nodes.size(), -1) {}

  std::vector<Unit> run() {
    make_singletons();
    while (merge_best()) {}
    return in_order();
  }

 private:
  struct Candidate {
    Unit unit;
    bool alive = true;
    std::vector<ValueId> column_results;  // complete only after the last row
    bool reduces_rows = false;
  };

  void make_singletons() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const GraphNode& node = graph_.nodes[i];
      if (node.op->kind == OpKind::kView) continue;
      const Space space = space_of(graph_, node);
      unit_of_[i] = static_cast<int>(units_.size());
      Candidate& c = units_.emplace_back();
      c.unit.nodes = {static_cast<int32_t>(i)};
      c.unit.fused = space.fusible;
      c.unit.rows = space.rows;
      c.unit.cols = space.cols;
      if (space.column_sum) c.column_results = {node.outputs[0]};
      c.reduces_rows = node.op->kind == OpKind::kReduction && !space.column_sum;
    }
  }

  // The unit that computes a value, seen through views; -1 for inputs.
  int unit_of_value(ValueId id) const {
    const int32_t producer = graph_.value(graph_.written(id)).producer;
    return producer < 0 ? -1 : unit_of_[static_cast<size_t>(producer)];
  }

  // reach[u] bit v: v needs, directly or not, a result of u.
  std::vector<std::vector<bool>> reachability() const {
    const size_t n = units_.size();
    std::vector<std::vector<bool>> reach(n, std::vector<bool>(n, false));
    // Nodes are in order, but merged units are not; iterate to the fixed point over direct edges.
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (unit_of_[i] < 0) continue;
      for (ValueId id : graph_.nodes[i].inputs) {
        if (id == kNoValue) continue;
        const int from = unit_of_value(id);
        if (from >= 0 && from != unit_of_[i]) reach[static_cast<size_t>(from)][static_cast<size_t>(unit_of_[i])] = true;
      }
    }
    for (size_t k = 0; k < n; ++k)
      for (size_t i = 0; i < n; ++i)
        if (reach[i][k])
          for (size_t j = 0; j < n; ++j)
            if (reach[k][j]) reach[i][j] = true;
    return reach;
  }

  // True if the consumer reads `id` at the very element it is computing (or its row's), given that both units share a space.
  bool reads_in_place(const Unit& producer, const GraphNode& consumer, ValueId id) const {
    const Value& value = graph_.value(same_elements(graph_, id));
    if (same_elements(graph_, id) != value.root) return false;  // a permuted or partial view
    const int64_t n = value.sizes.numel();
    if (n == producer.rows * producer.cols) {
      // The element order must be the space's own.
      const Value& seen = graph_.value(id);
      const Dims& sizes = consumer.op->kind == OpKind::kReduction ? seen.sizes : graph_.value(consumer.outputs[0]).sizes;
      return seen.sizes == sizes;
    }
    // One per row.
    return n == producer.rows && !graph_.value(id).sizes.empty() && graph_.value(id).sizes.back() == 1;
  }

  bool may_merge(const Candidate& a, const Candidate& b) const {
    if (!a.unit.fused || !b.unit.fused) return false;
    const bool same = a.unit.rows == b.unit.rows && a.unit.cols == b.unit.cols;
    // A unit of one value per row joins the space whose rows they are.
    const bool row_of = a.unit.rows == b.unit.rows && (a.unit.cols == 1 || b.unit.cols == 1);
    if (!same && !row_of) return false;
    if (!same) {
      const Candidate& narrow = a.unit.cols == 1 ? a : b;
      // Its sums over a single column would become sums over all of the others'.
      if (!narrow.column_results.empty() || narrow.reduces_rows) return false;
    }
    return consumes_in_place(a, b) && consumes_in_place(b, a);
  }

  // Everything that `consumer` reads of `producer` is there, row by row, when it is needed.
  bool consumes_in_place(const Candidate& producer, const Candidate& consumer) const {
    Unit merged = producer.unit;
    merged.cols = std::max(producer.unit.cols, consumer.unit.cols);
    for (int32_t n : consumer.unit.nodes) {
      const GraphNode& node = graph_.nodes[static_cast<size_t>(n)];
      for (ValueId id : node.inputs) {
        const ValueId root = graph_.written(id);
        const int32_t maker = graph_.value(root).producer;
        if (maker < 0 || !std::count(producer.unit.nodes.begin(), producer.unit.nodes.end(), maker)) continue;
        if (std::count(producer.column_results.begin(), producer.column_results.end(), root)) return false;
        if (!reads_in_place(merged, node, id)) return false;
      }
    }
    return true;
  }

  // What a merged kernel reads once instead of twice, or never writes: bytes per element of the space, and per row or column
  // of it by far less. No sizes: a block is fused in the same way at every length, so that its code can be shared.
  int64_t bytes_shared(const Candidate& a, const Candidate& b) const {
    std::map<ValueId, int> touched;
    auto visit = [&](const Candidate& c, int bit) {
      for (int32_t n : c.unit.nodes) {
        const GraphNode& node = graph_.nodes[static_cast<size_t>(n)];
        for (ValueId id : node.inputs) touched[same_elements(graph_, id)] |= bit;
        for (ValueId id : node.outputs) touched[id] |= bit;
      }
    };
    visit(a, 1);
    visit(b, 2);
    int64_t bytes = 0;
    const int64_t elements = a.unit.rows * std::max(a.unit.cols, b.unit.cols);
    for (auto [id, bits] : touched) {
      const Value& v = graph_.value(id);
      if (bits == 3) bytes += (v.sizes.numel() >= elements ? 4096 : 1) * static_cast<int64_t>(size_of(v.dtype));
    }
    return bytes;
  }

  bool merge_best() {
    const auto reach = reachability();
    int64_t best = 0;
    size_t best_a = 0, best_b = 0;
    for (size_t a = 0; a < units_.size(); ++a) {
      if (!units_[a].alive || !units_[a].unit.fused) continue;
      for (size_t b = a + 1; b < units_.size(); ++b) {
        if (!units_[b].alive || !units_[b].unit.fused) continue;
        const int64_t bytes = bytes_shared(units_[a], units_[b]);
        if (bytes <= best || !may_merge(units_[a], units_[b])) continue;
        bool cycle = false;
        for (size_t c = 0; c < units_.size() && !cycle; ++c)
          cycle = c != a && c != b && units_[c].alive && ((reach[a][c] && reach[c][b]) || (reach[b][c] && reach[c][a]));
        if (cycle) continue;
        best = bytes;
        best_a = a;
        best_b = b;
      }
    }
    if (best == 0) return false;
    Candidate &a = units_[best_a], &b = units_[best_b];
    a.unit.nodes.insert(a.unit.nodes.end(), b.unit.nodes.begin(), b.unit.nodes.end());
    std::sort(a.unit.nodes.begin(), a.unit.nodes.end());
    a.unit.cols = std::max(a.unit.cols, b.unit.cols);
    a.column_results.insert(a.column_results.end(), b.column_results.begin(), b.column_results.end());
    a.reduces_rows = a.reduces_rows || b.reduces_rows;
    for (int32_t n : b.unit.nodes) unit_of_[static_cast<size_t>(n)] = static_cast<int>(best_a);
    b.alive = false;
    return true;
  }

  std::vector<Unit> in_order() const {
    const auto reach = reachability();
    std::vector<size_t> live;
    for (size_t i = 0; i < units_.size(); ++i)
      if (units_[i].alive) live.push_back(i);
    // Earliest first node among those that are ready: keeps the order of recording where it can.
    std::vector<Unit> result;
    std::vector<bool> done(units_.size(), false);
    while (result.size() < live.size()) {
      size_t pick = units_.size();
      for (size_t u : live) {
        if (done[u]) continue;
        bool ready = true;
        for (size_t v : live) ready = ready && (done[v] || v == u || !reach[v][u]);
        if (ready && (pick == units_.size() || units_[u].unit.nodes[0] < units_[pick].unit.nodes[0])) pick = u;
      }
      invariant(pick < units_.size(), "fusion made a cycle");
      done[pick] = true;
      result.push_back(units_[pick].unit);
    }
    return result;
  }

  const Graph& graph_;
  std::vector<int> unit_of_;  // of each node; -1 for views
  std::vector<Candidate> units_;
};

}  // namespace

std::vector<Unit> fuse(const Graph& graph) { return Fuser(graph).run(); }

std::string to_string(const Graph& graph, const std::vector<Unit>& units) {
  std::string text;
  for (const Unit& unit : units) {
    if (unit.fused) absl::StrAppend(&text, "kernel of ", unit.rows, " x ", unit.cols, "\n");
    else text += "library call\n";
    for (int32_t n : unit.nodes) absl::StrAppend(&text, "  ", to_string(graph, graph.nodes[static_cast<size_t>(n)]), "\n");
  }
  return text;
}

}  // namespace rondo::compile
