#include "rondo/compile/transform/lay_out.h"

#include <algorithm>
#include <optional>

#include "rondo/compile/capture/trace.h"
#include "rondo/compile/transform/retrace.h"
#include "rondo/runtime/ops/channels_last.h"
#include "rondo/runtime/ops/convolution.h"

namespace rondo::compile {
namespace {

// True if the value is contiguous, and would have other strides in channels last.
bool is_usual_image(const Value& v) {
  return v.sizes.rank() == 4 && v.sizes.numel() > 0 && v.sizes[1] > 1 && v.sizes[2] * v.sizes[3] > 1 &&
         is_contiguous(v.sizes, v.strides);
}
int64_t image_bytes(const Value& v) { return v.sizes.numel() * static_cast<int64_t>(size_of(v.dtype)); }
bool names_layout(const OpDef& op) { return op.is<trait::Images>() && op.as<trait::Images>()->layout_int >= 0; }
bool keeps_layout(const OpDef& op) {
  return op.channels_last != nullptr || op.kind == OpKind::kElementwise || op.kind == OpKind::kReduction;
}

// A graph with chosen layouts. `needed`: its values that replace the values of the recording that backwards read.
struct LaidOut {
  Graph graph;
  std::vector<ValueId> needed;
};

class LayoutChooser {
 public:
  // `channels_last`: by input, true if it is channels last although the graph says otherwise; empty: none is.
  LayoutChooser(const Graph& graph, const std::vector<bool>& channels_last)
      : graph_(graph), last_(graph), usual_(graph), is_output_(graph, false), goes_on_(graph, false) {
    for (const ValueId id : graph.outputs) is_output_[id] = true;
    for (size_t i = 0; i < channels_last.size(); ++i)
      if (channels_last[i]) given_.push_back(graph.inputs[i]);
    for (size_t n = graph.nodes.size(); n-- > 0;) find_readers(graph.nodes[n]);
  }

  bool changes_anything() const {
    if (!given_.empty()) return true;
    return std::any_of(graph_.nodes.begin(), graph_.nodes.end(),
                       [&](const GraphNode& node) { return makes_channels_last(node); });
  }

  LaidOut run(std::span<const ValueId> needed) {
    Graph extended = graph_;
    extended.outputs.insert(extended.outputs.end(), needed.begin(), needed.end());
    for (const ValueId id : given_) extended.value(id).strides = channels_last_strides(extended.value(id).sizes);
    size_t output = 0;
    LaidOut made;
    made.graph = retrace(
        extended,
        [&](size_t n, const Symbols& symbols, std::span<Tensor> outputs) {
          symbols_ = &symbols;
          visit(graph_.nodes[n], outputs);
          return true;
        },
        [&](ValueId id, const Symbols& symbols) {
          symbols_ = &symbols;
          // The caller's outputs come first, and keep their layout.
          return output++ < graph_.outputs.size() ? usual(id) : as_it_lies(id);
        });
    Graph& graph = made.graph;
    made.needed.assign(graph.outputs.begin() + static_cast<std::ptrdiff_t>(graph_.outputs.size()), graph.outputs.end());
    graph.outputs.resize(graph_.outputs.size());
    return made;
  }

 private:
  // Sets goes_on_ for an image, unless it is read only by elementwise ops on the way to a result of the graph.
  void find_readers(const GraphNode& node) {
    bool goes_on = names_layout(*node.op) || node.op->kind == OpKind::kReduction;
    if (node.op->channels_last != nullptr || node.op->kind == OpKind::kElementwise) {
      goes_on = goes_on || (node.op->channels_last != nullptr && node.op->kind != OpKind::kView);
      for (const ValueId id : node.outputs) goes_on = goes_on || (goes_on_[id] && !is_output_[id]);
    }
    if (!goes_on) return;
    for (const ValueId id : node.inputs)
      if (id != kNoValue) goes_on_[id] = true;
  }
  bool makes_channels_last(const GraphNode& node) const {
    const ValueId id = node.outputs[0];
    return names_layout(*node.op) && goes_on_[id] && !is_output_[id] && is_usual_image(graph_.value(id));
  }

