#include "rondo/compile/exec/run_eagerly.h"

#include <algorithm>
#include <optional>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/window.h"

namespace rondo::compile {

void run_eagerly(const Graph& graph, std::vector<Tensor>& values, const std::vector<bool>* wanted, const MadeNode& made,
                 const GivenResults& given) {
  RecorderScope eager(nullptr);
  amp::Autocast as_recorded(std::nullopt);  // the recording contains the casts
  static const Tensor& kUndefined = *new Tensor;
  // Calls without operands run on the device of the recording's values.
  const auto some = std::find_if(values.begin(), values.end(), [](const Tensor& value) { return value.defined(); });
  const DeviceScope device(some != values.end() ? some->device() : default_device());
  for (const GraphNode& node : graph.nodes) {
    const auto is_wanted = [&](ValueId id) { return (*wanted)[static_cast<size_t>(id)]; };
    if (wanted != nullptr && std::none_of(node.outputs.begin(), node.outputs.end(), is_wanted)) continue;
    std::vector<TensorArg> args;
    std::vector<Tensor> outputs(node.outputs.size());
    const std::source_location where = line_of(node);
    for (ValueId id : node.inputs)
      args.emplace_back(id == kNoValue ? kUndefined : values[static_cast<size_t>(id)], where);
    bool differentiable = false;  // false for nodes that were recorded under no_grad: their results get no history
    for (ValueId id : node.outputs) differentiable = differentiable || graph.value(id).requires_grad;
    GradMode mode(differentiable);
    if (!given || !given(node, args, outputs)) call(*node.op, args, node.attrs, outputs);
    // An op for which is_same_variable() is true has operands, so args[0] exists.
    if (differentiable && ops::is_same_variable(*node.op) && args[0].tensor.requires_grad()) {
      const Edge edge = autograd::gradient_edge(args[0].tensor);
      autograd::set_history(outputs[0], edge.node, edge.output);
    }
    for (size_t i = 0; i < outputs.size(); ++i) values[static_cast<size_t>(node.outputs[i])] = outputs[i];
    if (made) made(node);
  }
}

}  // namespace rondo::compile
