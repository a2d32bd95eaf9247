#include "rondo/compile/transform/choose_kept.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "rondo/compile/capture/trace.h"
#include "rondo/compile/stages/stages.h"
#include "rondo/runtime/autograd/autograd.h"

namespace rondo::compile {
namespace {

// Dinic's maximum flow algorithm, and the minimum cut that is closest to the sink.
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
      while (push(source, sink) > 0) {
      }
    }
  }
  // Returns, by node: true if more flow could reach the sink from it. Edges from false to true are the cut.
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
    int64_t capacity;  // the remaining capacity
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
  // Pushes as much flow as one path along the levels can take; returns 0 if there is no path. Not recursive, because a
  // graph may be long.
  int64_t push(size_t source, size_t sink) {
    path_.clear();
    for (size_t node = source; node != sink;) {
      const std::vector<size_t>& edges = edges_of_[node];
      size_t& i = next_[node];
      while (i < edges.size() && !leads_on(node, edges_[edges[i]])) ++i;
      if (i < edges.size()) {
        path_.push_back(edges[i]);
        node = edges_[edges[i]].to;
        continue;
      }
      if (path_.empty()) return 0;
      node = edges_[path_.back() ^ 1].to;
      path_.pop_back();
      ++next_[node];
    }
    int64_t pushed = kInfinite;
    for (size_t e : path_) pushed = std::min(pushed, edges_[e].capacity);
    for (size_t e : path_) {
      edges_[e].capacity -= pushed;
      edges_[e ^ 1].capacity += pushed;
    }
    return pushed;
  }
  bool leads_on(size_t node, const Edge& edge) const {
    return edge.capacity > 0 && level_[edge.to] == level_[node] + 1;
  }
  std::vector<Edge> edges_;  // each edge is followed by its reverse edge
  std::vector<std::vector<size_t>> edges_of_;
  std::vector<int> level_;
  std::vector<size_t> next_, path_;
};

// True for ops that choose between an operand and a number by a condition. If the operand is a leaf, it costs nothing
// to keep, so a backward would recompute everything that follows: a softmax with a hand-written mask would take 1.5
// times as long (bench_blocks, 2048x1024).
bool chooses_a_number(const Graph& graph, const GraphNode& node) {
  return node.attrs.floats.size() > 0 &&
         std::any_of(node.inputs.begin(), node.inputs.end(),
                     [&](ValueId id) { return id != kNoValue && graph.value(id).dtype == kBool; }) &&
         graph.value(node.outputs[0]).dtype != kBool;
}

bool is_cheap(const Graph& graph, const GraphNode& node) {
  if (node.op->kind == OpKind::kView) return true;
  return node.op->kind == OpKind::kElementwise && node.op->lower != nullptr && !chooses_a_number(graph, node);
}

int64_t bytes_of(const Value& value) { return value.sizes.numel() * static_cast<int64_t>(size_of(value.dtype)); }

// Returns the cost of computing a node, in bytes moved: the bytes that it reads and writes, and its products at
// kFlopsPerByte operations per byte. kFlopsPerByte is about the ratio of a processor's speeds (480 GFLOP/s of products
// beside 25 GB/s from memory, measured on two cores of Zen 5).
int64_t work_of(const Graph& graph, const GraphNode& node) {
  constexpr int64_t kFlopsPerByte = 20;
  int64_t work = 1 + flops_of(graph, node) / kFlopsPerByte;
  for (const ValueIds* list : {&node.inputs, &node.outputs})
    for (ValueId id : *list)
      if (id != kNoValue) work += bytes_of(graph.value(id));
  return work;
}

