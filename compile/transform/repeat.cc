// Cheap values that several kernels read are recomputed in each kernel, instead of being stored by one and read
// by the others.
//
// Fusion cannot join two kernels if one needs a complete sum over the rows of the other. A value that both need is then
// stored, even if it is one operation away from a value that is in memory anyway. An example is x - mean, which the
// variance and the normalisation read. Reading x costs as much as reading the difference, and nothing is written.
#include <algorithm>
#include <set>

#include "rondo/compile/transform/passes.h"
#include "rondo/compile/transform/spaces.h"

namespace rondo::compile {
namespace {

class Repeater {
 public:
  Repeater(const Graph& graph, const Capabilities& limits, std::vector<Unit>& units)
      : graph_(graph), limits_(limits), units_(units), unit_of_(graph, -1), readers_(graph), returned_(graph, false) {
    for (size_t u = 0; u < units.size(); ++u)
      for (int32_t n : units[u].nodes) unit_of_[n] = static_cast<int>(u);
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      if (graph.nodes[n].op->kind != OpKind::kView)
        for (ValueId id : graph.nodes[n].inputs)
          if (id != kNoValue) readers_[graph.written(id)].push_back({static_cast<int32_t>(n), id});
    for (ValueId id : graph.outputs) returned_[graph.written(id)] = true;
  }

  void run() {
    stored_ = values_needed(graph_, units_);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) repeat(static_cast<int32_t>(n));
    std::erase_if(units_, [](const Unit& unit) { return unit.nodes.empty(); });
  }

 private:
  struct Reader {
    int32_t node;
    ValueId seen;  // the value as this node reads it, perhaps a view
  };

  int64_t bytes(ValueId id) const {
    const Value& value = graph_.value(id);
    return value.sizes.numel() * static_cast<int64_t>(size_of(value.dtype));
  }
  bool in_memory(ValueId id) const {
    const ValueId source = graph_.written(id);
    return graph_.value(source).producer < 0 || stored_[static_cast<size_t>(source)];
  }
  // True if all operands of the node are in memory, and at most one of them is as large as its result.
  bool is_cheap(const GraphNode& node) const {
    const ValueId result = node.outputs[0];
    std::set<ValueId> large;
    for (ValueId id : node.inputs) {
      if (id == kNoValue) continue;
      if (!in_memory(id)) return false;
      const ValueId shown = shown_elements(graph_, id);
      if (graph_.value(shown).sizes.numel() < graph_.value(result).sizes.numel()) continue;
      if (bytes(shown) > bytes(result)) return false;
      large.insert(shown);
    }
    return large.size() <= 1;
  }
  bool may_join(const GraphNode& node, const Unit& unit) const {
    if (!unit.fused || unit.starts != kNoValue || !fits(graph_, node, unit) ||
        unit.nodes.size() >= static_cast<size_t>(limits_.most_ops))
      return false;
    std::set<ValueId> operands;
    const auto add = [&](const GraphNode& of) {
      for (ValueId id : of.inputs)
        if (id != kNoValue) operands.insert(shown_elements(graph_, id));
      operands.insert(of.outputs.begin(), of.outputs.end());
    };
    for (int32_t n : unit.nodes) add(graph_.node(n));
    add(node);
    return operands.size() <= static_cast<size_t>(limits_.most_operands);
  }

  void repeat(int32_t n) {
    const GraphNode& node = graph_.node(n);
    const int home = unit_of_[n];
    if (home < 0 || node.op->kind != OpKind::kElementwise || node.outputs.size() != 1 || node.op->random_state() >= 0 ||
        node.op->is<trait::Pick>())
      return;
    const Unit& own = units_[static_cast<size_t>(home)];
    const ValueId result = node.outputs[0];
    // A value with one number for each row stays stored.
    if (!own.fused || own.starts != kNoValue || graph_.value(result).root != result ||
        !stored_[static_cast<size_t>(result)] || returned_[result] ||
        graph_.value(result).sizes.numel() != own.rows * own.cols || !is_cheap(node))
      return;
    std::set<int> others;
    bool at_home = false;
    for (const Reader& reader : readers_[result]) {
      const int u = unit_of_[reader.node];
      if (u < 0) return;
      if (u == home) {
        at_home = true;
        continue;
      }
      const Unit& unit = units_[static_cast<size_t>(u)];
      const GraphNode& reads = graph_.node(reader.node);
      if (!may_join(node, unit) || is_table(reads, reader.seen) || !reads_in_place(graph_, unit, reads, reader.seen))
        return;
      others.insert(u);
    }
    for (int u : others) {
      std::vector<int32_t>& nodes = units_[static_cast<size_t>(u)].nodes;
      nodes.insert(std::lower_bound(nodes.begin(), nodes.end(), n), n);
    }
    if (!at_home) std::erase(units_[static_cast<size_t>(home)].nodes, n);
    stored_[static_cast<size_t>(result)] = false;
  }

  const Graph& graph_;
  const Capabilities& limits_;
  std::vector<Unit>& units_;
  NodeMap<int> unit_of_;  // by node: its unit before nodes are repeated; -1: none
  ValueMap<std::vector<Reader>> readers_;
  ValueMap<bool> returned_;
  std::vector<bool> stored_;
};

}  // namespace

std::vector<bool> values_needed(const Graph& graph, const std::vector<Unit>& units) {
  std::vector<bool> needed(graph.values.size(), false);
  for (ValueId id : graph.outputs) needed[static_cast<size_t>(graph.written(id))] = true;
  for (const Unit& unit : units) {
    for (int32_t n : unit.nodes) {
      for (ValueId id : graph.node(n).inputs) {
        if (id == kNoValue) continue;
        const ValueId source = graph.written(id);
        const int32_t producer = graph.value(source).producer;
        if (producer >= 0 && !std::binary_search(unit.nodes.begin(), unit.nodes.end(), producer))
          needed[static_cast<size_t>(source)] = true;
      }
    }
  }
  return needed;
}

void repeat_cheap_nodes(const Graph& graph, const Capabilities& limits, std::vector<Unit>& units) {
  Repeater(graph, limits, units).run();
}

}  // namespace rondo::compile
