#include "rondo/compile/transform/partition.h"

#include <algorithm>

#include "rondo/compile/transform/choose_kept.h"
#include "rondo/compile/transform/passes.h"

namespace rondo::compile {
Partition::Partition(const Graph& recorded, std::span<const ValueId> needed, const CompileOptions& options,
                     const Partition* like)
    : caller_outputs_(recorded.outputs.size()), forward_id_(recorded, kNoValue) {
  Graph extended = recorded;
  extended.outputs.insert(extended.outputs.end(), needed.begin(), needed.end());
  forward_ = decompose(extended).value_or(extended);
  std::vector<ValueId> sinks;
  for (size_t i = 0; i < needed.size(); ++i) {
    sinks.push_back(forward_.outputs[caller_outputs_ + i]);
    forward_id_[needed[i]] = sinks.back();
  }
  forward_.outputs.resize(caller_outputs_);

  std::vector<bool> keep;
  if (like != nullptr && resembles(*like))
    for (int32_t index : like->kept_index_) keep.push_back(index >= 0);
  const bool over = options.recompute == Recompute::kBudget && bytes_kept(forward_, keep) > options.recompute_budget;
  if (keep.empty() || over) keep = choose_kept(forward_, sinks, options.recompute, options.recompute_budget);
  kept_bytes_ = bytes_kept(forward_, keep);
  kept_index_ = ValueMap<int32_t>(forward_, -1);
  ValueMap<int32_t> input_at(forward_, -1), output_at = input_at;
  for (size_t i = forward_.inputs.size(); i-- > 0;) input_at[forward_.inputs[i]] = static_cast<int32_t>(i);
  for (size_t i = forward_.outputs.size(); i-- > 0;) output_at[forward_.outputs[i]] = static_cast<int32_t>(i);
  for (size_t v = 0; v < keep.size(); ++v) {
    if (!keep[v]) continue;
    kept_index_[v] = static_cast<int32_t>(kept_.size());
    if (input_at[v] >= 0) {
      kept_.push_back({true, input_at[v]});
      continue;
    }
    if (output_at[v] < 0) {
      output_at[v] = static_cast<int32_t>(forward_.outputs.size());
      forward_.outputs.push_back(static_cast<ValueId>(v));
    }
    kept_.push_back({false, output_at[v]});
  }
}

bool Partition::resembles(const Partition& other) const {
  if (forward_id_ != other.forward_id_ || forward_.inputs != other.forward_.inputs ||
      forward_.nodes.size() != other.forward_.nodes.size() || caller_outputs_ != other.caller_outputs_ ||
      !std::equal(forward_.outputs.begin(), forward_.outputs.end(), other.forward_.outputs.begin()))
    return false;
  for (ValueId id : forward_.inputs)
    if (forward_.value(id).leaf != other.forward_.value(id).leaf) return false;  // what may be kept depends on it
  for (size_t i = 0; i < forward_.nodes.size(); ++i) {
    const GraphNode &a = forward_.nodes[i], &b = other.forward_.nodes[i];
    if (a.op != b.op || a.inputs != b.inputs || a.outputs != b.outputs) return false;
  }
  return true;
}

int32_t Partition::kept_index(ValueId recorded) const {
  const ValueId id = forward_id_[recorded];
  return id == kNoValue ? -1 : kept_index_[id];
}

bool Partition::may_donate(const BackwardInput& input) const {
  if (input.kind != BackwardInput::kSaved || input.index < 0) return false;
  const Kept& kept = kept_[static_cast<size_t>(input.index)];
  return !kept.is_input || !forward_.value(forward_.inputs[static_cast<size_t>(kept.index)]).leaf;
}

namespace {

// For Partition::apply(): makes the graph of a backward that recomputes the values that are not kept.
class Recomputation {
 public:
  // `kept_index`: by value of `forward`, its position among the kept values, or -1.
  Recomputation(const Graph& forward, const ValueMap<int32_t>& kept_index, const BackwardGraph& backward)
      : forward_(forward),
        kept_index_(kept_index),
        old_(backward.graph),
        wanted_(forward, false),
        saved_as_(old_, kNoValue),
        of_old_(old_, kNoValue),
        of_forward_(forward, kNoValue) {}

  // `forward_id`: by value of the recording.
  void add_inputs(const std::vector<BackwardInput>& sources, const ValueMap<ValueId>& forward_id) {
    for (size_t i = 0; i < old_.inputs.size(); ++i) {
      const ValueId input = old_.inputs[i];
      const BackwardInput& source = sources[i];
      if (source.kind == BackwardInput::kSaved && source.index >= 0) {
        const ValueId id = source.is_stale() ? kNoValue : forward_id[source.index];
        if (id != kNoValue) {
          saved_as_[input] = id;
          wanted_[id] = true;
          continue;
        }
      }
      // A saved value that nothing reads keeps its place among the inputs, without an index.
      BackwardInput same = source;
      if (same.kind == BackwardInput::kSaved) same.index = -1;
      of_old_[input] = add_input(old_.value(input), std::move(same));
    }
    for (size_t n = forward_.nodes.size(); n-- > 0;)
      if (runs_again(forward_.nodes[n]))
        for (ValueId id : forward_.nodes[n].inputs)
          if (id != kNoValue) wanted_[id] = true;
    for (size_t v = 0; v < wanted_.size(); ++v)
      if (wanted_[v] && kept_index_[v] >= 0)
        of_forward_[v] = add_input(forward_.values[v], {BackwardInput::kSaved, kept_index_[v], {}});
  }

