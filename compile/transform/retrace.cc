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
  amp::Autocast as_recorded(std::nullopt);  // casts are in the recording already
  Trace trace;
  const DeviceScope device(trace.device);  // where calls without operands go
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
      // An error of a part is one of the call.
      for (size_t made = first; made < trace.graph.nodes.size(); ++made) trace.graph.nodes[made].where = node.where;
    } else {
      const Tensor none;
      std::vector<TensorArg> args;
      for (ValueId id : node.inputs) args.emplace_back(id == kNoValue ? none : symbols[id], node.where);
      call(*node.op, args, node.attrs, outputs);
    }
    for (size_t i = 0; i < outputs.size(); ++i) symbols[node.outputs[i]] = outputs[i];
  }
  std::vector<Tensor> results;  // of which each is alive when it is asked for
  for (ValueId id : graph.outputs) results.push_back(result(id, symbols));
  for (const Tensor& tensor : results) trace.graph.outputs.push_back(trace.value_of(tensor));
  invariant(trace.graph.inputs.size() == graph.inputs.size(), "a pass brought in a tensor of its own");
  // What users asked of gradients stays with the inputs.
  return std::move(trace.graph);
}

}  // namespace rondo::compile
