#include "rondo/compile/exec/floats.h"

#include <algorithm>

namespace rondo::compile {

Floats floats_for(const Plan& plan, const Graph& graph) {
  Floats floats;
  for (const LoweredUnit& unit : plan.kernels)
    for (const Scalar& scalar : unit.scalars)
      if (scalar.kind == Scalar::Kind::kArgument)
        floats.scalars.push_back(graph.node(scalar.node).attrs.floats[static_cast<size_t>(scalar.position)]);
  for (const Launch& launch : plan.launches)
    if (launch.floats >= 0) floats.attrs.push_back(graph.node(launch.op()).attrs);
  return floats;
}

Graph with_floats(const Plan& plan, const Floats& floats) {
  Graph graph = plan.graph;
  size_t next = 0;
  for (const LoweredUnit& unit : plan.kernels)
    for (const Scalar& scalar : unit.scalars)
      if (scalar.kind == Scalar::Kind::kArgument)
        graph.node(scalar.node).attrs.floats[static_cast<size_t>(scalar.position)] = floats.scalars[next++];
  for (const Launch& launch : plan.launches)
    if (launch.floats >= 0) graph.node(launch.op()).attrs = floats.attrs[static_cast<size_t>(launch.floats)];
  return graph;
}

bool same_but_floats(const Graph& a, const Graph& b) {
  const auto same_value = [](const Value& x, const Value& y) {
    return x.dtype == y.dtype && x.requires_grad == y.requires_grad && x.leaf == y.leaf && x.grad_mode == y.grad_mode &&
           x.hidden == y.hidden && x.producer == y.producer && x.root == y.root && x.offset == y.offset &&
           x.sizes == y.sizes && x.strides == y.strides;
  };
  const auto same_node = [](const GraphNode& x, const GraphNode& y) {
    return x.op == y.op && x.inputs == y.inputs && x.outputs == y.outputs && x.attrs.ints == y.attrs.ints &&
           x.attrs.floats.size() == y.attrs.floats.size();
  };
  return a.inputs == b.inputs && a.outputs == b.outputs &&
         std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(), same_node) &&
         std::equal(a.values.begin(), a.values.end(), b.values.begin(), b.values.end(), same_value);
}

}  // namespace rondo::compile
