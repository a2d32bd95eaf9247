// Writes parts directly into the whole that is assembled from them: the gradients of q, k and v go into the one buffer
// that their projection's backward reads, instead of into three buffers that are then copied together. A whole may
// itself be a part of a larger one.
#include <algorithm>
#include <optional>

#include "rondo/compile/transform/passes.h"
#include "rondo/compile/transform/spaces.h"

namespace rondo::compile {
namespace {

// How element m of a dense part is placed in the whole: (m / run) * pitch + m % run + offset.
struct Interleave {
  int64_t run, pitch, offset;
};

// Returns the layout that a view of a part has when the part lies in the whole; nullopt if strides cannot express it.
std::optional<Value> moved(const Value& view, const Interleave& lay, ValueId whole) {
  Value result = view;
  int64_t inner = view.offset % lay.run;  // the largest offset within a run that the indices reach
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

class Assembler {
 public:
  explicit Assembler(const Graph& graph)
      : graph_(graph),
        result_(graph),
        views_(graph),
        uses_(graph, 0),
        returned_(graph, false),
        placed_(graph, false),
        read_by_library_(graph, false) {
    for (size_t v = 0; v < graph.values.size(); ++v) views_[graph.values[v].root].push_back(static_cast<ValueId>(v));
    for (const GraphNode& node : graph.nodes) {
      const bool library = node.op->kind != OpKind::kView && !node.op->is<trait::SideBySide>() &&
                           !space_of(graph, node).unit.fused;
      for (ValueId id : node.inputs) {
        if (id == kNoValue) continue;
        ++uses_[id];
        if (library) read_by_library_[id] = true;
      }
    }
    for (ValueId output : graph.outputs) returned_[graph.written(output)] = true;
  }

  Graph run() {
    for (const GraphNode& node : graph_.nodes)
      if (node.op->is<trait::SideBySide>()) assemble(node);
    return std::move(result_);
  }

 private:
  // True if the value's producer can write it into a larger value.
  bool may_move(ValueId part) const {
    const Value& value = result_.value(part);
    // A value can be in one place only.
    if (value.producer < 0 || value.root != part || placed_[part] || returned_[part]) return false;
    const GraphNode& maker = graph_.node(value.producer);
    if (maker.op->strided_outputs) return true;
    // If the value has a second reader, it stays where it is: fusing that reader with the producer is worth more.
    return writes_parts(*maker.op) && space_of(graph_, maker).unit.fused && views_[part].size() == 1 &&
           uses_[part] == 1;
  }

  void assemble(const GraphNode& node) {
    const ValueId whole = node.outputs[0];
    const Value& out = result_.value(whole);
    const int dim = node.op->as<trait::SideBySide>()->dim(node.attrs);
    if (out.root != whole || out.sizes.numel() == 0) return;
    std::vector<std::pair<ValueId, Value>> changes;
    std::vector<ValueId> parts;
    int64_t begin = 0;
    const bool possible = std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
      const Value& seen = result_.value(id);
      const ValueId part = graph_.written(id);
      const bool whole_part = seen.offset == 0 && is_contiguous(seen.sizes, seen.strides) &&
                              seen.sizes.numel() == result_.value(part).sizes.numel();
      if (!whole_part || !may_move(part)) return false;
      const Interleave lay{seen.sizes[dim] * out.strides[dim], out.sizes[dim] * out.strides[dim],
                           begin * out.strides[dim]};
      begin += seen.sizes[dim];
      placed_[part] = true;
      parts.push_back(part);
      return std::all_of(views_[part].begin(), views_[part].end(), [&](ValueId v) {
        const std::optional<Value> value = moved(result_.value(v), lay, whole);
        // With another layout, a library may add in another order.
        if (!value || (read_by_library_[v] && !(value->strides == graph_.value(v).strides))) return false;
        changes.emplace_back(v, *value);
        return true;
      });
    });
    if (!possible) {
      for (ValueId part : parts) placed_[part] = false;
      return;
    }
    for (auto& [id, value] : changes) {
      result_.value(id) = value;
      views_[whole].push_back(id);  // if the whole moves later, they move with it
    }
  }

  const Graph& graph_;
  Graph result_;
  ValueMap<std::vector<ValueId>> views_;  // by root
  ValueMap<int> uses_;
  ValueMap<bool> returned_, placed_, read_by_library_;
};

}  // namespace

std::optional<Graph> assemble_in_place(const Graph& graph) {
  if (std::none_of(graph.nodes.begin(), graph.nodes.end(),
                   [](const GraphNode& node) { return node.op->is<trait::SideBySide>(); }))
    return std::nullopt;
  return Assembler(graph).run();
}

}  // namespace rondo::compile
