// Runs decompositions on symbolic tensors. The resulting graph has as many inputs and outputs as the original, in
// the same order.
#include <algorithm>

#include "rondo/compile/transform/passes.h"
#include "rondo/compile/transform/retrace.h"
#include "rondo/runtime/ops/reduction_def.h"
#include "rondo/runtime/tensor/memory_order.h"

namespace rondo::compile {

namespace {

// True for nodes without elements. There is nothing to fuse, and the parts may be stricter than the whole: the maximum
// of no elements is an error.
bool is_empty(const Graph& graph, const GraphNode& node) {
  for (const ValueIds* list : {&node.inputs, &node.outputs})
    for (ValueId id : *list)
      if (id != kNoValue && graph.value(id).sizes.numel() == 0) return true;
  return false;
}

// True for reductions that need several steps: kernels reduce one run of dimensions, or the rows of a
// full reduction (ops/reduction_order.h).
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
  return retrace(graph, [&](size_t n, const Symbols& symbols, std::span<Tensor> outputs) {
    const GraphNode& node = graph.nodes[n];
    if (!has_parts(graph, node)) return false;
    std::vector<Tensor> inputs;
    for (ValueId id : node.inputs) inputs.push_back(id == kNoValue ? Tensor() : symbols[id]);
    node.op->decompose(inputs, node.attrs, outputs);
    // The call's result keeps the strides that it had.
    for (size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i].defined()) outputs[i] = with_strides(outputs[i], graph.value(node.outputs[i]).strides);
    return true;
  });
}

}  // namespace

std::optional<Graph> decompose(const Graph& graph) {
  std::optional<Graph> parts = decompose_once(graph);
  // A part may itself decompose: the reductions of a variance may need several steps.
  if (parts)
    while (std::optional<Graph> smaller = decompose_once(*parts)) parts = std::move(smaller);
  return parts;
}

}  // namespace rondo::compile
