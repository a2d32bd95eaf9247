// Concatenations and slices of values end kernels, because the whole has another space than its parts. So this pass
// computes from each part what is computed from the whole, and for each slice what is computed for slices:
//
//   cat(a, b) * k                    cat(a * k[:n], b * k[n:])
//   sum(cat(a, b))                   sum(a) + sum(b), over the dimension of cat: not exact
//   (x * y)[:n] + (x * y)[n:]        x[:n] * y[:n] + x[n:] * y[n:]
//   slice_grad(a, b), without gaps   cat(a, b), which its producers write directly
//
// Rotary embeddings, and their gradients, become one kernel each.
#include <algorithm>

#include "rondo/compile/capture/trace.h"
#include "rondo/compile/transform/passes.h"
#include "rondo/compile/transform/spaces.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/parts.h"

namespace rondo::compile {
namespace {

constexpr size_t kMostParts = 4;  // the number of nodes grows by this factor at most

// A range of each dimension.
struct Window {
  Dims begin, sizes;
  friend bool operator==(const Window&, const Window&) = default;
};
using Windows = std::vector<Window>;

// Returns the window of a dense tensor that a view of it shows, if the view keeps the dimensions and skips no elements.
std::optional<Window> window_of(const Dims& whole, const TensorMeta& view) {
  if (view.sizes.rank() != whole.rank() || view.sizes.numel() == 0) return std::nullopt;
  const Dims strides = contiguous_strides(whole);
  Window window{.begin = whole, .sizes = view.sizes};
  int64_t rest = view.offset;
  for (int d = 0; d < whole.rank(); ++d) {
    if (view.sizes[d] > 1 && view.strides[d] != strides[d]) return std::nullopt;
    window.begin[d] = whole[d] == 1 ? 0 : rest / strides[d];
    rest -= window.begin[d] * strides[d];
    if (window.begin[d] + window.sizes[d] > whole[d]) return std::nullopt;  // a permutation
  }
  return window;
}

// Finds the values to split, and their windows.
class SplitFinder {
 public:
  SplitFinder(const Graph& graph, bool exact)
      : graph_(graph),
        exact_(exact),
        readers_(graph),
        returned_(graph, false),
        parts_(graph),
        windows_(graph),
        split_(graph, false),
        barred_(graph, false) {
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const GraphNode& node = graph.nodes[n];
      for (ValueId id : node.inputs)
        if (id != kNoValue) readers_[id].push_back(static_cast<int32_t>(n));
      parts_[node.outputs[0]] = parts_of(node);
    }
    for (ValueId id : graph.outputs) returned_[id] = true;
    find_split();
    find_narrowed();
    while (bar_costly()) find_narrowed();
  }

  bool finds_nothing() const {
    return std::all_of(windows_.begin(), windows_.end(), [](const Windows& w) { return w.empty(); }) &&
           std::none_of(split_.begin(), split_.end(), [](bool split) { return split; }) &&
           std::none_of(graph_.nodes.begin(), graph_.nodes.end(), [&](const GraphNode& node) {
             return !parts_[node.outputs[0]].empty() && !node.op->is<trait::SideBySide>();
           });
  }
  // Returns the parts of a node that only concatenates its operands.
  std::optional<ops::SideBySide> side_by_side(const GraphNode& node) const {
    std::vector<Dims> sizes;
    for (ValueId id : node.inputs) {
      if (id == kNoValue) return std::nullopt;
      sizes.push_back(graph_.value(id).sizes);
    }
    return ops::side_by_side(*node.op, node.attrs, sizes, graph_.value(node.outputs[0]).sizes);
  }
  // Returns the windows in which a value is computed; empty if it is computed whole.
  const Windows& windows(ValueId id) const { return windows_[id]; }
  // For a value that is a concatenation: returns the windows of its parts, in order along the dimension.
  const Windows& parts(ValueId id) const { return parts_[id]; }
  // True if the readers of the value read its parts.
  bool is_split(ValueId id) const { return split_[id]; }
  bool is_pointwise(const GraphNode& node) const {
    const OpDef& op = *node.op;
    return op.kind == OpKind::kElementwise && op.lower != nullptr && !op.is<trait::Pick>() && op.random_state() < 0 &&
           node.outputs.size() == 1 && !node.inputs.empty() && (node.attrs.ints.empty() || op.is<trait::Convert>()) &&
           std::none_of(node.inputs.begin(), node.inputs.end(), [](ValueId id) { return id == kNoValue; }) &&
           space_of(graph_, node).unit.fused;
  }
  bool is_whole_operand(const GraphNode& node, ValueId id) const {
    return graph_.value(id).sizes == graph_.value(node.outputs[0]).sizes;
  }
  // Returns the window that result `k` of a view shows, if only kernels read it. (With another layout, a library may
  // add in another order, and a returned value must stay in its memory.)
  std::optional<Window> window(const GraphNode& view, size_t k) const {
    if (view.op->kind != OpKind::kView || view.inputs.size() != 1 || returned_[view.outputs[k]]) return std::nullopt;
    for (int32_t reader : readers_[view.outputs[k]])
      if (!space_of(graph_, graph_.node(reader)).unit.fused) return std::nullopt;
    const std::vector<TensorMeta> metas = infer_results(graph_, view, Operands::kDense);
    return window_of(graph_.value(view.inputs[0]).sizes, metas[k]);
  }
  // True for sums over (at least) the dimension along which the operand is split. A sum that is a library call is not
  // split: several calls and the additions cost more than copying the parts.
  bool adds_parts(const GraphNode& node) const {
    if (exact_ || node.op->kind != OpKind::kReduction || !node.op->is_additive() || node.inputs.size() != 1 ||
        !space_of(graph_, node).unit.fused)
      return false;
    const Windows& parts = windows_[node.inputs[0]].empty() ? parts_[node.inputs[0]] : windows_[node.inputs[0]];
    const Dims& sizes = graph_.value(node.inputs[0]).sizes;
    for (int d = 0; d < sizes.rank(); ++d)
      if (!parts.empty() && parts[0].sizes[d] != sizes[d] && (node.attrs.ints[0] >> d & 1) == 0) return false;
    return !parts.empty();
  }

