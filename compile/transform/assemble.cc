// Parts that are written straight into the whole: the gradients of q, k and v go into the one buffer that their
// projection's backward reads, instead of into three that are copied together.
#include <algorithm>
#include <optional>

#include "rondo/compile/transform/passes.h"

namespace rondo::compile {
namespace {

// How element m of a dense part lies in the whole: at (m / run) * pitch + m % run + offset.
struct Interleave {
  int64_t run, pitch, offset;
};

// The layout of a view of the part, after the part has moved; nullopt if strides cannot express it.
std::optional<Value> moved(const Value& view, const Interleave& lay, ValueId whole) {
  Value result = view;
  int64_t inner = view.offset % lay.run;  // the farthest that indices within a run reach
  for (int d = 0; d < view.sizes.rank(); ++d) {
    const int64_t size = view.sizes[d], stride = view.strides[d];
    if (size == 1) continue;
    if (stride % lay.run == 0) result.strides[d] = stride / lay.run * lay.pitch;
    else inner += (size - 1) * stride;
  }
  if (inner >= lay.run) return std::nullopt;
  result.offset = view.offset / lay.run * lay.pitch + view.offset % lay.run + lay.offset;
  result.root = whole;
  return result;
}

}  // namespace

std::optional<Graph> assemble_in_place(const Graph& graph) {
  if (std::none_of(graph.nodes.begin(), graph.nodes.end(),
                   [](const GraphNode& node) { return node.op->traits.assembles; }))
    return std::nullopt;
  Graph result = graph;
  ValueMap<std::vector<ValueId>> views(graph);  // by root
  for (size_t v = 0; v < graph.values.size(); ++v) views[graph.values[v].root].push_back(static_cast<ValueId>(v));
  ValueMap<bool> returned(graph, false), placed(graph, false);
  for (ValueId output : graph.outputs) returned[graph.written(output)] = true;
  for (const GraphNode& node : graph.nodes) {
    if (!node.op->traits.assembles) continue;
    const ValueId whole = node.outputs[0];
    const Value& out = result.value(whole);
    const int dim = static_cast<int>(node.attrs.ints[0]);
    if (out.root != whole || out.sizes.numel() == 0) continue;
    std::vector<std::pair<ValueId, Value>> changes;
    std::vector<ValueId> parts;
    int64_t begin = 0;
    bool possible = true;
    for (ValueId id : node.inputs) {
      const Value& seen = result.value(id);
      const ValueId part = graph.written(id);
      const Value& source = result.value(part);
      const bool writable = source.producer >= 0 && source.root == part &&
                            graph.node(source.producer).op->traits.strided_outputs;
      const bool whole_part = seen.offset == 0 && is_contiguous(seen.sizes, seen.strides) &&
                              seen.sizes.numel() == source.sizes.numel();
      // A value has one place.
      const bool taken = placed[part] || returned[part];
      if (!writable || !whole_part || taken) {
        possible = false;
        break;
      }
      const Interleave lay{seen.sizes[dim] * out.strides[dim], out.sizes[dim] * out.strides[dim],
                           begin * out.strides[dim]};
      begin += seen.sizes[dim];
      for (ValueId v : views[part]) {
        const std::optional<Value> value = moved(result.value(v), lay, whole);
        possible = possible && value.has_value();
        if (!possible) break;
        changes.emplace_back(v, *value);
      }
      placed[part] = true;
      parts.push_back(part);
    }
    if (!possible) {
      for (ValueId part : parts) placed[part] = false;
      continue;
    }
    for (auto& [id, value] : changes) result.value(id) = value;
  }
  return result;
}

}  // namespace rondo::compile