  // ---- While the graph is run again
  void visit(const GraphNode& node, std::span<Tensor> outputs) {
    const bool some_last = std::any_of(node.inputs.begin(), node.inputs.end(),
                                       [&](ValueId id) { return id != kNoValue && is_last(id); });
    if (names_layout(*node.op)) return convolve(node, some_last, outputs);
    const bool ends = node.op->kind == OpKind::kElementwise && is_output_[node.outputs[0]];
    if (some_last && !ends && keeps_layout(*node.op)) {
      // Converts the inputs of sums and norms to channels last: they read each element more than once, so it pays.
      const bool moves = node.op->kind != OpKind::kElementwise && node.op->kind != OpKind::kView &&
                         !node.op->is<trait::Images>();
      std::vector<TensorArg> args = arguments(
          node, [&](ValueId id) { return moves || is_filled_image(id) ? last(id) : as_it_lies(id); });
      if (keep_channels_last(*node.op, args, node.attrs, outputs)) {
        for (size_t i = 0; i < outputs.size(); ++i)
          if (const ValueId id = node.outputs[i]; !(outputs[i].strides() == graph_.value(id).strides))
            last_[id] = outputs[i];
        return;
      }
    }
    call(*node.op, arguments(node, [&](ValueId id) { return usual(id); }), node.attrs, outputs);
  }

  void convolve(const GraphNode& node, bool some_last, std::span<Tensor> outputs) {
    Attrs attrs = node.attrs;
    int64_t& layout = attrs.ints[static_cast<size_t>(node.op->as<trait::Images>()->layout_int)];
    const ValueId result = node.outputs[0];
    const bool makes_last = makes_channels_last(node);
    if (makes_last) layout = static_cast<int64_t>(ops::ResultLayout::kChannelsLast);
    else if (some_last && graph_.value(result).strides == contiguous_strides(graph_.value(result).sizes))
      layout = static_cast<int64_t>(ops::ResultLayout::kUsual);
    call(*node.op, arguments(node, [&](ValueId id) { return as_it_lies(id); }), attrs, outputs);
    if (makes_last) last_[result] = outputs[0];
  }

  std::vector<TensorArg> arguments(const GraphNode& node, auto of) {
    held_.clear();
    held_.reserve(node.inputs.size());
    std::vector<TensorArg> args;
    for (const ValueId id : node.inputs) {
      held_.push_back(id == kNoValue ? Tensor() : of(id));
      args.emplace_back(held_.back(), node.where);
    }
    return args;
  }

  bool is_last(ValueId id) const {
    return last_[id].defined() || std::find(given_.begin(), given_.end(), id) != given_.end();
  }
  const Tensor& as_it_lies(ValueId id) { return last_[id].defined() ? last_[id] : (*symbols_)[id]; }
  // Returns the value in the layout that it has in the graph.
  const Tensor& usual(ValueId id) {
    if (!is_last(id)) return (*symbols_)[id];
    if (!usual_[id].defined()) usual_[id] = converted(id);
    return usual_[id];
  }
  Tensor converted(ValueId id) {
    const Value& v = graph_.value(id);
    if (v.producer < 0 || graph_.node(v.producer).op->kind != OpKind::kView)
      return with_strides(as_it_lies(id), v.strides);
    // The value is a part of a larger image; a copy would not have its strides.
    const GraphNode& node = graph_.node(v.producer);
    return call(*node.op, {{usual(node.inputs[0]), node.where}}, node.attrs);
  }
  const Tensor& last(ValueId id) {
    const Value& v = graph_.value(id);
    if (is_last(id) || !is_usual_image(v)) return as_it_lies(id);
    if (is_filled_image(id)) return last_[id] = filled_last(graph_.node(v.producer));
    return last_[id] = with_strides((*symbols_)[id], channels_last_strides(v.sizes));
  }
  // True for an image filled with one number. Instead of being copied, it is filled again in the other layout: that
  // costs only a constant in a kernel, while a copy would need memory.
  bool is_filled_image(ValueId id) const {
    const Value& v = graph_.value(id);
    if (v.producer < 0 || !is_usual_image(v)) return false;
    const GraphNode& node = graph_.node(v.producer);
    return node.op->is<trait::Fill>() && node.inputs.empty();
  }
  static Tensor filled_last(const GraphNode& node) {
    Attrs attrs = node.attrs;
    const size_t sizes = node.op->as<trait::Fill>()->first_size_int;
    for (int dim = 0; dim < 4; ++dim)
      attrs.ints[sizes + static_cast<size_t>(dim_at_back(dim))] = node.attrs.ints[sizes + static_cast<size_t>(dim)];
    return channels_to_front({call(*node.op, {}, attrs), node.where});
  }