class Chooser {
 public:
  Chooser(const Graph& forward, std::span<const ValueId> needed, bool any_input)
      : graph_(forward), needed_(needed), keeping_costs_(forward), work_(forward, 0) {
    // The caller may write to inputs and outputs before the backward runs. Eager execution allows that for all values
    // that its ops do not save. So among these, only saved values and parameters are kept; with `any_input` also
    // inputs, as in activation checkpointing.
    ValueMap<bool> callers(forward, false), is_needed(forward, false);
    for (ValueId id : forward.inputs) callers[id] = true;
    for (ValueId id : forward.outputs) callers[forward.value(id).root] = true;
    for (ValueId id : needed) is_needed[id] = true;
    for (size_t v = 0; v < forward.values.size(); ++v) {
      const Value& value = forward.values[v];
      // A view keeps the whole memory of its root.
      keeping_costs_[v] = std::max<int64_t>(bytes_of(forward.value(value.root)), 1);
      if (!callers[value.root]) continue;
      // An input that the recording overwrites no longer exists when the backward runs.
      const bool gone = forward.value(value.root).producer < 0 && forward.value(value.root).overwritten;
      const bool allowed = !gone && (is_needed[v] || value.leaf || (any_input && value.producer < 0));
      keeping_costs_[v] = allowed ? 0 : FlowNetwork::kInfinite;
    }
    for (size_t n = 0; n < work_.size(); ++n)
      if (!is_cheap(forward, forward.nodes[n])) work_[n] = work_of(forward, forward.nodes[n]);
  }

  struct Cut {
    std::vector<bool> keep;   // by value: it is kept
    std::vector<bool> again;  // by node: recomputed, and not for free
  };
  // Returns the minimum cut. `costs`: by node, the cost of recomputing it, in bytes.
  Cut cut(const std::vector<int64_t>& costs) const {
    // In the network, every value is two nodes and an edge between them. That edge costs the value's bytes, and cutting
    // it means keeping the value. Every node of the graph has an edge from the source. That edge costs what recomputing
    // the node costs, and cutting it means recomputing the node.
    const size_t n = graph_.values.size(), source = 2 * n, sink = 2 * n + 1;
    FlowNetwork network(2 * n + 2 + graph_.nodes.size());
    for (size_t v = 0; v < n; ++v) {
      network.add_edge(2 * v, 2 * v + 1, keeping_costs_[v]);
      if (graph_.values[v].producer < 0) network.add_edge(source, 2 * v, FlowNetwork::kInfinite);
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const GraphNode& node = graph_.nodes[i];
      const int64_t cost = node.op->is<trait::Exchange>() ? FlowNetwork::kInfinite : costs[i];
      if (cost > 0) network.add_edge(source, sink + 1 + i, cost);
      for (ValueId out : node.outputs)
        network.add_edge(sink + 1 + i, 2 * static_cast<size_t>(out), FlowNetwork::kInfinite);
      for (ValueId in : node.inputs)
        if (in != kNoValue) network.add_edge(2 * static_cast<size_t>(in) + 1, sink + 1 + i, FlowNetwork::kInfinite);
    }
    for (ValueId id : needed_) network.add_edge(2 * static_cast<size_t>(id) + 1, sink, FlowNetwork::kInfinite);
    network.run(source, sink);
    const std::vector<bool> after = network.reaches(sink);
    Cut cut;
    for (size_t v = 0; v < n; ++v) cut.keep.push_back(after[2 * v + 1] && !after[2 * v]);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) cut.again.push_back(after[sink + 1 + i] && work_[i] > 0);
    return cut;
  }
  // Returns the cut when a byte of work costs `price` bytes.
  Cut cut_at(double price) const {
    std::vector<int64_t> costs;
    for (int64_t work : work_)
      costs.push_back(static_cast<int64_t>(
          std::min(price * static_cast<double>(work), static_cast<double>(FlowNetwork::kInfinite))));
    return cut(costs);
  }
  // Returns the cut in which only the nodes in `again`, and nodes without work, may be recomputed, at no cost.
  Cut cut_allowing(const std::vector<bool>& again) const {
    std::vector<int64_t> costs;
    for (size_t n = 0; n < work_.size(); ++n) costs.push_back(again[n] || work_[n] == 0 ? 0 : FlowNetwork::kInfinite);
    return cut(costs);
  }
  std::vector<bool> nothing_again() const { return std::vector<bool>(work_.size(), false); }
  std::vector<bool> everything_again() const { return std::vector<bool>(work_.size(), true); }

  std::vector<bool> within(int64_t budget) const {
    const auto fits = [&](const Cut& cut) { return bytes_kept(graph_, cut.keep) <= budget; };
    Cut dear = cut_allowing(nothing_again()), cheap = cut_allowing(everything_again());
    if (fits(dear)) return dear.keep;
    // Bisects between a price at which too much is kept and a price at which the budget is met.
    double high = static_cast<double>(FlowNetwork::kInfinite), low = 1e-9;
    while (high / low > 1 + 1e-6 && dear.again != cheap.again) {
      const double price = std::sqrt(high * low);
      Cut middle = cut_at(price);
      if (fits(middle)) low = price, cheap = std::move(middle);
      else high = price, dear = std::move(middle);
    }
    // Many nodes, such as those of equal layers, may become worth recomputing at the same price. Of these, recomputes
    // the shortest prefix in program order that meets the budget.
    std::vector<size_t> group;
    for (size_t n = 0; n < cheap.again.size(); ++n)
      if (cheap.again[n] && !dear.again[n]) group.push_back(n);
    size_t most = group.size(), least = 0;
    Cut chosen = std::move(cheap);
    while (least < most) {
      const size_t middle = (least + most) / 2;
      std::vector<bool> again = dear.again;
      for (size_t i = 0; i < middle; ++i) again[group[i]] = true;
      Cut some = cut_allowing(again);
      if (fits(some)) most = middle, chosen = std::move(some);
      else least = middle + 1;
    }
    return chosen.keep;
  }

 private:
  const Graph& graph_;
  std::span<const ValueId> needed_;
  ValueMap<int64_t> keeping_costs_;
  NodeMap<int64_t> work_;  // 0: no work worth counting
};

}  // namespace

