// Merges successive collectives that do not depend on each other into one message: the cost of a small message is its
// latency, not its bytes. Two normalisations side by side, as in the branches of a residual block, then wait for the
// other processes once.
#include <algorithm>
#include <utility>

#include "rondo/compile/transform/passes.h"
#include "rondo/compile/transform/retrace.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::compile {
namespace {

// Larger collectives stay separate: their bytes matter more than the latency, and concatenating would copy the bytes.
constexpr int64_t kMostElements = 1 << 16;

using Group = std::vector<size_t>;  // nodes, in graph order

// Finds the groups from the structure of the graph and from sizes, which are the same in all processes. So all
// processes find the same groups.
std::vector<Group> find_groups(const Graph& graph) {
  std::vector<Group> groups;
  ValueMap<size_t> reads_of(graph, 0);  // by value: 1 + the latest group that it is computed from
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const GraphNode& node = graph.nodes[n];
    size_t latest = 0;
    for (ValueId id : node.inputs)
      if (id != kNoValue) latest = std::max(latest, reads_of[id]);
    if (node.op->is<trait::Exchange>()) {
      const Value& value = graph.value(node.outputs[0]);
      const auto may_join = [&](const GraphNode& other) {
        const Value& first = graph.value(other.outputs[0]);
        return other.op == node.op && other.attrs == node.attrs && first.dtype == value.dtype &&
               std::max(first.sizes.numel(), value.sizes.numel()) <= kMostElements;
      };
      if (groups.empty() || latest == groups.size() || !may_join(graph.nodes[groups.back()[0]])) groups.emplace_back();
      groups.back().push_back(n);
      latest = groups.size();
    }
    for (ValueId id : node.outputs) reads_of[id] = latest;
  }
  return groups;
}

// Reorders the graph so that the nodes of each group are consecutive, after all values that they read and before all
// nodes that read their results.
Graph put_together(const Graph& graph, const std::vector<Group>& groups) {
  std::vector<size_t> order, waiting;
  ValueMap<bool> awaited(graph, false);
  size_t at = 0;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const GraphNode& node = graph.nodes[n];
    const bool is_member = at < groups.size() && n >= groups[at][0] && node.op->is<trait::Exchange>();
    bool waits = is_member;
    for (ValueId id : node.inputs) waits = waits || (id != kNoValue && awaited[id]);
    if (!waits) {
      order.push_back(n);
      continue;
    }
    for (ValueId id : node.outputs) awaited[id] = true;
    if (!is_member) waiting.push_back(n);
    if (!is_member || n != groups[at].back()) continue;
    order.insert(order.end(), groups[at].begin(), groups[at].end());
    order.insert(order.end(), waiting.begin(), waiting.end());
    waiting.clear();
    awaited = ValueMap<bool>(graph, false);
    ++at;
  }
  invariant(order.size() == graph.nodes.size(), "a group of collectives has no end");
  Graph result = graph;
  for (size_t i = 0; i < order.size(); ++i) {
    result.nodes[i] = graph.nodes[order[i]];
    for (ValueId id : result.nodes[i].outputs) result.value(id).producer = static_cast<int32_t>(i);
  }
  return result;
}

}  // namespace

std::optional<Graph> merge_collectives(const Graph& graph) {
  const std::vector<Group> groups = find_groups(graph);
  if (std::all_of(groups.begin(), groups.end(), [](const Group& group) { return group.size() == 1; }))
    return std::nullopt;
  const Graph ordered = put_together(graph, groups);
  ValueMap<bool> is_result(ordered, false);  // a result of the caller needs its own memory
  for (ValueId id : ordered.outputs) is_result[ordered.value(id).root] = true;
  size_t group = 0, member = 0;
  Tensor all;
  int64_t begin = 0;
  return retrace(ordered, [&](size_t n, const Symbols& symbols, std::span<Tensor> outputs) {
    const GraphNode& node = ordered.nodes[n];
    if (!node.op->is<trait::Exchange>()) return false;
    const size_t members = groups[group].size();
    if (members == 1) {
      ++group;
      return false;
    }
    if (member == 0) {
      std::vector<Tensor> parts;
      for (size_t i = 0; i < members; ++i) parts.push_back(ops::reshape(symbols[ordered.nodes[n + i].inputs[0]], {-1}));
      all = call(*node.op, {ops::cat(parts, 0)}, node.attrs);
      begin = 0;
    }
    const Dims& sizes = ordered.value(node.outputs[0]).sizes;
    const Tensor part = ops::reshape(all.slice(0, {begin, begin + sizes.numel()}), sizes);
    outputs[0] = is_result[node.outputs[0]] ? part.clone() : part;
    begin += sizes.numel();
    if (++member == members) member = 0, ++group;
    return true;
  });
}

}  // namespace rondo::compile
