#include "rondo/compile/trace/partition.h"

#include <algorithm>
#include <limits>

#include "rondo/compile/passes/passes.h"

namespace rondo::compile {
namespace {

// Dinic's maximum flow; afterwards, the minimum cut that lies closest to the sink.
class FlowNetwork {
 public:
  static constexpr int64_t kInfinite = std::numeric_limits<int64_t>::max() / 4;

  explicit FlowNetwork(size_t nodes) : edges_of_(nodes) {}
  void add_edge(size_t from, size_t to, int64_t capacity) {
    edges_of_[from].push_back(edges_.size());
    edges_.push_back({to, capacity});
    edges_of_[to].push_back(edges_.size());
    edges_.push_back({from, 0});
  }
  void run(size_t source, size_t sink) {
    while (find_levels(source, sink)) {
      next_.assign(edges_of_.size(), 0);
      while (push(source, sink, kInfinite) > 0) {}
    }
  }
  // By node: true if flow could still reach the sink from it. Edges from false to true are the cut.
  std::vector<bool> reaches(size_t sink) const {
    std::vector<bool> reached(edges_of_.size(), false);
    std::vector<size_t> stack{sink};
    reached[sink] = true;
    while (!stack.empty()) {
      const size_t node = stack.back();
      stack.pop_back();
      for (size_t e : edges_of_[node]) {
        const size_t from = edges_[e].to;
        if (reached[from] || edges_[e ^ 1].capacity == 0) continue;
        reached[from] = true;
        stack.push_back(from);
      }
    }
    return reached;
  }