  // Adds the nodes of the backward, each after the nodes of the forward that run again for it. REQUIRES: add_inputs()
  // has run.
  void add_nodes() {
    const std::vector<std::vector<size_t>> due = schedule();
    for (size_t n = 0; n <= old_.nodes.size(); ++n) {
      for (auto again = due[n].rbegin(); again != due[n].rend(); ++again) {
        append(forward_.nodes[*again], forward_, of_forward_);
        graph_.nodes.back().origin.again = true;
      }
      if (n == old_.nodes.size()) break;
      bind(old_.nodes[n].inputs);
      append(old_.nodes[n], old_, of_old_);
    }
    bind(old_.inputs);
    for (ValueId id : old_.outputs) graph_.outputs.push_back(of_old_[id]);
  }

  Graph take_graph() { return std::move(graph_); }
  std::vector<BackwardInput> take_inputs() { return std::move(inputs_); }

 private:
  ValueId add_input(const Value& like, BackwardInput source) {
    const auto id = static_cast<ValueId>(graph_.values.size());
    Value& value = graph_.values.emplace_back(like);
    value.producer = -1;
    value.root = id;
    value.offset = 0;
    value.requires_grad = false;
    graph_.inputs.push_back(id);
    inputs_.push_back(std::move(source));
    return id;
  }

  // True if the node of the forward makes a value that is wanted and not kept.
  bool runs_again(const GraphNode& node) const {
    return std::any_of(node.outputs.begin(), node.outputs.end(), [this](ValueId id) { return is_made_again(id); });
  }
  bool is_made_again(ValueId id) const { return wanted_[id] && kept_index_[id] < 0; }

  // Returns, by node of the backward, the nodes of the forward that run again right before it, the last one first. They
  // run as late as possible, so that their results take memory as briefly as possible.
  std::vector<std::vector<size_t>> schedule() const {
    ValueMap<size_t> first_reader(forward_, old_.nodes.size());
    for (size_t n = old_.nodes.size(); n-- > 0;)
      for (ValueId id : old_.nodes[n].inputs)
        if (const ValueId saved = id == kNoValue ? kNoValue : saved_as_[id]; saved != kNoValue) first_reader[saved] = n;
    std::vector<std::vector<size_t>> due(old_.nodes.size() + 1);
    for (size_t n = forward_.nodes.size(); n-- > 0;) {
      if (!runs_again(forward_.nodes[n])) continue;
      size_t first = old_.nodes.size();
      for (ValueId id : forward_.nodes[n].outputs)
        if (is_made_again(id)) first = std::min(first, first_reader[id]);
      due[first].push_back(n);
      for (ValueId id : forward_.nodes[n].inputs)
        if (id != kNoValue) first_reader[id] = std::min(first_reader[id], first);
    }
    return due;
  }

  // Appends a copy of a node to the new graph. `map`: from values of `source` to those of the new graph.
  void append(const GraphNode& from, const Graph& source, std::vector<ValueId>& map) {
    GraphNode node = from;
    for (ValueId& id : node.inputs)
      if (id != kNoValue) id = map[id];
    for (ValueId& id : node.outputs) {
      const auto made = static_cast<ValueId>(graph_.values.size());
      Value value = source.value(id);
      value.producer = static_cast<int32_t>(graph_.nodes.size());
      value.requires_grad = false;
      if (node.op->kind == OpKind::kView) {
        // The offset is relative to the view's source. The source may be a view now, or may have been one before.
        const Value& now = graph_.value(node.inputs[0]);
        value.offset = now.offset + source.value(id).offset - source.value(from.inputs[0]).offset;
        value.root = now.root;
      } else {
        value.root = made;
      }
      // A node that runs again for another result also makes a kept value again. That copy is not read.
      if (map[static_cast<size_t>(id)] == kNoValue) map[id] = made;
      graph_.values.push_back(value);
      id = made;
    }
    graph_.nodes.push_back(std::move(node));
  }

  // Binds the backward's saved values to the kept values, or to the recomputed ones.
  template <class Ids> void bind(const Ids& ids) {
    for (ValueId id : ids)
      if (id != kNoValue && of_old_[id] == kNoValue) of_old_[id] = of_forward_[saved_as_[id]];
  }

  const Graph& forward_;
  const std::vector<int32_t>& kept_index_;
  const Graph& old_;                       // the backward
  ValueMap<bool> wanted_;                  // by value of the forward: the backward reads it, or a node that runs again
                                           // does
  ValueMap<ValueId> saved_as_;             // by value of the backward: the saved value of the forward
  ValueMap<ValueId> of_old_, of_forward_;  // values of the new graph
  Graph graph_;
  std::vector<BackwardInput> inputs_;
};

}  // namespace

void Partition::apply(BackwardGraph& backward) const {
  Recomputation made(forward_, kept_index_, backward);
  made.add_inputs(backward.inputs, forward_id_);
  made.add_nodes();
  backward.graph = made.take_graph();
  backward.inputs = made.take_inputs();
}

}  // namespace rondo::compile