 private:
  Windows parts_of(const GraphNode& node) const {
    const std::optional<ops::SideBySide> side = side_by_side(node);
    if (!side || side->order.size() > kMostParts) return {};
    Windows parts;
    int64_t begin = 0;
    for (size_t i : side->order) {
      const Dims& sizes = graph_.value(node.inputs[i]).sizes;
      Window& window = parts.emplace_back(Window{Dims::filled(sizes.rank(), 0), sizes});
      window.begin[side->dim] = begin;
      begin += sizes[side->dim];
    }
    return parts;
  }

  // ---- From parts to the readers of the whole

  // Finds the values that can be split: concatenations, and values computed from them that can be split, too.
  void find_split() {
    for (const GraphNode& node : graph_.nodes) {
      const ValueId out = node.outputs[0];
      if (!parts_[out].empty()) split_[out] = true;
      else if (is_pointwise(node)) windows_[out] = common_parts(node);
      if (!windows_[out].empty()) split_[out] = true;
    }
    bool changes = true;
    while (changes) {
      changes = false;
      for (size_t v = 0; v < split_.size(); ++v) {
        const auto id = static_cast<ValueId>(v);
        if (!split_[id] || (may_be_split(id) && follows_parts(id))) continue;
        split_[id] = false;
        windows_[id].clear();
        changes = true;
      }
    }
  }
  Windows split_in(ValueId id) const {
    return !split_[id] ? Windows() : windows_[id].empty() ? parts_[id] : windows_[id];
  }
  // Returns the windows of the node's split operands; empty if these differ.
  Windows common_parts(const GraphNode& node) const {
    Windows common;
    for (ValueId id : node.inputs) {
      const Windows parts = is_whole_operand(node, id) ? split_in(id) : Windows();
      if (parts.empty()) continue;
      if (!common.empty() && !(common == parts)) return {};
      common = parts;
    }
    return common;
  }
  // True if the value is itself a concatenation, or if the operands of its node are still split in the value's windows.
  bool follows_parts(ValueId id) const {
    return windows_[id].empty() || common_parts(graph_.node(graph_.value(id).producer)) == windows_[id];
  }
  bool may_be_split(ValueId id) const {
    const bool computed = !windows_[id].empty();  // else: a concatenation whose parts need no common memory
    if (returned_[id] && !computed) return false;
    const Windows windows = split_in(id);
    return std::all_of(readers_[id].begin(), readers_[id].end(), [&](int32_t n) {
      const GraphNode& reader = graph_.node(n);
      if (is_pointwise(reader))
        return is_whole_operand(reader, id) && split_[reader.outputs[0]] && windows_[reader.outputs[0]] == windows;
      if (adds_parts(reader)) return true;
      if (reader.op->kind == OpKind::kView && shows_windows(reader, windows)) return true;
      return computed && wants_memory(reader);
    });
  }
  bool shows_windows(const GraphNode& view, const Windows& windows) const {
    for (size_t k = 0; k < view.outputs.size(); ++k) {
      if (readers_[view.outputs[k]].empty() && !returned_[view.outputs[k]]) continue;
      const std::optional<Window> seen = window(view, k);
      if (!seen || std::find(windows.begin(), windows.end(), *seen) == windows.end()) return false;
    }
    return true;
  }
  // True if this reader needs the value in memory in any case.
  bool wants_memory(const GraphNode& reader) const {
    if (reader.op->kind != OpKind::kView) return !space_of(graph_, reader).unit.fused;
    return std::all_of(reader.outputs.begin(), reader.outputs.end(), [&](ValueId id) {
      return std::all_of(readers_[id].begin(), readers_[id].end(),
                         [&](int32_t n) { return wants_memory(graph_.node(n)); });
    });
  }