 private:
  struct Edge {
    size_t to;
    int64_t capacity;  // left
  };
  bool find_levels(size_t source, size_t sink) {
    level_.assign(edges_of_.size(), -1);
    std::vector<size_t> queue{source};
    level_[source] = 0;
    for (size_t i = 0; i < queue.size(); ++i)
      for (size_t e : edges_of_[queue[i]])
        if (edges_[e].capacity > 0 && level_[edges_[e].to] < 0) {
          level_[edges_[e].to] = level_[queue[i]] + 1;
          queue.push_back(edges_[e].to);
        }
    return level_[sink] >= 0;
  }
  // One augmenting path along the levels; recursion is as deep as the graph is long.
  int64_t push(size_t node, size_t sink, int64_t limit) {
    if (node == sink) return limit;
    for (size_t& i = next_[node]; i < edges_of_[node].size(); ++i) {
      const size_t e = edges_of_[node][i];
      if (edges_[e].capacity == 0 || level_[edges_[e].to] != level_[node] + 1) continue;
      const int64_t pushed = push(edges_[e].to, sink, std::min(limit, edges_[e].capacity));
      if (pushed == 0) continue;
      edges_[e].capacity -= pushed;
      edges_[e ^ 1].capacity += pushed;
      return pushed;
    }
    return 0;
  }
  std::vector<Edge> edges_;  // each followed by its reverse
  std::vector<std::vector<size_t>> edges_of_;
  std::vector<int> level_;
  std::vector<size_t> next_;
};

bool is_cheap(const OpDef& op) {
  return op.kind == OpKind::kView || (op.kind == OpKind::kElementwise && op.lower != nullptr);
}

int64_t bytes_of(const Value& value) { return value.sizes.numel() * static_cast<int64_t>(size_of(value.dtype)); }

}  // namespace

Partition::Partition(const Graph& recorded, std::span<const ValueId> needed, Recompute recompute, const Partition* like)
    : caller_outputs_(recorded.outputs.size()), forward_id_(recorded.values.size(), kNoValue) {
  Graph extended = recorded;
  extended.outputs.insert(extended.outputs.end(), needed.begin(), needed.end());
  forward_ = decompose(extended);
  std::vector<ValueId> sinks;
  for (size_t i = 0; i < needed.size(); ++i) {
    sinks.push_back(forward_.outputs[caller_outputs_ + i]);
    forward_id_[static_cast<size_t>(needed[i])] = sinks.back();
  }
  forward_.outputs.resize(caller_outputs_);

  std::vector<bool> keep;
  if (like != nullptr && resembles(*like)) {
    for (int32_t index : like->kept_index_) keep.push_back(index >= 0);
  } else {
    keep = minimum_cut(sinks, recompute);
  }
  kept_index_.assign(forward_.values.size(), -1);
  for (size_t v = 0; v < keep.size(); ++v) {
    if (!keep[v]) continue;
    const auto id = static_cast<ValueId>(v);
    kept_index_[v] = static_cast<int32_t>(kept_.size());
    const auto position = [id](const std::vector<ValueId>& list) {
      return static_cast<size_t>(std::find(list.begin(), list.end(), id) - list.begin());
    };
    if (const size_t at = position(forward_.inputs); at < forward_.inputs.size()) {
      kept_.push_back({true, static_cast<int32_t>(at)});
      continue;
    }
    const size_t at = position(forward_.outputs);
    if (at == forward_.outputs.size()) forward_.outputs.push_back(id);
    kept_.push_back({false, static_cast<int32_t>(at)});
  }
}

bool Partition::resembles(const Partition& other) const {
  if (forward_id_ != other.forward_id_ || forward_.inputs != other.forward_.inputs ||
      forward_.nodes.size() != other.forward_.nodes.size() || caller_outputs_ != other.caller_outputs_ ||
      !std::equal(forward_.outputs.begin(), forward_.outputs.end(), other.forward_.outputs.begin()))
    return false;
  for (size_t i = 0; i < forward_.nodes.size(); ++i) {
    const GraphNode &a = forward_.nodes[i], &b = other.forward_.nodes[i];
    if (a.op != b.op || a.inputs != b.inputs || a.outputs != b.outputs) return false;
  }
  return true;
}

// Every value is two nodes, an edge between them that costs its bytes: cutting it is keeping the value.
std::vector<bool> Partition::minimum_cut(const std::vector<ValueId>& needed, Recompute recompute) const {
  const size_t n = forward_.values.size();
  std::vector<bool> keep(n, false);
  if (recompute == Recompute::kNone) {
    for (ValueId id : needed) keep[static_cast<size_t>(id)] = true;
    return keep;
  }
  const size_t source = 2 * n, sink = 2 * n + 1;
  FlowNetwork network(2 * n + 2);
  // The caller may write to his inputs and outputs before the backward runs. Eager execution allows that for all that its ops
  // do not save, so nothing else of theirs is kept, but for parameters. (kFull is as strict as activation checkpointing.)
  std::vector<bool> callers(n, false), is_needed(n, false);
  for (ValueId id : forward_.inputs) callers[static_cast<size_t>(id)] = true;
  for (ValueId id : forward_.outputs) callers[static_cast<size_t>(forward_.value(id).root)] = true;
  for (ValueId id : needed) is_needed[static_cast<size_t>(id)] = true;
  for (size_t v = 0; v < n; ++v) {
    const Value& value = forward_.values[v];
    // A view keeps the whole memory that it looks into.
    int64_t cost = std::max<int64_t>(bytes_of(forward_.value(value.root)), 1);
    if (callers[static_cast<size_t>(value.root)]) {
      const bool allowed = is_needed[v] || value.leaf || (recompute == Recompute::kFull && value.producer < 0);
      cost = allowed ? 0 : FlowNetwork::kInfinite;
    }
    network.add_edge(2 * v, 2 * v + 1, cost);
    const bool given = value.producer < 0 ||
                       (recompute == Recompute::kAuto && !is_cheap(*forward_.nodes[static_cast<size_t>(value.producer)].op));
    if (given) network.add_edge(source, 2 * v, FlowNetwork::kInfinite);
  }
  for (const GraphNode& node : forward_.nodes)
    for (ValueId in : node.inputs)
      for (ValueId out : node.outputs)
        if (in != kNoValue) network.add_edge(2 * static_cast<size_t>(in) + 1, 2 * static_cast<size_t>(out), FlowNetwork::kInfinite);
  for (ValueId id : needed) network.add_edge(2 * static_cast<size_t>(id) + 1, sink, FlowNetwork::kInfinite);
  network.run(source, sink);
  const std::vector<bool> after = network.reaches(sink);
  for (size_t v = 0; v < n; ++v) keep[v] = after[2 * v + 1] && !after[2 * v];
  return keep;
}

int64_t Partition::kept_bytes() const {
  std::vector<bool> counted(forward_.values.size(), false);
  for (size_t i = 0; i < caller_outputs_; ++i) counted[static_cast<size_t>(forward_.value(forward_.outputs[i]).root)] = true;
  int64_t bytes = 0;
  for (size_t i = caller_outputs_; i < forward_.outputs.size(); ++i) {
    const ValueId root = forward_.value(forward_.outputs[i]).root;
    if (counted[static_cast<size_t>(root)] || forward_.value(root).producer < 0) continue;
    counted[static_cast<size_t>(root)] = true;
    bytes += bytes_of(forward_.value(root));
  }
  return bytes;
}

void Partition::apply(BackwardGraph& backward) const {
  const Graph& old = backward.graph;
  Graph graph;
  std::vector<BackwardInput> inputs;
  std::vector<ValueId> of_old(old.values.size(), kNoValue), of_forward(forward_.values.size(), kNoValue);
  const auto add_input = [&](const Value& like, BackwardInput source) {
    const auto id = static_cast<ValueId>(graph.values.size());
    Value& value = graph.values.emplace_back(like);
    value.producer = -1;
    value.root = id;
    value.offset = 0;
    value.requires_grad = false;
    graph.inputs.push_back(id);
    inputs.push_back(std::move(source));
    return id;
  };
  // What must be computed again, and what it is computed from.
  std::vector<bool> wanted(forward_.values.size(), false);
  for (size_t i = 0; i < old.inputs.size(); ++i) {
    const BackwardInput& source = backward.inputs[i];
    if (source.kind == BackwardInput::kSaved && source.index >= 0) {
      const ValueId id = forward_id_[static_cast<size_t>(source.index)];
      if (id != kNoValue) {
        wanted[static_cast<size_t>(id)] = true;
        continue;
      }
    }
    // A saved value that nothing reads keeps its place, unbound.
    BackwardInput same = source;
    if (same.kind == BackwardInput::kSaved) same.index = -1;
    of_old[static_cast<size_t>(old.inputs[i])] = add_input(old.value(old.inputs[i]), std::move(same));
  }
  for (size_t n = forward_.nodes.size(); n-- > 0;) {
    bool any = false;
    for (ValueId id : forward_.nodes[n].outputs)
      any = any || (wanted[static_cast<size_t>(id)] && kept_index_[static_cast<size_t>(id)] < 0);
    if (!any) continue;
    for (ValueId id : forward_.nodes[n].inputs)
      if (id != kNoValue) wanted[static_cast<size_t>(id)] = true;
  }
  for (size_t v = 0; v < wanted.size(); ++v)
    if (wanted[v] && kept_index_[v] >= 0)
      of_forward[v] = add_input(forward_.values[v], {BackwardInput::kSaved, kept_index_[v], {}});

  const auto append = [&](const GraphNode& from, const Graph& source, std::vector<ValueId>& map) {
    GraphNode node = from;
    for (ValueId& id : node.inputs)
      if (id != kNoValue) id = map[static_cast<size_t>(id)];
    for (ValueId& id : node.outputs) {
      const auto made = static_cast<ValueId>(graph.values.size());
      Value value = source.value(id);
      value.producer = static_cast<int32_t>(graph.nodes.size());
      value.requires_grad = false;
      if (node.op->kind == OpKind::kView) {
        // Relative to its source, which may itself be a view now, or have been one before.
        const Value& now = graph.value(node.inputs[0]);
        value.offset = now.offset + source.value(id).offset - source.value(from.inputs[0]).offset;
        value.root = now.root;
      } else {
        value.root = made;
      }
      // What was kept stays as it is; its twin that is computed beside another result goes unread.
      if (map[static_cast<size_t>(id)] == kNoValue) map[static_cast<size_t>(id)] = made;
      graph.values.push_back(value);
      id = made;
    }
    graph.nodes.push_back(std::move(node));
  };
  for (const GraphNode& node : forward_.nodes) {
    bool any = false;
    for (ValueId id : node.outputs) any = any || (wanted[static_cast<size_t>(id)] && kept_index_[static_cast<size_t>(id)] < 0);
    if (!any) continue;
    append(node, forward_, of_forward);
    graph.nodes.back().origin.again = true;
  }
  for (size_t i = 0; i < old.inputs.size(); ++i) {
    ValueId& id = of_old[static_cast<size_t>(old.inputs[i])];
    if (id == kNoValue) id = of_forward[static_cast<size_t>(forward_id_[static_cast<size_t>(backward.inputs[i].index)])];
  }
  for (const GraphNode& node : old.nodes) append(node, old, of_old);
  for (ValueId id : old.outputs) graph.outputs.push_back(of_old[static_cast<size_t>(id)]);
  backward.graph = std::move(graph);
  backward.inputs = std::move(inputs);
}

}  // namespace rondo::compile
