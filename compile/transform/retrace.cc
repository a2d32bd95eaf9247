#include "rondo/compile/transform/retrace.h"

#include <vector>

#include "rondo/compile/capture/trace.h"
#include "rondo/runtime/autograd/autograd.h"

namespace rondo::compile {

Graph retrace(const Graph& graph, Replace replace) {
  return retrace(graph, replace, [](ValueId output, const Symbols& symbols) { return symbols[output]; });
}

Graph retrace(const Graph& graph, Replace replace,
              absl::FunctionRef<Tensor(ValueId output, const Symbols& symbols)> result) {
  NoGrad off;
  amp::Autocast as_recorded(std::nullopt);  // the recording contains the casts
  Trace trace;
  const DeviceScope device(trace.device);  // where calls without operands run
  RecorderScope record(&trace);
  trace.graph.values.reserve(graph.values.size());
  trace.graph.nodes.reserve(graph.nodes.size());
  Symbols symbols(graph);
  for (ValueId id : graph.inputs) symbols[id] = trace.placeholder(graph.value(id));
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const GraphNode& node = graph.nodes[n];
    std::vector<Tensor> outputs(node.outputs.size());
    trace.origin = &node.origin;
    if (const size_t first = trace.graph.nodes.size(); replace(n, symbols, outputs)) {
      // An error of a part names the line of the original call.
      for (size_t made = first; made < trace.graph.nodes.size(); ++made) trace.graph.nodes[made].where = node.where;
    } else {
      const Tensor none;
      std::vector<TensorArg> args;
      for (ValueId id : node.inputs) args.emplace_back(id == kNoValue ? none : symbols[id], node.where);
      call(*node.op, args, node.attrs, outputs);
    }
    for (size_t i = 0; i < outputs.size(); ++i) symbols[node.outputs[i]] = outputs[i];
  }
  std::vector<Tensor> results;  // keeps all results alive until the last one is recorded
  for (ValueId id : graph.outputs) results.push_back(result(id, symbols));
  for (const Tensor& tensor : results) trace.graph.outputs.push_back(trace.value_of(tensor));
  invariant(trace.graph.inputs.size() == graph.inputs.size(), "a pass brought in a tensor of its own");
  // Only the inputs keep requires_grad.
  return std::move(trace.graph);
}

}  // namespace rondo::compile
