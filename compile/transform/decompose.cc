// Runs decompositions on symbolic tensors. The results keep the original's inputs and outputs in number and order.
#include <algorithm>

#include "rondo/compile/capture/trace.h"
#include "rondo/compile/transform/passes.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/ops/reduction_def.h"

namespace rondo::compile {

namespace {

// Without elements there is nothing to fuse, and the parts may be stricter than the whole: the maximum of nothing is an
// error.
bool is_empty(const Graph& graph, const GraphNode& node) {
  for (const ValueIds* list : {&node.inputs, &node.outputs})
    for (ValueId id : *list)
      if (id != kNoValue && graph.value(id).sizes.numel() == 0) return true;
  return false;
}

// Kernels reduce one run of dimensions, or the rows of a full reduction: ops/reduction_order.h.
bool has_steps(const Graph& graph, const GraphNode& node) {
  if (node.op->kind != OpKind::kReduction) return false;
  const Value& input = graph.value(node.inputs[0]);
  return !ops::last_run(input.sizes, node.attrs.ints[0]).is_all ||
         (is_floating(input.dtype) && ops::reduces_rows_first(input.sizes, node.attrs));
}

bool has_parts(const Graph& graph, const GraphNode& node) {
  return node.op->decompose != nullptr && node.op->fuse_parts &&
         (node.op->lower == nullptr || has_steps(graph, node)) && node.op->kind != OpKind::kContraction &&
         !is_empty(graph, node);
}

std::optional<Graph> decompose_once(const Graph& graph) {
  if (std::none_of(graph.nodes.begin(), graph.nodes.end(),
                   [&](const GraphNode& node) { return has_parts(graph, node); }))
    return std::nullopt;
  NoGrad off;
  amp::Autocast as_recorded(std::nullopt);  // casts are in the recording already
  Trace trace;
  const DeviceScope device(trace.device);  // where calls without operands go
  RecorderScope record(&trace);
  trace.graph.values.reserve(graph.values.size());
  trace.graph.nodes.reserve(graph.nodes.size());
  ValueMap<Tensor> symbols(graph);
  auto symbol = [&](ValueId id) { return id == kNoValue ? Tensor() : symbols[id]; };
  for (ValueId id : graph.inputs) symbols[id] = trace.placeholder(graph.value(id));
  for (const GraphNode& node : graph.nodes) {
    std::vector<Tensor> inputs, outputs(node.outputs.size());
    for (ValueId id : node.inputs) inputs.push_back(symbol(id));
    trace.origin = &node.origin;
    if (has_parts(graph, node)) {
      const size_t first = trace.graph.nodes.size();
      node.op->decompose(inputs, node.attrs, outputs);
      // An error of a part is one of the call.
      for (size_t n = first; n < trace.graph.nodes.size(); ++n) trace.graph.nodes[n].where = node.where;
    } else {
      std::vector<TensorArg> args;
      for (const Tensor& input : inputs) args.emplace_back(input, node.where);
      call(*node.op, args, node.attrs, outputs);
    }
    for (size_t i = 0; i < outputs.size(); ++i) symbols[node.outputs[i]] = outputs[i];
  }
  for (ValueId id : graph.outputs) trace.graph.outputs.push_back(trace.value_of(symbols[id]));
  invariant(trace.graph.inputs.size() == graph.inputs.size(), "a decomposition brought in a tensor of its own");
  // What users asked of gradients stays with the inputs.
  return std::move(trace.graph);
}

}  // namespace

std::optional<Graph> decompose(const Graph& graph) {
  std::optional<Graph> parts = decompose_once(graph);
  // A part may have parts: the reductions of a variance have runs.
  if (parts)
    while (std::optional<Graph> smaller = decompose_once(*parts)) parts = std::move(smaller);
  return parts;
}

}  // namespace rondo::compile