int64_t flops_of(const Graph& graph, const GraphNode& node) {
  if (node.op->kind ==
      OpKind::kContraction)  // every element of the result is a sum along the first operand's last dimension
    return 2 * graph.value(node.outputs[0]).sizes.numel() * graph.value(node.inputs[0]).sizes.back();
  if (node.op->decompose == nullptr || node.op->lower != nullptr) return 0;
  for (const ValueIds* list : {&node.inputs, &node.outputs})  // the parts may refuse empty tensors
    for (ValueId id : *list)
      if (id != kNoValue && graph.value(id).sizes.numel() == 0) return 0;
  NoGrad off;
  amp::Autocast as_recorded(std::nullopt);
  Trace trace;
  RecorderScope record(&trace);
  std::vector<Tensor> inputs, outputs(node.outputs.size());
  for (ValueId id : node.inputs) inputs.push_back(id == kNoValue ? Tensor() : trace.placeholder(graph.value(id)));
  node.op->decompose(inputs, node.attrs, outputs);
  int64_t flops = 0;
  for (const GraphNode& part : trace.graph.nodes)
    if (part.op->kind == OpKind::kContraction) flops += flops_of(trace.graph, part);
  return flops;
}

int64_t bytes_kept(const Graph& forward, const std::vector<bool>& keep) {
  ValueMap<bool> counted(forward, false);
  for (ValueId id : forward.outputs) counted[forward.value(id).root] = true;
  int64_t bytes = 0;
  for (size_t v = 0; v < keep.size(); ++v) {
    const ValueId root = forward.values[v].root;
    if (!keep[v] || counted[root] || forward.value(root).producer < 0) continue;
    counted[root] = true;
    bytes += bytes_of(forward.value(root));
  }
  return bytes;
}

std::vector<bool> choose_kept(const Graph& forward, std::span<const ValueId> needed, Recompute recompute,
                              int64_t budget) {
  if (recompute == Recompute::kNone || !enabled(CompilerStage::kRecompute)) {
    ValueMap<bool> keep(forward, false);
    for (ValueId id : needed) keep[id] = true;
    return keep;
  }
  if (recompute != Recompute::kFull) {
    const Chooser chooser(forward, needed, false);
    std::vector<bool> keep = chooser.cut_allowing(chooser.nothing_again()).keep;
    if (recompute == Recompute::kAuto || bytes_kept(forward, keep) <= budget) return keep;
  }
  const Chooser chooser(forward, needed, true);
  return recompute == Recompute::kBudget ? chooser.within(budget)
                                         : chooser.cut_allowing(chooser.everything_again()).keep;
}

int64_t recomputed_flops(const Graph& backward) {
  int64_t flops = 0;
  for (const GraphNode& node : backward.nodes)
    if (node.origin.again) flops += flops_of(backward, node);
  return flops;
}

}  // namespace rondo::compile
