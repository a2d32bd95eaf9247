#include "rondo/compile/transform/passed_ops.h"

#include <algorithm>

namespace rondo::compile {
namespace {

// By value and by op: true if it depends on a value whose gradient is requested, or is that value.
struct Leading {
  ValueMap<bool> values;
  OpSet ops;
};

bool differentiable(const Graph& recorded, ValueId id) { return id != kNoValue && recorded.value(id).requires_grad; }

Leading leading(const Graph& recorded, const std::vector<bool>* inputs, const std::vector<int>& inner) {
  Leading leads{ValueMap<bool>(recorded, false), OpSet(recorded.nodes.size(), false)};
  for (size_t i = 0; i < recorded.inputs.size(); ++i)
    if (differentiable(recorded, recorded.inputs[i]) && (inputs == nullptr || (*inputs)[i]))
      leads.values[recorded.inputs[i]] = true;
  for (int i : inner) leads.values[recorded.outputs[static_cast<size_t>(i)]] = true;
  for (size_t n = 0; n < recorded.nodes.size(); ++n) {
    const GraphNode& node = recorded.nodes[n];
    leads.ops[n] = std::any_of(node.inputs.begin(), node.inputs.end(),
                               [&](ValueId id) { return differentiable(recorded, id) && leads.values[id]; });
    for (ValueId id : node.outputs)
      if (leads.ops[n] && differentiable(recorded, id)) leads.values[id] = true;
  }
  return leads;
}

// True if the eager tape saves operand `i` of the call.
bool saves_input(const Graph& recorded, const GraphNode& node, size_t i) {
  const SavedSpec& saved = node.op->saved;
  if (!saved.input(i) || node.inputs[i] == kNoValue) return false;
  return !saved.product || (i < 2 && differentiable(recorded, node.inputs[1 - i]));
}

}  // namespace

bool communicates(const Graph& recorded) {
  return std::any_of(recorded.nodes.begin(), recorded.nodes.end(),
                     [](const GraphNode& node) { return node.op->is<trait::Exchange>(); });
}

std::vector<ValueId> collectives_read(const Graph& recorded) {
  std::vector<ValueId> results;
  ValueMap<bool> read(recorded, false);
  for (size_t n = recorded.nodes.size(); n-- > 0;) {
    const GraphNode& node = recorded.nodes[n];
    const bool on_tape = std::any_of(node.outputs.begin(), node.outputs.end(),
                                     [&](ValueId id) { return differentiable(recorded, id); });
    bool runs = false;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId id = node.outputs[i];
      read[id] = read[id] || (on_tape && node.op->saved.output(i));
      runs = runs || read[id];
      if (read[id] && node.op->is<trait::Exchange>()) results.push_back(id);
    }
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if ((runs && node.inputs[i] != kNoValue && !node.op->is<trait::Exchange>()) ||
          (on_tape && saves_input(recorded, node, i)))
        read[node.inputs[i]] = true;
  }
  return results;
}

std::vector<bool> outputs_leading_to(const Graph& recorded, const std::vector<bool>& inputs,
                                     const std::vector<int>& inner) {
  const Leading leads = leading(recorded, &inputs, inner);
  std::vector<bool> outputs;
  for (ValueId id : recorded.outputs) outputs.push_back(leads.values[id]);
  return outputs;
}

OpSet ops_that_save(const Graph& recorded) {
  OpSet saving(recorded.nodes.size(), false);
  for (size_t n = 0; n < recorded.nodes.size(); ++n) {
    const GraphNode& node = recorded.nodes[n];
    for (size_t i = 0; i < node.inputs.size(); ++i) saving[n] = saving[n] || saves_input(recorded, node, i);
    for (size_t i = 0; i < node.outputs.size(); ++i) saving[n] = saving[n] || node.op->saved.output(i);
  }
  return saving;
}

std::vector<bool> inputs_reached(const Graph& recorded, const OpSet& passed) {
  ValueMap<bool> reached(recorded, false);
  std::vector<bool> inputs;
  for (size_t n = 0; n < recorded.nodes.size(); ++n)
    for (ValueId id : recorded.nodes[n].inputs)
      if (passed[n] && differentiable(recorded, id)) reached[id] = true;
  for (ValueId id : recorded.inputs) inputs.push_back(reached[id]);
  return inputs;
}

OpSet ops_passed(const Graph& recorded, const std::vector<bool>& outputs, const std::vector<bool>* inputs,
                 const std::vector<int>& inner) {
  OpSet passed = leading(recorded, inputs, inner).ops;
  ValueMap<bool> reached(recorded, false);
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i]) reached[recorded.outputs[i]] = true;
  for (size_t n = recorded.nodes.size(); n-- > 0;) {
    const GraphNode& node = recorded.nodes[n];
    passed[n] = passed[n] && std::any_of(node.outputs.begin(), node.outputs.end(),
                                         [&](ValueId id) { return differentiable(recorded, id) && reached[id]; });
    for (ValueId id : node.inputs)
      if (passed[n] && differentiable(recorded, id)) reached[id] = true;
  }
  return passed;
}

}  // namespace rondo::compile
