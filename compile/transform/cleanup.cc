// Removes common subexpressions and dead code, joins calls that continue each other, and widens reductions.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "rondo/compile/capture/float_trace.h"
#include "rondo/compile/transform/passes.h"

namespace rondo::compile {
namespace {

// Copies the nodes in `keep`, with inputs and outputs renamed; drops values that are no longer defined.
Graph rebuild(const Graph& graph, const std::vector<bool>& keep, const ValueMap<ValueId>& renamed) {
  Graph result;
  result.values.reserve(graph.values.size());
  result.nodes.reserve(graph.nodes.size());
  ValueMap<ValueId> map(graph, kNoValue);
  auto target = [&](ValueId id) { return id == kNoValue ? kNoValue : map[renamed[id]]; };
  auto define = [&](ValueId id, int32_t producer) {
    const auto next = static_cast<ValueId>(result.values.size());
    map[id] = next;
    Value value = graph.value(id);
    value.producer = producer;
    value.root = value.root == id ? next : target(value.root);
    result.values.push_back(value);
    return next;
  };
  for (ValueId id : graph.inputs) result.inputs.push_back(define(id, -1));
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!keep[i]) continue;
    GraphNode node = graph.nodes[i];
    for (ValueId& id : node.inputs) id = target(id);
    for (ValueId& id : node.outputs) id = define(id, static_cast<int32_t>(result.nodes.size()));
    result.nodes.push_back(std::move(node));
  }
  for (ValueId id : graph.outputs) result.outputs.push_back(target(id));
  return result;
}

ValueMap<ValueId> identity(const Graph& graph) {
  ValueMap<ValueId> ids(graph);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<ValueId>(i);
  return ids;
}

}  // namespace

std::optional<Graph> eliminate_common_subexpressions(const Graph& graph) {
  // Floats are compared by their bits: 0 and -0 differ, and NaN equals itself.
  using Key = std::tuple<const OpDef*, ValueIds, std::vector<int64_t>, std::vector<uint64_t>>;
  // The caller may write to results, so each one needs its own memory, even if two are equal.
  ValueMap<bool> escapes(graph, false);
  for (ValueId id : graph.outputs) escapes[graph.value(id).root] = true;
  std::map<Key, size_t> seen;
  NodeMap<bool> keep(graph, true);
  ValueMap<ValueId> renamed = identity(graph);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const GraphNode& node = graph.nodes[i];
    if (node.op->is<trait::Exchange>()) continue;
    ValueIds inputs = node.inputs;
    for (ValueId& id : inputs)
      if (id != kNoValue) id = renamed[id];
    std::vector<uint64_t> floats;
    for (SymFloat number : node.attrs.floats) floats.push_back(join_key(number));
    auto [found, added] = seen.try_emplace(
        Key{node.op, inputs, {node.attrs.ints.begin(), node.attrs.ints.end()}, floats}, i);
    bool escaped = false;
    for (ValueId id : node.outputs) escaped = escaped || escapes[id];
    if (added || escaped) continue;
    for (size_t k = 0; k < node.attrs.floats.size(); ++k)
      join_floats(graph.nodes[found->second].attrs.floats[k], node.attrs.floats[k]);
    keep[i] = false;
    for (size_t k = 0; k < node.outputs.size(); ++k) renamed[node.outputs[k]] = graph.nodes[found->second].outputs[k];
  }
  if (std::find(keep.begin(), keep.end(), false) == keep.end()) return std::nullopt;
  return rebuild(graph, keep, renamed);
}