  // ---- From slices back to the nodes that compute the whole

  void find_narrowed() {
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const GraphNode& node = graph_.nodes[n];
      const ValueId out = node.outputs[0];
      if (split_[out]) continue;
      windows_[out].clear();
      if (!barred_[out] && !returned_[out] && is_pointwise(node)) windows_[out] = windows_read(out);
    }
  }
  // Returns the windows of a value that are read; empty if it is read whole, or if computing the windows would be more
  // work.
  Windows windows_read(ValueId id) const {
    Windows read;
    const auto note = [&](const Window& window) {
      if (std::find(read.begin(), read.end(), window) == read.end()) read.push_back(window);
    };
    for (int32_t n : readers_[id]) {
      const GraphNode& reader = graph_.node(n);
      if (reader.op->kind == OpKind::kView) {
        for (size_t k = 0; k < reader.outputs.size(); ++k) {
          if (readers_[reader.outputs[k]].empty() && !returned_[reader.outputs[k]]) continue;
          const std::optional<Window> seen = window(reader, k);
          if (!seen) return {};
          note(*seen);
        }
      } else {
        if (!is_pointwise(reader) || !is_whole_operand(reader, id) || windows_[reader.outputs[0]].empty()) return {};
        for (const Window& window : windows_[reader.outputs[0]]) note(window);
      }
    }
    const Dims& sizes = graph_.value(id).sizes;
    int64_t elements = 0;
    for (const Window& window : read) elements += window.sizes.numel();
    if (read.size() > kMostParts || elements > sizes.numel() || (read.size() == 1 && read[0].sizes == sizes)) return {};
    return read;
  }
  // Bars values from being narrowed if that would be a loss. A narrowed value is not stored, but its operands are, if
  // kernels compute them whole: with more than one such operand, more is stored than before. True if a value was
  // barred.
  bool bar_costly() {
    bool changes = false;
    for (const GraphNode& node : graph_.nodes) {
      const ValueId out = node.outputs[0];
      if (split_[out] || windows_[out].empty()) continue;
      const auto stored = std::count_if(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
        const int32_t maker = graph_.value(id).producer;
        return is_whole_operand(node, id) && windows_[id].empty() && maker >= 0 &&
               space_of(graph_, graph_.node(maker)).unit.fused;
      });
      if (stored <= 1) continue;
      barred_[out] = changes = true;
    }
    return changes;
  }

  const Graph& graph_;
  const bool exact_;
  ValueMap<std::vector<int32_t>> readers_;
  ValueMap<bool> returned_;
  ValueMap<Windows> parts_, windows_;
  ValueMap<bool> split_, barred_;
};

// Records the graph again, with values split.
class SplitRewriter {
 public:
  SplitRewriter(const Graph& graph, const SplitFinder& found, bool exact)
      : graph_(graph), found_(found), exact_(exact), whole_(graph), narrow_(graph) {}

  Graph run() {
    NoGrad off;
    amp::Autocast as_recorded(std::nullopt);  // the recording contains the casts
    const DeviceScope device(trace_.device);  // where calls without operands run
    RecorderScope record(&trace_);
    for (ValueId id : graph_.inputs) whole_[id] = trace_.placeholder(graph_.value(id));
    for (const GraphNode& node : graph_.nodes) {
      trace_.origin = &node.origin;
      emit(node);
    }
    for (ValueId id : graph_.outputs) trace_.graph.outputs.push_back(trace_.value_of(whole(id)));
    return std::move(trace_.graph);
  }