  const Graph& graph_;
  ValueMap<Tensor> last_, usual_;  // the value in channels last and in its own layout, if made already
  ValueMap<bool> is_output_, goes_on_;
  std::vector<ValueId> given_;  // inputs that are channels last
  const Symbols* symbols_ = nullptr;
  std::vector<Tensor> held_;  // operands of the current call refer to them
};

// Returns the graph with chosen layouts, or nullopt if it stays as it is.
std::optional<LaidOut> laid_out(const Graph& graph, std::span<const ValueId> needed,
                                const std::vector<bool>& channels_last) {
  LayoutChooser chooser(graph, channels_last);
  if (!chooser.changes_anything()) return std::nullopt;
  return chooser.run(needed);
}

// True if `chosen` converts much less than `recorded` does.
bool pays(const Graph& recorded, const Graph& chosen) {
  constexpr double kCopied = 1.5;  // measured cost of a copied byte, relative to a byte that a convolution converts
  constexpr double kMost = 0.75;
  const auto cost = [](const Graph& graph) {
    const Conversions c = count_conversions(graph);
    return static_cast<double>(c.bytes_in_products) + kCopied * static_cast<double>(c.copied_bytes);
  };
  return cost(chosen) < kMost * cost(recorded);
}

// Changes a backward of the recording so that it reads the values of `chosen`: chosen.needed[i] replaces needed[i].
// Chooses the layouts of the rest of the backward, too.
void follow(BackwardGraph& backward, const std::vector<ValueId>& needed, const LaidOut& chosen) {
  std::vector<bool> channels_last(backward.inputs.size(), false);
  for (size_t i = 0; i < backward.inputs.size(); ++i) {
    BackwardInput& input = backward.inputs[i];
    if (input.kind != BackwardInput::kSaved) continue;
    const auto at = std::find(needed.begin(), needed.end(), input.index) - needed.begin();
    input.index = at < std::ssize(needed) ? chosen.needed[static_cast<size_t>(at)] : kNoValue;
    if (input.index == kNoValue) continue;
    channels_last[i] = is_usual_image(backward.graph.value(backward.graph.inputs[i])) &&
                       lies_channels_last(chosen.graph.value(input.index));
  }
  if (std::optional<LaidOut> made = laid_out(backward.graph, {}, channels_last))
    backward.graph = std::move(made->graph);
}

}  // namespace

bool lay_out(Graph& recorded, std::vector<ValueId>& needed, BackwardGraph* backward) {
  std::optional<LaidOut> chosen = laid_out(recorded, needed, {});
  if (!chosen || !pays(recorded, chosen->graph)) return false;
  if (backward != nullptr) follow(*backward, needed, *chosen);
  recorded = std::move(chosen->graph);
  needed = std::move(chosen->needed);
  return true;
}

Conversions count_conversions(const Graph& graph) {
  Conversions found;
  // Follows the views between a copy and the value that it copies.
  const auto source = [&](ValueId id) {
    while (graph.value(id).producer >= 0 && graph.node(graph.value(id).producer).op->kind == OpKind::kView)
      id = graph.node(graph.value(id).producer).inputs[0];
    return id;
  };
  for (const GraphNode& node : graph.nodes) {
    if (node.op->is<trait::Images>()) {
      const auto count = [&](ValueId id) {
        if (!is_usual_image(graph.value(id))) return;
        ++found.in_products;
        found.bytes_in_products += image_bytes(graph.value(id));
      };
      count(node.inputs[0]);
      count(names_layout(*node.op) ? node.outputs[0] : node.inputs[1]);
    } else if (node.op->is<trait::Convert>() &&
               graph.value(node.inputs[0]).dtype == graph.value(node.outputs[0]).dtype) {
      const Value &from = graph.value(node.inputs[0]), &to = graph.value(node.outputs[0]);
      const Value& image = graph.value(source(node.inputs[0]));
      // An image has four dimensions, but a sum of images over the batch has three.
      if (image.sizes.rank() < 3 || to.sizes.rank() < 3 || is_contiguous(from.sizes, from.strides)) continue;
      ++found.copies;
      found.copied_bytes += image_bytes(to);
    }
  }
  return found;
}

}  // namespace rondo::compile