std::optional<Graph> widen_reductions(const Graph& graph) {
  ValueMap<int> readers(graph, 0), views(graph, 0);
  for (const GraphNode& node : graph.nodes)
    for (ValueId id : node.inputs)
      if (id != kNoValue) ++readers[id];
  for (ValueId id : graph.outputs) ++readers[id];
  for (const Value& value : graph.values) ++views[value.root];
  std::optional<Graph> result;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const GraphNode& widening = graph.nodes[n];
    if (widening.op->epilogue != Epilogue::kWiden || graph.value(widening.outputs[0]).dtype != kF32) continue;
    const ValueId sum = widening.inputs[0];
    const Value& narrow = graph.value(sum);
    if (narrow.producer < 0 || !is_low_precision(narrow.dtype)) continue;
    const GraphNode& reduction = graph.node(narrow.producer);
    if (reduction.op->kind != OpKind::kReduction || reduction.outputs.size() != 1 || reduction.inputs.size() != 1 ||
        graph.value(reduction.inputs[0]).dtype != narrow.dtype || readers[sum] != 1 || views[sum] != 1)
      continue;
    if (!result) result = graph;
    // The two nodes swap places; the value between them becomes the widened operand.
    GraphNode &first = result->nodes[static_cast<size_t>(narrow.producer)], &second = result->nodes[n];
    std::swap(first.op, second.op);
    std::swap(first.attrs, second.attrs);
    std::swap(first.where, second.where);
    std::swap(first.origin, second.origin);
    const TensorMeta wide = infer_results(*result, first, Operands::kAsTheyAre)[0];
    Value& between = result->value(sum);
    between.dtype = wide.dtype;
    between.sizes = wide.sizes;
    between.strides = wide.strides;
  }
  return result;
}

namespace {

// Returns how many ints of a chained call come before the ints of its operands.
size_t header(const GraphNode& node) {
  return node.attrs.ints.size() - node.inputs.size() * static_cast<size_t>(node.op->chains);
}
bool continues(const GraphNode& node, const GraphNode& before) {
  const auto &ints = node.attrs.ints, &others = before.attrs.ints;
  const size_t n = header(node);
  return before.op == node.op && header(before) == n && std::equal(ints.begin(), ints.begin() + n, others.begin());
}

}  // namespace

std::optional<Graph> join_chains(const Graph& graph) {
  if (std::none_of(graph.nodes.begin(), graph.nodes.end(), [](const GraphNode& n) { return n.op->chains >= 0; }))
    return std::nullopt;
  ValueMap<int> uses(graph, 0);
  for (const GraphNode& node : graph.nodes)
    for (ValueId id : node.inputs)
      if (id != kNoValue) ++uses[id];
  for (ValueId id : graph.outputs) ++uses[id];
  // Returns the call that node `n` continues; -1 if there is none.
  const auto before = [&](size_t n) -> int32_t {
    const GraphNode& node = graph.nodes[n];
    if (node.op->chains < 0) return -1;
    const ValueId first = node.inputs[0];
    if (first == kNoValue || uses[first] != 1) return -1;
    const int32_t maker = graph.value(first).producer;
    return maker >= 0 && continues(node, graph.node(maker)) ? maker : -1;
  };
  NodeMap<bool> keep(graph, true);
  std::optional<Graph> result;
  for (size_t end = graph.nodes.size(); end-- > 0;) {
    if (!keep[end]) continue;
    std::vector<size_t> chain = {end};
    for (int32_t n = before(end); n >= 0; n = before(chain.back())) {
      chain.push_back(static_cast<size_t>(n));
      keep[chain.back()] = false;
    }
    if (chain.size() == 1) continue;
    if (!result) result = graph;
    GraphNode& whole = result->nodes[end];
    const GraphNode& start = graph.nodes[chain.back()];
    whole.inputs = start.inputs;
    whole.attrs.ints = start.attrs.ints;
    for (size_t i = chain.size() - 1; i-- > 0;) {
      const GraphNode& next = graph.nodes[chain[i]];
      const size_t own = header(next) + static_cast<size_t>(next.op->chains);
      whole.inputs.insert(whole.inputs.end(), next.inputs.begin() + 1, next.inputs.end());
      whole.attrs.ints.append(std::span(next.attrs.ints.begin() + own, next.attrs.ints.end()));
    }
  }
  if (!result) return std::nullopt;
  return rebuild(*result, keep, identity(graph));
}

std::optional<Graph> eliminate_dead_code(const Graph& graph) {
  ValueMap<bool> used(graph, false);
  NodeMap<bool> keep(graph, false);
  for (ValueId id : graph.outputs) used[id] = true;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    keep[i] = graph.nodes[i].op->has_effects();  // Notes [Checks are effects], [Collectives are effects]
    for (ValueId id : graph.nodes[i].outputs) keep[i] = keep[i] || used[id];
    if (!keep[i]) continue;
    for (ValueId id : graph.nodes[i].inputs)
      if (id != kNoValue) used[id] = true;
  }
  if (std::find(keep.begin(), keep.end(), false) == keep.end()) return std::nullopt;
  return rebuild(graph, keep, identity(graph));
}

}  // namespace rondo::compile
