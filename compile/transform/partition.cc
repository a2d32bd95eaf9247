#include "rondo/compile/transform/partition.h"

#include <algorithm>

#include "rondo/compile/stages/planted.h"
#include "rondo/compile/transform/choose_kept.h"
#include "rondo/compile/transform/passes.h"

namespace rondo::compile {
Partition::Partition(const Graph& recorded, std::span<const ValueId> needed, const CompileOptions& options,
                     const Partition* like)
    : caller_outputs_(recorded.outputs.size()), forward_id_(recorded.values.size(), kNoValue) {
  enter_stage("partition");
  Graph extended = recorded;
  extended.outputs.insert(extended.outputs.end(), needed.begin(), needed.end());
  forward_ = decompose(extended).value_or(extended);
  std::vector<ValueId> sinks;
  for (size_t i = 0; i < needed.size(); ++i) {
    sinks.push_back(forward_.outputs[caller_outputs_ + i]);
    forward_id_[static_cast<size_t>(needed[i])] = sinks.back();
  }
  forward_.outputs.resize(caller_outputs_);

  std::vector<bool> keep;
  if (like != nullptr && resembles(*like))
    for (int32_t index : like->kept_index_) keep.push_back(index >= 0);
  const bool over = options.recompute == Recompute::kBudget && bytes_kept(forward_, keep) > options.recompute_budget;
  if (keep.empty() || over) keep = choose_kept(forward_, sinks, options.recompute, options.recompute_budget);
  kept_bytes_ = bytes_kept(forward_, keep);
  kept_index_.assign(forward_.values.size(), -1);
  std::vector<int32_t> input_at(forward_.values.size(), -1), output_at = input_at;
  for (size_t i = forward_.inputs.size(); i-- > 0;)
    input_at[static_cast<size_t>(forward_.inputs[i])] = static_cast<int32_t>(i);
  for (size_t i = forward_.outputs.size(); i-- > 0;)
    output_at[static_cast<size_t>(forward_.outputs[i])] = static_cast<int32_t>(i);
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
  const ValueId id = forward_id_[static_cast<size_t>(recorded)];
  return id == kNoValue ? -1 : kept_index_[static_cast<size_t>(id)];
}

bool Partition::may_donate(const BackwardInput& input) const {
  if (input.kind != BackwardInput::kSaved || input.index < 0) return false;
  const Kept& kept = kept_[static_cast<size_t>(input.index)];
  return !kept.is_input || !forward_.value(forward_.inputs[static_cast<size_t>(kept.index)]).leaf;
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
  // What is computed again is so right before the first node that reads it: until then it takes no memory.
  std::vector<size_t> first_reader(forward_.values.size(), old.nodes.size());
  std::vector<ValueId> saved_as(old.values.size(), kNoValue);  // by value of `old`
  for (size_t i = 0; i < old.inputs.size(); ++i)
    if (of_old[static_cast<size_t>(old.inputs[i])] == kNoValue)
      saved_as[static_cast<size_t>(old.inputs[i])] = forward_id_[static_cast<size_t>(backward.inputs[i].index)];
  for (size_t n = old.nodes.size(); n-- > 0;)
    for (ValueId id : old.nodes[n].inputs)
      if (const ValueId saved = id == kNoValue ? kNoValue : saved_as[static_cast<size_t>(id)]; saved != kNoValue)
        first_reader[static_cast<size_t>(saved)] = n;
  std::vector<std::vector<size_t>> due(old.nodes.size() + 1);  // by node of `old`: what comes before it, last first
  for (size_t n = forward_.nodes.size(); n-- > 0;) {
    bool any = false;
    size_t first = old.nodes.size();
    for (ValueId id : forward_.nodes[n].outputs) {
      if (!wanted[static_cast<size_t>(id)] || kept_index_[static_cast<size_t>(id)] >= 0) continue;
      any = true;
      first = std::min(first, first_reader[static_cast<size_t>(id)]);
    }
    if (!any) continue;
    due[first].push_back(n);
    for (ValueId id : forward_.nodes[n].inputs)
      if (id != kNoValue)
        first_reader[static_cast<size_t>(id)] = std::min(first_reader[static_cast<size_t>(id)], first);
  }
  const auto bind = [&](const auto& inputs) {
    for (ValueId id : inputs)
      if (id != kNoValue && of_old[static_cast<size_t>(id)] == kNoValue)
        of_old[static_cast<size_t>(id)] = of_forward[static_cast<size_t>(saved_as[static_cast<size_t>(id)])];
  };
  for (size_t n = 0; n <= old.nodes.size(); ++n) {
    for (auto again = due[n].rbegin(); again != due[n].rend(); ++again) {
      append(forward_.nodes[*again], forward_, of_forward);
      graph.nodes.back().origin.again = true;
    }
    if (n == old.nodes.size()) break;
    bind(old.nodes[n].inputs);
    append(old.nodes[n], old, of_old);
  }
  bind(old.inputs);
  for (ValueId id : old.outputs) graph.outputs.push_back(of_old[static_cast<size_t>(id)]);
  backward.graph = std::move(graph);
  backward.inputs = std::move(inputs);
}

}  // namespace rondo::compile