 private:
  void emit(const GraphNode& node) {
    const ValueId out = node.outputs[0];
    if (!found_.windows(out).empty()) {
      for (const Window& window : found_.windows(out)) {
        std::vector<Tensor> operands;
        for (ValueId id : node.inputs) operands.push_back(operand(node, id, window));
        narrow_[out].push_back(call(*node.op, args(operands, node), node.attrs));
      }
    } else if (!found_.parts(out).empty()) {
      const std::optional<ops::SideBySide> side = found_.side_by_side(node);
      for (size_t i : side->order) {
        const Tensor part = whole(node.inputs[i]);
        // The gradient of slices adds all operands but the first to zeros, so -0 becomes 0.
        narrow_[out].push_back(exact_ && !node.op->is<trait::SideBySide>() && i > 0 ? part + 0.0 : part);
      }
      if (!found_.is_split(out)) whole(out);
    } else if (node.op->kind == OpKind::kView) {
      emit_view(node);
    } else if (found_.adds_parts(node) && found_.is_split(node.inputs[0])) {
      Tensor sum;
      for (const Tensor& part : narrow_[node.inputs[0]]) {
        const Tensor of_part = call(*node.op, args({part}, node), node.attrs);
        sum = sum.defined() ? sum + of_part : of_part;
      }
      whole_[out] = sum;
    } else {
      again(node);
    }
  }
  // Reuses windows that are recorded already; records the view for its other results.
  void emit_view(const GraphNode& node) {
    const ValueId source = node.inputs[0];
    bool all = true;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const std::optional<Window> window = narrow_[source].empty() ? std::nullopt : found_.window(node, k);
      if (window) whole_[node.outputs[k]] = narrow(source, *window);
      all = all && whole_[node.outputs[k]].defined();
    }
    // A value that is computed in windows is only read in windows, unless it is also needed in memory.
    if (!all && (narrow_[source].empty() || found_.is_split(source) || !found_.parts(source).empty())) again(node);
  }
  void again(const GraphNode& node) {
    std::vector<Tensor> inputs, outputs(node.outputs.size());
    for (ValueId id : node.inputs) inputs.push_back(id == kNoValue ? Tensor() : whole(id));
    call(*node.op, args(inputs, node), node.attrs, outputs);
    for (size_t i = 0; i < outputs.size(); ++i)
      if (!whole_[node.outputs[i]].defined()) whole_[node.outputs[i]] = outputs[i];
  }
  static std::vector<TensorArg> args(const std::vector<Tensor>& tensors, const GraphNode& node) {
    std::vector<TensorArg> list;
    for (const Tensor& tensor : tensors) list.emplace_back(tensor, node.where);
    return list;
  }

  // Returns the value. If it was computed in parts, the parts are concatenated.
  Tensor whole(ValueId id) {
    Tensor& all = whole_[id];
    if (all.defined()) return all;
    invariant(!narrow_[id].empty(), "a value is read before it is recorded");
    const Windows& windows = found_.windows(id).empty() ? found_.parts(id) : found_.windows(id);
    const Dims& sizes = graph_.value(id).sizes;
    int dim = 0;
    while (dim + 1 < sizes.rank() && windows[0].sizes[dim] == sizes[dim]) ++dim;
    return all = ops::cat(narrow_[id], dim);
  }
  // Returns this window of a value; undefined if the value is not computed in this window.
  Tensor narrow(ValueId id, const Window& window) const {
    const Windows& windows = found_.windows(id).empty() ? found_.parts(id) : found_.windows(id);
    const auto found = std::find(windows.begin(), windows.end(), window);
    return found == windows.end() || narrow_[id].empty() ? Tensor()
                                                         : narrow_[id][static_cast<size_t>(found - windows.begin())];
  }
  // Returns operand `id` of a pointwise node, restricted to what a window of the node's result needs.
  Tensor operand(const GraphNode& node, ValueId id, const Window& window) {
    if (found_.is_whole_operand(node, id))
      if (Tensor there = narrow(id, window); there.defined()) return there;
    Tensor seen = whole(id);
    const Dims& domain = graph_.value(node.outputs[0]).sizes;
    const int lead = domain.rank() - seen.rank();
    for (int d = 0; d < seen.rank(); ++d) {
      const int64_t begin = window.begin[d + lead], size = window.sizes[d + lead];
      if (seen.sizes()[d] != 1 && size != domain[d + lead]) seen = ops::slice(seen, d, {begin, begin + size});
    }
    return seen;
  }

  const Graph& graph_;
  const SplitFinder& found_;
  const bool exact_;
  Trace trace_;
  ValueMap<Tensor> whole_;
  ValueMap<std::vector<Tensor>> narrow_;  // in the order of the value's windows
};

}  // namespace

std::optional<Graph> split_at_parts(const Graph& graph, bool exact) {
  const SplitFinder found(graph, exact);
  if (found.finds_nothing()) return std::nullopt;
  Graph made = SplitRewriter(graph, found, exact).run();
  // Removes what is left over: operands were sliced once per reader, and concatenations that are only read in parts are
  // dead.
  for (const auto pass : {&eliminate_common_subexpressions, &eliminate_dead_code})
    if (std::optional<Graph> simpler = pass(made)) made = *std::move(simpler);
  return made;
}

}  // namespace rondo::compile
